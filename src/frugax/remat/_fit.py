"""Find a plan that fits: draft, compile, measure, and try a better one.

The first programs tried are the same whatever the limit: the plain one, then the
tightest drafts. Only once one fits does the limit steer the search. So if none fits,
the smallest of them is exactly what the budget would have to be.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import jax
import numpy as np

from frugax.budget import MemoryBudget, check_budget
from frugax.errors import InfeasibleBudgetError, RematUndoneError
from frugax.jaxprs import JaxprEqn, flops, has_loop
from frugax.measure import program

from ._apply import planned_value_and_grad
from ._body import read_body
from ._gates import choose_gate
from ._ladder import Rung, ladder
from ._plan import RematPlan, Segment
from ._program import Build, Program, compile_program
from ._solve import Step

# Each costs about as much as compiling the program once.
_MOST_COMPILES = 5
# A plan that needs this share of the limit is not worth another compilation.
_WELL_USED = 0.95
# The model is aimed this much below the limit, and further after each miss.
_MARGIN = 0.025
# A schedule for few live buffers instead of one for concurrency.
_SAVING_SCHEDULE = (("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"),)

Options = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Try:
    """One compiled candidate: which draft, how compiled, and what XLA said.

    Attributes:
        rung: its place among the drafts; 0 keeps everything.
        options: compiler options it was compiled with.
        bytes: what it needs, of the budget's kind.
        undone: dot products and convolutions that should be there twice, and are not.
    """

    rung: int
    options: Options
    bytes: int
    undone: int


@dataclasses.dataclass(eq=False)
class _Bench:
    """Compiles candidates and keeps what was measured."""

    whole: Program
    kind: Literal["temp", "total"]
    limit: int
    grad_of: Callable[[int], Callable[..., Any]]
    tries: list[_Try] = dataclasses.field(default_factory=list)
    plain: Build | None = None

    def measure(self, rung: int, options: Options = ()) -> _Try:
        build = compile_program(self.whole, self.grad_of(rung), options)
        self.plain = self.plain or build
        found = _Try(
            rung,
            options,
            program(build.compiled).bytes_of(self.kind),
            _undone(self.plain, build),
        )
        self.tries.append(found)
        return found

    def fits(self, found: _Try) -> bool:
        return found.bytes <= self.limit and not found.undone

    def tried(self) -> set[tuple[int, Options]]:
        return {(t.rung, t.options) for t in self.tries}


def plan(
    loss: Callable[..., Any],
    example_args: Sequence[Any],
    budget: MemoryBudget,
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    within: Program | None = None,
    block_size: int | None = None,
) -> RematPlan:
    """Decide what the backward pass keeps and what it does again, to fit `budget`.

    Nothing is run. Up to five programs are compiled and measured, and the cheapest
    that fits is taken; if the plain one fits, nothing is done again.

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

    Raises:
        InfeasibleBudgetError: no plan that was tried fits; at `needed` one does.
        RematUndoneError: the compiler merged away all recomputation.
        TypeError: the loss cannot be traced, or does not return a number; or the
            budget is none, but text.
        ValueError: `block_size` is less than 1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from frugax import MemoryBudget, remat
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.mean(x**2)
        >>> w, x = jnp.ones((64, 64)), jnp.ones((512, 64))
        >>> plan = remat.plan(loss, (w, x), MemoryBudget("800KiB"))
        >>> plan.predicted <= 800 * 1024 < plan.unplanned_bytes
        True
    """
    check_budget(budget, MemoryBudget)
    check_block_size(block_size)
    args = tuple(example_args)
    body = read_body(loss, args, argnums, has_aux=has_aux)
    rungs = ladder(body, block_size)
    platform = jax.default_backend()
    parts = [(), *(segments_of(r, platform) for r in rungs[1:])]

    def grad_of(rung: int) -> Callable[..., Any]:
        if rung == 0:
            return jax.value_and_grad(loss, argnums, has_aux=has_aux)
        return planned_value_and_grad(
            loss,
            parts[rung],
            rungs[rung].insides,
            body.graph.fingerprint,
            argnums=argnums,
            has_aux=has_aux,
        )

    whole = within or Program(build=lambda grad: grad, args=args)
    bench = _Bench(whole, budget.kind, budget.usable_bytes, grad_of)
    found = _search(bench, [r.draft.peak_bytes for r in rungs], platform)
    if found is None:
        _give_up(bench.tries, budget, loops=any(map(_unplanned_loop, body.eqns)))
    plain_flops, flops_now = (
        flops(jax.make_jaxpr(grad_of(rung))(*args).jaxpr) for rung in (0, found.rung)
    )
    return RematPlan(
        budget=budget,
        predicted=found.bytes,
        unplanned_bytes=bench.tries[0].bytes,
        extra_flops=flops_now - plain_flops,
        unplanned_flops=plain_flops,
        insides=rungs[found.rung].insides,
        segments=parts[found.rung],
        fingerprint=body.graph.fingerprint,
        argnums=argnums,
        has_aux=has_aux,
        compiler_options=found.options,
        compiles=len(bench.tries),
    )


def _search(bench: _Bench, peaks: list[int], platform: str) -> _Try | None:
    """The cheapest try that fits, or None; `peaks` is the model's, falling."""
    plain = bench.measure(0)
    if bench.fits(plain) or len(peaks) == 1:
        return plain if bench.fits(plain) else None
    aimed = bench.measure(_aim(bench, peaks, (), range(1, len(peaks))))
    best = aimed if bench.fits(aimed) else None
    # Nothing here depends on the limit, so that what these need is what is needed.
    for rung, options in _openings(len(peaks), platform):
        if best is None and (rung, options) not in bench.tried():
            found = bench.measure(rung, options)
            best = found if bench.fits(found) else None
    while best and len(bench.tries) < _MOST_COMPILES:
        over = [t.rung for t in bench.tries if t.options in ((), best.options)]
        above = max(r for r in over if r < best.rung)
        if best.bytes >= _WELL_USED * bench.limit or best.rung - above < 2:
            break
        rung = _aim(bench, peaks, best.options, range(above + 1, best.rung))
        found = bench.measure(rung, best.options)
        best = found if bench.fits(found) else best
    return best


