"""`fx.jit`: `jax.jit`, with a compiled program that keeps to a memory budget."""

import contextlib
import dataclasses
import functools
import inspect
import threading
import time
import types
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import jax

from frugax import jaxprs, measure
from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    amount,
    format_bytes,
    format_share,
    read_memory_budget,
)
from frugax.jaxprs import (
    LostUpdateWarning,
    call_noting_changes,
    close_over,
    hide_frames,
    hides_frames_below,
    intercept_vjp,
    is_tracing,
    static_names,
    static_positions,
)
from frugax.targets import find_target
from frugax.train.compiles import (
    CompileLedger,
    Signature,
    find_call_site,
    find_nearest_changes,
    warn_at_call_site,
)

from ._call import Call, CalledProgram, name_positions
from ._donation import Donation
from ._explain import ProgramExplanation
from ._gradients import trace_marked
from ._plan import Chosen, JitPlan, describe_error, plan_program
from ._report import CallRecord, Compile, JitReport, ProgramRecord
from ._staged import StagedProgram
from ._traced_step import TracedStep, find_signature, find_source

Memory = MemoryBudget | MemoryShare | str | None

# Changes of a signature that a cause names: a model may have thousands of arrays.
_MAX_CHANGES = 5
_DEFINED_AGAIN = (
    "the function was defined or jitted again, which JAX takes for another one: do so "
    "once, outside of the loop"
)

# An error of the user's function shows the user's lines only, as under `jax.jit`. Its
# gradients are marked by `intercept_vjp`, in the second folder.
hide_frames(str(Path(__file__).parent))
hide_frames(str(Path(jaxprs.__file__).parent))


class UnplannedWarning(UserWarning):
    """A jitted function runs without a plan, or above its budget; names the cause."""


class _OtherSignatureError(Exception):
    """A program was called with arguments that it was not traced for."""


@dataclasses.dataclass(eq=False)
class _Program:
    """The compiled program of one signature.

    Attributes:
        jitted: the function that is called.
        record: its plan, or why it has none.
        is_new: whether it was traced since its last compilation was noted.
    """

    jitted: Any
    record: ProgramRecord = dataclasses.field(default_factory=ProgramRecord)
    is_new: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class _Compiled:
    """A program that has run.

    Attributes:
        call: the shapes of its arguments.
        record: the known facts about it.
        traced: the program as JAX traced it; None if that failed.
        compiled: the program as JAX compiled it.
    """

    call: Call
    record: ProgramRecord
    traced: Any = None
    compiled: Any = None


