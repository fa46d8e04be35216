"""What happened just before it went wrong: the last records, kept where they are.

A record that is kept costs a reference, and its memory on the device. Only when a
number is no number any more, or an exception ends the run, are the last ones read and
written to the journal, those too that the level had left out.
"""

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from frugax.errors import OutputError

from .delivery import error_text
from .journal import Journal


class FlightRecorder:
    """Keeps the last records on the device; writes them when something goes wrong.

    Given to a `Watcher`, it keeps what programs under `watch.jit` record in every step,
    whatever the level. `keep` adds anything else, such as gradients or the weights
    themselves. It writes once; when the numbers have been finite again for as many
    records as it holds, it is ready for the next time.

    Attributes:
        stream: where it writes.
        why: what made it write last; empty if it never did.
        written: how many records it has written.
        unreadable: how many it could not read, for they had been donated to another
            call, or the program that made them had failed.
        refused: how many the journal could not hold.
        last_error: what reading or writing one last raised.
    """

    def __init__(
        self,
        most_records: int = 64,
        *,
        most_bytes: int = 64 * 2**20,
        stream: str = "flight",
    ) -> None:
        """Keep nothing yet.

        Args:
            most_records: how many to keep; >= 1.
            most_bytes: what they may hold, in bytes; the oldest go first; > 0.
            stream: where they are written in the journal.

        Raises:
            ValueError: a number is out of its range, or the stream is that of the
                training steps.
        """
        if most_records < 1:
            raise ValueError(f"most_records must be >= 1, got {most_records}.")
        if not most_bytes > 0:
            raise ValueError(f"most_bytes must be > 0, got {most_bytes}.")
        if not stream:
            raise ValueError('stream must have a name: "" is for the training steps.')
        self.stream = stream
        self.why = ""
        self.written = 0
        self.unreadable = 0
        self.refused = 0
        self.last_error = ""
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._kept: deque[tuple[int, Any, int]] = deque()
        self._bytes = 0
        self._sound = most_records  # records since the last that was not finite
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """What it holds, in bytes."""
        return self._bytes

    def keep(self, step: int, values: Any) -> None:
        """Keep a record; nothing is read.

        Args:
            step: the training step.
            values: a pytree of arrays, not donated to a later call, or what
                `Watcher.take` is given. Larger than `most_bytes`: not kept.
        """
        nbytes = getattr(values, "nbytes", None)
        if nbytes is None:
            leaves = jax.tree.leaves(values)
            nbytes = sum(getattr(leaf, "nbytes", 8) for leaf in leaves)
        if nbytes > self._most_bytes:
            return
        with self._lock:
            self._kept.append((step, values, nbytes))
            self._bytes += nbytes
            while (
                len(self._kept) > self._most_records or self._bytes > self._most_bytes
            ):
                self._bytes -= self._kept.popleft()[2]

    def look_at(self, step: int, numbers: Mapping[str, Any], journal: Journal) -> bool:
        """Look at numbers that have been read; write what is kept if one is not finite.

        Args:
            step: the step they belong to.
            numbers: by name, of any shape.
            journal: where to write.

        Returns:
            Whether something was written.
        """
        wrong = [name for name, value in numbers.items() if not _is_finite(value)]
        if not wrong:
            self._sound += 1
            return False
        ready, self._sound = self._sound >= self._most_records, 0
        if not ready:
            return False
        self.write(journal, f"{wrong[0]!r} was not finite at step {step}")
        return True

    def write(self, journal: Journal, why: str) -> int:
        """Read what is kept and write it to the journal.

        A record that cannot be read or written is counted, and the others go on.

        Args:
            journal: where to; not flushed.
            why: for `why`.

        Returns:
            How many records were written.
        """
        with self._lock:
            kept = list(self._kept)
            self._kept.clear()
            self._bytes = 0
        self.why = why
        done = 0
        for step, values, _ in kept:
            try:
                columns = _columns(values)
            except Exception as e:  # donated, or its program failed
                self.unreadable += 1
                self.last_error = error_text(e)
                continue
            last = journal.last_step_of(self.stream)
            try:
                journal.write(
                    step if last is None else max(step, last + 1), columns, self.stream
                )
            except (OutputError, TypeError, ValueError) as e:
                self.refused += 1
                self.last_error = error_text(e)
                continue
            done += 1
        self.written += done
        return done


def _columns(values: Any) -> dict[str, np.ndarray]:
    """A tree of arrays by the names of its places; on the host."""
    fetch = getattr(values, "fetch", None)
    tree = fetch() if fetch is not None else values
    tree = dict(tree) if isinstance(tree, Mapping) else tree
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = [
        (jax.tree_util.keystr(p, simple=True, separator="/"), v) for p, v in leaves
    ]
    return {name or "value": np.asarray(value) for name, value in named}


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    # bfloat16 and its kind are no floats to NumPy.
    if array.dtype.kind not in "biu":
        array = array.astype(np.float64)
    return bool(np.isfinite(array).all())
