"""The least recomputation that any plan could do, exactly, for little programs.

An abstract machine: forward operations, each with flops, one value of some bytes and
the values that it reads; and a backward operation for each, in reverse order, which
reads the cotangent of its value and some forward values, and makes cotangents of what
it read. Memory is what is alive: values, cotangents, and what an operation makes.

`least_recompute` is the integer program of Jain et al. 2020 ("Checkmate", MLSys) on
it. `cost_of` runs one of our own plans on it.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array

from frugax.jaxprs import bytes_of, flops_of, is_heavy
from frugax.remat import Segment
from frugax.remat.rewrite import RematGraph, trace_loss
from frugax.remat.solver import build_parts, find_residuals, list_candidates


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One forward operation, and the values that its backward operation reads.

    Attributes:
        flops: of the forward operation.
        bytes: of the value it makes; its cotangent has as many.
        reads: earlier operations whose values it reads.
        needs: operations whose values its backward operation reads.
        active: whether there is a backward operation.
        in_place: whether that writes over the cotangent that it reads, as elementwise
            ones do.
    """

    flops: int
    bytes: int
    reads: tuple[int, ...]
    needs: tuple[int, ...]
    active: bool = True
    in_place: bool = False


@dataclasses.dataclass(frozen=True)
class Machine:
    """A program as the oracle sees it; its last operation makes the loss."""

    operations: tuple[Operation, ...]

    @property
    def flops(self) -> int:
        """Of one forward pass."""
        return sum(o.flops for o in self.operations)

    @functools.cached_property
    def backward(self) -> tuple[int, ...]:
        """The operations that are differentiated, in the order of the way back."""
        indices = range(len(self.operations) - 1, -1, -1)
        return tuple(i for i in indices if self.operations[i].active)

    @functools.cached_property
    def cotangents(self) -> tuple[tuple[int, int], ...]:
        """Bytes of cotangents before and during each backward operation."""
        alive = {len(self.operations) - 1}
        found = []
        for k in self.backward:
            before = sum(self.operations[v].bytes for v in alive)
            moving = [v for v in self.operations[k].reads if self.operations[v].active]
            made = sum(self.operations[v].bytes for v in moving)
            if self.operations[k].in_place:
                made = max(made - self.operations[k].bytes, 0)
            found.append((before, before + made))
            alive = (alive | set(moving)) - {k}
        return tuple(found)


def machine_of(body: RematGraph) -> Machine:
    """The machine that runs this loss; every operation of it must make one value."""
    needs = dict(
        zip(
            map(id, body.graph.eqns),
            find_residuals(body.graph, body.active),
            strict=True,
        )
    )
    place = body.defined_at
    where = lambda atoms: tuple(sorted({place[v] for v in body.intermediates(atoms)}))
    operations = []
    for e in body.eqns:
        (made,) = e.outvars
        need = needs[id(e)]
        assert not need.hidden_bytes, f"{e.primitive.name} keeps what is no value"
        operations.append(
            Operation(
                flops=flops_of(e),
                bytes=bytes_of(made),
                reads=where(e.invars),
                needs=where(need.variables),
                active=made in body.active,
                in_place=not is_heavy(e),
            )
        )
    return Machine(tuple(operations))


