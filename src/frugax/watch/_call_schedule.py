"""Which program each call of a watched function runs, and the records that it keeps."""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ._program_variants import BARE, LOUD, QUIET, ProgramVariants
from ._rate import Rate
from ._thinning import LONG_STEP_S, Thinning
from .probes import PackedRecords
from .sinks import Kind

# A call that no run reaches.
NEVER = 1 << 62
# Records that a function may keep before it asks again.
_MAX_REST = 64

_Kept = tuple[int, PackedRecords, frozenset[Kind]]


class CallSchedule:
    """The calls of one function under one watcher.

    Attributes:
        thinning: which calls are kept.
        gate_s: seconds that every call spends to find its program: with warm and with
            cold caches.
        calls: calls counted so far.
        variants: the programs of the function.
        fresh: records that were kept since the last collection: the number of the
            call, its records, and the classes that were asked for.
        newest: the same of the newest call that was thinned out; None if there was
            none since a call that was kept.
    """

    def __init__(
        self, rate: Rate, gate_s: tuple[float, float], variants: ProgramVariants
    ) -> None:
        self.thinning = Thinning(rate)
        self.gate_s = gate_s
        self.calls = 0
        self.variants = variants
        self.fresh: deque[_Kept] = deque()
        self.newest: _Kept | None = None
        self._rate = rate
        self._last: _Kept | None = None  # kept whatever the stride is
        # Step and arguments of the newest call that ran bare.
        self._bare_call: tuple[int, tuple[Any, ...], dict[str, Any]] | None = None

    @property
    def switches(self) -> bool:
        """Whether calls that are not kept run the bare program.

        Where recording takes too much of a short call, and the arguments of the last
        call stay valid: its records are made from them in the end.
        """
        variants, call_s = self.variants, self.thinning.call_s
        if call_s is None or call_s >= LONG_STEP_S or self._rate.keeps_all:
            return False
        if self._rate.records_all or not self._rate.every:
            return False
        if variants.donates or variants.records_always or not variants.has_numbers:
            return False
        # Processes of one program must all run the same one at each call.
        if jax.process_count() > 1:
            return False
        return variants.recording_s(call_s) > self._rate.limit / 2 * call_s

    @property
    def gap_s(self) -> float:
        """The least time between two kept calls, where others run bare."""
        limit = self._rate.limit / 2
        return self.variants.switch_s / limit if limit and self.switches else 0.0

    @property
    def recording_s(self) -> float:
        """Estimate the seconds that its programs have spent on making records."""
        call_s = self.thinning.call_s or 0.0
        each_s = self.variants.recording_s(call_s)
        if self.switches:
            each_s = (self.variants.switch_s + each_s) / self.thinning.stride
        if self._rate.planned is not None:
            every = next(filter(None, self._rate.planned), 0)
            return self.calls / every * each_s if every else 0.0
        return self.calls * each_s

    def level_at(self, step: int) -> int:
        """Return which program a call runs: `BARE`, `QUIET` or `LOUD`."""
        self.calls = max(self.calls, step + 1)
        level = self._rate.due(step)
        if level == QUIET and self.switches and step % self.thinning.stride:
            level = BARE
        return self.variants.reduce_level(level)

    def call_bare(self, step: int, args: Any, kwargs: Any) -> Any:
        """Run the bare program, and hold the arguments if its records may be wanted."""
        if self.switches:
            self._bare_call = step, args, kwargs
        return self.variants.bare(*args, **kwargs)

    def keep(self, step: int, records: PackedRecords, kinds: frozenset[Kind]) -> None:
        """Keep the records of a call, or remember them as the newest."""
        if step % self.thinning.stride:
            self.newest = step, records, kinds
        else:
            self.fresh.append((step, records, kinds))
            self.newest = None
        self._bare_call = None

    def keep_last(self) -> None:
        """Keep the records of the last call, also if it ran bare.

        What is in `fresh` already may still be thinned, but not the last of it.
        """
        held, self._bare_call = self._bare_call, None
        if held is not None:
            step, args, kwargs = held
            arrays = [
                x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.Array)
            ]
            # Deleted by the caller, who needed the memory.
            if not any(x.is_deleted() for x in arrays):
                _, records = self.variants.recording(*args, **kwargs)
                self.newest = step, records, self._rate.wanted_kinds
        newest, self.newest = self.newest, None
        if newest is not None:
            self.fresh.append(newest)
        if self.fresh:
            self._last = self.fresh[-1]

    def take(self, count: int) -> list[_Kept]:
        """Take the first records, thinned by the stride as it is now."""
        taken: list[_Kept] = []
        for _ in range(count):
            kept = self.fresh.popleft()
            if kept is self._last or not kept[0] % self.thinning.stride:
                taken.append(kept)
            elif not self.fresh and self.newest is None:
                self.newest = kept
        return taken

    def rest(self, step: int) -> tuple[int, Callable[[int], Callable[..., Any]]]:
        """Return which call asks next, and what makes the program until then."""
        rate, variants, stride = self._rate, self.variants, self.thinning.stride
        if rate.records_all or rate.planned is not None or variants.records_always:
            return 0, self._make_bare
        if not rate.every:
            return NEVER, lambda first: variants.bare
        last = step + _MAX_REST * stride
        if variants.has_frames and rate.keeps_all:
            return 0, self._make_bare
        if variants.has_frames:
            gap = rate.frame_gap_s / max(self.thinning.call_s or np.inf, 1e-9)
            every = rate.every
            last = min(last, step - step % every + every * max(1, round(gap / every)))
        if not variants.has_numbers:
            return last, lambda first: variants.bare
        if self.switches:
            return min(last, step - step % stride + stride), self._make_bare
        return last, self._make_recording

    def _make_bare(self, first: int) -> Callable[..., Any]:
        bare, next_step = self.variants.bare, itertools.count(first).__next__

        def call(*args: Any, **kwargs: Any) -> Any:
            # Before the call: the arguments of the call before it are freed now.
            self._bare_call = next_step(), args, kwargs
            return bare(*args, **kwargs)

        return call

    def _make_recording(self, first: int) -> Callable[..., Any]:
        """Return a program that records each call and keeps some.

        What runs at each call stays in the caches of the processor; another program now
        and then finds its code cold, and takes some hundred microseconds.
        """
        recording, keep = self.variants.recording, self.fresh.append
        stride, kinds = self.thinning.stride, self._rate.wanted_kinds
        next_step = itertools.count(first).__next__
        self._bare_call = None

        def call(*args: Any, **kwargs: Any) -> Any:
            step = next_step()
            out, records = recording(*args, **kwargs)
            if step % stride:
                self.newest = step, records, kinds
            else:
                keep((step, records, kinds))
                self.newest = None
            return out

        return call


__all__ = ["BARE", "LOUD", "NEVER", "QUIET", "CallSchedule"]
