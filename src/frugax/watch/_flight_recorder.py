"""A flight recorder: keep the last records and write them when something goes wrong.

A record that is kept costs a reference and its memory on the device. The records are
read and written to the journal only when a number is not finite or an exception ends
the run, and then include those that the level had left out.
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

_STREAM = "flight"


class FlightRecorder:
    """Keeps the last records on the device and writes them when something goes wrong.

    A recorder that is given to a `Watcher` keeps the records that programs under
    `watch.jit` make in every step, whatever the level is. `keep` adds anything else,
    such as gradients or the weights. It writes once; when the numbers have been finite
    again for `max_records` records, it is ready for the next time.

    Attributes:
        why: the cause of the last writing; empty before the first.
        written: records that it has written.
        unreadable: records that it could not read, because they had been donated or
            their program had failed.
        refused: records that the journal could not store.
        last_error: text of the last error while reading or writing.
    """

    def __init__(self, max_records: int = 64, *, max_bytes: int = 64 * 2**20) -> None:
        """Keep nothing yet.

        Args:
            max_records: most records to keep; >= 1.
            max_bytes: most bytes that they may hold; the oldest go first; > 0.

        Raises:
            ValueError: a number is out of its range.
        """
        if max_records < 1:
            raise ValueError(f"max_records must be >= 1, got {max_records}.")
        if not max_bytes > 0:
            raise ValueError(f"max_bytes must be > 0, got {max_bytes}.")
        self.why = ""
        self.written = 0
        self.unreadable = 0
        self.refused = 0
        self.last_error = ""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._kept: deque[tuple[int, Any, int]] = deque()
        self._bytes = 0
        # Records since the last one that was not finite. A run that has diverged stays
        # not finite: without this, every further step would write the same again.
        self._finite_streak = max_records
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes that the kept records hold."""
        return self._bytes

    def keep(self, step: int, values: Any) -> None:
        """Keep a record, without reading it.

        Args:
            step: the training step.
            values: a pytree of arrays that are not donated to a later call, or records
                of a program. A record larger than `max_bytes` is not kept.
        """
        if hasattr(values, "fetch"):  # records of a program
            nbytes = values.nbytes
        else:
            # As they are now: the caller may go on with the containers, and with arrays
            # of NumPy.
            copied = lambda x: x.copy() if isinstance(x, np.ndarray) else x
            values = jax.tree.map(copied, values)
            leaves = jax.tree.leaves(values)
            nbytes = sum(getattr(leaf, "nbytes", 8) for leaf in leaves)
        if nbytes > self._max_bytes:
            return
        with self._lock:
            self._kept.append((step, values, nbytes))
            self._bytes += nbytes
            while len(self._kept) > self._max_records or self._bytes > self._max_bytes:
                self._bytes -= self._kept.popleft()[2]

    def inspect(self, step: int, numbers: Mapping[str, Any], journal: Journal) -> bool:
        """Write the kept records if a number is not finite.

        Args:
            step: the step of the numbers.
            numbers: arrays on the host, by name.
            journal: the journal to write to.

        Returns:
            Whether something was written.
        """
        bad = [name for name, value in numbers.items() if not _is_finite(value)]
        if not bad:
            self._finite_streak += 1
            return False
        is_ready = self._finite_streak >= self._max_records
        self._finite_streak = 0
        if is_ready:
            self.write(journal, f"{bad[0]!r} was not finite at step {step}")
        return is_ready

    def write(self, journal: Journal, why: str) -> int:
        """Read the kept records and write them to the journal, which is not flushed.

        A record that cannot be read or written is counted, and the others go on.

        Args:
            journal: the journal to write to.
            why: the cause, kept in `why`.

        Returns:
            The number of records written.
        """
        with self._lock:
            # Taken out under the lock and read outside of it: reading waits for the
            # device, and a call of `keep` must not.
            kept = list(self._kept)
            self._kept.clear()
            self._bytes = 0
        self.why = why
        records: list[tuple[int, dict[str, np.ndarray]]] = []
        for step, values, _ in kept:
            try:
                columns = _to_columns(values)
            except Exception as e:  # the arrays were donated, or their program failed
                self.unreadable += 1
                self.last_error = error_text(e)
                continue
            # A program and its caller may both have kept something of a step.
            known = records[-1] if records else (None, {})
            if known[0] == step and known[1].keys().isdisjoint(columns):
                known[1].update(columns)
            else:
                records.append((step, columns))
        written = 0
        for step, columns in records:
            last = journal.last_step_of(_STREAM)
            # Steps of a stream must increase, and an earlier failure may have written
            # these steps already.
            at = step if last is None else max(step, last + 1)
            try:
                journal.write(at, columns, _STREAM)
            except (OutputError, TypeError, ValueError) as e:
                self.refused += 1
                self.last_error = error_text(e)
                continue
            written += 1
        self.written += written
        return written


def _to_columns(values: Any) -> dict[str, np.ndarray]:
    """Return the leaves of a pytree, or the records of a program, on the host."""
    columns: dict[str, np.ndarray] = {}
    if hasattr(values, "fetch"):
        for name, result in values.fetch().items():
            for field, column in result.columns(name).items():
                columns[name if field == name else f"{name}/{field}"] = column
        return columns
    if isinstance(values, Mapping):
        values = dict(values)
    leaves, _ = jax.tree_util.tree_flatten_with_path(values)
    for path, value in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        columns[name or "value"] = np.asarray(value)
    return columns


def _is_finite(value: Any) -> bool:
    array = np.ma.asarray(value).compressed()  # lanes without a record are masked
    # NumPy does not know bfloat16 and its relatives as floats.
    if array.dtype.kind not in "biu":
        array = array.astype(np.float64)
    return bool(np.isfinite(array).all())
