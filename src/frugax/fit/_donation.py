"""Find arguments of a step that its results could take the place of, if donated."""

import collections
import math
from collections.abc import Collection, Mapping
from typing import Any

import jax

from frugax.budget import format_bytes
from frugax.targets import Target

from ._workload import Workload


def advise_donation(workload: Workload, target: Target) -> str:
    """Say which arguments to donate, and how many of their bytes results can take.

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
    # The batch is used again by the caller, or made anew.
    batch = workload.batch_argnum % len(placed)
    arguments = {str(i): arg for i, arg in enumerate(placed) if i != batch}
    donated = list(map(str, workload.donate_argnums))
    return describe_donation(find_donatable(arguments, donated, results))


def find_donatable(
    arguments: Mapping[str, Any], donated: Collection[str], results: Any
) -> dict[str, int]:
    """Find the bytes of arguments whose place results could take, if donated.

    The program needs less by at most these bytes: what it held in the results' place
    while it ran, such as gradients, may become temporaries.

    Args:
        arguments: the arrays or shapes of each argument, by its name.
        donated: the names of those that are donated; results take their place first.
        results: the shapes of the results.

    Returns:
        The bytes on one device for each argument that has some.
    """
    free = collections.Counter(map(_kind, jax.tree.leaves(results)))
    saved: dict[str, int] = {}
    for name in dict.fromkeys([*donated, *arguments]):
        nbytes = 0
        for leaf in jax.tree.leaves(arguments.get(name)):
            if hasattr(leaf, "shape") and free[_kind(leaf)]:
                free[_kind(leaf)] -= 1
                nbytes += _shard_bytes(leaf)
        if nbytes and name not in donated:
            saved[name] = nbytes
    return saved


def describe_donation(saved: Mapping[str, int]) -> str:
    """Say which arguments to donate; "" if there are none."""
    if not saved:
        return ""
    names = ", ".join(sorted(saved))
    plural = "s" * (len(saved) > 1)
    nbytes = format_bytes(sum(saved.values()))
    return f"donate argument{plural} {names}: results can take the place of {nbytes}"


def _kind(leaf: Any) -> tuple[Any, ...]:
    return tuple(leaf.shape), str(leaf.dtype)


def _shard_bytes(leaf: Any) -> int:
    sharding = getattr(leaf, "sharding", None)
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return math.prod(shape) * getattr(leaf.dtype, "itemsize", 0)
