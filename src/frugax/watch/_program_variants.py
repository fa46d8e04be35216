"""The compiled variants of a watched function: bare, with numbers, with frames as well.

All are made from one trace. They differ in the probes that are left in; the others are
removed, so the rest is the program that would be there without them.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from frugax import measure
from frugax.jaxprs import LostUpdateWarning, call_noting_changes

from .probes import PackedRecords, Probe, TracedFunction, pack_records, trace_function

# Levels of the programs: each records its own probes and those of the lower levels.
BARE, QUIET, LOUD = 0, 1, 2
# Recorded by no program.
NEVER = 3
# Seconds that a call takes longer in the program that records, and that a record costs
# where another program ran before it and its code and buffers are cold, its collection
# included; on two cores of 2026: 5 to 10 and 100 to 330 microseconds. Too long a stride
# costs a run of short steps some of its thousands of rows, one that is too short its
# budget.
_RECORDING_S = 10e-6
SWITCH_S = 300e-6
# Seconds that one more operation of a program takes to start, at most: 0.3 to 1.2
# microseconds for 64 to 199 norms on two cores of 2026, and in loops 0.15 to 0.25.
_OPERATION_S = 1.2e-6
_LOOPED_OPERATION_S = 0.3e-6
# Summaries may not be lost: these are in every program, even the bare one.
_LEVELS_BY_KIND = {"summary": BARE, "scalar": QUIET, "frame": LOUD}


def _work(compiled: Any) -> float:
    """Return the operations and bytes of a program by XLA's own count; 0 if unknown."""
    try:
        costs = compiled.cost_analysis() or {}
    except Exception:  # not every backend counts
        return 0.0
    return float(costs.get("flops", 0.0)) + float(costs.get("bytes accessed", 0.0))


def _start_s(compiled: Any) -> float:
    """Return the seconds that the operations of a program take to start."""
    try:
        outside, inside = measure.count_operations(compiled)
    except Exception:  # not every backend reveals its programs
        return 0.0
    return _OPERATION_S * outside + _LOOPED_OPERATION_S * inside


def variants_of(watched: Any) -> "ProgramVariants":
    """Return the programs of a watched function."""
    variants = getattr(watched, "variants", None)
    if variants is None:
        raise TypeError(
            f"a function from watch.jit is needed, got {watched!r}: write "
            "watch.jit(fn)."
        )
    return variants()


def level_by_kind(probe: Probe) -> int:
    """Return the lowest level at which a probe records, by its kind alone."""
    return _LEVELS_BY_KIND[probe.kind]