class PlannedFunction:
    """A jitted function within a memory budget; made by `jit`.

    It is called as the result of `jax.jit` is, and has its methods.

    Attributes:
        record: the calls, compilations and programs so far.
        on_search: called before programs are tried that recompute, with the one without
            a plan and the seconds that this takes at most.
        on_compile: called after each compilation.
        options: those of `jax.jit`.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        budget: MemoryBudget | MemoryShare | None,
        options: dict[str, Any],
        *,
        needs_gradient: bool = True,
        on_step: Callable[[TracedStep], None] | None = None,
    ) -> None:
        # This one is a part of other programs, and traces as JAX does.
        self._plain: Any = jax.jit(fun, **options)
        # JAX gives a partial function the name of the whole one.
        functools.update_wrapper(self, self._plain, updated=())
        self.__wrapped__ = fun
        self.record = CallRecord(*find_source(fun))
        self.on_search: Callable[[CallRecord, JitPlan, float], None] | None = None
        self.on_compile: Callable[[PlannedFunction], None] | None = None
        self._fun, self._budget, self.options = fun, budget, options
        self._needs_gradient, self._on_step = needs_gradient, on_step
        self._positions = static_positions(self._plain)
        self._names = static_names(self._plain)
        self._watched: _Program | None = None
        if budget is None and on_step is None:

            @self._named
            def traced(*args: Any, **kwargs: Any) -> Any:
                if not is_tracing():
                    return fun(*args, **kwargs)  # under `jax.disable_jit`
                with intercept_vjp(None):
                    return self._trace_into(args, kwargs)

            self._watched = _Program(jax.jit(traced, **options))
        # Several threads may make the first call, such as the actors of a learner.
        self._lock = threading.RLock()
        self._programs: dict[Hashable, _Program] = {}
        self._latest: _Program | None = None
        # The program to call while no other is known.
        self._only = self._watched
        # Programs that have run, and of which the compiler was not asked yet; of the
        # others, the one that needs most of its limit.
        self._unread: list[_Compiled] = []
        self._most_demanding: _Compiled | None = None
        self._has_compiled = False
        self._ledger = _open_ledger()
        # Plans of programs that do not fit, by `Call.kind`.
        self._missed: dict[Hashable, list[JitPlan]] = {}
        self._signatures: list[Signature] = []

    @hides_frames_below
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; for shapes that are new it is planned first."""
        # After a step the processor has forgotten what this method touches: each call
        # of a further function costs microseconds.
        if is_tracing():
            return self._plain(*args, **kwargs)
        began = planned = self.record.start_call()
        program = self._only
        if program is None:
            program = self._program_for(args, kwargs)
            planned = time.perf_counter()
        try:
            result = program.jitted(*args, **kwargs)
        except _OtherSignatureError:
            program = self._program_for(args, kwargs)
            planned = time.perf_counter()
            try:
                result = program.jitted(*args, **kwargs)
            except _OtherSignatureError:
                # A setting of JAX that the key does not hold has changed.
                result = self._plain(*args, **kwargs)
        # Without a new trace JAX compiles for arrays on other devices, for example.
        if program.is_new or self._ledger.latest >= planned:
            self._note_compile(began, planned, program, args, kwargs)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    # Compiled programs can neither be copied nor pickled: a copy shares them, and what
    # is unpickled makes its own.
    def __copy__(self) -> "PlannedFunction":
        return self

    def __deepcopy__(self, memo: Any) -> "PlannedFunction":
        return self

    def __reduce__(self) -> Any:
        make = functools.partial(PlannedFunction, needs_gradient=self._needs_gradient)
        return make, (self._fun, self._budget, self.options)

    def __getattr__(self, name: str) -> Any:
        # What JAX gives its jitted functions beside the methods below.
        if name.startswith("__") or "_plain" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._plain, name)

    @hides_frames_below
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the planned program, as the result of `jax.jit` does."""
        return self._jitted_for(args, kwargs).lower(*args, **kwargs)

    @hides_frames_below
    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the planned program, as the result of `jax.jit` does."""
        return self._jitted_for(args, kwargs).trace(*args, **kwargs)

    @hides_frames_below
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes of the results, as the result of `jax.jit` does."""
        if self._latest is not None and not is_tracing():
            return self._program_for(args, kwargs).jitted.eval_shape(*args, **kwargs)
        return self._plain.eval_shape(*args, **kwargs)

    def _cache_size(self) -> int:
        """The number of programs for its calls, as of a jitted function."""
        if self._watched is not None:
            return self._watched.jitted._cache_size()
        return len(self._programs)

    def clear_cache(self) -> None:
        """Forget all programs and their plans."""
        self._plain.clear_cache()
        if self._watched is not None:
            self._watched.jitted.clear_cache()
        self._programs.clear()
        self._missed.clear()
        self._latest, self._only = None, self._watched

    @property
    def plan(self) -> JitPlan | None:
        """The plan of the program that ran last; None if there is none."""
        return self._latest.record.plan if self._latest is not None else None

    @property
    def compiles(self) -> list[Compile]:
        """One entry for each compilation, with its cause."""
        return self.record.compiles

    def report(self) -> JitReport:
        """Calls, compilations and their causes, the time of a step, and its memory.

        Where several programs have run, such as one for a last batch of another shape,
        the memory and the plan are those of the one that needs most of its limit.

        Raises:
            ValueError: the function was not called yet.
        """
        if not self.record.compiles:
            raise ValueError(f"{self.record.name} was not called yet: call it first.")
        self.read_programs()
        return self.record.report()

    def explain(self) -> ProgramExplanation:
        """The report, the arrays at the peak of its program, and what that donates.

        Raises:
            ValueError: the function was not called yet.
        """
        report, program = self.report(), self._most_demanding
        if program is None:
            return ProgramExplanation(report=report)
        peak = None
        with contextlib.suppress(ValueError):  # the compiler does not reveal it
            peak = measure.peak(program.compiled)
        return ProgramExplanation(
            report=report,
            peak=peak,
            donation=Donation.of(
                program.call.name_leaves(self._signature), program.traced
            ),
        )

    @property
    def is_mappable(self) -> bool:
        """Whether its options hold for the same function of further axes."""
        return self.options.keys() <= {"donate_argnums", "donate_argnames", "inline"}

    # --- planning -----------------------------------------------------------------

    def _jitted_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_tracing():
            return self._plain
        program = self._program_for(args, kwargs)
        self.record.lowered = program.record
        return program.jitted

    def _program_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Program:
        """The program for these arguments."""
        if self._watched is not None:
            return self._watched
        call = self._split(args, kwargs)
        try:
            hash(call.key)
        except TypeError:
            # JAX refuses it, and names the argument that cannot be hashed.
            return _Program(self._plain)
        if _is_jit_disabled():
            return _Program(self._plain)
        with self._lock:
            program = self._programs.get(call.key)
            if program is None:
                with intercept_vjp(None):
                    program = self._prepare(call, args, kwargs)
                self._programs[call.key] = program
                self._only = program if len(self._programs) == 1 else None
        self._latest = program
        return program

    def _named(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """`fun` with the name and the signature that JAX gives the user's function."""
        return functools.update_wrapper(fun, self._plain, updated=())

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        static: list[tuple[int | str, Any]] = []
        dynamic = list(args)
        for n in self._static_places(len(args)):
            static.append((n, args[n]))
            dynamic[n] = None
        named = {n: v for n, v in kwargs.items() if n not in self._names}
        static += [(n, kwargs[n]) for n in sorted(kwargs) if n in self._names]
        leaves, tree = jax.tree.flatten((tuple(dynamic), named))
        return Call(leaves, tree, tuple(static))

    def _static_places(self, count: int) -> list[int]:
        """The static ones of so many positional arguments; JAX refuses wrong ones."""
        return sorted({n % count for n in self._positions if -count <= n < count})

    def _prepare(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Program:
        """Trace the function, the only time for these shapes, and plan the program."""
        # A new function: JAX must not find a trace without marks.
        fresh = self._named(lambda *a, **k: self._trace_into(a, k))
        jitted = jax.jit(fresh, **self.options)
        traced, unmarked = trace_marked(jitted, self._plain, args, kwargs)
        out_tree = traced.out_tree
        staged = StagedProgram.of(close_over(traced), unmarked)
        key = call.key

        def jit_for_these(run: Callable[..., Any]) -> Any:
            @self._named
            def replay(*args: Any, **kwargs: Any) -> Any:
                if not is_tracing():
                    return self._fun(*args, **kwargs)  # under `jax.disable_jit`
                given = self._split(args, kwargs)
                if given.key != key:
                    raise _OtherSignatureError
                with intercept_vjp(None):
                    return run(given, args, kwargs)

            return jax.jit(replay, **self.options)

        def build(chosen: Chosen) -> CalledProgram:
            run = lambda given, *_: out_tree.unflatten(staged.run(chosen, given.leaves))
            return CalledProgram(jit_for_these(run), call, args, kwargs)

        # As JAX has traced it: after `jax.eval_shape`, for example, the objects in its
        # results are those that the function has made then, and may be compared.
        plain = jit_for_these(lambda _, args, kwargs: self._plain(*args, **kwargs))
        given, call = call, call.of_shapes()
        shapes = call.leaves
        if self._on_step is not None and staged.takes_gradient:
            self._on_step(
                TracedStep.of(
                    traced,
                    given,
                    name=self.record.name,
                    place=self.record.place,
                    staged=staged,
                    signature=self._signature,
                )
            )
        if not staged.sites or self._budget is None:
            reasons = list(staged.unplanned)
            if self._needs_gradient and not reasons:
                reasons = ["it takes no gradient"]
            if self._budget is None:
                reasons = []
            takes_gradient = staged.takes_gradient
            return self._leave(build({}).jitted if takes_gradient else plain, reasons)
        try:
            missed = self._missed.setdefault(call.kind, [])
            plans = [p.record.plan for p in self._programs.values() if p.record.plan]
            known = [p for p in plans if p.fits and p.gradients]
            tell = None
            if self.on_search is not None:
                tell = functools.partial(self.on_search, self.record)
            found = plan_program(
                staged, build, shapes, self._budget, missed, known, on_search=tell
            )
            # Before it runs: the rates of a processor are measured while it is idle.
            step_time = None
            if found.compiled is not None and not found.is_small:
                step_time = measure.step_time(found.compiled, find_target(shapes))
        except Exception as e:
            # Whatever fails in planning, the user's program runs, without our marks.
            return self._leave(plain, [describe_error(e)])
        plan = found.plan
        if found.is_small:
            record = ProgramRecord(unplanned=plan.problems, is_small=True)
            return _Program(found.jitted.jitted, record)
        if not plan.fits and plan.gradients:
            excess = plan.predicted / plan.budget.usable_bytes - 1
            self._tell(
                f"needs {format_bytes(plan.predicted)}, {format_share(excess)} above "
                f"its budget of {plan.budget}: the smallest program that was found runs"
            )
        elif not plan.fits:
            missed.append(plan)
            needs = f"it needs {format_bytes(plan.predicted)}"
            self._warn([f"{needs}, but the budget is {plan.budget}", *plan.problems])
        record = ProgramRecord(plan=found.plan, step_time=step_time)
        return _Program(found.jitted.jitted, record)

    def _leave(self, plain: Any, reasons: Sequence[str]) -> _Program:
        """The program as it is; a warning gives the reasons, if there are any."""
        self._warn(reasons)
        record = ProgramRecord(unplanned=tuple(reasons))
        return _Program(plain, record)

    def _warn(self, causes: Sequence[str]) -> None:
        if causes:
            self._tell(f"runs as it is: {'; '.join(causes)}")

    def _tell(self, text: str) -> None:
        what = f"{self.record.name} ({self.record.place})"
        warn_at_call_site(f"{what} {text.rstrip('.')}.", UnplannedWarning)

    # --- compilations ---------------------------------------------------------------

    def _trace_into(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function with tracers; warn of changes that `jax.jit` drops.

        Not where `jax.jit` is what the user has written, as in a script: there nnx.jit
        keeps the changes, and those that jax.jit drops may be meant to be dropped.
        """
        if self._watched is not None:
            self._watched.is_new = True
        if not self._needs_gradient:
            return self._fun(*args, **kwargs)
        result, changed = call_noting_changes(self._fun, args, kwargs)
        for name in changed:
            what = f"{self.record.name} ({self.record.place})"
            warn_at_call_site(
                f"{what} changes its argument {name!r}, and jax.jit drops the "
                "change. To train it, keep @nnx.jit, within frugax.planned "
                "or under frugax exec, or return the state (nnx.split).",
                LostUpdateWarning,
            )
        return result

    @property
    def _signature(self) -> inspect.Signature | None:
        return find_signature(self._fun)

    def _note_compile(
        self,
        began: float,
        planned: float,
        program: _Program,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        seconds = time.perf_counter() - began
        compiled = self._ledger.latest_of.get(threading.get_ident(), 0.0) >= planned
        with self._lock:
            # Another thread has compiled and noted it, or JAX has compiled the single
            # operations of a function that is not jitted.
            if not (program.is_new or compiled) or _is_jit_disabled():
                return
            cause, place = self._find_cause(args, kwargs), find_call_site()
            if not self._has_compiled and place in {
                c.place for c in self.record.compiles
            }:
                cause = _DEFINED_AGAIN  # those of one line of a script share a record
            self.record.add(Compile(cause=cause, place=place, seconds=seconds))
            self._unread.append(self._find_compiled(program, args, kwargs))
            program.is_new = False
            self._has_compiled = True
            if self.on_compile is not None:
                self.on_compile(self)

    def _find_cause(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The difference of a call that has compiled from the nearest before it."""
        names = name_positions(self._signature, len(args))
        bound = {**dict(zip(names, args, strict=True)), **kwargs}
        static = {n for n in bound if n in self._names}
        static |= {names[n] for n in self._static_places(len(args))}
        new = Signature.read(
            {n: v for n, v in bound.items() if n not in static},
            static=_Static((n, bound[n]) for n in bound if n in static),
            committed=True,
        )
        cause = "the first call"
        if self._signatures:
            changes = find_nearest_changes(self._signatures, new)
            listed = [str(change) for change in changes[:_MAX_CHANGES]]
            if (more := len(changes) - len(listed)) > 0:
                listed.append(amount(more, "more changes"))
            cause = "; ".join(listed) or "compiled again, for equal arguments"
        self._signatures.append(new)
        return cause

    def _find_compiled(
        self, program: _Program, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Compiled:
        """A program that has just run: later the settings of JAX may be others."""
        # The arrays themselves may be large. Of those that were donated, JAX knows the
        # shapes.
        call = self._split(args, kwargs).of_shapes()
        try:
            traced = CalledProgram(program.jitted, call, args, kwargs).trace()
            # JAX finds the program that has run: nothing is compiled.
            compiled = traced.lower().compile()
        except Exception as e:
            # Whatever cannot be measured, the user's program runs.
            problem = describe_error(e)
            return _Compiled(call, dataclasses.replace(program.record, problem=problem))
        return _Compiled(call, program.record, traced, compiled)

    def read_programs(self) -> None:
        """Ask the compiler for the bytes of the programs that have run since."""
        with self._lock:
            for program in self._unread:
                record = program.record
                if program.compiled is not None:
                    try:
                        memory = measure.program(program.compiled)
                        record = dataclasses.replace(record, memory=memory)
                    except Exception as e:
                        problem = describe_error(e)
                        record = dataclasses.replace(record, problem=problem)
                if record.demand > self.record.most_demanding.demand:
                    self._most_demanding = program
                self.record.programs.append(record)
            self._unread.clear()


@functools.cache
def _open_ledger() -> CompileLedger:
    """The ledger of all functions, which is not closed again."""
    return CompileLedger().__enter__()


def _is_jit_disabled() -> bool:
    config: Any = jax.config  # its attributes are created at run time
    return config.jax_disable_jit


class _Static(dict[str, Any]):
    """Static arguments by name, compared as `jax.jit` compares them."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def read_memory(memory: Memory) -> MemoryBudget | MemoryShare | None:
    """The limit that `fx.jit` takes as `memory`; None without one."""
    return memory if memory is None else read_memory_budget(memory, name="memory")


def jit(fun: Any = None, /, *, memory: Memory = None, **options: Any) -> Any:
    """`jax.jit`, with the gradients inside planned to fit a memory budget.

    At the first call with new shapes the function is traced once. Each gradient that
    it takes (by `jax.grad`, `jax.value_and_grad` or `jax.vjp`, directly or inside of a
    library) is planned so that the whole compiled program fits, and that program is
    called from then on. What cannot be planned runs as it is, and a warning says why.

    Args:
        fun: the function; without it, `jit` is a decorator with options.
        memory: the most memory of the whole program: "40GiB" for arguments, results
            and temporaries; "60%" of the temporaries that it needs without a plan; "90%
            of device"; or a `MemoryBudget`. None only counts calls and compilations,
            see `report`.
        options: as for `jax.jit`: `static_argnums`, `donate_argnums` and so on.

    Returns:
        A `PlannedFunction`, which is called as the result of `jax.jit` is.

    Raises:
        TypeError: `fun` is not callable, or `memory` is not a budget.
        ValueError: `memory` is not a number of bytes or a share in (0%, 100%].

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.mean(x**2)
        >>> @jit(memory="60%")
        ... def step(w, x):
        ...     value, grad = jax.value_and_grad(loss)(w, x)
        ...     return w - 0.1 * grad, value
        >>> w, _ = step(jnp.eye(64), jnp.ones((512, 64)))
        >>> step.plan.predicted <= 0.6 * step.plan.unplanned_bytes
        True
    """
    budget = read_memory(memory)
    if fun is None:
        return lambda fun: jit(fun, memory=memory, **options)
    if not callable(fun):
        raise TypeError(f"jit needs a function, got {fun!r:.80}.")
    return PlannedFunction(fun, budget, options)