def planned(
    loss: Callable[..., Any], args: Sequence[Any]
) -> tuple[Machine, list[tuple[int, int]]]:
    """The machine for a loss, and (peak bytes, recomputed flops) of our plans on it."""
    body = trace_loss(loss, args)
    machine = machine_of(body)
    plans = [build_parts(c, "cpu").segments for c in list_candidates(body)]
    return machine, [cost_of(machine, schedule_of(machine, p)) for p in plans]


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One operation of a schedule. A copy is one value, made once.

    Attributes:
        operation: which.
        backward: whether it is the backward operation.
        reads: (operation, copy) of the values that it reads.
        makes: the copy that it makes; none if backward.
    """

    operation: int
    backward: bool
    reads: tuple[tuple[int, int], ...]
    makes: int | None


def schedule_of(machine: Machine, segments: Sequence[Segment]) -> list[Step]:
    """The schedule of our executor for a plan: forward, then back by segments."""
    ops = machine.operations
    steps: list[Step] = []
    copies = itertools.count()

    def again(segment: Segment) -> tuple[list[int], set[int]]:
        """Operations recomputed for its backward pass, and values kept for that."""
        inner = segment.nested or [dataclasses.replace(segment, gate=None)]
        wanted: set[int] = set()
        for s in inner:
            wanted |= again(s)[1] if s.gate else _needs(machine, s)
        redone = []
        for i in range(segment.stop - 1, segment.start - 1, -1):
            if i in wanted and i not in segment.kept:
                redone.append(i)
                wanted |= set(ops[i].reads)
        return redone[::-1], wanted - set(redone)

    def forward(which: Iterable[int], copy: dict[int, int]) -> dict[int, int]:
        copy = dict(copy)
        for i in which:
            reads = tuple((v, copy[v]) for v in ops[i].reads)
            copy[i] = next(copies)
            steps.append(Step(i, False, reads, copy[i]))
        return copy

    def turn(segments: Sequence[Segment], copy: dict[int, int]) -> None:
        for s in reversed(segments):
            if s.gate:
                inner = s.nested or [dataclasses.replace(s, gate=None)]
                turn(inner, forward(again(s)[0], copy))
                continue
            for k in range(s.stop - 1, s.start - 1, -1):
                if ops[k].active:
                    reads = tuple((v, copy[v]) for v in ops[k].needs)
                    steps.append(Step(k, True, reads, None))

    turn(segments, forward(range(len(ops)), {}))
    return steps


def _needs(machine: Machine, segment: Segment) -> set[int]:
    within = machine.operations[segment.start : segment.stop]
    return {v for o in within if o.active for v in o.needs}


def cost_of(machine: Machine, steps: Sequence[Step]) -> tuple[int, int]:
    """Peak bytes and recomputed flops; each copy is freed after its last reader."""
    ops = machine.operations
    last: dict[tuple[int, int], int] = {}
    for at, s in enumerate(steps):
        if s.makes is not None:
            last[s.operation, s.makes] = at
        last |= dict.fromkeys(s.reads, at)
    alive: set[tuple[int, int]] = set()
    peak = turned = flops = 0
    for at, s in enumerate(steps):
        if s.makes is not None:
            alive.add((s.operation, s.makes))
            flops += ops[s.operation].flops
        assert alive.issuperset(s.reads), f"step {at} reads what is gone"
        held = sum(ops[v].bytes for v, _ in alive)
        if at >= len(ops):  # on the way back
            held += machine.cotangents[turned][s.backward]
        turned += s.backward
        peak = max(peak, held)
        alive = {c for c in alive if last[c] > at}
    return peak, flops - machine.flops


class _Rows:
    """Linear rows over 0/1 variables: each sum of factor * variable has a limit."""

    def __init__(self) -> None:
        self.least: list[int] = []
        self.price: list[int] = []
        self.terms: list[list[tuple[int, int]]] = []
        self.limits: list[int] = []

    def variable(self, price: int = 0, *, one: bool = False) -> int:
        self.least.append(int(one))
        self.price.append(price)
        return len(self.least) - 1

    def at_most(self, limit: int, terms: Iterable[tuple[int, int]]) -> None:
        self.terms.append(list(terms))
        self.limits.append(limit)

    def implies(self, variable: int, any_of: Sequence[int]) -> None:
        self.at_most(0, [(1, variable), *((-1, v) for v in any_of)])


def _checkmate(machine: Machine, limit: int) -> _Rows:
    """Checkmate's program: in each stage, which values are made, and which are held.

    A stage for each forward operation, that ends with it, and for each backward one.
    In a stage, every value may be made once more, in the order of the operations.
    Unlike there, backward operations are not repeated, and a value's life inside a
    stage is a chain of variables (held until its n-th reader) instead of products.
    """
    ops, rows = machine.operations, _Rows()
    n = len(ops)
    readers = [[j for j in range(n) if i in ops[j].reads] for i in range(n)]
    turns: list[int | None] = [*([None] * n), *machine.backward]
    ends = [min(t + 1, n) for t in range(len(turns))]  # values that may be made
    makes = [
        [rows.variable(ops[i].flops, one=t == i) for i in range(end)]
        for t, end in enumerate(ends)
    ]
    # Which are held when a stage starts; nothing is, after the last.
    holds = [[rows.variable() for _ in range(min(t, n))] for t in range(len(turns))]
    holds.append([])
    for t, k in enumerate(turns):
        end, later = ends[t], holds[t + 1]
        there = [[makes[t][i], *holds[t][i : i + 1]] for i in range(end)]
        until: list[list[tuple[int, int]]] = []  # (reader, held until it has read)
        for i in range(end):
            rows.at_most(1, [(1, v) for v in there[i]])
            if later[i : i + 1]:
                rows.implies(later[i], there[i])
            chain = []
            after = later[i : i + 1]
            if k is not None and i in ops[k].needs:
                rows.at_most(-1, [(-1, v) for v in there[i]])
                after = [rows.variable(one=True)]
                chain.append((n, after[0]))
            for j in reversed([j for j in readers[i] if j < end]):
                rows.implies(makes[t][j], there[i])
                held = rows.variable()
                for v in [makes[t][j], *after]:
                    rows.implies(v, [held])
                after = [held]
                chain.append((j, held))
            until.append([*chain[::-1], *((n, v) for v in later[i : i + 1])])

        def alive(j: int, until: list[Any] = until) -> list[tuple[int, int]]:
            """Values live before the j-th is computed: each with its indicator."""
            held = [next((v for r, v in until[i] if r >= j), None) for i in range(j)]
            return [(ops[i].bytes, v) for i, v in enumerate(held) if v is not None]

        before, during = (0, 0) if k is None else machine.cotangents[t - n]
        for j in range(end):
            own = [(ops[j].bytes, v) for v in there[j]]
            waiting = [
                (ops[i].bytes, v) for i in range(j + 1, end) for v in there[i][1:]
            ]
            rows.at_most(limit - before, [*alive(j), *own, *waiting])
        if k is not None:
            rows.at_most(limit - during, alive(n))
    return rows


def least_recompute(machine: Machine, limit: int, seconds: float = 60.0) -> int | None:
    """The fewest recomputed flops of any plan within `limit` bytes, or None.

    Raises:
        TimeoutError: HiGHS could not prove its answer within `seconds`.
    """
    rows = _checkmate(machine, limit)
    if any(
        bound < 0 and not terms
        for terms, bound in zip(rows.terms, rows.limits, strict=True)
    ):
        return None
    entries = [(c, r, v) for r, row in enumerate(rows.terms) for c, v in row]
    factor, row, column = zip(*entries, strict=True)
    matrix = csr_array((factor, (row, column)), (len(rows.terms), len(rows.least)))
    # Rows are divided by their largest factor, and the price by the highest: HiGHS'
    # tolerances are absolute.
    most = np.maximum(abs(matrix).max(axis=1).toarray().ravel(), 1)
    price = np.array(rows.price)
    found = milp(
        price / price.max(),
        integrality=np.ones(len(price)),
        bounds=(np.array(rows.least), 1),
        constraints=LinearConstraint(
            csr_array(matrix.astype(float).multiply(1 / most[:, None])),
            ub=np.array(rows.limits) / most,
        ),
        options={"time_limit": seconds, "mip_rel_gap": 0},
    )
    if found.status == 2:
        return None
    if found.status:
        raise TimeoutError(f"no proof in {seconds} s: {found.message}")
    return int(np.round(found.x) @ price) - machine.flops
