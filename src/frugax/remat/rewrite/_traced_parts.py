"""Cache the traces of a loss's equal parts, such as layers, within and across plans.

To trace a layer's gradients costs far more than to write the traced operations down
again, and a search traces every layer in each plan that it compiles.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from frugax.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun


class TracedParts:
    """The programs that were traced for parts of a loss."""

    def __init__(self) -> None:
        self._programs: dict[Any, tuple[ClosedJaxpr, Any]] = {}
        self._kinds: dict[Any, int] = {}
        # The operations are stored as well, so that no other object gets their ids.
        self._kind_of: dict[int, tuple[int, JaxprEqn]] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def call(self, key: Any, fn: Callable[..., Any], *args: Any) -> Any:
        """`fn(*args)`, traced the first time that this key and these shapes occur.

        Args:
            key: tells apart the computations of the functions.
            fn: a function of pytrees of arrays that closes over no tracer.
            args: its arguments.
        """
        leaves, tree = jax.tree.flatten(args)
        key = key, tuple(map(jax.typeof, leaves))
        if key not in self._programs:
            found: list[Any] = []

            def flat(*leaves: Any) -> list[Any]:
                outs, out_tree = jax.tree.flatten(fn(*jax.tree.unflatten(tree, leaves)))
                found[:] = [out_tree]
                return outs

            self._programs[key] = jax.make_jaxpr(flat)(*leaves), found[0]
        program, out_tree = self._programs[key]
        return jax.tree.unflatten(out_tree, jaxpr_as_fun(program)(*leaves))

    def describe(self, eqns: Sequence[JaxprEqn], number: Mapping[Var, int]) -> Any:
        """A key for these operations: equal if they do the same, in the same lines.

        Args:
            eqns: the operations.
            number: names for the variables that they read and define.
        """
        read = lambda v: _literal(v) if isinstance(v, Literal) else number[v]
        return tuple((self._kind(e), *map(read, e.invars)) for e in eqns)

    def _kind(self, eqn: JaxprEqn) -> int:
        if id(eqn) not in self._kind_of:
            kind = _describe(eqn)
            number = self._kinds.setdefault(kind, len(self._kinds))
            self._kind_of[id(eqn)] = number, eqn
        return self._kind_of[id(eqn)][0]


def _describe(eqn: JaxprEqn) -> tuple[Any, ...]:
    """All of an operation besides the names of its inputs and outputs."""
    # The pull-back of a reshape reads nothing, so only the shapes of the inputs tell
    # two reshapes to one shape apart.
    avals = tuple(v.aval for v in (*eqn.invars, *eqn.outvars))
    where = eqn.source_info.traceback, eqn.source_info.name_stack
    return eqn.primitive, _freeze(eqn.params), avals, eqn.ctx, where


def _freeze(value: Any) -> Any:
    """A parameter as something that can be compared; an array by its identity."""
    if isinstance(value, dict):
        return tuple((k, _freeze(value[k])) for k in sorted(value))
    if type(value) in (tuple, list):
        return type(value), tuple(map(_freeze, value))
    # From JAX 0.12 on the two are one class, whose `jaxpr` is itself.
    if isinstance(value, ClosedJaxpr) and value.jaxpr is not value:
        return _freeze(value.jaxpr), tuple(map(id, value.consts))
    if isinstance(value, Jaxpr):
        inputs = [*value.constvars, *value.invars]
        outs = [v for e in value.eqns for v in e.outvars]
        number = {v: i for i, v in enumerate([*inputs, *outs])}
        read = lambda v: _literal(v) if isinstance(v, Literal) else number[v]
        lines = tuple((_describe(e), *map(read, e.invars)) for e in value.eqns)
        consts = tuple(map(id, getattr(value, "consts", ())))
        avals = tuple(v.aval for v in inputs)
        return avals, consts, lines, tuple(map(read, value.outvars))
    if isinstance(value, float):
        return float, repr(value)  # 0.0 is not -0.0
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _literal(atom: Any) -> tuple[Any, ...]:
    value = np.asarray(atom.val)
    return atom.aval, value.dtype.str, value.tobytes()
