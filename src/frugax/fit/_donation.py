"""Find arguments of a step that its results could take the place of, if donated."""

import collections
import math
from typing import Any

import jax

from frugax.budget import format_bytes
from frugax.targets import Target

from ._workload import Workload


def advise_donation(workload: Workload, target: Target) -> str:
    """Say which arguments to donate, and how many of their bytes results can take.

    The program needs less by at most these bytes: what it held in the results' place
    while it ran, such as gradients, may become temporaries.

    Args:
        workload: the program; only a step has results that replace its arguments.
        target: the devices.

    Returns:
        Text such as "donate arguments 0, 1: results can take the place of 1.25 GiB",
        on one device; "" where no result has the shape and type of an argument.
    """
    if workload.is_loss:
        return ""
    placed = workload.place(target)
    with target.tracing():
        results = jax.eval_shape(workload.plain(target), *placed)
    free = collections.Counter(map(_kind, jax.tree.leaves(results)))
    # The batch is used again by the caller, or made anew.
    batch = workload.batch_argnum % len(placed)
    order = [*workload.donate_argnums, *range(len(placed))]
    saved: dict[int, int] = {}
    for argument in dict.fromkeys(order):
        if argument == batch:
            continue
        nbytes = 0
        for leaf in jax.tree.leaves(placed[argument]):
            if free[_kind(leaf)]:
                free[_kind(leaf)] -= 1
                nbytes += _shard_bytes(leaf)
        if nbytes and argument not in workload.donate_argnums:
            saved[argument] = nbytes
    if not saved:
        return ""
    names = ", ".join(map(str, sorted(saved)))
    plural = "s" * (len(saved) > 1)
    nbytes = format_bytes(sum(saved.values()))
    return f"donate argument{plural} {names}: results can take the place of {nbytes}"


def _kind(leaf: Any) -> tuple[Any, ...]:
    return tuple(leaf.shape), str(leaf.dtype)


def _shard_bytes(leaf: Any) -> int:
    sharding = getattr(leaf, "sharding", None)
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return math.prod(shape) * getattr(leaf.dtype, "itemsize", 0)
