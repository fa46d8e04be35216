"""Trellis numbers into the words of rANS coders: the lanes of many blocks at once.

The mirror of `_trellis_walk.py`: what that takes off the words, from the first number
to the last, is put on them here, from the last to the first.
"""

from collections.abc import Sequence

import numpy as np

from ._trellis_lanes import Coded
from ._trellis_tables import SCALE_BITS
from ._trellis_walk import LOWEST

# Steps whose table entries are looked up in one go.
_TILE = 32


def push(
    blocks: Sequence[Coded], symbols: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Code the symbols, the last ones first, as rANS is a stack.

    Args:
        blocks: what is coded; no block's bytes depend on the others.
        symbols: of each number of each block, flat.

    Returns:
        The states of each block's lanes, uint32, and its words, 16 bits each.
    """
    order = sorted(range(len(blocks)), key=lambda i: -blocks[i].lanes.length)
    ranked = [blocks[i] for i in order]
    ends = np.cumsum([block.lanes.count for block in ranked])
    frequencies, starts, index = _tables(ranked, [symbols[i] for i in order])
    # How many lanes still have a number at each step.
    lengths = np.repeat(
        [-block.lanes.length for block in ranked],
        [block.lanes.count for block in ranked],
    )
    actives = lengths.searchsorted(-np.arange(len(index))).tolist()
    states = np.full(ends[-1], float(LOWEST))
    words: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    for first in range((len(index) - 1) // _TILE * _TILE, -1, -_TILE):
        which = index[first : first + _TILE]
        frequency, start = frequencies.take(which), starts.take(which)
        limit = frequency * (1 << 32 - SCALE_BITS)
        rest = (1 << SCALE_BITS) - frequency
        for row in range(len(which) - 1, -1, -1):
            active = actives[first + row]
            x, f = states[:active], frequency[row, :active]
            full = (x >= limit[row, :active]).nonzero()[0]
            given = x[full].astype(np.uint32)
            words.append((given & np.uint32(0xFFFF)).astype("<u2"))
            owners.append(full)
            x[full] = given >> np.uint32(16)
            # Exact: a quotient of whole numbers below 2^32 and 2^12 is never rounded
            # to a whole number that it is not, in 53 bits.
            above = np.floor(x / f)
            above *= rest[row, :active]
            x += above
            x += start[row, :active]
    return _by_block(order, ends, states, words[::-1], owners[::-1])


def _tables(
    blocks: Sequence[Coded], symbols: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frequency and start of every symbol of every table, and which each number has.

    The last entry changes no state: for lanes that have ended.
    """
    each = [block.tables.frequencies.reshape(-1, 256) for block in blocks]
    every = np.concatenate(each)
    starts = np.append(np.cumsum(every, axis=1) - every, 0.0)
    frequencies = np.append(every, float(1 << SCALE_BITS))
    count = sum(block.lanes.count for block in blocks)
    index = np.full((blocks[0].lanes.length, count), every.size, np.int32)
    at = base = 0
    for block, of_block in zip(blocks, symbols, strict=True):
        lanes = block.lanes
        classes = np.repeat(block.classes, lanes.run)[: lanes.size]
        flat = (classes.astype(np.int32) * 2 + (block.flat & 1)) * 256 + of_block + base
        here = index[: lanes.length, at : at + lanes.count]
        whole = lanes.size // lanes.length  # lanes that do not end early
        full = flat[: whole * lanes.length].reshape(whole, lanes.length)
        here[:, :whole] = full.T
        if whole < lanes.count:
            short = flat[whole * lanes.length :]
            here[: len(short), -1] = short
        at += lanes.count
        base += block.tables.frequencies.size
    return frequencies, starts, index


def _by_block(
    order: Sequence[int],
    ends: np.ndarray,
    states: np.ndarray,
    words: Sequence[np.ndarray],
    owners: Sequence[np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each block has of the states and of the words, these in their order."""
    every, lane = np.concatenate(words), np.concatenate(owners)
    block = np.searchsorted(ends, lane, side="right").astype(np.int16)
    every = every[np.argsort(block, kind="stable")]
    counts = np.cumsum(np.bincount(block, minlength=len(ends)))
    final = states.astype(np.uint32)
    found = dict(
        zip(
            order,
            zip(np.split(final, ends[:-1]), np.split(every, counts[:-1]), strict=True),
            strict=True,
        )
    )
    return [found[i] for i in range(len(order))]
