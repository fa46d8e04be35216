"""Compile candidates until one fits, then look for a cheaper one in the limit.

The model chooses the first candidates. The ones after those do not depend on the limit,
so if nothing fits, the smallest of them is the budget that would be needed.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from frugax.errors import InfeasibleBudgetError
from frugax.measure import program

from ._enclosing_program import CompiledCandidate, EnclosingProgram, compile_program

# Each compilation costs about as much as compiling the program once. (Where nothing
# fits, there can be one more.)
_MAX_COMPILES = 5
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
    """

    candidate: int
    bytes: int
    undone: int


@dataclasses.dataclass(eq=False)
class CompileBench:
    """Compiles candidates and remembers the measurements.

    Attributes:
        program: the program that must fit.
        kind: which bytes count.
        limit: the most bytes there may be.
        grad_of: makes the gradient function of a candidate from its index.
        quick: whether candidates may be compiled to slow programs.
        compiles: the number of compilations so far.
        measurements: all measurements, in order.
        misled: whether a quickly compiled candidate fitted, and then did not fit when
            it was compiled as it will run.
    """

    program: EnclosingProgram
    kind: Literal["temp", "total"]
    limit: int
    grad_of: Callable[[int], Callable[..., Any]]
    quick: bool
    compiles: int = 0
    measurements: list[Measurement] = dataclasses.field(default_factory=list)
    misled: bool = False
    _plain: CompiledCandidate | None = None

    def measure(self, candidate: int, *, final: bool = False) -> Measurement:
        """Compile this candidate and read the bytes that it needs."""
        options = _QUICK if self.quick and not final else ()
        self.compiles += 1
        try:
            compiled = compile_program(self.program, self.grad_of(candidate), options)
        except InfeasibleBudgetError as e:
            # The compiler for TPUs refuses a program that is larger than the device.
            refused = Measurement(candidate, max(int(e.needed), self.limit + 1), 0)
            self.measurements.append(refused)
            return refused
        self._plain = self._plain or compiled
        undone = 0
        # Other compilers keep barriers, and merge products that share an operand.
        if self.program.target.platform == "cpu":
            undone = _count_undone(self._plain, compiled)
        size = program(compiled.executable).bytes_of(self.kind)
        found = Measurement(candidate, size, undone)
        self.measurements.append(found)
        return found

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


def search(bench: CompileBench, peaks: list[int]) -> Measurement | None:
    """The cheapest candidate that fits, compiled as it will run; None if none does."""
    best: Measurement | None = None
    for candidate in _first_candidates(bench, peaks):
        if candidate in {m.candidate for m in bench.measurements}:
            continue
        found = bench.measure(candidate)
        if bench.fits(found):
            best = found
            break
    # Candidates before the best recompute less: try some while the limit has room.
    while best and bench.compiles < _MAX_COMPILES - bench.quick:
        tried = [m.candidate for m in bench.measurements]
        below = max(c for c in tried if c < best.candidate)
        # Where `below` is the neighbour, nothing is left to try between them.
        if best.bytes >= _GOOD_USE * bench.limit or best.candidate - below < 2:
            break
        found = bench.measure(_aim(bench, peaks, range(below + 1, best.candidate)))
        if bench.fits(found):
            best = found
    return best and bench.confirm(best)


def initial_candidates(count: int) -> list[int]:
    """The candidates to try when those that the model points to do not fit.

    Nothing here depends on the limit, so the least bytes of these are the answer to how
    much is needed, whatever the limit was.
    """
    last = count - 1
    if not last:
        return []
    # The model's tightest candidate need not be XLA's: each branch that is nested in a
    # branch costs XLA some bytes that the model does not know of.
    return [last, last * 4 // 5 or last, last // 2 or last]


def _first_candidates(bench: CompileBench, peaks: list[int]) -> Iterator[int]:
    """The candidates that the model points to, then the initial ones."""
    if len(peaks) == 1:
        return
    indices = range(1, len(peaks))
    yield _aim(bench, peaks, indices)
    if bench.measurements[-1].bytes <= _NEAR_MISS * bench.limit:
        yield _aim(bench, peaks, indices)
    yield from initial_candidates(len(peaks))


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
