"""The memory search: the cheapest program for a model's gradients within its budget.

In order of their cost: nothing; recomputing parts of the forward pass (`frugax.remat`);
running a batch in micro-batches, with and without recomputation. Every candidate is
compiled and measured. Donated arguments are not a candidate: donation moves a result
into an argument's place and leaves the sum unchanged (measured: 128 KiB of aliased
bytes came with 128 KiB more of temporaries).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import jax

from frugax import remat
from frugax.budget import MemoryBudget, format_bytes, format_share
from frugax.errors import InfeasibleBudgetError, RematUndoneError
from frugax.jaxprs import flops
from frugax.targets import Target

from ._memory_plan import Lever, MemoryPlan

# A micro-batch needs about its share of the whole. Counts that could fit only by
# needing less than 1 / 1.25 of that share are not compiled.
_SLACK = 1.25
# If more micro-batches save less than this, even more of them are not tried.
_GAIN = 0.98
# The final search gives up after this many counts in a row without improvement.
_PATIENCE = 2
# The number of smaller batches that are tried for the error's hint.
_MAX_SMALLER = 3


# eq=False keeps the identity hash: arguments are dictionaries of shapes, which have
# none, and two candidates are never compared.
@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """One program for the gradients, as `remat.plan` takes it.

    Attributes:
        objective: the function to differentiate.
        has_aux: whether it returns more than a scalar.
        example_args: shapes of its arguments.
        build: from its value-and-gradient function to the program that must fit.
        args: shapes of that program's arguments.
    """

    objective: Callable[..., Any]
    has_aux: bool
    example_args: tuple[Any, ...]
    build: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]

    def build_plain(self) -> Callable[..., Any]:
        """Build the program without a plan."""
        grad = jax.value_and_grad(self.objective, has_aux=self.has_aux)
        return self.build(grad)

    def build_planned(self, plan: remat.RematPlan | None) -> Callable[..., Any]:
        """Build the program with a plan; None leaves it plain."""
        if plan is None:
            return self.build_plain()
        # Run elsewhere than on the target, it gives the same numbers. The receipt says
        # which compiler has counted the bytes.
        return self.build(remat.apply(self.objective, plan, anywhere=True))

    def plan(
        self,
        budget: MemoryBudget,
        target: Target,
        *,
        first_fit: bool = True,
        plain: remat.CompiledCandidate | None = None,
        finish: Callable[[Callable[..., Any]], Any] = lambda step: step,
        keep: Callable[[Any], None] | None = None,
    ) -> remat.RematPlan:
        """Plan the recomputation that fits.

        Args:
            budget: the limit.
            target: the devices to plan for.
            first_fit: as for `remat.plan`.
            plain: the program without a plan, if it is compiled already.
            finish: from the program to the jitted function that calls will run.
            keep: as for `remat.EnclosingProgram`.
        """
        whole = remat.EnclosingProgram(
            build=lambda grad: finish(self.build(grad)),
            args=self.args,
            plain=plain,
            keep=keep,
        )
        return remat.plan(
            self.objective,
            budget,
            example_args=self.example_args,
            has_aux=self.has_aux,
            within=whole,
            divide_batch=False,  # a lever of its own here: micro-batches
            target=None if target.is_here else target,
            first_fit=first_fit,
        )


@runtime_checkable
class GradientTask(Protocol):
    """A request for gradients of a model."""

    purpose: str

    @property
    def shapes(self) -> tuple[tuple[str, str], ...]:
        """Shapes of the data, by key."""
        ...

    @property
    def batch_keys(self) -> tuple[str, ...]:
        """The data with a batch axis."""
        ...

    def counts(self) -> tuple[tuple[int, ...], str]:
        """The numbers of micro-batches to try, and the reason if they are empty."""
        ...

    def at(self, pieces: int) -> Candidate:
        """The program in this many micro-batches."""
        ...

    def smaller(self) -> Iterable[tuple[int, Candidate]]:
        """Programs for smaller whole batches, with their numbers of rows."""
        ...


Found = tuple[int, remat.RematPlan | None]


@dataclasses.dataclass(frozen=True, slots=True)
class PlainProgram:
    """The gradients of whole batches without a plan, as compiled.

    Attributes:
        bytes: of the budget's kind.
        flops: counted in the traced program.
        compiled: the program; None if the compiler refused it.
    """

    bytes: int
    flops: int
    compiled: remat.CompiledCandidate | None = None


@dataclasses.dataclass(eq=False)
class Search:
    """Finds the plan for one task.

    Attributes:
        task: the requested gradients.
        budget: the limit.
        plain: the program that needs no plan, as measured.
        target: the devices to plan for.
        tell: called with each attempt.
        levers: attempts so far.
        failures: attempts that did not fit, with their numbers of micro-batches.
        tried: the numbers of micro-batches that were tried.
        undone: the first error of a compiler that merged all recomputation away.
        finish: from a program to the jitted function that calls will run.
        jitted: the function of the plan that was found, if it is compiled.
        first_fit: whether few plans are tried; a second pass tries more.
    """

    task: GradientTask
    budget: MemoryBudget
    plain: PlainProgram
    target: Target
    tell: Callable[[Lever], None]
    levers: list[Lever] = dataclasses.field(default_factory=list)
    failures: list[tuple[int, InfeasibleBudgetError]] = dataclasses.field(
        default_factory=list
    )
    tried: set[int] = dataclasses.field(default_factory=set)
    undone: RematUndoneError | None = None
    finish: Callable[[Callable[..., Any]], Any] = lambda step: step
    jitted: Any = None
    first_fit: bool = True

    def find(self) -> MemoryPlan:
        """Find the first candidate that fits."""
        counts: tuple[int, ...] = (1,)
        reason = ""
        held = self.plain.bytes
        fits = held <= self.budget.usable_bytes
        self._record("keep everything", held, 0, fits=fits)
        # A program that fits is left as it is: one compilation, and nothing is traced
        # again to look for a plan.
        if fits:
            return self._plan(1, None, reason="")
        found = self._try(1)
        if found is None:
            counts, reason = self.task.counts()
            # Small numbers first, as each doubling costs time.
            found = self._search_upwards(counts)
        if found is None:
            # More plans for each number, and the numbers that the prediction of
            # `_least_count` was wrong to skip.
            self.first_fit, first = False, self.failures
            self.failures, self.tried = [], set()
            found = self._try(1) or self._search_upwards(counts)
            found = found or self._search_downwards(counts)
            self.failures = self.failures or first
        if found is not None:
            return self._plan(*found, reason="")
        if not self.failures:
            assert (
                self.undone is not None
            )  # every attempt ends in a plan, a failure or this
            raise self.undone
        return self._give_up(reason)

    def _search_upwards(self, counts: Sequence[int]) -> Found | None:
        """Try increasing numbers of micro-batches."""
        for count in counts:
            if count < self._least_count():
                continue
            before = self._least_needed()
            found = self._try(count)
            if found is not None:
                return found
            if self._least_needed() > before * _GAIN:
                return None  # the rest does not depend on the rows of a micro-batch
        return None

    def _search_downwards(self, counts: Sequence[int]) -> Found | None:
        """Try the skipped numbers from the largest down, for as long as that helps."""
        failures = 0
        for count in reversed(counts):
            if count in self.tried or failures == _PATIENCE:
                continue
            before = self._least_needed()
            found = self._try(count)
            if found is not None:
                return found
            failures += 1
            if self._least_needed() < before:
                failures = 0
        return None

    def _least_needed(self) -> float:
        return min((e.needed for _, e in self.failures), default=math.inf)

    def _least_count(self) -> float:
        if not self.failures:
            return 1.0
        pieces, error = self.failures[-1]
        # The last failure is the best witness: what does not depend on rows, such as
        # the weights' gradients, counts less the more pieces there are.
        return pieces * error.needed / (self.budget.limit_bytes * _SLACK)

    def _record(self, name: str, held: int, extra: int, *, fits: bool) -> None:
        lever = Lever(name=name, bytes=held, extra_flops=extra, fits=fits)
        self.levers.append(lever)
        self.tell(lever)

    def _try(self, pieces: int) -> Found | None:
        self.tried.add(pieces)
        name, both, own = "", "recompute", 0
        candidate = self.task.at(pieces)
        if pieces > 1:
            name = f"{pieces} micro-batches"
            both = f"{name}, recompute"
            # Micro-batches of a loss compute the forward pass twice; see LossGradients.
            own = self._extra_flops(candidate, None, pieces)

        def record(made: remat.RematPlan, *, fits: bool) -> None:
            held = made.unplanned_bytes
            if pieces > 1:  # the plain program is recorded by `find`
                self._record(name, held, own, fits=held <= self.budget.usable_bytes)
            if made.segments:
                extra = self._extra_flops(candidate, made, pieces)
                self._record(both, made.predicted, extra, fits=fits)

        def keep(jitted: Any) -> None:
            self.jitted = jitted

        self.jitted = None
        try:
            made = candidate.plan(
                self.budget,
                self.target,
                first_fit=self.first_fit,
                plain=self.plain.compiled if pieces == 1 else None,
                finish=self.finish,
                keep=keep,
            )
        except InfeasibleBudgetError as e:
            self.failures.append((pieces, e))
            record(_best_plan(e), fits=False)
            return None
        except RematUndoneError as e:
            # XLA may merge a recomputation with the original (common subexpressions),
            # and then the plan saves nothing. Micro-batches may still fit.
            self.undone = self.undone or e
            return None
        record(made, fits=True)
        return pieces, made

    def _extra_flops(
        self, candidate: Candidate, plan: remat.RematPlan | None, pieces: int
    ) -> int:
        """Flops of a candidate beyond those of the plain program of whole batches."""
        if pieces == 1 and plan is not None:
            return plan.extra_flops  # counted already
        run = candidate.build_planned(plan)
        return flops(jax.make_jaxpr(run)(*candidate.args).jaxpr) - self.plain.flops

    def _plan(
        self, pieces: int, made: remat.RematPlan | None, reason: str
    ) -> MemoryPlan:
        batch_keys: tuple[str, ...] = ()
        if pieces > 1:
            batch_keys = self.task.batch_keys
        predicted, extra = self.plain.bytes, 0
        if made is not None:
            predicted = made.predicted
            extra = self._extra_flops(self.task.at(pieces), made, pieces)
        return MemoryPlan(
            budget=self.budget,
            predicted=predicted,
            unplanned_bytes=self.plain.bytes,
            extra_flops=extra,
            unplanned_flops=self.plain.flops,
            purpose=self.task.purpose,
            shapes=self.task.shapes,
            micro_batches=pieces,
            batch_keys=batch_keys,
            recompute=made,
            levers=tuple(self.levers),
            no_pieces=reason,
            target=self.target.name,
        )

    def _give_up(self, reason: str) -> NoReturn:
        pieces, error = min(self.failures, key=lambda f: f[1].needed)
        limit = self.budget.limit_bytes
        # The best plan is reported with a budget that it keeps, so that it can be saved
        # and followed as it is.
        self.budget = dataclasses.replace(self.budget, limit_bytes=int(error.needed))
        best = self._plan(pieces, _best_plan(error), reason)
        hints = [*self._smaller(limit)]
        if reason:
            hints.append(f"(micro-batches are not possible: {reason})")
        raise InfeasibleBudgetError(
            f"{self.task.purpose}, by the best attempt "
            f"({self._describe(pieces, best.recompute)}),",
            needed=int(error.needed),
            limit=limit,
            unit="bytes",
            hint=" ".join(hints) or "make the model smaller.",
            best=best,
        )

    def _describe(self, pieces: int, made: remat.RematPlan | None) -> str:
        parts: list[str] = []
        if pieces > 1:
            parts.append(f"{pieces} micro-batches")
        if made is not None and made.segments:
            parts.append("recomputing")
        return " and ".join(parts) or "no lever helps"

    def _smaller(self, limit: int) -> Iterable[str]:
        """Measure which smaller batch fits."""
        budget = dataclasses.replace(self.budget, limit_bytes=limit)
        tried = 0
        needed = next((e.needed for n, e in self.failures if n == 1), None)
        whole: int | None = None
        for rows, candidate in self.task.smaller():
            whole = whole or 2 * rows
            # Memory shrinks about in proportion to the rows, so a batch that is far too
            # large is not compiled.
            if needed is not None and needed * rows / whole > limit * _SLACK:
                continue
            if tried == _MAX_SMALLER:
                return
            tried += 1
            try:
                made = candidate.plan(budget, self.target)
            except (InfeasibleBudgetError, RematUndoneError):
                continue
            how = "everything kept"
            if made.segments:
                how = "recomputing"
            yield (
                f"take batches of {rows}, which need {format_bytes(made.predicted)} "
                f"with {how} ({format_share(made.extra_share)} more flops)."
            )
            return


def _best_plan(error: InfeasibleBudgetError) -> remat.RematPlan:
    assert isinstance(error.best, remat.RematPlan)  # remat.plan always has one
    return error.best
