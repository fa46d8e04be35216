"""The interface between a contestant and the benchmark."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One net in one framework, ready to run.

    Attributes:
        step: loss and gradients of all weights, from the same weights each time.
        forward: the output alone.
        wait: returns when a result is there.
        result: one step's loss and gradients, as the net's names and layouts have them.
    """

    step: Callable[[], Any]
    forward: Callable[[], Any]
    wait: Callable[[Any], Any]
    result: Callable[[], tuple[float, Arrays]]
