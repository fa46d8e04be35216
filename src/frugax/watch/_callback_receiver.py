"""Receive records through host callbacks, from programs that do not return them.

A program that nobody collects from, such as one compiled by plain `jax.jit`, hands its
records over through a callback. Nothing that happens here may end or stop that program.
"""

from typing import Any

from ._current import current
from ._row_batch import fields_of
from .delivery import HostHandler, Interrupts, Runner, callback_stats, error_text
from .probes import Probe, set_receiver

# A handler that hangs is abandoned after this time, and the program goes on.
_MAX_WAIT_S = 10.0
_runner = Runner()
_interrupts = Interrupts()


def receive(probe: Probe, value: Any) -> None:
    """Pass a record to its handler, or else to the current watcher.

    Nothing is raised except a second Ctrl-C.
    """
    handler = probe.handler
    name = probe.name
    if isinstance(handler, HostHandler):
        name = handler.name
    with _interrupts:
        try:
            callback_stats.record_entry(name)
            values = fields_of(probe, value)
            if isinstance(handler, HostHandler):
                handler.handle_callback(list(values.values()))
            elif handler is not None:
                outcome = _runner.run(lambda: handler(value), wait_s=_MAX_WAIT_S)
                callback_stats.record(name, outcome.seconds, error=outcome.error)
            elif probe.kind != "call" and (watcher := current()) is not None:
                watcher.ingest_callback(probe.kind, probe.name, values)
        # An exception that leaves a callback makes JAX end the whole program.
        except Exception as e:
            callback_stats.record(name, 0.0, error=error_text(e))


set_receiver(receive)
