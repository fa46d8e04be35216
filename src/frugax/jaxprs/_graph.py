"""`trace`: a function as one flat graph of JAX operations that can be cut and run.

Calls of jitted functions are inlined, so that a cut can go through them.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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

# Calls that only wrap their body: inlining them changes no result.
_WRAPPERS = ("jit", "pjit", "closed_call", "core_call")
# Inside of `shard_map` these mark values as different on each device. A plan that was
# made outside of it knows nothing of them, so they do not count as operations.
MARKS = ("pbroadcast", "pcast", "pvary")


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """One traced program, flat and in the order in which it was written.

    Attributes:
        eqns: the operations; each reads and writes variables.
        consts: variables for the values that the function closes over.
        args: variables for its arguments, flattened.
        outputs: its results, flattened: variables or literals.
        const_values: the values of `consts`: arrays, or tracers under `jit`.
        out_tree: the tree structure of the results.
        template: the traced program that parts are derived from.
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
        """All variables that have values before the first operation."""
        return self.consts + self.args

    @functools.cached_property
    def defined_at(self) -> dict[Var, int]:
        """The position of the operation that defines each variable; -1 for inputs."""
        defined = {v: -1 for v in self.inputs}
        for i, eqn in enumerate(self.eqns):
            defined |= dict.fromkeys(eqn.outvars, i)
        return defined

    @functools.cached_property
    def last_use(self) -> dict[Var, int]:
        """The position of the last operation that reads each variable.

        Results of the program count as read after the last one.
        """
        used: dict[Var, int] = {}
        for i, eqn in enumerate(self.eqns):
            used |= dict.fromkeys(variables(eqn.invars), i)
        return used | dict.fromkeys(variables(self.outputs), len(self.eqns))

    @functools.cached_property
    def numbered(self) -> tuple[int, ...]:
        """The positions of the operations that plans number, inside `shard_map` too."""
        return tuple(
            i for i, e in enumerate(self.eqns) if e.primitive.name not in MARKS
        )

    @property
    def jaxpr(self) -> Jaxpr:
        """The whole program, with the values that it closes over as first arguments."""
        return self._part(self.eqns, self.inputs, self.outputs)

    def run(
        self, eqns: Sequence[JaxprEqn], inputs: Sequence[Var], outputs: Sequence[Var]
    ) -> Callable[..., list[Any]]:
        """A function that computes `outputs` from `inputs` by these operations."""
        return jaxpr_as_fun(ClosedJaxpr(self._part(eqns, inputs, outputs), ()))

    def read_outputs(self, env: Mapping[Var, Any]) -> list[Any]:
        """The values of the outputs, from the values of variables."""
        return [env[v] if variables([v]) else v.val for v in self.outputs]

    def _part(
        self, eqns: Sequence[JaxprEqn], inputs: Sequence[Var], outputs: Sequence[Any]
    ) -> Jaxpr:
        return self.template.replace(
            constvars=[],
            invars=list(inputs),
            outvars=list(outputs),
            eqns=list(eqns),
            # The template's effects would claim prints and callbacks that this part
            # lacks.
            effects=frozenset().union(*(e.effects for e in eqns)),
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifies this program by its operations, shapes and wiring.

        It is the same in every process. Parameters of operations, such as the axes of a
        sum, only count through the shapes that they lead to.
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
        digest = hashlib.sha256(repr(kinds(self.inputs)).encode())
        count = len(number)
        for eqn in self.eqns:
            read = place(eqn.invars)
            if eqn.primitive.name in MARKS:
                number |= zip(eqn.outvars, read, strict=True)
                continue
            number |= {v: count + i for i, v in enumerate(eqn.outvars)}
            count += len(eqn.outvars)
            what = eqn.primitive.name, read, kinds(eqn.outvars)
            digest.update(repr(what).encode())
        digest.update(repr(place(self.outputs)).encode())
        # 64 bits: a plan is compared with one program at a time, so a chance collision
        # is out of the question.
        return digest.hexdigest()[:16]


def trace(fn: Callable[..., Any], args: Sequence[Any]) -> Graph:
    """Trace `fn` on `args` into one flat graph.

    Args:
        fn: a function of arrays and pytrees of arrays.
        args: its arguments; arrays or `jax.ShapeDtypeStruct`. Only shapes are read.

    Example:
        >>> import jax.numpy as jnp
        >>> graph = trace(lambda x: jax.jit(jnp.sin)(x) + 1, (jnp.ones(3),))
        >>> [str(e.primitive) for e in graph.eqns]
        ['sin', 'add']
    """
    traced, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
    return flatten(traced, jax.tree.structure(shapes))


def flatten(traced: ClosedJaxpr, out_tree: Any = None) -> Graph:
    """The graph of a program that is traced already.

    Args:
        traced: the program.
        out_tree: the tree structure of its results; None leaves them flat.
    """
    eqns: list[JaxprEqn] = []
    consts = [fresh_var(v.aval) for v in traced.jaxpr.constvars]
    values = list(traced.consts)
    inputs = [fresh_var(v.aval) for v in traced.jaxpr.invars]

    def constrain(atoms: list[Any], shardings: Sequence[Any]) -> list[Any]:
        # The shardings of a call are constraints on its arguments and results.
        found = list(atoms)
        for i, s in enumerate(shardings):
            if isinstance(s, jax.sharding.Sharding):
                pin = lambda x, s=s: jax.lax.with_sharding_constraint(x, s)
                (eqn,) = jax.make_jaxpr(pin)(shape_of(atoms[i])).eqns
                found[i] = fresh_var(eqn.outvars[0].aval)
                eqns.append(eqn.replace(invars=[atoms[i]], outvars=[found[i]]))
        return found

    def inline(jaxpr: Jaxpr, atoms: Sequence[Any]) -> list[Any]:
        # Every variable gets a new name: a function that is called twice has the same
        # variables in both calls.
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], atoms, strict=True))
        read = lambda v: v if isinstance(v, Literal) else env[v]
        for eqn in jaxpr.eqns:
            invars = [read(v) for v in eqn.invars]
            if eqn.primitive.name in _WRAPPERS:
                invars = constrain(invars, eqn.params.get("in_shardings", ()))
                body = eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]
                body_consts = [fresh_var(v.aval) for v in body.jaxpr.constvars]
                consts.extend(body_consts)
                values.extend(body.consts)
                outs = inline(body.jaxpr, body_consts + invars)
                outs = constrain(outs, eqn.params.get("out_shardings", ()))
                env |= dict(zip(eqn.outvars, outs, strict=True))
                continue
            outvars = [fresh_var(v.aval) for v in eqn.outvars]
            env |= dict(zip(eqn.outvars, outvars, strict=True))
            eqns.append(eqn.replace(invars=invars, outvars=outvars))
        return [read(v) for v in jaxpr.outvars]

    outputs = inline(traced.jaxpr, consts[:] + inputs)
    return Graph(
        eqns=tuple(eqns),
        consts=tuple(consts),
        args=tuple(inputs),
        outputs=tuple(outputs),
        const_values=tuple(values),
        out_tree=out_tree,
        template=traced.jaxpr,
    )


