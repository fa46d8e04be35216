"""A watcher that waits after each record until its sinks have it."""

import contextlib
from collections.abc import Mapping
from typing import Any

from frugax.errors import OutputError
from frugax.watch import Watcher


class WaitingWatcher(Watcher):
    """A `Watcher` for the guide's `async_logging: false`."""

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record as `Watcher.record` does, and wait for the sinks.

        Raises:
            OutputError: the journal could not be written.
            TypeError: as for `Watcher.record`.
            ValueError: as for `Watcher.record`.
        """
        super().record(step, metrics)
        self.collect()
        self._wait_for_sinks()

    def ingest(self, *args: Any, **kwargs: Any) -> None:
        """Take the records of a call, and wait for the sinks; never raises for them."""
        super().ingest(*args, **kwargs)
        with contextlib.suppress(OutputError, ValueError):
            self.collect()
        self._wait_for_sinks()

    def ingest_callback(self, *args: Any, **kwargs: Any) -> None:
        """Take a record of a callback, and wait for the sinks."""
        super().ingest_callback(*args, **kwargs)
        # Not `collect`, which would wait for the program that has called back.
        self.recorder.write_called_back()
        self._wait_for_sinks()

    def _wait_for_sinks(self) -> None:
        for sink in self.recorder.sinks:
            sink.flush()