def _warn_of_lost_updates(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a warning of changes that `jax.jit` drops."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        out, changed = call_noting_changes(fn, args, kwargs)
        for name in changed:
            warnings.warn(
                f"{getattr(fn, '__name__', 'fn')} changes its argument {name!r}, and "
                "watch.jit, as jax.jit, drops the change: return the state (nnx.split),"
                " or keep @nnx.jit, in which records leave by callbacks.",
                LostUpdateWarning,
                stacklevel=2,
            )
        return out

    return call


class ProgramVariants:
    """The programs of one watched function.

    Attributes:
        bare: the function without its probes, jitted: the program that runs unwatched.
        unwatched: the function as JAX alone would compile it: inside another program an
            outer `watch.jit` may collect from its probes, elsewhere they call back.
        recording: the program that returns the records of numbers as well.
        probes: the probes by name, of every way in which the function was called.
        is_traced: whether the function has been traced.
        is_new: whether it has been traced since this was set to False.
        on_trace: called after each trace.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        jit_options: dict[str, Any],
        *,
        level_of: Callable[[Probe], int] = level_by_kind,
    ) -> None:
        """Compile nothing yet.

        Args:
            fn: the function.
            jit_options: as for `jax.jit`.
            level_of: returns the lowest level at which a probe records, or `NEVER`.
        """
        self.probes: dict[str, Probe] = {}
        self.is_traced = False
        self.is_new = False
        self.on_trace: Callable[[], None] = lambda: None
        self._fn = fn
        self._options = jit_options
        self._level_of = level_of
        # Of the probes by the lowest level that records them, in order.
        self._names: dict[int, dict[str, None]] = {}
        static = {
            name: jit_options[name]
            for name in ("static_argnums", "static_argnames")
            if name in jit_options
        }
        # JAX caches this trace, from which all programs are made.
        self._traced = jax.jit(_warn_of_lost_updates(fn), inline=True, **static)
        self.bare: Any = jax.jit(self._wrap(self._run_bare), **jit_options)
        self.unwatched: Any = jax.jit(fn, **jit_options)
        options = self._options_with_records()
        # By level; the first records only what every program records.
        self._recording = [
            jax.jit(
                self._wrap(functools.partial(self._run_recording, level)), **options
            )
            for level in (BARE, QUIET, LOUD)
        ]
        self._extra_work = self._extra_start_s = 0.0
        self.recording: Any = self._recording[QUIET]

    def recording_s(self, call_s: float) -> float:
        """Estimate the seconds that the recording program takes longer than the bare.

        `call_s` is the time of a call; the probes' share of it is that of the
        operations that XLA counts, and each operation takes a moment to start.
        """
        start_s = max(self._extra_start_s, 0.0)
        return _RECORDING_S + start_s + max(self._extra_work, 0.0) * call_s

    @property
    def donates(self) -> bool:
        """Whether a call donates some of its arguments."""
        names = ("donate_argnums", "donate_argnames")
        return any(self._options.get(name) not in (None, (), []) for name in names)

    def names_at(self, level: int) -> tuple[str, ...]:
        """Return the names of the probes that a level adds to those below it."""
        return tuple(self._names.get(level, ()))

    def has(self, level: int) -> bool:
        """Whether a level adds probes: summaries, numbers or frames."""
        return level in self._names

    @property
    def records_always(self) -> bool:
        """Whether some probes record in every call."""
        return self.has(BARE)

    def reduce_level(self, level: int) -> int:
        """Return the lowest level that records the same probes as this one."""
        while level > BARE and not self.has(level):
            level -= 1
        return level

    def trace(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Trace the function to find its probes."""
        self.bare.trace(*args, **kwargs)

    def call_bare(self, step: int, args: Any, kwargs: Any) -> Any:
        """Call the bare program, whatever the number of the call is."""
        return self.bare(*args, **kwargs)

    def call_unwatched(self, step: int, args: Any, kwargs: Any) -> Any:
        """Call the program whose probes call their handlers from inside."""
        return self.unwatched(*args, **kwargs)

    def call_level(
        self, level: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, PackedRecords]:
        """Call the program of a level; returns the function's results and records."""
        return self._recording[level](*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the quiet program, as `jax.jit(fn).lower` does."""
        return self.recording.lower(*args, **kwargs)

    def compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compile every program that these arguments may need.

        The arguments may have been donated since: lowering reads only their shapes.
        """
        work: dict[int, float] = {}
        starts: dict[int, float] = {}
        if not self.records_always:
            compiled = self.bare.lower(*args, **kwargs).compile()
            work[BARE], starts[BARE] = _work(compiled), _start_s(compiled)
        for level in {self.reduce_level(level) for level in (BARE, QUIET, LOUD)}:
            if level or self.records_always:
                compiled = self._recording[level].lower(*args, **kwargs).compile()
                work[level], starts[level] = _work(compiled), _start_s(compiled)
        if work.get(BARE) and QUIET in work:
            self._extra_work = work[QUIET] / work[BARE] - 1
            self._extra_start_s = starts[QUIET] - starts[BARE]

    def _run_bare(self, *args: Any, **kwargs: Any) -> Any:
        traced = self._trace(args, kwargs)
        out, _ = traced.keep(lambda _: False).run(keep_rules=False)
        return out

    def _run_recording(
        self, level: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, PackedRecords]:
        traced = self._trace(args, kwargs)
        kept = traced.keep(lambda probe: self._level_of(probe) <= level)
        # Nothing is differentiated after this, so functions with derivative rules of
        # their own need not keep them, and the probes inside are collected too.
        out, made = kept.run(keep_rules=False)
        return out, pack_records(made)

    def _trace(self, args: Any, kwargs: Any) -> TracedFunction:
        traced = trace_function(self._traced, args, kwargs)
        for probe in traced.probes:
            self._names.setdefault(self._level_of(probe), {})[probe.name] = None
            self.probes.setdefault(probe.name, probe)
        self.is_traced = self.is_new = True
        self.on_trace()
        return traced

    def _options_with_records(self) -> Any:
        options = dict(self._options)
        if "out_shardings" in options:
            options["out_shardings"] = (options["out_shardings"], None)
        return options

    def _wrap(self, run: Callable[..., Any]) -> Any:
        """Give a program the function's name and signature.

        `jax.jit` reads the signature to find static and donated arguments by name.
        """

        @functools.wraps(self._fn)
        def program(*args: Any, **kwargs: Any) -> Any:
            return run(*args, **kwargs)

        return program