def _aim(bench: _Bench, peaks: list[int], options: Options, rungs: range) -> int:
    """The first of `rungs` that should fit, by the model and what was measured.

    What the model says is off by a factor that differs from loss to loss, and little
    from plan to plan: between two tries it is taken to be straight.
    """
    known = {peaks[t.rung]: t.bytes for t in bench.tries if t.options in ((), options)}
    known = {0: 0} | known
    at = sorted(known)
    missed = sum(t.rung > 0 and not bench.fits(t) for t in bench.tries)
    wanted = bench.limit * (1 - _MARGIN * (1 + missed))
    guess = np.interp([peaks[r] for r in rungs], at, [known[p] for p in at])
    return next(
        (r for r, b in zip(rungs, guess, strict=True) if b <= wanted), rungs[-1]
    )


def _openings(rungs: int, platform: str) -> list[tuple[int, Options]]:
    """What to try when what the model points to does not fit."""
    # The model's tightest need not be XLA's: each branch within a branch costs it some.
    last = rungs - 1
    found: list[tuple[int, Options]] = [(last, ()), (max(last * 2 // 3, 1), ())]
    if platform == "cpu":
        found.append((last, _SAVING_SCHEDULE))
    return found


def check_block_size(block_size: int | None) -> None:
    """Refuse a block that holds nothing.

    Raises:
        ValueError: it is less than 1.
    """
    if block_size is not None and block_size < 1:
        raise ValueError(
            f"block_size must be at least 1 operation, got {block_size}; None allows "
            "any number."
        )


def _unplanned_loop(eqn: JaxprEqn) -> bool:
    return has_loop(eqn) and eqn.primitive.name != "scan"


def segments_of(rung: Rung, platform: str) -> tuple[Segment, ...]:
    """A draft's segments, each with the gate for what is in it."""

    def segment(step: Step) -> Segment:
        cost = rung.costs.of[step.start, step.stop, step.mode]
        return Segment(
            start=step.start,
            stop=step.stop,
            gate=choose_gate(rung.body.eqns[step.start : step.stop], platform)
            if step.mode
            else None,
            saved_bytes=cost.stored_bytes,
            recomputed_flops=cost.flops,
            kept=cost.kept,
            inside=tuple(map(segment, step.inside)),
        )

    return tuple(map(segment, rung.draft.steps))


def _undone(plain: Build, build: Build) -> int:
    """How much planned recomputation the compiler has merged away.

    It may drop as many of the repeated operations as it drops of the plain ones:
    products with a vector, for example, become something else on CPU.
    """
    planned = build.heavy_written - plain.heavy_written
    there = build.heavy_left - plain.heavy_left
    usual = max(plain.heavy_written - plain.heavy_left, 0)
    return max(planned - there - usual, 0)


def _give_up(tries: list[_Try], budget: MemoryBudget, *, loops: bool) -> NoReturn:
    sound = [t for t in tries if not t.undone]
    if len(sound) == 1 < len(tries):
        raise RematUndoneError(
            f"the compiler merged away recomputation in all {len(tries) - 1} plans "
            f"tried, up to {max(t.undone for t in tries)} products; no plan can help "
            f"here: raise the limit to {sound[0].bytes:,} bytes, or use lax.scan."
        )
    least = min(t.bytes for t in sound)
    needed = int(least / (1 - budget.headroom_frac))
    while dataclasses.replace(budget, limit_bytes=needed).usable_bytes < least:
        needed += 1  # the headroom is rounded
    how = f"by the best of {len(tries)} compiled programs"
    if len(tries) == 1:
        how = "in which recomputing would save nothing"
    raise InfeasibleBudgetError(
        f"the backward pass, {how},",
        needed=needed,
        limit=budget.limit_bytes,
        unit="bytes",
        hint="checkpoint the bodies of its loops, which are not planned."
        if loops
        else "make the batch smaller.",
    )
