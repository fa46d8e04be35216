"""A traced program as one flat list of operations, that can be cut and run in parts.

Reads: a function and example arguments. Gives: a `Graph`, in which calls of jitted
functions are opened up, so that a cut can go through them.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from ._jax_internals import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    fresh_var,
    jaxpr_as_fun,
)

# Calls that only wrap their body: opening them changes nothing but the layout.
_WRAPPERS = ("jit", "pjit", "closed_call", "core_call")


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """One traced program, flat and in the order in which it was written.

    Attributes:
        eqns: the operations; each reads and writes variables.
        consts: variables for the values that the function closed over.
        args: variables for its arguments, flattened.
        outputs: what it returns, flattened: variables or literals.
        const_values: the values of `consts`: arrays, or tracers under `jit`.
        out_tree: how to put the outputs together again.
        template: the traced program that the parts are made from.
    """

    eqns: tuple[JaxprEqn, ...]
    consts: tuple[Var, ...]
    args: tuple[Var, ...]
    outputs: tuple[Any, ...]
    const_values: tuple[Any, ...]
    out_tree: Any
    template: Jaxpr

    @property
    def inputs(self) -> tuple[Var, ...]:
        """Everything that is there before the first operation."""
        return self.consts + self.args

    @functools.cached_property
    def defined_at(self) -> dict[Var, int]:
        """The position of the operation that makes each variable; -1 for inputs."""
        made = {v: -1 for v in self.inputs}
        for i, eqn in enumerate(self.eqns):
            made |= dict.fromkeys(eqn.outvars, i)
        return made

    @functools.cached_property
    def last_use(self) -> dict[Var, int]:
        """The position of the last operation that reads each variable.

        What the program returns counts as read after the last one.
        """
        used: dict[Var, int] = {}
        for i, eqn in enumerate(self.eqns):
            used |= dict.fromkeys(variables(eqn.invars), i)
        return used | dict.fromkeys(variables(self.outputs), len(self.eqns))

    @property
    def jaxpr(self) -> Jaxpr:
        """The whole program; the values it closed over are its first arguments."""
        return self._part(self.eqns, self.inputs, self.outputs)

    def run(
        self, eqns: Sequence[JaxprEqn], inputs: Sequence[Var], outputs: Sequence[Var]
    ) -> Callable[..., list[Any]]:
        """A function that computes `outputs` from `inputs` by these operations."""
        return jaxpr_as_fun(ClosedJaxpr(self._part(eqns, inputs, outputs), ()))

    def _part(
        self, eqns: Sequence[JaxprEqn], inputs: Sequence[Var], outputs: Sequence[Any]
    ) -> Jaxpr:
        return self.template.replace(
            constvars=[],
            invars=list(inputs),
            outvars=list(outputs),
            eqns=list(eqns),
            effects=frozenset().union(*(e.effects for e in eqns)),
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Names this program: same operations, shapes and wiring, same fingerprint.

        It holds across processes. Parameters of operations, such as which axes are
        summed, are told apart only by the shapes that they lead to.
        """
        number: dict[Any, int] = {v: i for i, v in enumerate(self.inputs)}
        place = lambda atoms: [
            -1 if isinstance(v, Literal) else number[v] for v in atoms
        ]
        # Weak types are left out: a Python number and an array share a plan.
        kinds = lambda atoms: [
            (getattr(v.aval, "shape", ()), str(getattr(v.aval, "dtype", v.aval)))
            for v in atoms
        ]
        said = hashlib.sha256(repr(kinds(self.inputs)).encode())
        for eqn in self.eqns:
            read = place(eqn.invars)
            number |= {v: len(number) + i for i, v in enumerate(eqn.outvars)}
            what = eqn.primitive.name, read, kinds(eqn.outvars)
            said.update(repr(what).encode())
        said.update(repr(place(self.outputs)).encode())
        return said.hexdigest()[:16]


def trace(fn: Callable[..., Any], args: Sequence[Any]) -> Graph:
    """Trace `fn` on `args` into one flat graph.

    Args:
        fn: a function of arrays and pytrees of arrays.
        args: its arguments; arrays or `jax.ShapeDtypeStruct`, only shapes are read.

    Example:
        >>> import jax.numpy as jnp
        >>> graph = trace(lambda x: jax.jit(jnp.sin)(x) + 1, (jnp.ones(3),))
        >>> [str(e.primitive) for e in graph.eqns]
        ['sin', 'add']
    """
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
    eqns: list[JaxprEqn] = []
    consts = [fresh_var(v.aval) for v in closed.jaxpr.constvars]
    values = list(closed.consts)
    inputs = [fresh_var(v.aval) for v in closed.jaxpr.invars]

    def inline(jaxpr: Jaxpr, given: Sequence[Any]) -> list[Any]:
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))
        read = lambda v: v if isinstance(v, Literal) else env[v]
        for eqn in jaxpr.eqns:
            invars = [read(v) for v in eqn.invars]
            if _only_wraps(eqn):
                body = eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]
                held = [fresh_var(v.aval) for v in body.jaxpr.constvars]
                consts.extend(held)
                values.extend(body.consts)
                outs = inline(body.jaxpr, held + invars)
                env |= dict(zip(eqn.outvars, outs, strict=True))
                continue
            outvars = [fresh_var(v.aval) for v in eqn.outvars]
            env |= dict(zip(eqn.outvars, outvars, strict=True))
            eqns.append(eqn.replace(invars=invars, outvars=outvars))
        return [read(v) for v in jaxpr.outvars]

    outputs = inline(closed.jaxpr, consts[:] + inputs)
    return Graph(
        eqns=tuple(eqns),
        consts=tuple(consts),
        args=tuple(inputs),
        outputs=tuple(outputs),
        const_values=tuple(values),
        out_tree=jax.tree.structure(shapes),
        template=closed.jaxpr,
    )


def variables(atoms: Iterable[Any]) -> list[Var]:
    """Those of `atoms` that are variables, not literals."""
    return [v for v in atoms if not isinstance(v, Literal)]


def bytes_of(var: Any) -> int:
    """Bytes of one variable; 0 for what holds no numbers, such as tokens."""
    aval = var.aval
    return _bytes(aval.shape, aval.dtype) if hasattr(aval, "shape") else 0


@functools.cache
def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    # A planner asks this millions of times, of few shapes.
    return math.prod(shape) * dtype.itemsize


def shape_of(var: Any) -> jax.ShapeDtypeStruct:
    """The shape and type of one variable."""
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)


def _only_wraps(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name not in _WRAPPERS:
        return False
    shardings = [
        *eqn.params.get("in_shardings", ()),
        *eqn.params.get("out_shardings", ()),
    ]
    body = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return isinstance(body, ClosedJaxpr) and all(
        type(s).__name__ == "UnspecifiedValue" for s in shardings
    )
