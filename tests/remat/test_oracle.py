"""Our plans, beside the least recomputation that is possible at all."""

import heapq

import numpy as np
import pytest

from frugax.remat import Segment

from .oracle import (
    Machine,
    Operation,
    cost_of,
    least_recompute,
    planned,
    schedule_of,
)
from .random_programs import random_net

pytestmark = pytest.mark.slow
THOROUGH = pytest.mark.thorough


def segment(start, stop, *, again=False, kept=(), nested=()):
    return Segment(
        start=start,
        stop=stop,
        gate="barrier" if again else None,
        saved_bytes=0,
        recomputed_flops=0,
        kept=kept,
        nested=nested,
    )


def chain(count: int) -> Machine:
    """Operations of 10 flops and 1 byte, each read by the next; backward alike."""
    read = lambda i: (i - 1,) if i else ()
    return Machine(tuple(Operation(10, 1, read(i), read(i)) for i in range(count)))


def random_machine(seed: int) -> Machine:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 8))
    operations = []
    for i in range(count):
        skips = [j for j in range(i - 1) if rng.random() < 0.25]
        reads = (*skips, i - 1) if i else ()
        needs = tuple(v for v in (*reads, i) if rng.random() < 0.6)
        flops, size = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        active = bool(i > count // 2 or rng.random() < 0.7)
        in_place = bool(rng.random() < 0.5)
        operations.append(Operation(flops, size, reads, needs, active, in_place))
    return Machine(tuple(operations))


def search(machine: Machine, limit: int) -> int | None:
    """Dijkstra's search over sets of live values: any order, any number of times."""
    ops, n = machine.operations, len(machine.operations)
    # (flops, backward operations done plus 1 once the loss was made, live values)
    heap = [(0, 0, frozenset())]
    done = set()
    while heap:
        flops, turned, live = heapq.heappop(heap)
        if (turned, live) in done:
            continue
        done.add((turned, live))
        if turned > len(machine.backward):
            return flops - machine.flops
        held = sum(ops[v].bytes for v in live)
        next_states = [(flops, turned, live - {v}) for v in live]
        before, during = machine.cotangents[turned - 1] if turned else (0, 0)
        for i in set(range(n)) - live:
            room = held + ops[i].bytes + before <= limit
            if room and live.issuperset(ops[i].reads):
                first = not turned and i == n - 1
                next_states.append((flops + ops[i].flops, turned + first, live | {i}))
        if turned:
            needs = ops[machine.backward[turned - 1]].needs
            if live.issuperset(needs) and held + during <= limit:
                next_states.append((flops, turned + 1, live))
        for state in next_states:
            heapq.heappush(heap, state)
    return None


@pytest.mark.parametrize("seed", range(12))
def test_the_integer_program_agrees_with_a_search_through_all_live_sets(seed):
    machine = random_machine(seed)
    whole = (segment(0, len(machine.operations)),)
    plain, _ = cost_of(machine, schedule_of(machine, whole))
    found = [
        (least_recompute(machine, limit), search(machine, limit))
        for limit in range(plain, 0, -1)
    ]
    feasible = [f for f in found if None not in f]
    assert all(program == searched for program, searched in feasible), found
    assert feasible[0] == (0, 0)
    # The search may make a value twice between two backward operations.
    assert all(program is None for program, searched in found if searched is None)


def test_the_simulation_counts_held_bytes_and_recomputed_flops():
    machine = chain(6)
    cost = lambda *segments: cost_of(machine, schedule_of(machine, segments))
    # The five values that are read again, and two cotangents.
    assert cost(segment(0, 6)) == (7, 0)
    # 0, 1 and 2 are made again, when 3 is needed no more.
    assert cost(segment(0, 4, again=True), segment(4, 6)) == (5, 30)
    assert cost(segment(0, 4, again=True, kept=(1,)), segment(4, 6)) == (5, 20)
    nested = (segment(0, 2, again=True), segment(2, 4))
    assert cost(segment(0, 4, again=True, nested=nested), segment(4, 6)) == (4, 40)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(s, marks=THOROUGH) for s in range(2, 12))]
)
def test_plans_recompute_little_more_than_the_optimum(seed):
    """Even seeds are chains; `benchmarks.remat oracle` has more, and tighter limits."""
    machine, plans = planned(*random_net(seed))
    block = max(o.flops for o in machine.operations)
    # Forward and backward together are three forward passes.
    allowed = max(0.05 * 3 * machine.flops, block)
    for share in (0.85, 0.75) if seed % 2 else (0.85, 0.75, 0.65, 0.55):
        limit = int(share * plans[0][0])
        least = least_recompute(machine, limit)
        fitting = [flops for peak, flops in plans if peak <= limit]
        if least is None:
            assert not fitting, f"{share}: a plan fits where nothing can"
            continue
        assert fitting, f"{share}: no plan, but {least} recomputed flops would do"
        assert least <= min(fitting) <= least + allowed, f"{share}: of {machine.flops}"
