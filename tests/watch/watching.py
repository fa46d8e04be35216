"""Clocks, numbers and records made by the tests of the watcher."""

import dataclasses
from typing import Any

import numpy as np

from frugax import OverheadBudget, watch
from frugax.watch.probes import Probe


@dataclasses.dataclass
class Clock:
    """Seconds that pass only when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass
class Metric:
    """A number on an imagined device: reading it takes time on the clock."""

    clock: Clock
    value: float
    seconds: float = 0.0
    ready: bool = True
    shape: tuple[int, ...] = ()
    dtype: np.dtype = dataclasses.field(default=np.dtype(float))

    def is_ready(self) -> bool:
        return self.ready

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        self.clock.now += self.seconds
        return np.asarray(self.value)


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


class Given(dict):
    """The records of a program: values by name, and the meaning of their first axes."""

    def __init__(self, values, axes=None):
        super().__init__(values)
        self.axes = axes or {}


def taking(journal, level="full", **options):
    return watch.Watcher(journal, OverheadBudget("100%"), level=level, **options)
