"""`remat.plan`: find a plan for a loss and a budget by a model, confirmed by XLA."""

import dataclasses
import functools
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn, TypeVar

import jax
from jax.core import Tracer

from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    amount,
    check_budget,
    format_bytes,
    format_seconds,
)
from frugax.errors import InfeasibleBudgetError, RematUndoneError
from frugax.jaxprs import (
    JaxprEqn,
    LossOfArrays,
    flops,
    flops_of,
    has_checkpoints,
    jaxprs_in_params,
    take_arrays,
)
from frugax.targets import Target

from ._added_time import guess_added_seconds
from ._compile_search import CompileBench, Measurement, search
from ._enclosing_program import EnclosingProgram
from ._plan import PlanParts, RematPlan
from ._plan_cache import plan_key, recall
from ._shardings import axis_devices, example_shapes, shard_shapes
from .rewrite import (
    RematGraph,
    build_value_and_grad,
    call_inside,
    find_shard_map,
    has_custom_rule,
    prepare_loss,
    prepare_shard_body,
)
from .solver import (
    Candidate,
    Stage,
    build_parts,
    check_block_size,
    list_candidates,
    list_named,
    reads_late,
)


def plan(
    loss: Callable[..., Any],
    budget: MemoryBudget | MemoryShare,
    example_args: Sequence[Any],
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    within: EnclosingProgram | None = None,
    block_size: int | None = None,
    divide_batch: bool | Literal["first"] = True,
    offload: bool | Literal["first"] = True,
    cache: bool | str | os.PathLike[str] = True,
    target: Target | str | None = None,
    first_fit: bool = False,
    within_s: float | None = None,
) -> RematPlan:
    """Choose the results that the backward pass keeps or recomputes, within `budget`.

    Nothing is run. Three to eleven programs are compiled and measured, and the cheapest
    that fits is chosen. If the program fits as it is, nothing is recomputed. Plans are
    remembered on disk.

    Args:
        loss: a function of positional arguments that returns one real number, or
            (number, anything) if `has_aux`.
        budget: the most memory the program may need: in bytes, as a share of what it
            needs without a plan, `MemoryBudget("50%")`, or of a device,
            `MemoryBudget("90% of h100")`.
        example_args: a tuple of the loss's arguments; arrays or `jax.ShapeDtypeStruct`
            of the shapes that it will be called with, in trees or modules. What such a
            module holds beside arrays of floats is not differentiated.
        argnums: which arguments to differentiate, as for `jax.grad`.
        has_aux: whether `loss` returns (number, anything), as for `jax.grad`.
        within: the program that must fit; by default the gradient alone.
        block_size: the most operations in a recomputed segment; None for any number.
        divide_batch: whether the loss may run in chunks of its batch, where
            recomputation does not fit or, by a model of the step time, takes twice as
            long. `"first"` prefers chunks: they compute next to nothing twice, but sums
            over the batch round differently.
        offload: whether scans may keep values in the host's memory, on one GPU or TPU,
            where nothing else fits. `"first"` prefers it to recomputation: the time to
            move the bytes is not in the flops.
        cache: whether to look the plan up among remembered ones and to remember it, or
            the folder that holds them. The default folder is `frugax/plans` in the
            user's cache folder.
        target: the devices to plan for, which need not be here, such as `"h100"`; by
            default those where the arguments live.
        first_fit: whether to take the first plan that fits, after one compilation in
            most cases, instead of looking for a cheaper one.
        within_s: seconds after which no further program is tried: the best plan so far
            is compiled as it will run, and taken. None for no limit.

    Raises:
        ConfigError: there is no such target or device, its memory is not known, or a
            mesh does not fit it.
        MissingExtraError: the compiler of the target is not installed.
        InfeasibleBudgetError: none of the measured plans fits; `best` is the smallest
            of them that planning for its own bytes, `needed`, finds again, or simply
            the smallest where `within_s` has passed.
        RematUndoneError: the compiler merged away all recomputation, or kept on the
            device what the plan moves to the host.
        TypeError: the loss cannot be traced or does not return a number, or an argument
            has a wrong type, such as a budget in text.
        ValueError: `block_size` is less than 1; `within_s` is not above 0; `argnums`
            names an argument that does not exist, or one twice; `within` does not call
            the gradient or has other shapes; or `offload="first"` on a CPU, on several
            devices or without scans.

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
    # The examples may come first, as `jax.make_jaxpr`'s do: the types tell.
    if isinstance(budget, tuple | list) and isinstance(
        example_args, MemoryBudget | MemoryShare
    ):
        budget, example_args = example_args, budget
    if not isinstance(budget, MemoryShare):
        check_budget(budget, MemoryBudget)
    check_block_size(block_size)
    if within_s is not None:
        if isinstance(within_s, bool) or not isinstance(within_s, int | float):
            raise TypeError(f"within_s must be a number of seconds, got {within_s!r}.")
        if not within_s > 0:
            raise ValueError(f"within_s must be above 0 seconds, got {within_s!r}.")
    _check_arguments(loss, example_args, argnums, within=within, cache=cache)
    for name, lever in (("divide_batch", divide_batch), ("offload", offload)):
        # A misspelt word would be taken for another choice.
        if lever not in (True, False, "first"):
            raise ValueError(
                f'{name} must be True, False or "first", got {lever!r:.80}.'
            )
    if within is not None:
        count = len(example_args)
        within = within.of_gradient(loss, argnums, has_aux=has_aux, count=count)
    taken = take_arrays(loss, tuple(example_args), argnums, has_aux=has_aux)
    # From here on with positions from the front: arrays that are taken come last.
    asked: dict[str, Any] = {"argnums": taken.argnums, "has_aux": has_aux}
    take = functools.partial(take_arrays, loss, **asked)
    loss, args, argnums = taken.loss, taken.args, taken.argnums
    check_arrays(args, name="example_args")
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
        args = example_shapes(args)
    program = EnclosingProgram.around(within, args)
    if target is not None:
        chosen = Target(target) if isinstance(target, str) else target
        program = program.on(chosen)
        args = chosen.place(args)
        if within is not None:
            within = program
    budget = program.target.in_bytes(budget)
    how: dict[str, Any] = {"argnums": argnums, "has_aux": taken.has_aux}
    body = prepare_loss(loss, args, **how, with_places=False)
    key = None
    if cache is not False:
        key = plan_key(
            loss,
            budget,
            args,
            **how,
            within=within,
            take=take,
            block_size=block_size,
            divide_batch=divide_batch,
            offload=offload,
            first_fit=first_fit,
        )
    search = _PlanSearch(
        loss,
        args,
        budget,
        body,
        program,
        block_size,
        how,
        divide_batch,
        offload,
        first_fit,
        within_s,
        take,
    )
    # Of the loss as the caller wrote it, from which arrays may have been taken.
    try:
        plan = recall(key, search.run, cache=cache, within_s=within_s)
    except InfeasibleBudgetError as e:
        if isinstance(e.best, RematPlan):
            e.best = dataclasses.replace(e.best, has_aux=has_aux)
        raise
    return dataclasses.replace(plan, has_aux=has_aux)


# Where recomputation costs at least this share of the plain flops, chunks of the batch
# are tried as well, and taken if they should add at most this share of its time.
_COSTLY, _FAR_FASTER = 0.02, 0.5
# Before a refusal, all that these list is looked through once more.
_RECOMPUTING = (Stage.WHOLE, Stage.IN_ROWS)


_T = TypeVar("_T")


@dataclasses.dataclass(eq=False)
class _PlanSearch:
    """The search for one plan; its first attributes are arguments of `plan`.

    Attributes:
        body: the prepared loss.
        program: the program that must fit.
        how: the keywords `argnums` and `has_aux`.
        divides: whether the loss may run in chunks of its batch, or `"first"`.
        offload: whether scans may keep values in the host's memory, or `"first"`.
        first_fit: whether the first plan that fits is taken.
        within_s: seconds after which no further program is tried; None for no limit.
        take: takes the arrays out of arguments of the caller's loss, for an enclosing
            program that calls the gradient with modules.
        listed: for each stage, its candidates, and those that a user could write.
        called: whether the enclosing program called the gradient.
        shard_map: the operation in whose body the plan applies, see `RematPlan`.
        planned: the program that is planned: the loss, or the body of that operation.
        opened: the same with the loss's own `jax.checkpoint` regions opened, if it has
            any.
        is_opened: whether only the loss with opened regions is planned.
        fingerprint: of the loss as it is.
        prepared: the loss as it is and, if it has regions, with these opened.
    """

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    budget: MemoryBudget | MemoryShare
    body: RematGraph
    program: EnclosingProgram
    block_size: int | None
    how: dict[str, Any]
    divides: bool | Literal["first"]
    offload: bool | Literal["first"]
    first_fit: bool
    within_s: float | None
    take: Callable[[tuple[Any, ...]], LossOfArrays]
    listed: dict[Stage, tuple[list[Candidate], list[Candidate]]] = dataclasses.field(
        default_factory=dict
    )
    called: bool = False
    shard_map: int | None = None
    planned: RematGraph = dataclasses.field(init=False)
    opened: RematGraph | None = None
    is_opened: bool = False
    fingerprint: str = ""
    prepared: dict[bool, RematGraph] = dataclasses.field(default_factory=dict)
    _deadline: float = math.inf

    def __post_init__(self) -> None:
        if self.within_s is not None:
            self._deadline = time.monotonic() + self.within_s
        self.fingerprint = self.body.graph.fingerprint
        self.prepared[False] = self.body
        self.planned, self.shard_map = self.body, find_shard_map(self.body)
        if has_checkpoints(jax.make_jaxpr(self.loss)(*self.args).eqns):
            self.opened = self.prepared[True] = prepare_loss(
                self.loss, self.args, **self.how, is_opened=True, with_places=False
            )
            number = find_shard_map(self.opened)
            if number != self.shard_map:
                # The `shard_map` is inside a region, or behind one that hides others.
                self.body = self.planned = self.opened
                self.shard_map, self.opened, self.is_opened = number, None, True
        if self.shard_map is None:
            is_divided = shard_shapes(self.program.args) and not self.program.is_mapped
            if is_divided and not shard_shapes(self.args):
                # How the batch is divided over the devices is not known.
                self.divides = False
            self.planned = self._divide(self.planned)
            self.opened = self.opened and self._divide(self.opened)
            return
        # Inside of a `shard_map` each device has a batch of its own.
        self.planned = prepare_shard_body(self.body, self.shard_map).graph
        if self.opened is not None:
            self.opened = prepare_shard_body(self.opened, self.shard_map).graph
        outputs = self.planned.graph.outputs[: self.planned.num_differentiated]
        if [o.aval.shape for o in outputs] != [()]:
            self.divides = False

    def _why_no_offload(self) -> str:
        """Why nothing can be kept in the host's memory; "" if something can."""
        if self.program.target.platform == "cpu":
            return "the memory of a CPU is the host's"
        if self.shard_map is not None or shard_shapes(self.args):
            return "it is planned for a single device only"
        if not any(e.primitive.name == "scan" for e in self.planned.eqns):
            return "only scans keep values there (docs/remat.md, Limits)"
        return ""

    def _divide(self, body: RematGraph) -> RematGraph:
        """The same loss, with the devices that its inputs are divided over."""
        devices = axis_devices(self.args)
        divided = dict(zip(body.graph.args, devices, strict=True))
        return dataclasses.replace(body, divided=divided)

    def run(self) -> RematPlan:
        """The plan, by quick compilations first."""
        if self.offload == "first" and (why := self._why_no_offload()):
            raise ValueError(f'offload="first" is not possible: {why}; leave it out.')
        # Quick compilation is known to keep the buffers on CPU only, see `_QUICK`.
        bench = self._bench(quick=self.program.target.platform == "cpu")
        try:
            found = self._find(bench)
            if found is None and bench.misled:
                # Compiled in full, the chosen plan needs more than quickly compiled, so
                # the quick measurements are not to be trusted for this program.
                bench = self._bench(quick=False)
                found = self._find(bench)
            if found is None:
                self._raise_infeasible(bench)
            return self._build_plan(bench, found)
        finally:
            bench.progress.clear()

    def _bench(self, *, quick: bool) -> CompileBench:
        budget, limit = self.budget, 0
        if isinstance(budget, MemoryBudget):  # a share is resolved by `_find`
            limit = budget.usable_bytes
        return CompileBench(
            self.program,
            budget.kind,
            limit,
            self._parts_of,
            self._grad_of,
            quick,
            self.first_fit,
            self._deadline,
        )

    def _find(self, bench: CompileBench) -> Measurement | None:
        # The plain program always comes first: its size is reported in every plan, and
        # its products are the standard for counting merged recomputation.
        try:
            plain = bench.measure(PlanParts(), final=self.first_fit)
        except ValueError as e:
            if not _has_open_loop(self.body.eqns):
                raise
            raise ValueError(
                "this loss runs a while_loop whose number of iterations is not fixed, "
                "and JAX has no gradient for that; use lax.scan, lax.fori_loop with "
                "fixed ends, or the checkpoints of the library, such as diffrax's "
                "RecursiveCheckpointAdjoint."
            ) from e
        if isinstance(self.budget, MemoryShare):
            self.budget = self.budget.of(plain.bytes)
            bench.limit = self.budget.usable_bytes
        if not self.called and self.program.plain is None:
            raise ValueError(
                "within.build does not use the gradient of the value_and_grad that it "
                "is given, so nothing there can be planned; call it in the place of "
                "jax.value_and_grad."
            )
        if bench.fits(plain):
            return bench.confirm(plain)
        if self._is_hopeless(bench):
            return None
        return self._find_smaller(bench)

    def _is_hopeless(self, bench: CompileBench) -> bool:
        """Whether arguments and results alone exceed the limit."""
        return self.budget.kind == "total" and bench.fixed_bytes > bench.limit

    def _find_smaller(self, bench: CompileBench) -> Measurement | None:
        """A plan where the plain program does not fit."""
        # Sums over chunks round differently, so the batch is divided only where
        # recomputation does not fit or costs much, or by wish.
        stages = [Stage.CHUNKED] if self.divides == "first" else []
        if self.offload == "first":
            stages.insert(0, Stage.IN_HOST)
        stages += [Stage.WHOLE]
        if self.shard_map is None and reads_late(self.planned):
            stages += [Stage.COPIED]
        if self.divides:
            stages += [Stage.CHUNKED] if self.divides != "first" else []
            stages += [Stage.IN_ROWS] if self._runs_in_rows else []
            stages += [Stage.ALL]
        # No refusal comes before the smallest plan of all without the host's memory.
        last = stages[-1]
        if self.offload is True and not self._why_no_offload():
            stages.append(Stage.IN_HOST)
        for stage in stages:
            thorough = stage in (last, stages[-1])
            found = self._search(bench, stage, thorough=thorough)
            if found and Stage.CHUNKED in stages[stages.index(stage) + 1 :]:
                found = self._prefer_chunks(bench, found)
            if found and (found := bench.confirm(found)):
                return found
            if bench.is_late:
                break
        return None

    def _search(
        self,
        bench: CompileBench,
        stage: Stage,
        *,
        thorough: bool,
        accept: Callable[[Candidate], bool] | None = None,
    ) -> Measurement | None:
        if stage not in self.listed:
            self.listed[stage] = self._inside(functools.partial(self._list, stage))
        candidates, named = self.listed[stage]
        if thorough:
            # By the model others may be better than all of these, and XLA disagree.
            identify = lambda c: (c.source.rows, c.loops, c.draft)
            known = set(map(identify, candidates))
            earlier = [self.listed.get(s, ([], []))[0] for s in _RECOMPUTING]
            rest = [c for c in itertools.chain(*earlier) if identify(c) not in known]
            named = named + rest
        if accept is not None:
            candidates = [candidates[0], *filter(accept, candidates[1:])]
            named = []
        return search(bench, candidates, named, thorough=thorough)

    def _prefer_chunks(self, bench: CompileBench, found: Measurement) -> Measurement:
        """Chunks of the batch where they are far faster than this plan.

        Not where the loss is divided over devices: these would add up their gradients
        once for each chunk.
        """
        is_divided = self.shard_map is not None or bool(shard_shapes(self.args))
        plain_flops = bench.plain.flops or 0
        extra = (found.flops or 0) - plain_flops
        if self.first_fit or is_divided or extra < _COSTLY * plain_flops:
            return found
        guess = functools.partial(
            guess_added_seconds, self.planned, self.program.target.platform
        )
        most = _FAR_FASTER * guess(extra, chunks=1)
        if guess(0, chunks=2) > most:
            return found

        def is_fast(candidate: Candidate) -> bool:
            batch = candidate.source.batch
            return batch is not None and guess(candidate.flops, batch.count) <= most

        # Where chunks alone do not fit, chunks that recompute a little may.
        for chunked in (Stage.CHUNKED, Stage.ALL):
            other = self._search(bench, chunked, thorough=False, accept=is_fast)
            if other is None:
                # Chunks that recompute are the smallest ones.
                batches = [c.source.batch for c in self.listed[chunked][0]]
                counts = [b.count for b in batches if b]
                if guess(0, chunks=max(counts, default=1)) > most:
                    break
                continue
            batch = other.parts.batch
            chunks = batch.count if batch else 1
            if guess((other.flops or 0) - plain_flops, chunks=chunks) <= most:
                return other
            break
        return found

    def _inside(self, make: Callable[[], _T]) -> _T:
        if self.shard_map is None:
            return make()
        return call_inside(self.body, self.shard_map, make)

    def _list(self, stage: Stage) -> tuple[list[Candidate], list[Candidate]]:
        how: dict[str, Any] = {
            "stage": stage,
            "opened": self.opened,
            "platform": self.program.target.platform,
        }
        named: list[Candidate] = []
        if self.block_size is None:
            named = list_named(self.planned, **how)
        return list_candidates(self.planned, self.block_size, **how), named

    @property
    def _runs_in_rows(self) -> bool:
        """Whether parts of the loss may run in chunks of rows: on a single device."""
        return self.shard_map is None and not shard_shapes(self.args)

    def _parts_of(self, candidate: Candidate) -> PlanParts:
        platform = self.program.target.platform
        parts = self._inside(lambda: build_parts(candidate, platform))
        return dataclasses.replace(
            parts,
            shard_map=self.shard_map,
            is_opened=parts.is_opened or self.is_opened,
        )

    def _grad_of(self, parts: PlanParts) -> Callable[..., Any]:
        step = build_value_and_grad(
            self.loss, parts, self.fingerprint, prepare=self._prepare, **self.how
        )

        def grad(*args: Any) -> tuple[Any, Any]:
            # Set while the enclosing program is traced, to notice one that ignores the
            # gradient.
            self.called = True
            if self.program.is_gradient:
                return step(*args)
            taken = self.take(args)
            return taken.finish(step(*taken.args))

        return grad

    def _prepare(self, args: Sequence[Any], *, is_opened: bool) -> RematGraph:
        """The loss at these arguments, which are those of the plan in most programs."""
        body = self.prepared[is_opened]
        leaves, tree = jax.tree.flatten(tuple(args))
        shapes = [v.aval for v in body.graph.args]
        is_same_tree = tree == jax.tree.structure(self.args)
        if is_same_tree and list(map(jax.typeof, leaves)) == shapes:
            return body
        return prepare_loss(self.loss, args, **self.how, is_opened=is_opened)

    def _build_plan(self, bench: CompileBench, found: Measurement) -> RematPlan:
        parts = found.parts
        if self.program.keep is not None and parts in bench.jitted:
            self.program.keep(bench.jitted[parts])
        plain_flops, planned_flops = bench.plain.flops, found.flops
        if not self.program.is_gradient or plain_flops is None or planned_flops is None:
            plain_flops, planned_flops = (
                flops(jax.make_jaxpr(self._grad_of(p))(*self.args).jaxpr)
                for p in (PlanParts(), parts)
            )
        assert isinstance(self.budget, MemoryBudget)  # by `_find`
        return RematPlan(
            **vars(parts),
            budget=self.budget,
            predicted=found.bytes,
            unplanned_bytes=bench.plain.bytes,
            extra_flops=planned_flops - plain_flops,
            unplanned_flops=plain_flops,
            fingerprint=self.fingerprint,
            compiles=bench.compiles,
            target=self.program.target.name,
            platform=self.program.target.platform,
            caveat=self.program.target.describe_caveats(
                bench.plain.caveat, found.caveat
            ),
            shard_shapes=shard_shapes(self.args),
            tried=bench.list_tried(),
            host_bytes=found.host_bytes,
            cut_after_s=self.within_s if bench.is_late else None,
            **self.how,
        )

    def _raise_infeasible(self, bench: CompileBench) -> NoReturn:
        budget, undone = self.budget, bench.undone
        assert isinstance(budget, MemoryBudget)  # by `_find`
        num_undone = sum(n > 0 for n in undone.values())
        if len(undone) - num_undone == 1 < len(undone):
            _, enough = bench.find_smallest()
            raise RematUndoneError(
                "the compiler merged away recomputation in all "
                f"{num_undone} plans tried, up to {max(undone.values())} products. "
                f"Raise the limit to {enough:,} bytes, use lax.scan, or, if the "
                "loss computes something twice, let it do so once."
            )
        is_hopeless = self._is_hopeless(bench)
        found, size, is_smallest = self._find_needed(bench)
        self.budget = budget.with_usable(size)
        needed = self.budget.limit_bytes
        best = self._build_plan(bench, found)
        attempt = "in which recomputing would save nothing"
        undone = bench.undone
        if len(undone) > 1 or bench.is_late:
            # The plain program is one of them, whoever compiled it.
            num_undone = sum(n > 0 for n in undone.values())
            tried = amount(len(undone) - num_undone, "programs")
            attempt = f"in the smallest of {tried} tried"
            if not is_smallest:
                attempt += " that planning finds again"
        notes: list[str] = []
        if num_undone:
            merged = amount(num_undone, "more")
            notes.append(f"in {merged} the compiler merged away recomputation")
        if bench.least < needed:
            least = format_bytes(int(bench.least))
            notes.append(f"by the model, none is expected below {least}")
        lower_bound = bench.fixed_bytes if is_hopeless else None
        if lower_bound is not None:
            fixed = format_bytes(lower_bound)
            attempt = f"in a program whose arguments and results alone take {fixed}"
        elif notes:
            attempt += f" ({'; '.join(notes)})"
        if best.cut_after_s is not None:
            attempt += f" in {format_seconds(best.cut_after_s)}"
        raise InfeasibleBudgetError(
            f"the backward pass, {attempt},",
            needed=needed,
            limit=budget.limit_bytes,
            unit="bytes",
            hint=_hint(best, self.planned),
            best=best,
            proven=False,  # the least of those that were tried
            lower_bound=lower_bound,
        )

    def _find_needed(self, bench: CompileBench) -> tuple[Measurement, int, bool]:
        """The smallest program that planning for its own bytes finds again.

        Where time has run out, that is not tried, and it is the smallest program.

        Returns:
            The program, these bytes, and whether no smaller one was compiled.
        """
        repeatable, lost = set(bench.for_higher_limits), set[PlanParts]()
        bench.first_fit = True  # whether there is a plan, not which is the cheapest
        while not bench.is_late:
            found, bench.limit = bench.find_smallest(without=lost)
            if found.parts in repeatable:
                return found, bench.limit, not lost
            again = self._find_smaller(bench)
            (lost if again is None else repeatable).add(found.parts)
        return *bench.find_smallest(), True


