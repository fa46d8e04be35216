"""Times of several programs that take turns, so that what slows one slows them all.

On a shared machine the seconds of a program mean little; the ratio to another that ran
in the same tenth of a second means much more.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Turns:
    """Seconds of each program in each round.

    Attributes:
        seconds: of one call, by program, `(rounds,)` each.
        calls: how many calls of each there were in a round.
    """

    seconds: Mapping[str, np.ndarray]
    calls: int

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return min(map(len, self.seconds.values()))

    def ratio(self, name: str, to: str) -> "Interval":
        """How many times longer one takes than another, round by round."""
        return interval(self.seconds[name] / self.seconds[to])

    def added(self, name: str, to: str) -> "Interval":
        """How many seconds longer one takes than another, round by round."""
        return interval(self.seconds[name] - self.seconds[to])


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A median, and bounds that it is beyond with a chance of 5% each."""

    low: float
    middle: float
    high: float

    @property
    def noise(self) -> float:
        """The larger of the distances to the bounds."""
        return max(self.high - self.middle, self.middle - self.low)


def interval(values: np.ndarray) -> Interval:
    """The median and its bootstrap bounds (Efron & Tibshirani 1993, ch. 13)."""
    rng = np.random.default_rng(0)
    picks = rng.integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [5, 95])
    middle = float(np.median(values))
    return Interval(min(float(low), middle), middle, max(float(high), middle))


def take_turns(
    programs: Mapping[str, Callable[..., Any]],
    args: Sequence[Any],
    *,
    seconds: float,
    chunk_s: float,
    donates: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Turns:
    """Run programs in turns, in an order drawn anew for each round.

    Args:
        programs: by name; called once each before, so that they are compiled.
        args: their arguments.
        seconds: about how long in all, at least three rounds.
        chunk_s: how long one turn of the fastest takes, about.
        donates: the programs use up their arguments: each call gets copies, made
            outside of the time.
        clock: seconds, rising.
    """
    several = lambda n: [copied(args) if donates else tuple(args) for _ in range(n)]

    def turn(program: Callable[..., Any], calls: int) -> float:
        given = several(calls)
        started = clock()
        out = None
        for each in given:
            out = program(*each)
        jax.block_until_ready(out)
        return (clock() - started) / calls

    first: dict[str, float] = {}
    for name, program in programs.items():
        turn(program, 1)
        first[name] = max(min(turn(program, 1) for _ in range(3)), 1e-7)
    calls = max(1, round(chunk_s / min(first.values())))
    a_round = sum(first.values()) * calls
    rounds = max(3, round(seconds / a_round))
    rng = np.random.default_rng(0)
    names = list(programs)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for i in rng.permutation(len(names)):
            name = names[i]
            found[name].append(turn(programs[name], calls))
    return Turns({name: np.asarray(s) for name, s in found.items()}, calls)


def copied(args: Sequence[Any]) -> tuple[Any, ...]:
    """The same arguments in arrays of their own, ready."""
    copy = lambda x: jnp.array(x) if isinstance(x, jax.Array) else x
    return tuple(jax.block_until_ready(jax.tree.map(copy, tuple(args))))


def check_seconds(seconds: float, chunk_s: float) -> None:
    """Refuse what is no time.

    Raises:
        ValueError: one of them is not above 0.
    """
    for name, value in (("seconds", seconds), ("chunk_s", chunk_s)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be > 0 and finite, got {value!r}.")
