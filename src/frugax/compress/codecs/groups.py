"""Group quantisation: 4-, 6- or 8-bit integers with a step for each group of weights.

Decoding is one rounded product, `integer * step`, and needs no other number: a program
can do it where it uses the weights. The entropy-coded grids of the other codecs are
better by some dB in the same bytes, but their numbers have no fixed places.
"""

import dataclasses
from typing import Any

import numpy as np

from .steps import largest_finite

# Shares of the step that reaches the largest number of a group. Clipping that number
# pays with few integers: 4 bits have about 0.5 dB less error than without.
_SHARES = {4: np.linspace(1.05, 0.7, 8), 6: np.linspace(0.8, 1.05, 11), 8: np.ones(1)}
_PART = 1 << 20  # numbers at a time


@dataclasses.dataclass(frozen=True, slots=True)
class Grouping:
    """How the numbers of an array share steps.

    Attributes:
        bits: of an integer, 4, 6 or 8.
        size: how many neighbours share a step; 0 for a whole row or column.
        axis: along which they are neighbours: -1 within rows, -2 within columns.
    """

    bits: int
    size: int
    axis: int = -1

    @property
    def lowest(self) -> int:
        """The lowest integer; the highest is one less than its opposite."""
        return -(1 << (self.bits - 1))

    def steps_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the steps of an array of two axes or more."""
        counts = list(shape)
        size = self.size or counts[self.axis]
        counts[self.axis] = -(-counts[self.axis] // size)
        return tuple(counts)

    def __str__(self) -> str:
        line = "row" if self.axis == -1 else "column"
        if not self.size:
            return f"{self.bits} bits, a step for each {line}"
        return f"{self.bits} bits, groups of {self.size} in {line}s"


def quantise_groups(
    array: np.ndarray, grouping: Grouping, dtype: "np.dtype[Any]"
) -> tuple[np.ndarray, np.ndarray]:
    """Round finite numbers to integers times a step for each group.

    The step of a group is the one of least squared error among some that clip its
    largest number more or less. It has that number's sign, turned, so that the lowest
    integer, which has no opposite, stands for it (as in llama.cpp's Q4_0).

    Args:
        array: of two axes or more.
        grouping: the bits and the groups.
        dtype: of the steps.

    Returns:
        Integers of the array's shape, int8, and the steps: infinite where their dtype
        cannot hold one.
    """
    turned = np.moveaxis(array, grouping.axis, -1)
    length = turned.shape[-1]
    size = grouping.size or length
    groups = -(-length // size)
    lines = turned.reshape(-1, length)
    integers = np.empty((len(lines), length), np.int8)
    steps = np.empty((len(lines), groups), dtype)
    for first in range(0, len(lines), max(1, _PART // max(1, length))):
        part = slice(first, first + max(1, _PART // max(1, length)))
        values = np.zeros((len(lines[part]), groups * size), np.float32)
        values[:, :length] = lines[part]
        found, of_groups = _choose_steps(
            values.reshape(-1, size),
            grouping.lowest,
            _SHARES[grouping.bits],
            dtype,
            largest_finite(array.dtype),
        )
        integers[part] = found.reshape(len(values), -1)[:, :length]
        steps[part] = of_groups.reshape(len(values), groups)
    whole = turned.shape[:-1]
    return (
        np.moveaxis(integers.reshape(*whole, length), -1, grouping.axis),
        np.moveaxis(steps.reshape(*whole, groups), -1, grouping.axis),
    )


def spread_steps(
    steps: np.ndarray, grouping: Grouping, shape: tuple[int, ...]
) -> np.ndarray:
    """Return the step of every number, float32, or one for each line of them."""
    if not grouping.size:
        return steps.astype(np.float32)
    each = np.repeat(steps.astype(np.float32), grouping.size, axis=grouping.axis)
    return np.take(each, range(shape[grouping.axis]), axis=grouping.axis)


def decode_groups(
    integers: np.ndarray,
    steps: np.ndarray,
    grouping: Grouping,
    dtype: "np.dtype[Any]",
) -> np.ndarray:
    """Return the numbers: one rounded product in float32, then the weights' dtype."""
    each = spread_steps(steps, grouping, integers.shape)
    return (integers * each).astype(dtype)


def _choose_steps(
    groups: np.ndarray,
    lowest: int,
    shares: np.ndarray,
    dtype: "np.dtype[Any]",
    largest: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers of each row of numbers, and the rows' steps.

    The lowest integer stands for no number beyond the largest of the weights' dtype.
    """
    at = np.abs(groups).argmax(axis=1)
    extreme = groups[np.arange(len(groups)), at]
    # Squares of very large and very small numbers leave the range of float32.
    unit = np.where(extreme == 0, 1, np.abs(extreme))[:, None]
    best = np.full(len(groups), np.inf, np.float32)
    steps = np.zeros(len(groups), dtype)
    integers = np.zeros(groups.shape, np.float32)
    for share in shares:
        with np.errstate(over="ignore"):
            reach = np.clip(extreme * np.float32(share), -largest, largest)
            tried = (reach / np.float32(lowest)).astype(dtype)
        # A row of zeros, or of numbers below the dtype of steps, is all zeros.
        size = np.where(tried == 0, np.inf, tried.astype(np.float32))
        rounded = np.clip(np.rint(groups / size[:, None]), lowest, -lowest - 1)
        error = groups - rounded * np.where(np.isinf(size), 0, size)[:, None]
        error /= unit
        loss = np.einsum("ij,ij->i", error, error)
        better = loss < best
        best[better], steps[better] = loss[better], tried[better]
        integers[better] = rounded[better]
    return integers.astype(np.int8), steps
