"""What is seen of a model while it is trained: frames and summaries, journalled.

A task's `show` is a small program of its own, run on the weights as they are between
two training steps. So the training step stays as it was planned, and what showing costs
is watching: it is paid for from the same overhead budget as the metrics, and shown on
the same receipt.
"""

import statistics
from collections.abc import Callable, Mapping
from time import perf_counter

import jax
import numpy as np

from frugax import watch
from frugax.trees import PyTree

Streams = Mapping[str, Mapping[str, jax.Array]]


class Album:
    """Takes what a task shows, whenever the overhead budget can pay for it.

    Attributes:
        last_step: of what was taken last; None before.
    """

    def __init__(
        self,
        show: Callable[[PyTree], Streams],
        watcher: watch.Watcher,
        journal: watch.Journal,
        *,
        apart: int = 1,
    ) -> None:
        """Begin an empty album.

        Args:
            show: from weights to streams, compiled.
            watcher: whose budget pays.
            journal: where the streams are written; the watcher's.
            apart: training steps from one that is offered to the next, at least: what
                was saved up is not spent all at once.
        """
        self.last_step: int | None = None
        self._show = show
        self._watcher = watcher
        self._journal = journal
        self._apart = apart
        self._prices_s: list[float] = []

    def offer(self, step: int, params: PyTree) -> None:
        """Take the model as it is after `step`, if that can be afforded now.

        Raises:
            OutputError: the journal cannot be written.
        """
        if self.last_step is not None and step < self.last_step + self._apart:
            return
        # The median: on a busy machine now and then one takes many times as long. What
        # the dearest took is kept back for the end.
        known = self._prices_s or [0.0]
        if self._watcher.affords(statistics.median(known) + max(known)):
            self.take(step, params)

    def take(self, step: int, params: PyTree) -> None:
        """Take the model as it is after `step`, whatever it costs; once for each step.

        Raises:
            OutputError: the journal cannot be written.
        """
        if step == self.last_step:
            return
        # Until the weights are there the time is the training's.
        jax.block_until_ready(params)
        entered = perf_counter()
        with self._watcher.spending():
            for name, columns in self._show(params).items():
                values = {key: np.asarray(value) for key, value in columns.items()}
                self._journal.write(step, values, stream=name)
        self._prices_s.append(perf_counter() - entered)
        self.last_step = step
