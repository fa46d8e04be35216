"""Receive records through host callbacks, from programs that do not return them.

A program that nobody collects from, such as one compiled by plain `jax.jit`, hands its
records over through a callback. Nothing that happens here may end or stop that program.
"""

from typing import Any

from ._current import current
from .delivery import Interrupts, Runner, callback_stats, error_text
from .probes import Probe, fields_of, set_receiver

# A handler that hangs is abandoned after this time, and the program goes on.
_MAX_WAIT_S = 10.0
_runner = Runner()
_interrupts = Interrupts()


def receive(probe: Probe, value: Any) -> None:
    """Pass a record that a program called back with to a watcher, or to its handler.

    Nothing is raised except a second Ctrl-C.
    """
    with _interrupts:
        callback_stats.record_entry(probe.label)
        try:
            watcher = current()
            if probe.kind == "call" or watcher is None:
                call_handler(probe, value)
            else:
                values = fields_of(probe, value)
                watcher.ingest_callback(probe.kind, probe.name, values)
        # An exception that leaves a callback makes JAX end the whole program.
        except Exception as e:
            callback_stats.record(probe.label, 0.0, error=error_text(e))


def call_handler(probe: Probe, value: Any) -> None:
    """Call a probe's handler, if it has one, in a thread that may be abandoned."""
    handler = probe.handler
    if handler is not None:
        arrays = list(fields_of(probe, value).values())[: len(probe.fields)]
        outcome = _runner.run(lambda: handler(*arrays), wait_s=_MAX_WAIT_S)
        callback_stats.record_outcome(probe.label, outcome)


set_receiver(receive)
