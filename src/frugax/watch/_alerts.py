"""Alert at once when a recorded number is not finite or leaves its bounds."""

import contextlib
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from .delivery import write_message

# The exit code of a script whose run had an alert.
EXIT_ALERT = 3
# A run that has diverged stays so: one line for each name and kind of alert.
_MAX_MESSAGES = 100


class Alerts:
    """Bounds of numbers; each breach is printed once, and written to a file.

    Attributes:
        messages: the alerts so far, one for each name and bound.
    """

    def __init__(
        self,
        bounds: Mapping[str, tuple[float | None, float | None]] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Watch for numbers outside of their bounds.

        Args:
            bounds: the least and the largest value by name; None for no bound.
            path: a file to which each alert is appended as a line; None for none.

        Raises:
            ValueError: a lower bound is above its upper bound.
        """
        self.messages: list[str] = []
        self._bounds: dict[str, tuple[float, float]] = {}
        for name, (low, high) in (bounds or {}).items():
            lowest = -math.inf if low is None else low
            highest = math.inf if high is None else high
            if not lowest <= highest:
                raise ValueError(f"the bounds of {name!r} are ({low}, {high}).")
            self._bounds[name] = lowest, highest
        self._path = None if path is None else Path(path)
        self._known: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def exit_code(self) -> int:
        """3 if there was an alert, else 0; for `sys.exit` at the end of a script."""
        return EXIT_ALERT if self.messages else 0

    def inspect(
        self, steps: Int64[np.ndarray, " n"], columns: Mapping[str, np.ndarray]
    ) -> None:
        """Compare the numbers of some steps with their bounds."""
        for name, column in columns.items():
            if column.dtype.kind not in "biuf":
                continue
            # Of lanes without a record nothing is there; the mask is one False if all
            # have one.
            values, is_there = np.asarray(column), ~np.ma.getmask(column)
            if (bad := is_there & ~np.isfinite(values)).any():
                step = _first_step(steps, bad)
                self._add(name, "finite", f"{name} is not finite at step {step}")
            if name not in self._bounds:
                continue
            low, high = self._bounds[name]
            if (bad := is_there & (values < low)).any():
                worst = values[bad].min()
                step = _first_step(steps, bad & (values == worst))
                told = f"{name} is {worst:.6g} < {low:g} at step {step}"
                self._add(name, "low", told)
            if (bad := is_there & (values > high)).any():
                worst = values[bad].max()
                step = _first_step(steps, bad & (values == worst))
                told = f"{name} is {worst:.6g} > {high:g} at step {step}"
                self._add(name, "high", told)

    def _add(self, name: str, kind: str, message: str) -> None:
        with self._lock:
            if (name, kind) in self._known or len(self.messages) >= _MAX_MESSAGES:
                return
            self._known.add((name, kind))
            self.messages.append(message)
        write_message(f"alert: {message}")
        if self._path is not None:
            # It must not end the thread that collects.
            with contextlib.suppress(OSError), self._path.open("a") as file:
                file.write(message + "\n")


def _first_step(steps: np.ndarray, bad: np.ndarray) -> int:
    """Return the step of the first row in which something is true."""
    return int(steps[bad.reshape(len(bad), -1).any(1).argmax()])
