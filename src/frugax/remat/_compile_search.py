"""Search drafts for one that fits: compile, measure, and try a better one.

The model points; then what is tried is the same whatever the limit, until something
fits. So if nothing does, the smallest of these is what the budget would have to be.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from frugax.measure import program

from ._enclosing_program import Build, EnclosingProgram, compile_program

# Each costs about as much as compiling the program once. (Where nothing fits, it can
# be one more.)
_MOST_COMPILES = 5
# A plan that needs this share of the limit is not worth another compilation.
_WELL_USED = 0.95
# The first aim is this much below the limit, later ones ever less.
_MARGIN = 0.05
# A try within this of the limit is worth another by the model.
_NEAR = 1.2

Options = tuple[tuple[str, str], ...]

# Compiles in half the time, to a slow program whose buffers are the same: candidates
# are measured so, and the one that is chosen once more as it will be run.
_QUICK: Options = (("xla_backend_optimization_level", "0"),)


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One compiled candidate: which draft, how compiled, and what XLA said.

    Attributes:
        rung: its place among the drafts; 0 keeps everything.
        bytes: what it needs, of the budget's kind.
        undone: dot products and convolutions that should be there twice, and are not.
    """

    rung: int
    bytes: int
    undone: int


@dataclasses.dataclass(eq=False)
class CompileBench:
    """Compiles candidates and keeps what was measured.

    Attributes:
        whole: the program that must fit.
        kind: which bytes count.
        limit: how many there may be.
        grad_of: from a draft's place to the gradient function it makes.
        quick: whether candidates may be compiled to slow programs.
        compiles: how many there were.
        tries: what was measured, in order.
        misled: whether a draft that fitted did not, compiled as it will be run.
    """

    whole: EnclosingProgram
    kind: Literal["temp", "total"]
    limit: int
    grad_of: Callable[[int], Callable[..., Any]]
    quick: bool
    compiles: int = 0
    tries: list[Measurement] = dataclasses.field(default_factory=list)
    misled: bool = False
    _plain: Build | None = None

    def measure(self, rung: int, *, final: bool = False) -> Measurement:
        """Compile this draft and ask what it needs."""
        options = _QUICK if self.quick and not final else ()
        build = compile_program(self.whole, self.grad_of(rung), options)
        self.compiles += 1
        self._plain = self._plain or build
        needs = program(build.compiled).bytes_of(self.kind)
        found = Measurement(rung, needs, _undone(self._plain, build))
        self.tries.append(found)
        return found

    def fits(self, found: Measurement) -> bool:
        """Whether it is within the limit, and does again what it should."""
        return found.bytes <= self.limit and not found.undone


def search(bench: CompileBench, peaks: list[int]) -> Measurement | None:
    """The cheapest draft that fits, as it will be run; None if none does.

    Args:
        bench: with the plain program measured, which does not fit.
        peaks: what the model says each draft needs, the plain one first, falling.
    """
    best: Measurement | None = None
    for rung in _pointed_at(bench, peaks):
        if rung not in {t.rung for t in bench.tries}:
            found = bench.measure(rung)
            best = found if bench.fits(found) else None
        if best:
            break
    while best and bench.compiles < _MOST_COMPILES - bench.quick:
        above = max(t.rung for t in bench.tries if t.rung < best.rung)
        if best.bytes >= _WELL_USED * bench.limit or best.rung - above < 2:
            break
        found = bench.measure(_aim(bench, peaks, range(above + 1, best.rung)))
        best = found if bench.fits(found) else best
    return best and confirm(bench, best)


def confirm(bench: CompileBench, best: Measurement) -> Measurement | None:
    """The same draft, compiled as it will be run; None if it does not fit then."""
    if not bench.quick:
        return best
    found = bench.measure(best.rung, final=True)
    bench.misled = not bench.fits(found)
    return None if bench.misled else found


def _pointed_at(bench: CompileBench, peaks: list[int]) -> Iterator[int]:
    """Drafts to try until one fits: those the model points to, then the openings."""
    if len(peaks) == 1:
        return
    rungs = range(1, len(peaks))
    yield _aim(bench, peaks, rungs)
    if bench.tries[-1].bytes <= _NEAR * bench.limit:
        yield _aim(bench, peaks, rungs)
    yield from initial_candidates(len(peaks))


def initial_candidates(rungs: int) -> list[int]:
    """What is tried when what the model points to does not fit.

    Nothing here depends on the limit: what these need is what is needed.
    """
    # The model's tightest need not be XLA's: each branch within a branch costs it some.
    last = rungs - 1
    return [last, last * 4 // 5 or last, last // 2 or last] if last else []


def _aim(bench: CompileBench, peaks: list[int], rungs: range) -> int:
    """The first of `rungs` that should fit, by the model and what was measured.

    Between two tries, what the model says is taken to be off by a factor that changes
    evenly. With none but the plain one it is taken at its word below that: it errs most
    on what is fused where nothing is done again.
    """
    known = {peaks[t.rung]: t.bytes for t in bench.tries}
    if len(known) == 1 and known[peaks[0]] < peaks[0]:
        known |= {known[peaks[0]]: known[peaks[0]]}
    known |= {0: 0}
    at = sorted(known)
    wanted = bench.limit * (1 - _MARGIN / len(bench.tries))
    guess = np.interp([peaks[r] for r in rungs], at, [known[p] for p in at])
    fit = [r for r, b in zip(rungs, guess, strict=True) if b <= wanted]
    return fit[0] if fit else rungs[-1]


def _undone(plain: Build, build: Build) -> int:
    """How much planned recomputation the compiler has merged away.

    It may drop as many of the repeated operations as it drops of the plain ones:
    products with a vector, for example, become something else on CPU.
    """
    planned = build.heavy_written - plain.heavy_written
    there = build.heavy_left - plain.heavy_left
    usual = max(plain.heavy_written - plain.heavy_left, 0)
    return max(planned - there - usual, 0)
