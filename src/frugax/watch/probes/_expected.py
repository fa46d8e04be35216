"""Saying so where a `watch.jit` inside another program loses its records.

Inside a program that nobody collects from, or under `grad`, its probes vanish without
an error. Whoever traces a program to collect from it knows which ones arrived.
"""

import contextlib
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping

from ._probe import Probe


class Expected:
    """The records of one watched function, when it is called inside a program."""

    def __init__(self, name: str, probes: Mapping[str, Probe]) -> None:
        self._name = name
        self._probes = probes
        self._said = False

    def called_inside(self) -> None:
        """It was called while a program is traced: its records go to whoever traces."""
        if frames := _frames():
            frames[-1].append(self)
        else:
            self.arrived(())

    def arrived(self, probes: Collection[Probe]) -> None:
        """Warn, once, if a record is not among those that have arrived.

        Args:
            probes: all that whoever traces has found.
        """
        found = {probe.name for probe in probes}
        lost = [p.name for p in self._probes.values() if p.name not in found]
        if not lost or self._said:
            return
        self._said = True
        warnings.warn(
            f"the records of watch.jit({self._name}) are dropped here "
            f"({', '.join(map(repr, lost[:3]))}): it is called inside another program, "
            "or differentiated. Make watch.jit the outermost: "
            f"watch.jit(jax.grad({self._name})), watch.jit(jax.vmap({self._name})).",
            UserWarning,
            stacklevel=4,
        )


@contextlib.contextmanager
def expecting() -> Iterator[list[Expected]]:
    """In this block a program is traced to collect from it; gives who is called."""
    frames, own = _frames(), list[Expected]()
    frames.append(own)
    try:
        yield own
    finally:
        frames.pop()


class _Here(threading.local):
    def __init__(self) -> None:
        self.frames: list[list[Expected]] = []


_here = _Here()


def _frames() -> list[list[Expected]]:
    return _here.frames
