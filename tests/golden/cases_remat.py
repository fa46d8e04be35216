"""Bytes, flops and compiles of plans, and how far their gradients are from plain ones.

The six nets of the benchmarks at four shares, their stock policies and hand-written
checkpoints, two hundred random programs (seeds 0 to 199), and eight losses that go
through other libraries. Every plan is for this CPU, and compiled once more.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from benchmarks.nets import NETS
from tests.remat.random_programs import Kind, random_case

from frugax import InfeasibleBudgetError, MemoryBudget, measure, remat

from .library_losses import LOSSES, Loss
from .table import Case, Cell

SHARES = (0.75, 0.5, 0.35, 0.25)
POLICIES = (
    "nothing_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
)
_KINDS: tuple[Kind, ...] = ("float32", "float32", "bfloat16", "float16")
# Gradients that are zero up to rounding are compared with this share of the largest.
_ROUNDING = 1e-4


def cases() -> Iterator[Case]:
    """All plans, with the quickest first."""
    for name in NETS:
        for share in SHARES:
            yield Case(
                f"{name} within {share}",
                functools.partial(_plan_net, name, share),
                machine=("difference",),
                tolerance={"difference": 1.0},
            )
        yield Case(f"{name} by hand", functools.partial(_count_by_hand, name))
    for name, make in LOSSES.items():
        for share in (0.5, 0.25):
            yield Case(
                f"{name} within {share}",
                functools.partial(_plan_library, make, share),
                machine=("difference",),
                tolerance={"difference": 1.0},
            )
    for seed in range(200):
        yield Case(
            f"random program {seed}",
            functools.partial(_plan_random, seed),
            # One that processors with and without AVX-512 plan alike; of others XLA
            # makes other programs (80: 6 chunks with, 2 without).
            quick=seed == 17,
            machine=("difference",),
            tolerance={"difference": 1.0},
        )


def _plan_net(name: str, share: float) -> dict[str, Cell]:
    net = NETS[name]()
    return _plan(net.loss, net.arrays(), MemoryBudget.share(share))


def _plan_library(make: Callable[[], Loss], share: float) -> dict[str, Cell]:
    loss, args = make()
    return _plan(loss, args, MemoryBudget.share(share))


def _plan_random(seed: int) -> dict[str, Cell]:
    case = random_case(seed, _KINDS[seed % len(_KINDS)])
    how = case.how | {"first_fit": True}  # a full search would take an hour for all
    return _plan(case.loss, case.args, MemoryBudget.share(0.6), **how)


def _plan(
    loss: Callable[..., Any],
    args: Any,
    budget: Any,
    *,
    first_fit: bool = False,
    **how: Any,
) -> dict[str, Cell]:
    """Plan; where nothing fits, the smallest plan that was found stands in the row."""
    is_met = True
    try:
        plan = remat.plan(loss, budget, args, cache=False, first_fit=first_fit, **how)
    except InfeasibleBudgetError as e:
        is_met, plan = False, e.best
    assert isinstance(plan, remat.RematPlan)
    planned = remat.apply(loss, plan)
    spend = planned.report(*args).spends[0]
    error = _difference(planned, args)
    return {
        "met": is_met,
        "plain bytes": plan.unplanned_bytes,
        "planned bytes": spend.measured,
        "plain flops": plan.unplanned_flops,
        "more flops": plan.extra_flops,
        "compiles": plan.compiles,
        "chunks": plan.batch.count if plan.batch else 1,
        "equal": bool(error <= _tolerance_of(args)),
        "difference": float(f"{error:.2g}"),
    }


def _difference(planned: remat.PlannedGrad, args: Any) -> float:
    """The largest error of the loss and of an array, relative to its largest.

    Gradients that are zero up to rounding are compared with the whole gradient.
    """
    found = planned.compare_with_plain(*args)
    errors = [min(a.of_array, a.of_gradient / _ROUNDING) for a in found.arrays]
    return max(found.loss, *errors)


def _tolerance_of(args: Any) -> float:
    """How far rounding may take gradients: thirty operations, in both programs."""
    types = [x.dtype for x in jax.tree.leaves(args) if hasattr(x, "dtype")]
    floats = [t for t in types if jnp.issubdtype(t, jnp.floating)]
    largest = max(float(jnp.finfo(t).eps) for t in floats)
    return max(60 * largest, 1e-3)


def _count_by_hand(name: str) -> dict[str, Cell]:
    """Temporary bytes with `jax.checkpoint` around each layer, by each policy."""
    net = NETS[name]()
    found: dict[str, Cell] = {"plain": _temp_bytes(net.loss, net.shapes)}
    for policy in POLICIES:
        chosen = getattr(jax.checkpoint_policies, policy)
        wrap = functools.partial(jax.checkpoint, policy=chosen)
        found[policy] = _temp_bytes(net.by_layer(wrap), net.shapes)
    return found


def _temp_bytes(loss: Callable[..., Any], shapes: Any) -> int:
    compiled = jax.jit(jax.value_and_grad(loss)).lower(*shapes).compile()
    return measure.program(compiled).temp_bytes