def _has_open_loop(eqns: Iterable[JaxprEqn]) -> bool:
    """Whether a `while_loop` is left to JAX, which has no gradient for it."""
    return any(
        e.primitive.name == "while"
        or any(_has_open_loop(j.eqns) for j in jaxprs_in_params(e.params))
        for e in eqns
        if not has_custom_rule(e)
    )


def _hint(best: RematPlan, body: RematGraph) -> str:
    """Advice for a smaller limit, which names the place of the peak."""
    work = [(flops_of(e), has_custom_rule(e)) for e in body.eqns]
    if 2 * sum(n for n, own in work if own) > sum(n for n, _ in work):
        return (
            "let the custom_vjp that does most of the work save less, as a solver's "
            "loop does with fewer checkpoints; its own rule decides that."
        )
    if not best.segments:
        return "make the batch smaller."
    highest = max(best.segments, key=lambda s: s.peak_bytes)
    return (
        f"make the batch smaller: most is held at operations {highest.range} "
        f"({highest.summary})."
    )


def _kind(value: object) -> str:
    """A value's kind for an error message, which never prints whole arrays."""
    if isinstance(value, str | int | float | bool | None):
        return f"{value!r:.60}"
    return f"a value of type {type(value).__name__}"


def check_arrays(args: tuple[Any, ...], *, name: str) -> None:
    """Refuse arguments of a loss that hold anything else than arrays and numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(args):
        is_number = isinstance(leaf, bool | int | float | complex)
        if not is_number and not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} is {_kind(leaf)}, not an "
                "array: let the loss close over it."
            )


def _check_arguments(
    loss: Callable[..., Any],
    example_args: Sequence[Any],
    argnums: int | tuple[int, ...],
    *,
    within: EnclosingProgram | None,
    cache: bool | str | os.PathLike[str],
) -> None:
    if not callable(loss):
        raise TypeError(
            f"the loss must be a function, got {_kind(loss)}; write "
            "remat.plan(loss, budget, example_args)."
        )
    if not isinstance(example_args, tuple | list):
        raise TypeError(
            "example_args must be a tuple with one entry for each argument of the "
            f"loss, got {type(example_args).__name__}; for one argument, write (x,)."
        )
    positions = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(positions, tuple) or not all(
        isinstance(n, int) for n in positions
    ):
        raise TypeError(
            f"argnums must be a position or a tuple of positions, got {argnums!r}."
        )
    count = len(example_args)
    # -1 and the last position are one argument.
    named = {n % count for n in positions if -count <= n < count}
    if not positions or len(named) < len(positions):
        raise ValueError(
            f"argnums must name some of the {count} arguments, each once, got "
            f"{argnums}."
        )
    if within is not None and not isinstance(within, EnclosingProgram):
        raise TypeError(
            "within must be a remat.EnclosingProgram, which builds the program around "
            f"the gradient, got {type(within).__name__}."
        )
    if not isinstance(cache, bool | str | os.PathLike):
        raise TypeError(
            f"cache must be True, False or a folder, got {cache!r}; False plans anew."
        )
