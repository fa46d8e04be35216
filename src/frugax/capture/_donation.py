"""Find arguments of a step that its results could take the place of, if donated."""

import collections
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

from frugax.budget import format_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Donation:
    """The donated arguments of a program, and those that could be.

    Attributes:
        donated: the names of arguments whose place the results may take.
        possible: for further ones, the bytes of results that could take their place.
    """

    donated: tuple[str, ...]
    possible: Mapping[str, int]

    @classmethod
    def of(
        cls, names: Sequence[str], traced: Any, kept: Collection[str] = ()
    ) -> "Donation":
        """The donation of a traced program.

        Args:
            names: for each flat argument, the name of the one that it belongs to.
            traced: what `CalledProgram.trace` returns.
            kept: names of arguments that are used again, so cannot be donated.
        """
        leaves = jax.tree.leaves(traced.args_info)
        given = leaves[len(leaves) - len(names) :]
        arguments: dict[str, list[Any]] = {}
        donated: dict[str, None] = {}
        for name, leaf in zip(names, given, strict=True):
            arguments.setdefault(name, []).append(leaf)
            if leaf.donated:
                donated[name] = None
        free = {n: leaves for n, leaves in arguments.items() if n not in kept}
        possible = find_donatable(free, donated, traced.out_info)
        return cls(donated=tuple(donated), possible=possible)

    @property
    def advice(self) -> str:
        """Which arguments to donate; "" if there are none."""
        return describe_donation(self.possible)

    def __str__(self) -> str:
        donated = f"donated: {', '.join(self.donated) or 'nothing'}"
        return "; ".join(filter(None, (donated, self.advice)))


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
