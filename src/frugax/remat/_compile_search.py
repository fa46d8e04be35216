"""The search of `remat.plan`: compile candidates until one fits, then cheaper ones.

The model chooses the first candidates. The ones after those do not depend on the limit:
they look for the program that needs the fewest bytes, wherever the model places it.
"""

import dataclasses
import functools
import math
import time
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Literal

import jax
import numpy as np

from frugax.errors import InfeasibleBudgetError, RematUndoneError
from frugax.measure import program
from frugax.targets import find_caveat

from ._enclosing_program import CompiledCandidate, EnclosingProgram, compile_program
from ._frontier import TriedPlan
from ._plan import PlanParts
from ._progress import ProgressLine
from .solver import Candidate

# Each compilation costs about as much as compiling the program once. Where none of
# these fits, the search for the smallest program tries more before it gives up.
_MAX_COMPILES = 5
# Candidates that are compiled for being the smallest, by the model and by what the
# others of their family needed.
_MAX_SMALLEST = 5
# For each that needs at most this times the bytes of the best, one more is, whose
# modelled bytes are its own times this, and so on while these need fewer bytes.
_LARGER = 1.1
# A plan that needs this share of the limit is not worth another compilation.
_GOOD_USE = 0.95
# Each of many chunks takes longer to start than to run, which no flops tell: far fewer
# are tried, whatever they leave of the limit.
_MANY_CHUNKS = 64
# The first aim is this much below the limit, later ones ever less.
_MARGIN = 0.05
# A measurement within this factor of the limit is worth a second aim by the model.
_NEAR_MISS = 1.2
# Once a plan is found, one more candidate is tried, and then this many that hold one
# named policy throughout and this many that hold two, if they save at least this share
# of the flops, and by the model need at most this share of the limit: more of the
# former, as the model errs more on one long segment.
_MAX_MORE, _MAX_NAMED, _MAX_MIXED = 1, 2, 3
_WORTHWHILE = 0.01
_MAYBE, _PERHAPS = 1.04, 1.15

# Candidates are compiled to slow programs, in a third of the time on CPU, and the one
# that is chosen once more as it will run. Level 0 leaves loops as they are. Without the
# emitters that go through MLIR, XLA writes fused operations as it did before it had
# them. The buffers are the same up to a few hundred bytes (golden table of `remat`).
_QUICK: Mapping[str, bool | str] = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": False,
}


# Up to this share, quickly compiled programs may need more than those that run.
_QUICK_ERROR = 0.001


def _quick_options(platform: str) -> dict[str, bool | str]:
    is_cpu = platform == "cpu"  # other compilers may not know its options
    asked = {k: v for k, v in _QUICK.items() if is_cpu or not k.startswith("xla_cpu_")}
    return {k: v for k, v in asked.items() if _is_known(k, v)}


