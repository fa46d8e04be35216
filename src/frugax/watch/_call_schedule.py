"""Which program each call of a watched function runs, and the records that it keeps."""

import dataclasses
import timeit
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from ._entries import Entry, ProgramRecords
from ._event import Kind
from ._program_variants import BARE, LOUD, QUIET, SWITCH_S, ProgramVariants
from ._rate import Rate
from ._series import LONG_STEP_S, Series
from .probes import PackedRecords

# A call that no run reaches.
NEVER = 1 << 62
# The program of a call, given its number and the arguments.
Program: TypeAlias = Callable[[int, Any, Any], Any]
# Records that a function may keep before it asks again.
_MAX_REST = 64


class CallSchedule(Series):
    """The calls of one function under one watcher.

    `skipped` has the number of the newest call, the step of its run, its records, and
    the classes that were asked for.

    A function counts its own calls. Where another of the run has been called more
    often, as training has for an evaluation, it records at the step of that one.

    Attributes:
        gate_s: seconds that every call spends to find its program: with warm and with
            cold caches.
        variants: the programs of the function.
    """

    def __init__(
        self,
        rate: Rate,
        gate_s: tuple[float, float],
        variants: ProgramVariants,
        queue: Callable[[Entry], None],
        first_step: int = 0,
        siblings: Sequence["CallSchedule"] = (),
    ) -> None:
        """Count calls from 0.

        Args:
            rate: says which calls are kept.
            gate_s: see the class.
            variants: see the class.
            queue: takes the records of kept calls.
            first_step: the step of the first call.
            siblings: the functions of the run, with this one once it has been added.
        """
        super().__init__(rate, first_step)
        self._siblings = siblings
        self._queued = -1
        self.gate_s = gate_s
        self.variants = variants
        self._queue = queue
        # Step and arguments of the newest call that ran bare; where the caller may
        # change them before the records are made, their leaves and structure.
        self._bare_call: tuple[int, Any, Any] | None = None
        self._kinds: Any = None  # of the arguments that were looked at
        self._freeze_s = 0.0  # to freeze arguments that may change; 0 if none may

    @property
    def switches(self) -> bool:
        """Whether calls that are not kept run the bare program.

        Where recording takes too much of a short call, and the arguments of the last
        call stay valid: its records are made from them in the end.
        """
        variants, call_s = self.variants, self.call_s
        if call_s is None or call_s >= LONG_STEP_S or self._rate.keeps_all:
            return False
        if self._rate.records_all or not self._rate.every:
            return False
        if variants.donates or variants.records_always or not variants.has(QUIET):
            return False
        # Processes of one program must all run the same one at each call.
        if jax.process_count() > 1:
            return False
        recording_s = variants.recording_s(call_s)
        return recording_s > max(self._rate.limit / 2 * call_s, self._freeze_s)

    @property
    def gap_s(self) -> float:
        """The least time between two kept calls, where others run bare."""
        limit = self._rate.limit / 2
        return SWITCH_S / limit if limit and self.switches else 0.0

    @property
    def recording_s(self) -> float:
        """Estimate the seconds that its programs have spent on making records."""
        call_s = self.call_s or 0.0
        each_s = self.variants.recording_s(call_s)
        if self.switches:
            each_s = (SWITCH_S + each_s) / self.stride + self._freeze_s
        if self._rate.planned is not None:
            every = next(filter(None, self._rate.planned), 0)
            return self.calls / every * each_s if every else 0.0
        return self.calls * each_s

    def level_at(self, step: int) -> int:
        """Return which program a call runs: `BARE`, `QUIET` or `LOUD`."""
        self.calls = max(self.calls, step + 1)
        level = self._rate.due(step)
        if level == QUIET and self.switches and step % self.stride:
            level = BARE
        return self.variants.reduce_level(level)

    def call_bare(self, step: int, args: Any, kwargs: Any) -> Any:
        """Run the bare program, and hold the arguments if its records may be wanted."""
        run = self._hold_and_call if self.switches else self.variants.call_bare
        return run(step, args, kwargs)

    def keep(self, step: int, records: PackedRecords, kinds: frozenset[Kind]) -> None:
        """Queue the records of a call, or remember them if it is thinned out."""
        self._bare_call = None
        # Summaries and calls may not be lost, and frames have a rate of their own.
        is_thinned = all(probe.kind == "scalar" for probe in records.probes.values())
        if is_thinned and step % self.stride:
            self.skipped = step, self.step_of_run(step), records, kinds
            return
        entry = self._entry(step, self.step_of_run(step), records, kinds)
        if not is_thinned:
            entry.is_pinned, entry.nbytes = True, records.nbytes
        self._queue(entry)
        self.skipped = None

    @property
    def newest(self) -> int:
        """The number of the newest call that recorded or may yet; -1 before it."""
        held = [s[0] for s in (self.skipped, self._bare_call) if s is not None]
        return max((self._queued, *held))

    def step_of_run(self, number: int) -> int:
        """Return the step of the run at which a call records, as it is now."""
        step = self.first_step + number
        if len(self._siblings) < 2:
            return step
        others = (s.first_step + s.newest for s in self._siblings if s is not self)
        return max((step, *others))

    def _entry(
        self, number: int, place: int, records: PackedRecords, kinds: frozenset[Kind]
    ) -> ProgramRecords:
        step = self.first_step + number
        self._queued = number
        is_apart = self.place(place, is_behind=place > step)
        return ProgramRecords(step, records, kinds, self, place, is_apart)

    def keep_last(self) -> None:
        """Queue the records of the last call if it was thinned out or ran bare."""
        held, self._bare_call = self._bare_call, None
        if held is not None:
            step, args, kwargs = held
            if self._freeze_s:
                args, kwargs = jax.tree.unflatten(kwargs, args)
            arrays = [
                x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.Array)
            ]
            # Deleted by the caller, who needed the memory.
            if not any(x.is_deleted() for x in arrays):
                _, records = self.variants.recording(*args, **kwargs)
                kinds = self._rate.wanted_kinds
                self.skipped = step, self.step_of_run(step), records, kinds
        skipped, self.skipped = self.skipped, None
        if skipped is not None:
            entry = self._entry(*skipped)
            entry.is_pinned = True
            self._queue(entry)

    def rest(self, step: int, args: Any, kwargs: Any) -> tuple[int, Program]:
        """Return which call asks next, and what runs until then."""
        rate, variants = self._rate, self.variants
        if rate.records_all or rate.planned is not None or variants.records_always:
            return 0, variants.call_bare
        if not rate.every:
            return NEVER, variants.call_bare
        self._look_at(args, kwargs)
        stride = self.stride
        last = step + _MAX_REST * stride
        if variants.has(LOUD) and rate.keeps_all:
            return 0, variants.call_bare
        if variants.has(LOUD):
            gap = rate.frame_gap_s / max(self.call_s or np.inf, 1e-9)
            every = rate.every
            last = min(last, step - step % every + every * max(1, round(gap / every)))
        if not variants.has(QUIET):
            return last, variants.call_bare
        if self.switches:
            return min(last, step - step % stride + stride), self._hold_and_call
        return last, self._make_recording()

    def _look_at(self, args: Any, kwargs: Any) -> None:
        """Look whether the caller may change such arguments, and what that costs."""
        kinds = (*map(type, args), *kwargs)
        if kinds == self._kinds:
            return
        self._kinds, self._bare_call = kinds, None
        self._freeze_s = 0.0
        if not _is_fixed((args, *kwargs.values())):
            freeze = lambda: _freeze(args, kwargs)
            self._freeze_s = min(timeit.repeat(freeze, number=1, repeat=5))

    def _hold_and_call(self, step: int, args: Any, kwargs: Any) -> Any:
        # Before the call: the arguments of the call before it are freed now.
        if self._freeze_s:
            self._bare_call = step, *_freeze(args, kwargs)
        else:
            self._bare_call = step, args, kwargs
        return self.variants.bare(*args, **kwargs)

    def _make_recording(self) -> Program:
        """Return a program that records each call and keeps some.

        What runs at each call stays in the caches of the processor; another program now
        and then finds its code cold, and takes some hundred microseconds.
        """
        recording, queue = self.variants.recording, self._queue
        make_entry, step_of_run = self._entry, self.step_of_run
        stride, kinds = self.stride, self._rate.wanted_kinds
        self._bare_call = None

        def call(step: int, args: Any, kwargs: Any) -> Any:
            out, records = recording(*args, **kwargs)
            if step % stride:
                self.skipped = step, step_of_run(step), records, kinds
            else:
                queue(make_entry(step, step_of_run(step), records, kinds))
                self.skipped = None
            return out

        return call


def _freeze(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the leaves and the structure of arguments; those of NumPy as copies."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    return [x.copy() if isinstance(x, np.ndarray) else x for x in leaves], tree


def _is_fixed(value: Any) -> bool:
    """Whether nobody can change a value in place, such as a dict or a NumPy array."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    is_frozen = type(value).__setattr__ is not object.__setattr__
    if dataclasses.is_dataclass(value) and is_frozen:  # a module of equinox, too
        fields = (
            getattr(value, field.name, None) for field in dataclasses.fields(value)
        )
        return all(map(_is_fixed, fields))
    is_leaf = jax.tree_util.all_leaves([value])
    return value is None or (is_leaf and not isinstance(value, np.ndarray))
