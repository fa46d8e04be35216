"""Clocks, records and events made by the tests of the watcher and of sinks."""

import dataclasses
from typing import Any

import jax
import numpy as np

from frugax import OverheadBudget, watch
from frugax.watch.probes import LastValues, MaskedValues, Probe, ProbeResult
from frugax.watch.sinks import Event


@dataclasses.dataclass
class Clock:
    """Seconds that pass only when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Listener:
    """A sink that keeps all it gets."""

    def __init__(self):
        self.name = "listener"
        self.got = []
        self.closed = False

    def write(self, events):
        self.got += events

    def close(self):
        self.closed = True


def probe(name: str, kind: Any = "scalar", example: Any = 1.0, handler: Any = None):
    return Probe.of(name, kind, handler, example)


def event(kind: Any, stream: str, step: int, values: Any) -> Event:
    """An event; numbers become arrays of shape ()."""
    return Event(kind, stream, step, {k: np.asanyarray(v) for k, v in values.items()})


class _Given:
    """The records of a program by name, and the meaning of their first axes."""

    nbytes = 0

    def __init__(self, probes, values, axes=None):
        self.probes, self.values, self.axes = probes, values, axes or {}

    def is_ready(self):
        return True

    def fetch(self):
        return {
            name: _result(self.probes[name], value, tuple(self.axes.get(name, ())))
            for name, value in jax.device_get(self.values).items()
        }


def _result(one, value, axes):
    kind, mark = "always", None
    if isinstance(value, MaskedValues | LastValues):
        kind = "present" if isinstance(value, MaskedValues) else "count"
        value, mark = value.values, np.asarray(value[1])
    values = value.values() if isinstance(value, dict) else [value]
    return ProbeResult(one, kind, mark, tuple(map(np.asarray, values)), axes)


Given: Any = _Given  # it passes for `PackedRecords`


def taking(journal, level="full", **options):
    return watch.Watcher(journal, OverheadBudget("100%"), level=level, **options)


def finished(watcher, journal):
    """The records of a journal whose watcher has collected all of them."""
    watcher.finish()
    journal.close()
    return watch.read(journal._path, strict=True)


def kept(watcher):
    """How many numbers have been collected."""
    return watcher.losses.tally("scalar").kept
