"""From a loss and a budget to the plan that fits, as XLA measures it."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax

from frugax.budget import MemoryBudget, check_budget
from frugax.errors import InfeasibleBudgetError, RematUndoneError
from frugax.jaxprs import flops

from ._check import check_arguments
from ._compile_search import (
    CompileBench,
    Measurement,
    confirm,
    initial_candidates,
    search,
)
from ._enclosing_program import EnclosingProgram
from ._plan import RematPlan, Segment
from ._plan_cache import plan_key, recall
from .rewrite import RematGraph, build_value_and_grad, trace_loss
from .solver import Candidate, build_segments, check_block_size, list_candidates


def plan(
    loss: Callable[..., Any],
    budget: MemoryBudget,
    example_args: Sequence[Any],
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    within: EnclosingProgram | None = None,
    block_size: int | None = None,
    cache: bool | str | os.PathLike[str] = True,
) -> RematPlan:
    """Decide what the backward pass keeps and what it does again, to fit `budget`.

    Nothing is run. Up to five programs are compiled and measured, and the cheapest that
    fits is taken, and compiled once more as it will be run; if the plain one fits,
    nothing is done again. What was planned once is remembered on disk.

    Args:
        loss: a function of positional arguments that returns one real number, and
            something more if `has_aux`.
        example_args: its arguments; arrays or `jax.ShapeDtypeStruct`, of the shapes
            that it will be called with.
        budget: the most memory the program may need, in bytes.
        argnums: which arguments to differentiate, as for `jax.grad`.
        has_aux: whether `loss` returns (number, anything), as for `jax.grad`.
        within: the program that must fit; by default the gradient alone.
        block_size: most operations that a recomputed segment may hold; None: any
            number.
        cache: whether to look for the plan among those made before, and keep it; or
            the folder where they are. By default `frugax/plans` in the user's cache
            folder.

    Raises:
        InfeasibleBudgetError: no plan that was tried fits; at `needed` one does, and
            `best` is that plan.
        RematUndoneError: the compiler merged away all recomputation.
        TypeError: the loss cannot be traced, or does not return a number; or an
            argument is of a wrong kind, such as a budget in text.
        ValueError: `block_size` is less than 1; `argnums` names no argument, or one
            twice; or `within` is no program around this gradient, or has other shapes.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from frugax import MemoryBudget, remat
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.mean(x**2)
        >>> w, x = jnp.ones((64, 64)), jnp.ones((512, 64))
        >>> plan = remat.plan(loss, MemoryBudget("800KiB"), example_args=(w, x))
        >>> plan.predicted <= 800 * 1024 < plan.unplanned_bytes
        True
    """
    if isinstance(budget, tuple | list) and isinstance(example_args, MemoryBudget):
        budget, example_args = example_args, budget
    check_budget(budget, MemoryBudget)
    check_block_size(block_size)
    check_arguments(loss, example_args, argnums, within=within, cache=cache)
    args = tuple(example_args)
    body = trace_loss(loss, args, argnums, has_aux=has_aux)
    how: dict[str, Any] = {"argnums": argnums, "has_aux": has_aux}
    key = None
    if cache is not False:
        given = how | {"within": within, "block_size": block_size}
        key = plan_key(loss, args, budget, **given)
    whole = within or EnclosingProgram(build=lambda grad: grad, args=args)
    maker = _Maker(loss, args, budget, body, whole, block_size, how)
    return recall(key, maker.make, cache=cache)


@dataclasses.dataclass(eq=False)
class _Maker:
    """Makes one plan."""

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    budget: MemoryBudget
    body: RematGraph
    whole: EnclosingProgram
    block_size: int | None
    how: dict[str, Any]
    rungs: list[Candidate] = dataclasses.field(default_factory=list)
    called: bool = False
    platform: str = dataclasses.field(default_factory=jax.default_backend)

    def make(self) -> RematPlan:
        """The plan, by quick compilations first.

        Raises:
            InfeasibleBudgetError: no plan that was tried fits.
            RematUndoneError: the compiler merged away all recomputation.
        """
        bench = self._bench(quick=self.platform == "cpu")
        found = self._find(bench)
        if found is None and bench.misled:
            # Compiled in full it needs more: nothing that was measured can be trusted.
            bench = self._bench(quick=False)
            found = self._find(bench)
        return self._plan(bench, found) if found else self._give_up(bench)

    def _bench(self, *, quick: bool) -> CompileBench:
        budget = self.budget
        limit = budget.usable_bytes
        return CompileBench(self.whole, budget.kind, limit, self._grad_of, quick)

    def _find(self, bench: CompileBench) -> Measurement | None:
        plain = bench.measure(0)
        if not self.called:
            raise ValueError(
                "within.build does not call the gradient function that it is given, so "
                "nothing there can be planned; call it instead of jax.value_and_grad."
            )
        if bench.fits(plain):
            return confirm(bench, plain)
        self.rungs = self.rungs or list_candidates(self.body, self.block_size)
        return search(bench, [r.draft.peak_bytes for r in self.rungs])

    def _segments(self, rung: int) -> tuple[Segment, ...]:
        return build_segments(self.rungs[rung], self.platform) if rung else ()

    def _grad_of(self, rung: int) -> Callable[..., Any]:
        step = build_value_and_grad(
            self.loss,
            self._segments(rung),
            self.rungs[rung].insides if rung else (),
            self.body.graph.fingerprint,
            **self.how,
        )

        def grad(*args: Any) -> tuple[Any, Any]:
            self.called = True
            return step(*args)

        return grad

    def _plan(self, bench: CompileBench, found: Measurement) -> RematPlan:
        plain_flops, flops_now = (
            flops(jax.make_jaxpr(self._grad_of(rung))(*self.args).jaxpr)
            for rung in (0, found.rung)
        )
        return RematPlan(
            budget=self.budget,
            predicted=found.bytes,
            unplanned_bytes=bench.tries[0].bytes,
            extra_flops=flops_now - plain_flops,
            unplanned_flops=plain_flops,
            insides=self.rungs[found.rung].insides if found.rung else (),
            segments=self._segments(found.rung),
            fingerprint=self.body.graph.fingerprint,
            compiles=bench.compiles,
            **self.how,
        )

    def _give_up(self, bench: CompileBench) -> NoReturn:
        tries, budget = bench.tries, self.budget
        sound = [t for t in tries if not t.undone]
        if len(sound) == 1 < len(tries):
            raise RematUndoneError(
                f"the compiler merged away recomputation in all {len(tries) - 1} plans "
                f"tried, up to {max(t.undone for t in tries)} products. Raise the limit"
                f" to {sound[0].bytes:,} bytes, use lax.scan, or, if the loss computes "
                "something twice, let it do so once."
            )
        sure = {0, *initial_candidates(len(self.rungs))}
        again = [t for t in sound if t.rung in sure]
        least = min(again, key=lambda t: t.bytes)
        needed = int(least.bytes / (1 - budget.headroom_frac))
        enough = lambda n: dataclasses.replace(budget, limit_bytes=n)
        while enough(needed).usable_bytes < least.bytes:
            needed += 1  # the headroom is rounded
        self.budget = enough(needed)
        best = self._plan(bench, least)
        raise InfeasibleBudgetError(
            f"the backward pass, {_how(tries)},",
            needed=needed,
            limit=budget.limit_bytes,
            unit="bytes",
            hint=_hint(best),
            best=best,
        )


def _how(tries: Sequence[Measurement]) -> str:
    if len(tries) == 1:
        return "in which recomputing would save nothing"
    return f"by the best of {len(tries)} compiled programs"


def _hint(best: RematPlan) -> str:
    """What else would help, and where most is held."""
    highest = max(best.segments, key=lambda s: s.peak_bytes, default=None)
    if highest is None:
        return "make the batch smaller."
    return (
        f"make the batch smaller: most is held at operations {highest.start}-"
        f"{highest.stop - 1} ({highest.what})."
    )
