"""A loss as the planner sees it: operations worth placing, and cuts between them.

Reads: a `Graph` and the inputs to differentiate. Gives: a `RematGraph`, whose segments
can be costed and run.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import (
    Graph,
    JaxprEqn,
    Var,
    bytes_of,
    flops_of,
    has_convolution,
    is_heavy,
    trace,
    variables,
)

# Done again wherever the result is wanted, if all they read is arguments: slices and
# casts of weights, masks, index grids. To keep them would cost bytes and save nothing.
_CHEAP = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "dynamic_slice",
        "expand_dims",
        "iota",
        "reshape",
        "rev",
        "slice",
        "squeeze",
        "stop_gradient",
        "transpose",
    }
)
# More cuts than this make planning slow and plans no better.
_MOST_CUTS = 112
# In a run of operations without a product, one cut for so many.
_RUN = 8


@dataclasses.dataclass(frozen=True, eq=False)
class RematGraph:
    """A loss split into what is free to do again and what is not.

    Attributes:
        graph: the whole program; a loss is its first output.
        wanted: the arguments to differentiate, in the order of the gradients.
        ends: how many of the first outputs gradients come from.
        active: variables through which gradients flow.
        free: operations done again wherever they are wanted, by what they make.
        eqns: all other operations, in order; segments are ranges of these.
        scratch: bytes that an operation holds inside while its backward pass runs, by
            the first variable that it makes; none if it is not there.
        known: what was found out about this loss's operations before, however its
            scans and conds are treated; see `_needs.py` and `_rewrite.py`.
    """

    graph: Graph
    wanted: tuple[Var, ...]
    ends: int
    active: frozenset[Var]
    free: dict[Var, JaxprEqn]
    eqns: tuple[JaxprEqn, ...]
    scratch: dict[Var, int]
    known: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def defined_at(self) -> dict[Var, int]:
        """Which of `eqns` makes each variable that may have to be kept."""
        return {v: i for i, e in enumerate(self.eqns) for v in e.outvars}

    @functools.cached_property
    def last_use(self) -> dict[Var, int]:
        """Which of `eqns` reads each variable last; `len(eqns)` for results."""
        used = {v: i for i, e in enumerate(self.eqns) for v in self.kept(e.invars)}
        return used | dict.fromkeys(self.kept(self.graph.outputs), len(self.eqns))

    def kept(self, atoms: Iterable[Any]) -> list[Var]:
        """Those of `atoms` that some earlier operation made and that cost bytes."""
        return [v for v in variables(atoms) if v in self.defined_at]

    def with_free(self, eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
        """These operations, after the free ones that they want."""
        before: dict[int, JaxprEqn] = {}
        pending = [v for e in eqns for v in e.invars]
        while pending:
            for e in [
                self.free[v] for v in variables([pending.pop()]) if v in self.free
            ]:
                before[self.graph.defined_at[e.outvars[0]]] = e
                pending += e.invars
        return [before[i] for i in sorted(before)] + list(eqns)

    @functools.cached_property
    def cuts(self) -> tuple[int, ...]:
        """Places between two of `eqns` where a segment may end, both ends included.

        After each matrix product or convolution, since from there what follows can
        often be done again without it; and where fewest bytes cross, every so often.
        """
        crossing = self.crossing_bytes(active_only=False)
        heavy = [i for i, e in enumerate(self.eqns) if is_heavy(e) or _loops(e)]
        edges = sorted({0, *(i + 1 for i in heavy), len(self.eqns)})
        marks = sorted({*edges, *range(0, len(self.eqns), _RUN)})
        # The first such place and the last, which may be just before a product: what
        # that reads can then be kept instead of what it was made from.
        narrow = {
            min(places, key=lambda p: crossing[p])
            for a, b in itertools.pairwise(marks)
            for places in (range(a, b), range(b - 1, a - 1, -1))
        }
        places = sorted({*edges, *narrow} - {0, len(self.eqns)})
        while len(places) > _MOST_CUTS:
            # Of two neighbours the wider goes, where least is computed between them.
            work = list(itertools.accumulate(map(flops_of, self.eqns), initial=0))
            gap = [work[q] - work[p] for p, q in itertools.pairwise(places)]
            i = min(range(len(gap)), key=gap.__getitem__)
            del places[i if crossing[places[i]] > crossing[places[i + 1]] else i + 1]
        return (0, *places, len(self.eqns))

    @functools.cached_property
    def turning_bytes(self) -> list[int]:
        """Bytes of gradients there while the backward pass of each of `eqns` runs.

        Those of all that is read after it, and those that it makes; an elementwise
        one writes over what it reads.
        """
        pending = self.crossing_bytes(active_only=True)
        found: list[int] = []
        for i, e in enumerate(self.eqns):
            new = sum(bytes_of(v) for v in {*self.kept(e.invars)} & self.active)
            old = 0 if is_heavy(e) else sum(map(bytes_of, e.outvars))
            scratch = sum(self.scratch.get(v, 0) for v in e.outvars)
            if has_convolution(e):
                # XLA turns data and gradient round before it convolves them.
                scratch += bytes_of(e.invars[0]) + sum(map(bytes_of, e.outvars))
            found.append(pending[i + 1] + max(new - old, 0) + scratch)
        return found

    def crossing_bytes(self, *, active_only: bool) -> list[int]:
        """Bytes made before each place between two operations and read after it."""
        change = [0] * (len(self.eqns) + 2)
        for v, made in self.defined_at.items():
            if v in self.last_use and (v in self.active or not active_only):
                change[made + 1] += bytes_of(v)
                change[self.last_use[v] + 1] -= bytes_of(v)
        total, found = 0, []
        for c in change[:-1]:
            total += c
            found.append(total)
        return found


def trace_loss(
    loss: Callable[..., Any],
    args: Sequence[Any],
    argnums: int | tuple[int, ...],
    *,
    has_aux: bool,
) -> RematGraph:
    """Trace a loss and sort its operations.

    Raises:
        TypeError: it cannot be traced, does not return one real number (and one
            thing more if `has_aux`), or is to be differentiated by whole numbers.
    """
    try:
        graph = trace(loss, args)
    except jax.errors.ConcretizationTypeError as e:
        raise TypeError(
            "this loss cannot be planned, since it cannot be traced: its Python code "
            f"depends on the values of arrays. {str(e).splitlines()[0]}"
        ) from e
    _check_outputs(graph, has_aux=has_aux)
    positions = (argnums,) if isinstance(argnums, int) else argnums
    counts = [len(jax.tree.leaves(a)) for a in args]
    starts = [sum(counts[:i]) for i in range(len(args))]
    wanted = tuple(
        v for n in positions for v in graph.args[starts[n] : starts[n] + counts[n]]
    )
    for v in wanted:
        if not is_inexact(v):
            raise TypeError(
                f"argument {argnums} holds {v.aval.str_short()}, which has no "
                "gradient; choose other `argnums`, or make it floating-point."
            )
    return prepare_graph(graph, wanted, 1, {})


def prepare_graph(
    graph: Graph,
    wanted: tuple[Var, ...],
    ends: int,
    scratch: dict[Var, int],
    known: dict[Any, Any] | None = None,
) -> RematGraph:
    """The body of this program: what is free to do again, and what is not."""
    active = active_variables(graph, wanted, graph.outputs[:ends])
    free: dict[Var, JaxprEqn] = {}
    rest: list[JaxprEqn] = []
    source, results = set(graph.inputs), set(variables(graph.outputs))
    for e in graph.eqns:
        cheap = e.primitive.name in _CHEAP and set(variables(e.invars)) <= source
        if cheap and not results & set(e.outvars):
            free |= dict.fromkeys(e.outvars, e)
            source |= set(e.outvars)
        else:
            rest.append(e)
    known = {} if known is None else known
    return RematGraph(graph, wanted, ends, active, free, tuple(rest), scratch, known)


def _check_outputs(graph: Graph, *, has_aux: bool) -> None:
    out = jax.tree.unflatten(graph.out_tree, graph.outputs)
    if has_aux:
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(
                "with has_aux=True the loss must return (number, anything), got "
                f"{graph.out_tree}."
            )
        out = out[0]
    first = graph.outputs[0] if graph.outputs else None
    number = first is not None and out is first and out.aval.shape == ()
    if not number or not jnp.issubdtype(out.aval.dtype, jnp.floating):
        alone = first is not None and out is first
        shown = out.aval.str_short() if alone else graph.out_tree
        raise TypeError(
            f"the loss must return one real number, got {shown}; if it returns more, "
            "set has_aux=True."
        )


def _loops(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in ("scan", "while")


def active_variables(
    graph: Graph, inputs: Sequence[Var], ends: Sequence[Any]
) -> frozenset[Var]:
    """The variables through which gradients of `ends` reach `inputs`.

    Whole numbers, booleans and random keys stop a gradient. What leads to other results
    only, such as sums for a log, has none.
    """
    moving = [e for e in graph.eqns if e.primitive.name != "stop_gradient"]
    active = {v for v in inputs if is_inexact(v)}
    for eqn in moving:
        if any(v in active for v in variables(eqn.invars)):
            active |= {v for v in eqn.outvars if is_inexact(v)}
    turned = set(variables(ends))
    for eqn in reversed(moving):
        if turned & set(eqn.outvars):
            turned |= set(variables(eqn.invars))
    return frozenset(active & turned)


def is_inexact(var: Any) -> bool:
    """Whether gradients can flow through this variable."""
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)
