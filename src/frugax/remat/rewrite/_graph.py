"""`RematGraph`: a traced loss prepared for planning, with the places to cut it."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

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
    new_source_info,
    shape_of,
    trace,
    variables,
)

from ._active import active_variables, is_inexact
from ._gates import zeros_of
from ._traced_parts import TracedParts

_T = TypeVar("_T")

# An operation of these kinds that reads arguments only is recomputed wherever its
# result is used: slices and casts of weights, masks, index grids. To keep such a result
# would cost bytes and save no flops.
_FREE_KINDS = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "dynamic_slice",
        "expand_dims",
        "iota",
        "pbroadcast",
        "pcast",
        "pvary",
        "reshape",
        "rev",
        "slice",
        "squeeze",
        "stop_gradient",
        "transpose",
    }
)
# The solver's work grows with the cube of the cuts: more of them make planning slow and
# plans no better.
_MAX_CUTS = 112
# Among operations without a product, one cut in this many is enough: whatever stands
# between two cuts costs next to nothing to recompute.
_OPERATIONS_PER_CUT = 8


@dataclasses.dataclass(frozen=True, eq=False)
class RematGraph:
    """A traced program whose operations can be kept or recomputed.

    Attributes:
        graph: the whole program; the first output of a loss is its value.
        wrt: the variables to differentiate, in the order of the gradients.
        num_differentiated: the number of leading outputs that gradients come from.
        active: variables through which gradients flow.
        free: operations that are recomputed wherever they are used, by each variable
            that they define.
        eqns: all other operations, in order; segments are ranges of these.
        scratch_bytes: bytes that an operation holds internally while its backward pass
            runs, by the first variable that it defines; 0 if it is not listed.
        divided: the number of devices over which each axis of an input is divided; of
            inputs that are not listed each device has all.
        max_cuts: the most places inside at which a segment may start or end.
        memo: results about this loss's operations that do not depend on how its scans
            and conds are rewritten.
    """

    graph: Graph
    wrt: tuple[Var, ...]
    num_differentiated: int
    active: frozenset[Var]
    free: dict[Var, JaxprEqn]
    eqns: tuple[JaxprEqn, ...]
    scratch_bytes: dict[Var, int]
    divided: dict[Var, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    max_cuts: int = _MAX_CUTS
    memo: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def remember(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return `make()`, called once for each key."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    @property
    def traced(self) -> TracedParts:
        """The traced parts of this loss."""
        return self.remember("traced", TracedParts)

    @functools.cached_property
    def defined_at(self) -> dict[Var, int]:
        """The index in `eqns` of the operation that defines each intermediate."""
        return {v: i for i, e in enumerate(self.eqns) for v in e.outvars}

    @functools.cached_property
    def last_use(self) -> dict[Var, int]:
        """The index in `eqns` of each intermediate's last reader.

        Results of the program are read at `len(eqns)`.
        """
        used = {
            v: i for i, e in enumerate(self.eqns) for v in self.intermediates(e.invars)
        }
        results = self.intermediates(self.graph.outputs)
        return used | dict.fromkeys(results, len(self.eqns))

    def intermediates(self, atoms: Iterable[Any]) -> list[Var]:
        """Those of `atoms` that one of `eqns` defines, and that cost bytes to keep."""
        return [v for v in variables(atoms) if v in self.defined_at]

    def include_free(self, eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
        """These operations, preceded by the free operations whose results they read."""
        before: dict[int, JaxprEqn] = {}
        pending = variables(v for e in eqns for v in e.invars)
        while pending:
            if (e := self.free.get(pending.pop())) is not None:
                before[self.graph.defined_at[e.outvars[0]]] = e
                pending += variables(e.invars)
        return [before[i] for i in sorted(before)] + list(eqns)

    @functools.cached_property
    def cuts(self) -> tuple[int, ...]:
        """Indices of `eqns` at which a segment may start or end, both ends included.

        They follow each matrix product, convolution or loop, because the operations
        after it can often be recomputed without it; and they stand where few bytes
        cross.
        """
        crossing = self.crossing_bytes(active_only=False)
        heavy = [i for i, e in enumerate(self.eqns) if is_heavy(e) or _is_loop(e)]
        edges = sorted({0, *(i + 1 for i in heavy), len(self.eqns)})
        marks = sorted({*edges, *range(0, len(self.eqns), _OPERATIONS_PER_CUT)})
        # The first of the narrowest places and the last, which may stand just before a
        # product: then the operand of the product can be kept instead of its sources.
        narrow = {
            min(places, key=lambda p: crossing[p])
            for a, b in itertools.pairwise(marks)
            for places in (range(a, b), range(b - 1, a - 1, -1))
        }
        places = sorted({*edges, *narrow} - {0, len(self.eqns)})
        work = list(itertools.accumulate(map(flops_of, self.eqns), initial=0))
        while len(places) > self.max_cuts:
            # Of the two neighbours with the least work between them, drop the wider.
            gap = [work[q] - work[p] for p, q in itertools.pairwise(places)]
            i = min(range(len(gap)), key=gap.__getitem__)
            del places[i + (crossing[places[i]] <= crossing[places[i + 1]])]
        return (0, *places, len(self.eqns))

    @functools.cached_property
    def gradient_bytes(self) -> list[int]:
        """Bytes of gradients held while the backward pass of each of `eqns` runs.

        These are the gradients of all intermediates that are read later, and those that
        the backward pass of the operation itself writes.
        """
        pending = self.crossing_bytes(active_only=True)
        found: list[int] = []
        for i, e in enumerate(self.eqns):
            new = sum(
                bytes_of(v) for v in {*self.intermediates(e.invars)} & self.active
            )
            if not is_heavy(e):
                # XLA lets an elementwise operation write over the gradient it reads.
                new = max(new - sum(map(bytes_of, e.outvars)), 0)
            scratch = sum(self.scratch_bytes.get(v, 0) for v in e.outvars)
            if has_convolution(e):
                # XLA transposes the data and the gradient before it convolves them.
                scratch += bytes_of(e.invars[0]) + sum(map(bytes_of, e.outvars))
            found.append(pending[i + 1] + new + scratch)
        return found

    def crossing_bytes(self, *, active_only: bool) -> list[int]:
        """Bytes defined before and read after each place between two operations."""
        change = [0] * (len(self.eqns) + 2)
        for v, start in self.defined_at.items():
            if v in self.last_use and (v in self.active or not active_only):
                # Differences, which are summed up once below: the work is linear.
                change[start + 1] += bytes_of(v)
                change[self.last_use[v] + 1] -= bytes_of(v)
        return list(itertools.accumulate(change[:-1]))


def trace_loss(
    loss: Callable[..., Any],
    args: Sequence[Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    with_places: bool = True,
) -> RematGraph:
    """Trace a loss and prepare it for planning.

    Args:
        loss: as for `plan`, and so are the next ones.
        args: arguments of the loss, or their shapes.
        argnums: which of them to differentiate.
        has_aux: whether the loss returns (number, anything).
        with_places: whether operations know the lines that they come from. Without
            them, layers that were written in several lines count as equal.

    Raises:
        TypeError: the loss cannot be traced, returns something else than a real number,
            or is to be differentiated with respect to integers.
    """
    try:
        graph = trace(loss, args)
    except jax.errors.ConcretizationTypeError as e:
        raise TypeError(
            "this loss cannot be planned because it cannot be traced: its Python code "
            f"depends on the values of arrays. {str(e).splitlines()[0]}"
        ) from e
    _check_outputs(graph, has_aux=has_aux)
    if not with_places:
        nowhere = new_source_info()
        eqns = tuple(e.replace(source_info=nowhere) for e in graph.eqns)
        graph = dataclasses.replace(graph, eqns=eqns)
    if isinstance(argnums, int):
        argnums = (argnums,)
    counts = [len(jax.tree.leaves(a)) for a in args]
    starts = [sum(counts[:i]) for i in range(len(args))]
    wrt = tuple(
        v for n in argnums for v in graph.args[starts[n] : starts[n] + counts[n]]
    )
    for v in wrt:
        if not is_inexact(v):
            raise TypeError(
                f"the arguments {argnums} hold {v.aval.str_short()}, which has no "
                "gradient; choose other `argnums`, or make it floating-point."
            )
    return prepare_graph(graph, wrt, 1, {})


def prepare_graph(
    graph: Graph,
    wrt: tuple[Var, ...],
    num_differentiated: int,
    scratch_bytes: dict[Var, int],
    memo: dict[Any, Any] | None = None,
) -> RematGraph:
    """Sort the operations of a graph into free ones and those worth a decision."""
    active = active_variables(graph, wrt, graph.outputs[:num_differentiated])
    free: dict[Var, JaxprEqn] = {}
    rest: list[JaxprEqn] = []
    from_inputs, results = set(graph.inputs), set(variables(graph.outputs))
    for e in graph.eqns:
        reads_inputs = set(variables(e.invars)) <= from_inputs
        is_result = bool(results & set(e.outvars))
        if e.primitive.name in _FREE_KINDS and reads_inputs and not is_result:
            free |= dict.fromkeys(e.outvars, e)
            from_inputs |= set(e.outvars)
        else:
            rest.append(e)
    return RematGraph(
        graph,
        wrt,
        num_differentiated,
        active,
        free,
        tuple(rest),
        scratch_bytes,
        # Not `memo or {}`: an empty memo that was passed in must stay shared.
        memo={} if memo is None else memo,
    )


class Splice(NamedTuple):
    """Operations to insert into a graph.

    Attributes:
        operations: the operations, with the values that they close over.
        reads: the variables of the graph that are their arguments.
        replaces: the variables of the graph that their results take the place of.
    """

    operations: Graph
    reads: Sequence[Any]
    replaces: Sequence[Var]


def splice(graph: Graph, at: Mapping[int, Sequence[Splice]]) -> Graph:
    """The same program with other operations before some, or in their place.

    Args:
        graph: the program.
        at: what to insert, by the position of an operation; that one is left out if all
            of its results are replaced.
    """
    eqns: list[JaxprEqn] = []
    consts, values = list(graph.consts), list(graph.const_values)
    renamed: dict[Var, Any] = {}
    for i, eqn in enumerate(graph.eqns):
        new: dict[Var, Any] = {}
        for inner, reads, replaces in at.get(i, ()):
            local = dict(zip(inner.args, _substitute(renamed, reads), strict=True))
            eqns += [e.replace(invars=_substitute(local, e.invars)) for e in inner.eqns]
            consts += inner.consts
            values += inner.const_values
            new |= zip(replaces, _substitute(local, inner.outputs), strict=True)
        renamed |= new
        # An operation without results, such as a print, stays.
        if not eqn.outvars or not new.keys() >= {*eqn.outvars}:
            eqns.append(eqn.replace(invars=_substitute(renamed, eqn.invars)))
    return dataclasses.replace(
        graph,
        eqns=tuple(eqns),
        consts=tuple(consts),
        const_values=tuple(values),
        outputs=tuple(_substitute(renamed, graph.outputs)),
    )


def _substitute(names: Mapping[Var, Any], atoms: Sequence[Any]) -> list[Any]:
    return [names.get(v, v) if variables([v]) else v for v in atoms]


def replace_operations(
    body: RematGraph, run: Callable[[dict[Var, Any]], None]
) -> RematGraph:
    """The same program, whose operations are those that `run` traces.

    Args:
        body: the program.
        run: adds the values of its results, and of any other variables, to a dict that
            holds those of its inputs.
    """
    graph = body.graph

    def rewritten(*args: Any) -> list[Any]:
        env = dict(zip(graph.inputs, args, strict=True))
        run(env)
        return graph.read_outputs(env)

    new = trace(rewritten, list(map(shape_of, graph.inputs)))
    count, own = len(graph.consts), len(new.consts)
    new = dataclasses.replace(
        new,
        consts=(*new.consts, *new.args[:count]),
        args=new.args[count:],
        const_values=(*new.const_values, *graph.const_values),
        out_tree=graph.out_tree,
    )
    places = dict(zip(graph.inputs, [*new.consts[own:], *new.args], strict=True))
    wrt = tuple(places[v] for v in body.wrt)
    return prepare_graph(new, wrt, body.num_differentiated, {})


def accumulator(v: Var) -> Any:
    """Zeros to which values like this one are added."""
    return zeros_of(shape_of(v), accumulator_type(v))


def accumulator_type(v: Var) -> Any:
    """The type in which values like this one are added."""
    # Sums of many terms lose their last digits in half precision.
    dtype = shape_of(v).dtype
    is_half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype("float32") if is_half else dtype


def _check_outputs(graph: Graph, *, has_aux: bool) -> None:
    out = jax.tree.unflatten(graph.out_tree, graph.outputs)
    if has_aux:
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(
                "with has_aux=True the loss must return (number, anything), got "
                f"{graph.out_tree}."
            )
        out = out[0]
    is_array = bool(graph.outputs) and out is graph.outputs[0]
    if (
        is_array
        and out.aval.shape == ()
        and jnp.issubdtype(out.aval.dtype, jnp.floating)
    ):
        return
    returned = out.aval.str_short() if is_array else graph.out_tree
    raise TypeError(
        f"the loss must return one real number, got {returned}; if it returns more, "
        "set has_aux=True."
    )


def _is_loop(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in ("scan", "while")
