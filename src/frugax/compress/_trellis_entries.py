"""All that a trellis-coded state means, for one look-up.

A slot is the low bits of a state. Its entry stands under
`class << 13 | odd << 12 | slot`, with classes counted through all blocks. It has, from
its lowest bit: 12 bits of where in the symbol's range the slot is, q, 9 bits of the
class, 29 of the level, 13 of the frequency.
"""

from collections.abc import Sequence

import numpy as np

from ._trellis_tables import SCALE_BITS, Tables

# The level of a number that is listed elsewhere; real ones are within 2^25.
FAR = -(1 << 28)
SLOTS = 1 << SCALE_BITS
# The lowest bit of each part.
CLASS, LEVEL, FREQUENCY = SCALE_BITS + 1, SCALE_BITS + 10, SCALE_BITS + 39


def entries_of(blocks: Sequence[Tables]) -> np.ndarray:
    """The entry of every slot of every table, as told above.

    After them a class that changes no state, for lanes that have ended.
    """
    count = sum(len(block.halves) for block in blocks)
    entries = np.empty((count + 1, 2, SLOTS), np.uint64)
    at = 0
    for block in blocks:
        classes = len(block.halves)
        flat = block.frequencies
        packed = flat.astype(np.uint64) << np.uint64(FREQUENCY)
        packed |= _symbol_levels(block) << np.uint64(LEVEL)
        packed |= (np.arange(256, dtype=np.uint64) & 1) << np.uint64(SCALE_BITS)
        # The slot that is added below makes what is inside of this.
        packed -= (np.cumsum(flat, axis=2) - flat).astype(np.uint64)
        packed = np.repeat(packed.reshape(-1), flat.reshape(-1))
        entries[at : at + classes] = packed.reshape(classes, 2, SLOTS)
        at += classes
    entries[-1] = np.uint64(SLOTS << FREQUENCY)
    entries += np.arange(SLOTS, dtype=np.uint64)
    entries |= (np.arange(count + 1, dtype=np.uint64) << np.uint64(CLASS))[
        :, None, None
    ]
    return entries.reshape(-1)


def _symbol_levels(tables: Tables) -> np.ndarray:
    """The level of each class, parity and symbol, in 29 bits, `(classes, 2, 256)`."""
    symbol = np.arange(256)
    half = (symbol >> 1) + tables.lowest[:, None, None]
    levels = (half << (2 + tables.raw_bits)) + ((symbol & 1) << 1)
    levels = levels + np.arange(2)[:, None]
    far = symbol >> 1 >= tables.halves[:, None, None]
    levels = np.where(far, FAR, levels) & ((1 << (FREQUENCY - LEVEL)) - 1)
    return levels.astype(np.uint64)
