"""Search for the cheapest way to fit a model's gradients in a memory budget.

In the order of what it costs: nothing; to compute some of the forward pass a second
time (`frugax.remat`); to let a batch through in pieces, with and without that. Every
candidate is compiled and XLA is asked what it needs. Arguments given up to XLA are not
among them: that moves a result into an argument's place and leaves the sum as it was
(measured: 128 KiB of aliased bytes came with 128 KiB more of temporary ones).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import jax

from frugax import remat
from frugax.budget import MemoryBudget, format_bytes, format_share
from frugax.errors import InfeasibleBudgetError, RematUndoneError
from frugax.jaxprs import flops
from frugax.measure import program

from ._memory_plan import Lever, MemoryPlan

# A piece needs no less than its share of the whole, or hardly: counts of pieces that
# could only fit by needing less than 1 / 1.25 of it are not compiled.
_SLACK = 1.25
# More pieces must bring the bytes below this share, or still more are not tried.
_GAIN = 0.98
# So many numbers of pieces in a row may be tried in vain, at the end.
_VAIN = 2
# How many smaller batches are tried to say which one would fit.
_SMALLER = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """One way through a model, for `remat.plan`.

    Attributes:
        objective: the function whose gradient the pieces take.
        has_aux: whether it gives more than a number.
        example_args: its arguments' shapes.
        build: from its value-and-gradient function to the program that must fit.
        args: that program's arguments' shapes.
    """

    objective: Callable[..., Any]
    has_aux: bool
    example_args: tuple[Any, ...]
    build: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]

    def plain(self) -> Callable[..., Any]:
        """The program with nothing planned."""
        grad = jax.value_and_grad(self.objective, has_aux=self.has_aux)
        return self.build(grad)

    def planned(self, plan: remat.RematPlan) -> Callable[..., Any]:
        """The program with a plan."""
        return self.build(remat.apply(self.objective, plan))

    def plan(self, budget: MemoryBudget) -> remat.RematPlan:
        """The plan that fits.

        Raises:
            InfeasibleBudgetError: nothing that was tried fits.
        """
        whole = remat.EnclosingProgram(build=self.build, args=self.args)
        return remat.plan(
            self.objective,
            budget,
            example_args=self.example_args,
            has_aux=self.has_aux,
            within=whole,
        )


@runtime_checkable
class Task(Protocol):
    """What gradients are wanted of a model."""

    purpose: str

    @property
    def shapes(self) -> tuple[tuple[str, str], ...]:
        """Of the data, by key."""
        ...

    @property
    def batch_keys(self) -> tuple[str, ...]:
        """The data that can be cut."""
        ...

    def counts(self) -> tuple[tuple[int, ...], str]:
        """The numbers of pieces to try, or why there are none."""
        ...

    def at(self, pieces: int) -> Candidate:
        """The way through in that many pieces."""
        ...

    def smaller(self) -> Iterable[tuple[int, Candidate]]:
        """The whole way through for smaller batches, with their numbers of rows."""
        ...


Found = tuple[int, remat.RematPlan]


@dataclasses.dataclass(eq=False)
class Search:
    """Finds the plan for one task.

    Attributes:
        task: what is wanted.
        budget: what it must fit in.
        levers: what was tried.
        failures: what did not fit, with its number of pieces.
        tried: the numbers of pieces that were tried.
        undone: the first time that the compiler merged all recomputation away.
    """

    task: Task
    budget: MemoryBudget
    levers: list[Lever] = dataclasses.field(default_factory=list)
    failures: list[tuple[int, InfeasibleBudgetError]] = dataclasses.field(
        default_factory=list
    )
    tried: set[int] = dataclasses.field(default_factory=set)
    undone: RematUndoneError | None = None

    def find(self) -> MemoryPlan:
        """The first that fits.

        Raises:
            InfeasibleBudgetError: nothing that was tried fits.
            RematUndoneError: the compiler merged all recomputation away, and pieces do
                not help.
        """
        counts: tuple[int, ...] = (1,)
        reason = ""
        found = self._try(1)
        if found is None:
            counts, reason = self.task.counts()
            found = self._upwards(counts) or self._downwards(counts)
        if found is not None:
            return self._plan(*found, reason="")
        if not self.failures:
            assert self.undone is not None  # a try gives a plan, a failure or this
            raise self.undone
        return self._give_up(reason)

    def _upwards(self, counts: Sequence[int]) -> Found | None:
        """As few pieces as will do."""
        for count in counts:
            if count < self._least_count():
                continue
            before = self._least_needed()
            found = self._try(count)
            if found is not None:
                return found
            if self._least_needed() > before * _GAIN:
                return None  # what is left does not depend on the rows of a piece
        return None

    def _downwards(self, counts: Sequence[int]) -> Found | None:
        """What was passed over, from the most pieces for as long as that helps."""
        vain = 0
        for count in reversed(counts):
            if count in self.tried or vain == _VAIN:
                continue
            before = self._least_needed()
            found = self._try(count)
            if found is not None:
                return found
            vain = 0 if self._least_needed() < before else vain + 1
        return None

    def _least_needed(self) -> float:
        return min((e.needed for _, e in self.failures), default=math.inf)

    def _least_count(self) -> float:
        if not self.failures:
            return 1.0
        pieces, error = self.failures[-1]
        return pieces * error.needed / (self.budget.limit_bytes * _SLACK)

    def _try(self, pieces: int) -> Found | None:
        self.tried.add(pieces)
        name = f"{pieces} micro-batches" if pieces > 1 else "keep everything"
        both = f"{name}, recompute" if pieces > 1 else "recompute"
        usable = self.budget.usable_bytes
        way = self.task.at(pieces)
        own = 0 if pieces == 1 else _flops(way.plain(), way) - self._plain_flops

        def add(made: remat.RematPlan, *, fits: bool) -> None:
            plain = made.unplanned_bytes
            self.levers.append(
                Lever(name=name, bytes=plain, extra_flops=own, fits=plain <= usable)
            )
            if made.segments:
                extra = _flops(way.planned(made), way) - self._plain_flops
                self.levers.append(
                    Lever(name=both, bytes=made.predicted, extra_flops=extra, fits=fits)
                )

        try:
            made = way.plan(self.budget)
        except InfeasibleBudgetError as e:
            self.failures.append((pieces, e))
            add(_best(e), fits=False)
            return None
        except RematUndoneError as e:
            self.undone = self.undone or e
            if pieces == 1:  # the plan will say what there was without it
                plain = jax.jit(way.plain()).lower(*way.args).compile()
                held = program(plain).bytes_of(self.budget.kind)
                self.levers.append(
                    Lever(name=name, bytes=held, extra_flops=0, fits=False)
                )
            return None
        add(made, fits=True)
        return pieces, made

    @functools.cached_property
    def _plain_flops(self) -> int:
        first = self.task.at(1)
        return _flops(first.plain(), first)

    def _plan(self, pieces: int, made: remat.RematPlan, reason: str) -> MemoryPlan:
        plain = self._plain_flops
        way = self.task.at(pieces)
        return MemoryPlan(
            budget=self.budget,
            predicted=made.predicted,
            unplanned_bytes=self.levers[0].bytes,
            extra_flops=_flops(way.planned(made), way) - plain,
            unplanned_flops=plain,
            purpose=self.task.purpose,
            shapes=self.task.shapes,
            micro_batches=pieces,
            batch_keys=self.task.batch_keys if pieces > 1 else (),
            recompute=made,
            levers=tuple(self.levers),
            no_pieces=reason,
        )

    def _give_up(self, reason: str) -> NoReturn:
        pieces, error = min(self.failures, key=lambda f: f[1].needed)
        limit = self.budget.limit_bytes
        self.budget = dataclasses.replace(self.budget, limit_bytes=int(error.needed))
        best = self._plan(pieces, _best(error), reason)
        hints = [*self._smaller(limit)]
        if reason:
            hints.append(f"(batches cannot go in pieces: {reason})")
        raise InfeasibleBudgetError(
            f"{self.task.purpose}, by the best of what was tried "
            f"({self._name(pieces, best.recompute)}),",
            needed=int(error.needed),
            limit=limit,
            unit="bytes",
            hint=" ".join(hints) or "make the model smaller.",
            best=best,
        )

    def _name(self, pieces: int, made: remat.RematPlan) -> str:
        parts = [f"{pieces} micro-batches"] if pieces > 1 else []
        parts += ["recomputing"] if made.segments else []
        return " and ".join(parts) or "no lever helps"

    def _smaller(self, limit: int) -> Iterable[str]:
        """What fits with a smaller batch, as measured."""
        budget = dataclasses.replace(self.budget, limit_bytes=limit)
        tried = 0
        needed = next((e.needed for n, e in self.failures if n == 1), None)
        whole: int | None = None
        for rows, way in self.task.smaller():
            whole = whole or 2 * rows
            if needed is not None and needed * rows / whole > limit * _SLACK:
                continue
            if tried == _SMALLER:
                return
            tried += 1
            try:
                made = way.plan(budget)
            except (InfeasibleBudgetError, RematUndoneError):
                continue
            how = "recomputing" if made.segments else "everything kept"
            yield (
                f"take batches of {rows}, which need {format_bytes(made.predicted)} "
                f"with {how} ({format_share(made.extra_share)} more flops)."
            )
            return


def _best(error: InfeasibleBudgetError) -> remat.RematPlan:
    assert isinstance(error.best, remat.RematPlan)  # remat.plan always names one
    return error.best


def _flops(function: Callable[..., Any], way: Candidate) -> int:
    return flops(jax.make_jaxpr(function)(*way.args).jaxpr)