@functools.cache
def _is_known(option: str, value: bool | str) -> bool:  # noqa: FBT001
    """Whether this version of XLA has an option, which may be an experimental one."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options={option: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """A compiled candidate and XLA's figures for it.

    Attributes:
        parts: the plan itself.
        bytes: the bytes it needs, of the budget's kind.
        undone: recomputed products and convolutions that the compiler merged away.
        flops: of the traced program; None if it could not be compiled.
        host_bytes: bytes that it keeps in the host's memory.
        caveat: how it was compiled otherwise than asked for; "" if as asked.
    """

    parts: PlanParts
    bytes: int
    undone: int
    flops: int | None = None
    host_bytes: int = 0
    caveat: str = ""


@dataclasses.dataclass(eq=False)
class CompileBench:
    """Compiles candidates and remembers the measurements.

    Attributes:
        program: the program that must fit.
        kind: which bytes count.
        limit: the most bytes there may be.
        parts_of: a candidate as the parts of a plan.
        grad_of: makes the gradient function of a plan.
        quick: whether candidates may be compiled to slow programs.
        first_fit: whether the first candidate that fits is taken.
        deadline: when no further candidate is compiled, by `time.monotonic`.
        compiles: the number of compilations so far.
        least: bytes that no searched candidate is expected to go below, by the model.
        misled: whether a quickly compiled candidate fitted, and then did not fit when
            it was compiled as it will run.
        jitted: the functions that were compiled as they will run.
        progress: says on a terminal which program is compiled.
        known: compiled programs, by plan and whether they were compiled quickly.
        for_higher_limits: plans that a search for each higher limit tries as well,
            unless it finds another one first.
    """

    program: EnclosingProgram
    kind: Literal["temp", "total"]
    limit: int
    parts_of: Callable[[Candidate], PlanParts]
    grad_of: Callable[[PlanParts], Callable[..., Any]]
    quick: bool
    first_fit: bool = False
    deadline: float = math.inf
    compiles: int = 0
    least: float = math.inf
    misled: bool = False
    jitted: dict[PlanParts, Any] = dataclasses.field(default_factory=dict)
    progress: ProgressLine = dataclasses.field(default_factory=ProgressLine)
    known: dict[tuple[PlanParts, bool], Measurement] = dataclasses.field(
        default_factory=dict
    )
    for_higher_limits: set[PlanParts] = dataclasses.field(
        default_factory=lambda: {PlanParts()}
    )
    _plain: CompiledCandidate | None = None

    def measure(self, parts: PlanParts, *, final: bool = False) -> Measurement:
        """Compile this plan, unless it is known, and read the bytes it needs.

        One that just misses the limit, quickly compiled, is compiled as it will run.
        """
        is_quick = self.quick and not final
        if (parts, is_quick) not in self.known:
            self.known[parts, is_quick] = self._compile(parts, is_quick=is_quick)
        found = self.known[parts, is_quick]
        if is_quick and 0 < found.bytes - self.limit <= _QUICK_ERROR * self.limit:
            return self.measure(parts, final=True)
        return found

    @property
    def plain(self) -> Measurement:
        """The program without a plan, which is the first that is measured."""
        return next(iter(self.known.values()))

    @property
    def is_late(self) -> bool:
        """Whether the time to compile candidates is over."""
        return time.monotonic() >= self.deadline

    def _compile(self, parts: PlanParts, *, is_quick: bool) -> Measurement:
        options: dict[str, bool | str] = {}
        if is_quick:
            options = _quick_options(self.program.target.platform)
        try:
            if parts == PlanParts() and self.program.plain is not None:
                compiled = self.program.plain
            else:
                self.compiles += 1
                self.progress.show(self.compiles)
                compiled = compile_program(self.program, self.grad_of(parts), options)
        except InfeasibleBudgetError as e:
            # The compiler for TPUs refuses a program that is larger than the device.
            return Measurement(parts, max(int(e.needed), self.limit + 1), undone=0)
        self._plain = self._plain or compiled
        if not is_quick:
            self.jitted[parts] = compiled.jitted
        undone = 0
        # Other compilers keep barriers, and merge products that share an operand. In
        # chunks, products are dropped and split for other reasons; merged recomputation
        # would show in the bytes.
        is_whole = parts.batch is None and parts.rows is None
        if is_whole and self.program.target.platform == "cpu":
            undone = _count_undone(self._plain, compiled)
        costs = program(compiled.executable)
        if parts.moves_to_host and not costs.host_bytes:
            raise RematUndoneError(
                f"the compiler of {self.program.target} kept on the device what the "
                "plan keeps in the host's memory; plan with offload=False."
            )
        return Measurement(
            parts,
            costs.bytes_of(self.kind),
            undone,
            compiled.flops,
            costs.host_bytes,
            find_caveat(compiled.executable),
        )

    @property
    def fixed_bytes(self) -> int:
        """Bytes of arguments and results on one device, which no plan changes."""
        if self._plain is not None:
            costs = program(self._plain.executable)
            return costs.total_bytes - costs.temp_bytes
        # The compiler for TPUs refused the program, and tells nothing of its results.
        return sum(map(_shard_bytes, jax.tree.leaves(self.program.args)))

    @property
    def undone(self) -> dict[PlanParts, int]:
        """The most undone products of each plan that was compiled; 0 if none."""
        found: dict[PlanParts, int] = {}
        for m in self.known.values():
            found[m.parts] = max(m.undone, found.get(m.parts, 0))
        return found

    def list_tried(self) -> tuple[TriedPlan, ...]:
        """The programs that were compiled and kept their recomputation."""
        assert self._plain is not None
        # As it will run, where a program was compiled both quickly and in full.
        in_order = sorted(self.known.items(), key=lambda item: not item[0][1])
        found = {
            m.parts: TriedPlan(m.bytes, m.flops - self._plain.flops, m.parts.summary)
            for _, m in in_order
            if m.flops is not None and not m.undone
        }
        return tuple(sorted(found.values(), key=lambda t: (-t.bytes, t.extra_flops)))

    def find_smallest(
        self, without: Collection[PlanParts] = ()
    ) -> tuple[Measurement, int]:
        """The smallest program that kept its recomputation, and the bytes to find it.

        A search measures it compiled quickly and as it will run, so the larger of both
        counts, unless they are about equal. Of several, it is the one that computes
        least.

        Args:
            without: plans that are left out.
        """
        while True:
            larger: dict[PlanParts, Measurement] = {}
            left_out = {*without, *(p for p, n in self.undone.items() if n)}
            for m in self.known.values():
                if m.parts not in left_out:
                    other = larger.setdefault(m.parts, m)
                    larger[m.parts] = max(m, other, key=lambda m: m.bytes)
            least = min(larger.values(), key=lambda m: (m.bytes, m.flops or 0))
            found = self.measure(least.parts, final=True)
            # Compiled as it will run, it may need more than another one.
            if found.bytes <= least.bytes and not found.undone:
                is_near = least.bytes <= (1 + _QUICK_ERROR) * found.bytes
                return found, found.bytes if is_near else least.bytes

    def fits(self, found: Measurement) -> bool:
        """Whether it keeps to the limit and still recomputes all that was planned."""
        return found.bytes <= self.limit and not found.undone

    def saves_little(self, best: Measurement) -> bool:
        """Whether no plan is cheaper than this one by a share worth a compilation."""
        plain = self.plain.flops
        if best.flops is None or plain is None:
            return False
        return best.flops - plain <= _WORTHWHILE * plain

    def confirm(self, best: Measurement) -> Measurement | None:
        """Compile the same plan as it will run; None if it does not fit then."""
        if not self.quick:
            return best
        found = self.measure(best.parts, final=True)
        self.misled = not self.fits(found)
        return None if self.misled else found


def search(
    bench: CompileBench,
    candidates: Sequence[Candidate],
    named: Sequence[Candidate] = (),
    *,
    thorough: bool,
) -> Measurement | None:
    """The cheapest candidate that fits, quickly compiled; None if none does.

    Args:
        bench: holds the measurement of the plain program, which does not fit.
        candidates: by falling bytes by the model, the plain one first.
        named: further ones, in any order.
        thorough: whether to look for the smallest before it gives up.
    """
    modelled = [*candidates, *named]
    found = _Search(bench, modelled, len(candidates), {0: bench.plain})
    return found.run(thorough=thorough)


@dataclasses.dataclass(frozen=True, eq=False)
class _Search:
    """A search through one list of candidates.

    Attributes:
        bench: compiles them.
        modelled: the candidates.
        listed: the number of those that are sorted by their bytes and come first.
        tried: those that were measured, in order, by their positions.
    """

    bench: CompileBench
    modelled: Sequence[Candidate]
    listed: int
    tried: dict[int, Measurement]

    def run(self, *, thorough: bool) -> Measurement | None:
        """The cheapest candidate that fits."""
        bench, best = self.bench, None
        for i, is_for_higher_limits in self._first_candidates(thorough=thorough):
            if bench.is_late:
                break
            if is_for_higher_limits:
                bench.for_higher_limits.add(bench.parts_of(self.modelled[i]))
            if i not in self.tried:
                # The first one mostly fits. Where no cheaper one is looked for, it is
                # then the only one that is compiled.
                self._try(i, final=bench.first_fit and len(self.tried) == 1)
            if i < self.listed and bench.fits(self.tried[i]):
                best = i
                break
        if best is None:
            # Those that a user could write mostly cost more than the others that fit.
            fitting = [i for i, m in self.tried.items() if bench.fits(m)]
            best = min(fitting, key=lambda i: self.tried[i].flops or 0, default=None)
        elif not bench.first_fit:
            best = self._use_room(best)
        if best is None:
            if thorough:
                guess = self._guess_bytes(self.tried, hopeful=True)
                bench.least = min(bench.least, *guess)
            return None
        if not bench.first_fit:
            more = range(1, self.listed)
            mixed = range(self.listed, len(self.modelled))
            uniform = [i for i in mixed if self.modelled[i].is_uniform]
            best = self._try_cheaper(best, more, _MAX_MORE, _MAYBE, hopeful=False)
            best = self._try_cheaper(best, uniform, _MAX_NAMED, _PERHAPS, hopeful=True)
            best = self._try_cheaper(best, mixed, _MAX_MIXED, _MAYBE, hopeful=True)
        return self.tried[best]

    def _try(self, i: int, *, final: bool = False) -> Measurement:
        parts = self.bench.parts_of(self.modelled[i])
        self.tried[i] = self.bench.measure(parts, final=final)
        return self.tried[i]

    def _use_room(self, best: int) -> int:
        """Try candidates that recompute less than the best, while there is room."""
        bench = self.bench
        while len(self.tried) < _MAX_COMPILES - bench.quick:
            below = max(i for i in self.tried if i < best)
            # Where `below` is the neighbour, nothing is left to try between them.
            if bench.is_late or best - below < 2:
                break
            batch = self.modelled[best].source.batch
            is_cut_up = batch is not None and batch.count > _MANY_CHUNKS
            has_room = self.tried[best].bytes < _GOOD_USE * bench.limit
            saves_little = bench.saves_little(self.tried[best])
            if not is_cut_up and (saves_little or not has_room):
                break
            middle = (below + best) // 2
            i = self._aim(range(below + 1, best)) if has_room else middle
            if bench.fits(self._try(i)):
                best = i
        return best

    def _try_cheaper(
        self,
        best: int,
        indices: Sequence[int],
        tries: int,
        slack: float,
        *,
        hopeful: bool,
    ) -> int:
        """Also try some of these that cost less than the best and may just fit.

        Between plans of almost the same bytes, flops may differ by points.
        """
        bench, modelled = self.bench, self.modelled
        for _ in range(tries):
            if bench.is_late or bench.saves_little(self.tried[best]):
                break
            most = modelled[best].flops - _WORTHWHILE * (bench.plain.flops or 0)
            guess = self._guess_bytes(self.tried, hopeful=hopeful)
            options = [
                i
                for i in indices
                if i not in self.tried
                and modelled[i].flops < most
                and guess[i] <= slack * bench.limit
            ]
            if not options:
                break
            i = min(options, key=lambda i: (modelled[i].flops, modelled[i].peak_bytes))
            found = self._try(i)
            if bench.fits(found) and (found.flops or 0) < (self.tried[best].flops or 0):
                best = i
        return best

    def _first_candidates(self, *, thorough: bool) -> Iterator[tuple[int, bool]]:
        """The candidates that the model points to, then those that may need least.

        The latter do not depend on the limit; with each comes whether it is one of
        them.
        """
        last, near = self.listed - 1, _NEAR_MISS * self.bench.limit
        # By the model none may even be near the limit.
        guess = self._guess_bytes(self.tried, hopeful=False)
        if last and guess[last] <= near:
            yield self._aim(range(1, last + 1)), False
            if [*self.tried.values()][-1].bytes <= near:
                yield self._aim(range(1, last + 1)), False
            # Where no thorough search follows, it may be the smallest that is ever
            # tried.
            yield last, True
        if thorough:
            for i in self._smallest_candidates():
                yield i, True

    def _smallest_candidates(self) -> Iterator[int]:
        """Those that should need the fewest bytes, which do not depend on the limit.

        The model's tightest candidate need not be XLA's: each branch that is nested in
        a branch costs XLA some bytes that the model does not know of. So the model is
        corrected in each family by those of it that were compiled.
        """
        modelled, compiled = self.modelled, {0: self.tried[0]}
        least = lambda: min(
            (i for i, m in compiled.items() if not m.undone),
            key=lambda i: compiled[i].bytes,
        )
        while len(compiled) <= _MAX_SMALLEST:
            guess = self._guess_bytes(compiled, hopeful=True)
            rest = set(range(1, len(modelled))).difference(compiled)
            smallest = min(rest, key=lambda i: guess[i], default=None)
            if smallest is None or guess[smallest] >= compiled[least()].bytes:
                break
            yield smallest
            compiled[smallest] = self.tried[smallest]
        # Fewer segments hold less by the model than they do in the compiled program:
        # one that may hold a little more is not always larger.
        enough = _LARGER * compiled[least()].bytes
        pending = [i for i, m in compiled.items() if i and m.bytes <= enough]
        while pending:
            i = pending.pop()
            best = modelled[i]
            larger = [
                i
                for i, m in enumerate(modelled)
                if m.family == best.family and m.peak_bytes >= _LARGER * best.peak_bytes
            ]
            nearest = min(larger, key=lambda i: modelled[i].peak_bytes, default=0)
            if nearest not in compiled:
                yield nearest
                compiled[nearest] = self.tried[nearest]
                if compiled[nearest].bytes < compiled[i].bytes:
                    pending.append(nearest)

    def _aim(self, indices: range) -> int:
        """The first of these that should fit, by the model and measurements."""
        target = self.bench.limit * (1 - _MARGIN / len(self.tried))
        guess = self._guess_bytes(self.tried, hopeful=False)
        return next((i for i in indices if guess[i] <= target), indices[-1])

    def _guess_bytes(
        self, measured: Mapping[int, Measurement], *, hopeful: bool
    ) -> list[float]:
        """The bytes of each candidate: those of the model, corrected by measurements.

        The model errs alike about the plans of a family. So bytes are interpolated
        between those of the family that were measured, and beyond them the ratio to the
        model is that of the nearest.

        Args:
            measured: those that were measured, the plain one among them.
            hopeful: whether a candidate of a family of which none was measured is taken
                to have the lowest ratio, as it may be worth a compilation; else the
                model's own bytes are the least, as it errs most on fusion where nothing
                is recomputed.
        """
        # Bytes that no plan changes are not modelled.
        fixed = self.bench.fixed_bytes if self.bench.kind == "total" else 0
        peaks = [max(m.peak_bytes, 1) for m in self.modelled]
        # Of a program whose recomputation was merged away, the bytes say little.
        changed = {i: m.bytes - fixed for i, m in measured.items() if not m.undone}
        families: dict[Hashable, dict[int, int]] = {}
        for i in changed.keys() - {0}:  # nothing is like the plain program
            alike = families.setdefault(self.modelled[i].family, {})
            alike[peaks[i]] = changed[i]
        unknown = min(size / peaks[i] for i, size in changed.items())
        if not hopeful:
            # The model counts the rows of all devices that the batch is divided over.
            divided = self.modelled[0].source.graph.divided.values()
            devices = max((math.prod(counts) for counts in divided), default=1)
            unknown = max(unknown, 1 / devices)

        def guess(peak: int, alike: dict[int, int] | None) -> float:
            if alike is None:
                return fixed + min(unknown * peak, changed[0])
            least, most = min(alike), max(alike)
            if peak < least:
                return fixed + peak * alike[least] / least
            if peak > most:
                return fixed + peak * alike[most] / most
            known = sorted(alike)
            between = np.interp(peak, known, [alike[p] for p in known])
            return fixed + float(between)

        return [
            guess(peak, families.get(m.family))
            for peak, m in zip(peaks, self.modelled, strict=True)
        ]


def _count_undone(plain: CompiledCandidate, found: CompiledCandidate) -> int:
    """The number of planned second computations that the compiler merged away.

    It may drop as many of the repeated operations as it drops of the plain ones: on CPU
    products with a vector, for example, become something else.
    """
    planned = found.heavy_traced - plain.heavy_traced
    left = found.heavy_compiled - plain.heavy_compiled
    usual = max(plain.heavy_traced - plain.heavy_compiled, 0)
    return max(planned - left - usual, 0)


def _shard_bytes(leaf: Any) -> int:
    """Bytes of an argument on one device."""
    sharding, shape = getattr(leaf, "sharding", None), getattr(leaf, "shape", ())
    if sharding is not None:
        shape = sharding.shard_shape(shape)
    return math.prod(shape) * getattr(getattr(leaf, "dtype", None), "itemsize", 0)