def variables(atoms: Iterable[Any]) -> list[Var]:
    """The variables among `atoms`, without the literals."""
    return [v for v in atoms if not isinstance(v, Literal)]


def bytes_of(var: Any) -> int:
    """Bytes of one variable; 0 for a variable without numbers, such as a token."""
    aval = var.aval
    return _bytes(aval.shape, aval.dtype) if hasattr(aval, "shape") else 0


@functools.cache
def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    # The planner calls this millions of times, for few shapes.
    return math.prod(shape) * dtype.itemsize


def find_dependent(jaxpr: Jaxpr, given: Sequence[bool]) -> list[bool]:
    """Which results of a program depend on some of its inputs.

    Args:
        jaxpr: the program.
        given: for each input, whether it is one of them.
    """
    found = {v for v, is_given in zip(jaxpr.invars, given, strict=True) if is_given}
    depends = lambda v: not isinstance(v, Literal) and v in found
    for eqn in jaxpr.eqns:
        if any(map(depends, eqn.invars)):
            found.update(eqn.outvars)
    return [depends(v) for v in jaxpr.outvars]


def shape_of(var: Any) -> jax.ShapeDtypeStruct:
    """The shape and type of one variable."""
    # The place on a mesh of explicit axes belongs to the type and, inside of
    # `shard_map`, the axes along which it varies. JAX's annotations lack the argument.
    struct: Any = jax.ShapeDtypeStruct
    aval = var.aval
    is_weak = getattr(aval, "weak_type", False)
    sharding = getattr(aval, "sharding", None)
    if sharding is None or not (has_explicit_axes(aval) or sharding.mesh.manual_axes):
        return struct(aval.shape, aval.dtype, weak_type=is_weak)
    axes = aval.mat if sharding.mesh.manual_axes else None
    return struct(
        aval.shape,
        aval.dtype,
        weak_type=is_weak,
        sharding=sharding,
        manual_axis_type=axes,
    )


def has_explicit_axes(aval: Any) -> bool:
    """Whether values of this type lie on a mesh with explicit axes."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and bool(sharding.mesh.explicit_axes)
