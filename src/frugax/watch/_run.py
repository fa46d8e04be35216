"""`watch.run`: start a watched run in one line, with journal and system metrics."""

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax

from frugax import fileio
from frugax.budget import OverheadBudget, Receipt, to_json
from frugax.errors import OutputError
from frugax.jaxprs import has_backend

from ._alerts import EXIT_ALERT, Alerts
from ._current import close_at_exit
from ._event import Sink
from ._gpu import GpuDriver
from ._jit import jit
from ._watcher import Watcher
from .delivery import SinkWorker, write_message
from .journal import Journal

_SYSTEM_STREAM = "system"
# Seconds between two looks at the processor and the memory.
_SYSTEM_INTERVAL_S = 5.0


class Run(AbstractContextManager["Run"]):
    """A run that is watched; from `watch.run`.

    Attributes:
        folder: its folder.
        journal: its journal, `folder/journal`.
        watcher: collects its records; the current one inside the `with` block.
        alerts: its alerts, which are also lines of `folder/alerts.txt`.
    """

    def __init__(
        self, folder: Path, journal: Journal, watcher: Watcher, alerts: Alerts
    ) -> None:
        self.folder = folder
        self.journal = journal
        self.watcher = watcher
        self.alerts = alerts
        self._system = _SystemMetrics(journal)
        self._is_whole = True
        self._is_over = False
        close_at_exit(self)

    @property
    def exit_code(self) -> int:
        """3 if there was an alert, or records could not be written, else 0.

        For `sys.exit` at the end of a script.
        """
        return self.alerts.exit_code if self._is_whole else EXIT_ALERT

    def jit(self, fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Compile a function whose records go to this run; see `watch.jit`."""
        return jit(fn, watcher=self.watcher, **options)

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of one step; see `Watcher.record`.

        Raises:
            OutputError: the journal cannot be written.
            TypeError: a metric is not a real number.
            ValueError: a metric is not a single number, or the step is not higher.
        """
        self.watcher.record(step, metrics)

    def report(self) -> Receipt:
        """Report the cost of watching up to now, beside the budget."""
        return self.watcher.report()

    def __enter__(self) -> "Run":
        self.watcher.__enter__()
        fileio.call_before_sigterm(self._save)
        self._system.start()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        error = exc_info[0]
        try:
            self._end(
                error and error.__name__, lambda: self.watcher.__exit__(*exc_info)
            )
        finally:
            fileio.forget_before_sigterm(self._save)

    def _save(self) -> None:
        """End the run before SIGTERM ends the process."""
        self._end(signal.SIGTERM.name, self.watcher.save_finished)

    def close(self, timeout_s: float = 5.0) -> None:
        """End a run whose `with` block was not left, when the process exits."""
        why = "the process exited before the end of the run"
        self._end(why, lambda: self.watcher.close(timeout_s))

    def _end(self, stopped_because: str | None, close: Callable[[], None]) -> None:
        # In a forked child the run goes on without it. A generator's block may be left
        # as late as the interpreter's end, when nothing can be done any more.
        if self._is_over or self.watcher.is_abandoned:
            return
        self._system.stop()
        refused: ValueError | None = None
        for end in (
            close,
            self.journal.close,
            lambda: self._write_receipt(stopped_because),
        ):
            try:
                end()
            # A metric that could not be read must not cost the run its end.
            except ValueError as e:
                refused = e
            # A full disk must not end a program that may have weights to save
            # elsewhere.
            except OutputError as e:
                if self._is_whole:
                    write_message(f"this run is not whole: {e}")
                self._is_whole = False
        self._is_over = True
        if refused is not None:
            raise refused

    def _write_receipt(self, stopped_because: str | None) -> None:
        receipt = json.loads(self.report().to_json())
        if stopped_because is not None:
            receipt["stopped_because"] = stopped_because
        fileio.write_whole(self.folder / "receipt.json", to_json(receipt, indent=1))


def run(
    folder: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    notes: str = "",
    budget: OverheadBudget | str = "1%",
    level: str = "standard",
    sinks: Sequence[Sink | SinkWorker] = (),
    bounds: Mapping[str, tuple[float | None, float | None]] | None = None,
    resume: bool = False,
) -> Run:
    """Start a run in a folder of its own.

    The folder receives `journal`, `config.yaml`, `receipt.json` at the end, and
    `alerts.txt` if a number is not finite or out of its bounds. `frugax watch serve`
    shows it, and with the folder above it all runs side by side.

    Args:
        folder: a new folder, such as `"runs/wide"`.
        config: hyper-parameters; anything that JSON can represent.
        tags: words to find the run by.
        notes: a text about the run.
        budget: share of the running time that watching may add.
        level: as for `Watcher`.
        sinks: further consumers.
        bounds: the least and the largest value of a metric; None for no bound.
        resume: go on with the run that is in the folder.

    Raises:
        OutputError: the folder has a run already, or cannot be written.
        TypeError: JSON cannot represent the config.
        ValueError: the level is unknown, or the budget is not a share.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from frugax import watch
        >>> with watch.run(tempfile.mkdtemp() + "/first", config={"lr": 0.1}) as first:
        ...     step = first.jit(lambda x: watch.record("x", x) or x + 1)
        ...     y = step(jnp.zeros(()))
        >>> watch.read(first.folder / "journal")["x"].tolist()
        [0.0]
    """
    place = Path(folder)
    if isinstance(budget, str):
        budget = OverheadBudget(budget)
    meta: dict[str, Any] = {"name": place.name, "started": time.time()}
    if config:
        meta["config"] = dict(config)
    if tags:
        meta["tags"] = list(tags)
    if notes:
        meta["notes"] = notes
    # A program of torch may never start JAX, and a later `jax.distributed` must come
    # before that.
    may_be_one_of_many = has_backend() or jax.distributed.is_initialized()
    if may_be_one_of_many and jax.process_count() > 1:
        # Each process writes a journal of its own; the page shows them side by side.
        place = place / f"process{jax.process_index()}"
    path = place / "journal"
    if resume and path.exists():
        journal = Journal.append_to(path)
    else:
        journal = Journal.create(path, meta)
        # JSON is YAML too, and needs no other library.
        described = {key: meta[key] for key in meta if key != "started"}
        fileio.write_whole(place / "config.yaml", to_json(described, indent=1))
    try:
        alerts = Alerts(bounds, path=place / "alerts.txt")
        watcher = Watcher(journal, budget, level=level, sinks=sinks, alerts=alerts)
    except BaseException:
        journal.close()
        raise
    return Run(place, journal, watcher, alerts)


class _SystemMetrics:
    """Writes the use of processor and memory to the stream "system" now and then.

    Its steps are seconds since the start.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._work, name="frugax system metrics", daemon=True
        )

    def start(self) -> None:
        """Start looking."""
        with contextlib.suppress(RuntimeError):  # no more threads
            self._thread.start()

    def stop(self) -> None:
        """Stop; the journal may be closed afterwards."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        last = self._journal.last_step_of(_SYSTEM_STREAM) or 0
        began = time.monotonic() - last
        wall, used = time.monotonic(), time.process_time()
        driver = GpuDriver()
        is_last = False
        while not is_last:
            # Once more at the end, so that a short run has a record, too.
            is_last = self._stop.wait(_SYSTEM_INTERVAL_S)
            now, cpu = time.monotonic(), time.process_time()
            values = {"processors in use": (cpu - used) / (now - wall)}
            wall, used = now, cpu
            values |= _memory() | driver.metrics()
            try:
                self._journal.write(int(now - began), values, _SYSTEM_STREAM)
            # A full disk is reported by the watcher, which has the records.
            except (OutputError, ValueError):
                continue


def _memory() -> dict[str, float]:
    # On Linux in KiB, on macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    found = {"peak memory of the process, bytes": float(peak)}
    for device in jax.local_devices() if has_backend() else ():
        stats = device.memory_stats()
        if stats and "bytes_in_use" in stats:
            label = f"{device.platform} {device.id} memory, bytes"
            found[label] = float(stats["bytes_in_use"])
    return found
