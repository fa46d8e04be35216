"""Receive records through host callbacks, from programs that do not return them.

A program that nobody collects from, such as one compiled by plain `jax.jit`, hands its
records over through a callback. Nothing that happens here may end or stop that program.
"""

from typing import Any

import numpy as np

from ._current import current
from .delivery import Outcome, Runner, callback_stats, defer_interrupt, error_text
from .probes import Probe, ProbeResult

# A handler that hangs is abandoned after this time, and the program goes on.
_MAX_WAIT_S = 10.0
_runner = Runner()


def receive(probe: Probe, mark_kind: str, mark: Any, *values: Any) -> None:
    """Pass a record that a program called back with to a watcher, or to its handler.

    Nothing is raised: an exception that leaves a callback makes JAX end the program.
    """
    try:
        callback_stats.record_entry(probe.label)
        # Copied: an array of the callback would keep the memory of the device alive.
        arrays = tuple(np.array(v) for v in values)
        if mark is not None:
            mark = np.array(mark)
        result = ProbeResult(probe, mark_kind, mark, arrays)
        watcher = current()
        if probe.kind == "call" or watcher is None:
            call_handler(result)
        else:
            columns = result.columns(probe.name)
            watcher.ingest_callback(probe.kind, probe.name, columns)
    except KeyboardInterrupt:
        defer_interrupt()
    except BaseException as e:
        callback_stats.record(probe.label, Outcome("failed", 0.0, error_text(e)))


def call_handler(result: ProbeResult) -> None:
    """Call a probe's handler, if it has one, in a thread that may be abandoned."""
    probe = result.probe
    handler = probe.handler
    if handler is not None:
        outcome = _runner.run(lambda: handler(*result.values), wait_s=_MAX_WAIT_S)
        callback_stats.record(probe.label, outcome)
