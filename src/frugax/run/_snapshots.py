"""Journal a task's snapshots (its `show`) during training, within the overhead budget.

`show` is a program of its own that runs between two training steps, so the step stays
as it was planned. Its cost counts as watching, on the receipt of the metrics.
"""

import statistics
from collections.abc import Callable, Mapping
from time import perf_counter

import jax
import numpy as np

from frugax import watch
from frugax.trees import PyTree

Streams = Mapping[str, Mapping[str, jax.Array]]


class Snapshots:
    """Records the streams that a task shows, whenever the overhead budget affords it.

    Attributes:
        last_step: the step of the newest snapshot; None before the first.
    """

    def __init__(
        self,
        show: Callable[[PyTree, PyTree], Streams],
        watcher: watch.Watcher,
        journal: watch.Journal,
        *,
        min_steps_apart: int = 1,
    ) -> None:
        """Start without any snapshot."""
        self.last_step: int | None = None
        self._show = show
        self._watcher = watcher
        self._journal = journal
        self._min_steps_apart = min_steps_apart
        self._prices_s: list[float] = []

    def offer(self, step: int, params: PyTree, carried: PyTree = None) -> None:
        """Record a snapshot after `step` if the budget affords one now."""
        if self.last_step is not None and step < self.last_step + self._min_steps_apart:
            return
        # The median, because on a busy machine a few take many times as long. The
        # price of the most expensive one is held back for the snapshot at the end.
        known = self._prices_s or [0.0]
        if self._watcher.can_afford(statistics.median(known) + max(known)):
            self.record(step, params, carried)

    def record(self, step: int, params: PyTree, carried: PyTree = None) -> None:
        """Record a snapshot after `step` whatever it costs; once for each step."""
        if step == self.last_step:
            return
        # Waiting for the weights is training time; only the rest counts as watching.
        jax.block_until_ready((params, carried))
        entered = perf_counter()
        with self._watcher.overhead():
            for name, columns in self._show(params, carried).items():
                values = {key: np.asarray(value) for key, value in columns.items()}
                self._journal.write(step, values, stream=name)
        self._prices_s.append(perf_counter() - entered)
        self.last_step = step
