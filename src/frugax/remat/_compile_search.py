"""The search of `remat.plan`: compile candidates until one fits, then cheaper ones.

The model chooses the first candidates. The ones after those do not depend on the limit:
they look for the program that needs the fewest bytes, wherever the model places it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from frugax.errors import InfeasibleBudgetError
from frugax.measure import program

from ._enclosing_program import CompiledCandidate, EnclosingProgram, compile_program
from ._frontier import TriedPlan
from .solver import PlanParts

# Each compilation costs about as much as compiling the program once. Where none of
# these fits, the search for the smallest program tries more before it gives up.
_MAX_COMPILES = 5
# Shares of the list of candidates, which ends with the smallest by the model, at which
# that search starts; around the best of these, it then tries a few more.
_SPREAD = (1.0, 0.8, 0.5, 0.9, 0.65)
_MAX_NEIGHBOURS = 4
# A plan that needs this share of the limit is not worth another compilation.
_GOOD_USE = 0.95
# The first aim is this much below the limit, later ones ever less.
_MARGIN = 0.05
# A measurement within this factor of the limit is worth a second aim by the model.
_NEAR_MISS = 1.2

Options = tuple[tuple[str, str], ...]

# Level 0 halves the time of a compilation on CPU. The program is slow and its buffers
# are the same (checked on a transformer and a U-Net), so candidates are measured with
# it, and the chosen one is compiled once more as it will run.
_QUICK: Options = (("xla_backend_optimization_level", "0"),)


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """A compiled candidate and XLA's figures for it.

    Attributes:
        candidate: its index among the candidates; 0 keeps everything.
        bytes: the bytes it needs, of the budget's kind.
        undone: recomputed products and convolutions that the compiler merged away.
        flops: of the traced program; None if it could not be compiled.
    """

    candidate: int
    bytes: int
    undone: int
    flops: int | None = None


@dataclasses.dataclass(eq=False)
class CompileBench:
    """Compiles candidates and remembers the measurements.

    Attributes:
        program: the program that must fit.
        kind: which bytes count.
        limit: the most bytes there may be.
        parts_of: a candidate, from its index.
        grad_of: makes the gradient function of a candidate.
        quick: whether candidates may be compiled to slow programs.
        compiles: the number of compilations so far.
        measurements: all measurements of this search, in order.
        misled: whether a quickly compiled candidate fitted, and then did not fit when
            it was compiled as it will run.
    """

    program: EnclosingProgram
    kind: Literal["temp", "total"]
    limit: int
    parts_of: Callable[[int], PlanParts]
    grad_of: Callable[[PlanParts], Callable[..., Any]]
    quick: bool
    compiles: int = 0
    measurements: list[Measurement] = dataclasses.field(default_factory=list)
    misled: bool = False
    _plain: CompiledCandidate | None = None
    _known: dict[tuple[PlanParts, bool], tuple[int, int, int | None]] = (
        dataclasses.field(default_factory=dict)
    )

    def measure(self, candidate: int, *, final: bool = False) -> Measurement:
        """Compile this candidate, unless it is known, and read the bytes it needs."""
        parts, is_quick = self.parts_of(candidate), self.quick and not final
        if (parts, is_quick) not in self._known:
            self._known[parts, is_quick] = self._compile(parts, is_quick=is_quick)
        found = Measurement(candidate, *self._known[parts, is_quick])
        self.measurements.append(found)
        return found

    def _compile(
        self, parts: PlanParts, *, is_quick: bool
    ) -> tuple[int, int, int | None]:
        options = _QUICK if is_quick else ()
        self.compiles += 1
        try:
            compiled = compile_program(self.program, self.grad_of(parts), options)
        except InfeasibleBudgetError as e:
            # The compiler for TPUs refuses a program that is larger than the device.
            return max(int(e.needed), self.limit + 1), 0, None
        self._plain = self._plain or compiled
        undone = 0
        # Other compilers keep barriers, and merge products that share an operand. In
        # chunks of a batch, products are dropped and split for other reasons; merged
        # recomputation would show in the bytes.
        if parts.batch is None and self.program.target.platform == "cpu":
            undone = _count_undone(self._plain, compiled)
        size = program(compiled.executable).bytes_of(self.kind)
        return size, undone, compiled.flops

    @property
    def compiled(self) -> list[tuple[int, int]]:
        """Bytes and undone products of everything that was compiled."""
        return [(size, undone) for size, undone, _ in self._known.values()]

    def list_tried(self) -> tuple[TriedPlan, ...]:
        """The programs that were compiled and kept their recomputation."""
        assert self._plain is not None
        # As it will run, where a program was compiled both quickly and in full.
        in_order = sorted(self._known.items(), key=lambda item: not item[0][1])
        found = {
            parts: TriedPlan(size, flops - self._plain.flops, parts.summary)
            for (parts, _), (size, undone, flops) in in_order
            if flops is not None and not undone
        }
        return tuple(sorted(found.values(), key=lambda t: (-t.bytes, t.extra_flops)))

    def restart(self, limit: int) -> None:
        """Begin the search anew for another limit, as another process would."""
        self.limit, self.measurements, self.misled = limit, [], False

    def fits(self, found: Measurement) -> bool:
        """Whether it keeps to the limit and still recomputes all that was planned."""
        return found.bytes <= self.limit and not found.undone

    def confirm(self, best: Measurement) -> Measurement | None:
        """Compile the same candidate as it will run; None if it does not fit then."""
        if not self.quick:
            return best
        found = self.measure(best.candidate, final=True)
        self.misled = not self.fits(found)
        return None if self.misled else found


def search(
    bench: CompileBench, peaks: list[int], *, thorough: bool
) -> Measurement | None:
    """The cheapest candidate that fits, compiled as it will run; None if none does.

    `bench` holds the measurement of the plain program, which does not fit, and `peaks`
    the modelled bytes of each candidate, the plain one first, falling.
    """
    best: Measurement | None = None
    tried = {0: bench.measurements[0]}
    for candidate in _first_candidates(bench, peaks, tried, thorough=thorough):
        if candidate not in tried:
            tried[candidate] = bench.measure(candidate)
        if bench.fits(tried[candidate]):
            best = tried[candidate]
            break
    # Candidates before the best recompute less: try some while the limit has room.
    while best and len(tried) < _MAX_COMPILES - bench.quick:
        below = max(c for c in tried if c < best.candidate)
        # Where `below` is the neighbour, nothing is left to try between them.
        if best.bytes >= _GOOD_USE * bench.limit or best.candidate - below < 2:
            break
        candidate = _aim(bench, peaks, range(below + 1, best.candidate))
        found = tried[candidate] = bench.measure(candidate)
        if bench.fits(found):
            best = found
    return best and bench.confirm(best)


def _first_candidates(
    bench: CompileBench,
    peaks: list[int],
    tried: dict[int, Measurement],
    *,
    thorough: bool,
) -> Iterator[int]:
    """The candidates that the model points to, then those that may need least.

    The latter do not depend on the limit. So planning at the least bytes found among
    them succeeds: that search ends with the same candidates.
    """
    last = len(peaks) - 1
    if not last:
        return
    indices = range(1, last + 1)
    yield _aim(bench, peaks, indices)
    if bench.measurements[-1].bytes <= _NEAR_MISS * bench.limit:
        yield _aim(bench, peaks, indices)
    if not thorough:
        yield last
        return
    # The model's tightest candidate need not be XLA's: each branch that is nested in a
    # branch costs XLA some bytes that the model does not know of.
    fixed = list(dict.fromkeys(max(round(s * last), 1) for s in _SPREAD))
    yield from fixed
    for _ in range(_MAX_NEIGHBOURS):
        by_bytes = sorted(fixed, key=lambda c: (tried[c].undone > 0, tried[c].bytes))
        best = by_bytes[0]
        gaps = [
            (best + other) // 2
            for other in (
                max((c for c in fixed if c < best), default=best),
                min((c for c in fixed if c > best), default=best),
            )
        ]
        new = [c for c in gaps if c not in fixed]
        if not new:
            return
        fixed += new
        yield from new


def _aim(bench: CompileBench, peaks: list[int], indices: range) -> int:
    """The first of these candidates that should fit, by the model and measurements.

    Between two measurements the ratio of measured to modelled bytes is interpolated.
    With the plain program as the only measurement, the model is trusted below it: the
    model errs most on fusion where nothing is recomputed.
    """
    known = {peaks[m.candidate]: m.bytes for m in bench.measurements}
    if len(known) == 1 and known[peaks[0]] < peaks[0]:
        known[known[peaks[0]]] = known[peaks[0]]
    # An anchor below the smallest measurement, for the interpolation.
    known[0] = 0
    modelled = sorted(known)
    target = bench.limit * (1 - _MARGIN / len(bench.measurements))
    guess = np.interp(
        [peaks[i] for i in indices], modelled, [known[p] for p in modelled]
    )
    for i, guessed_bytes in zip(indices, guess, strict=True):
        if guessed_bytes <= target:
            return i
    return indices[-1]


def _count_undone(plain: CompiledCandidate, found: CompiledCandidate) -> int:
    """The number of planned second computations that the compiler merged away.

    It may drop as many of the repeated operations as it drops of the plain ones: on CPU
    products with a vector, for example, become something else.
    """
    planned = found.heavy_traced - plain.heavy_traced
    left = found.heavy_compiled - plain.heavy_compiled
    usual = max(plain.heavy_traced - plain.heavy_compiled, 0)
    return max(planned - left - usual, 0)
