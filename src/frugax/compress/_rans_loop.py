"""The loops of the entropy coder: every number passes them, coded and decoded.

Many lanes take a step at once, one NumPy operation for all. Few take theirs one by one
in plain Python, which is quicker for them. Both give the same bytes and numbers.
"""

import numpy as np

from frugax.errors import CorruptFileError

LOWEST = 1 << 16  # states live in [2^16, 2^32) and move 16 bits at a time
# An operation of NumPy takes as long for fewer lanes.
_FEW = 16


def push(
    symbols: np.ndarray, frequencies: np.ndarray, scale_bits: int, lanes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Code the symbols, the last ones first, as rANS is a stack.

    Args:
        symbols: one for each number; those of a step of all lanes are neighbours.
        frequencies: of each symbol; they sum to `2^scale_bits`.
        scale_bits: how fine they are.
        lanes: how many coders share the words.

    Returns:
        The states that the coders end in, and the words.
    """
    work = _push_one_by_one if lanes < _FEW else _push_side_by_side
    return work(symbols, frequencies, scale_bits, lanes)


def pop(
    states: np.ndarray,
    words: np.ndarray,
    frequencies: np.ndarray,
    scale_bits: int,
    size: int,
) -> np.ndarray:
    """Give back the `size` symbols that `push` coded.

    Raises:
        CorruptFileError: the words do not end with the symbols.
    """
    work = _pop_one_by_one if len(states) < _FEW else _pop_side_by_side
    symbols, ends, used = work(states, words, frequencies, scale_bits, size)
    # The coder began with every state at its lowest: a check that comes for free.
    if used != len(words) or (ends != LOWEST).any():
        raise CorruptFileError("an entropy-coded block does not end where it should.")
    return symbols


def _push_one_by_one(
    symbols: np.ndarray, frequencies: np.ndarray, scale_bits: int, lanes: int
) -> tuple[np.ndarray, np.ndarray]:
    frequency = frequencies.tolist()
    start = (np.cumsum(frequencies) - frequencies).tolist()
    states, words = [LOWEST] * lanes, []
    for i, symbol in zip(
        range(len(symbols) - 1, -1, -1), reversed(symbols.tolist()), strict=True
    ):
        x, f = states[i % lanes], frequency[symbol]
        if x >= f << (32 - scale_bits):
            words.append(x & 0xFFFF)
            x >>= 16
        above, below = divmod(x, f)
        states[i % lanes] = (above << scale_bits) + below + start[symbol]
    return np.array(states, np.uint64), np.array(words[::-1], "<u2")


def _pop_one_by_one(
    states: np.ndarray,
    words: np.ndarray,
    frequencies: np.ndarray,
    scale_bits: int,
    size: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    slots = np.repeat(np.arange(len(frequencies)), frequencies).tolist()
    frequency = frequencies.tolist()
    start = (np.cumsum(frequencies) - frequencies).tolist()
    mask, lanes, at = (1 << scale_bits) - 1, len(states), 0
    left, given = states.tolist(), words.tolist()
    symbols: list[int] = []
    for i in range(size):
        x = left[i % lanes]
        slot = x & mask
        symbol = slots[slot]
        symbols.append(symbol)
        x = frequency[symbol] * (x >> scale_bits) + slot - start[symbol]
        if x < LOWEST:
            if at == len(given):
                raise CorruptFileError("an entropy-coded block ends too early.")
            x = x << 16 | given[at]
            at += 1
        left[i % lanes] = x
    return np.array(symbols, np.uint32), np.array(left), at


def _push_side_by_side(
    symbols: np.ndarray, frequencies: np.ndarray, scale_bits: int, lanes: int
) -> tuple[np.ndarray, np.ndarray]:
    frequency = frequencies.astype(np.uint64)
    start = np.cumsum(frequency, dtype=np.uint64) - frequency
    limit = frequency << np.uint64(32 - scale_bits)
    states = np.full(lanes, LOWEST, np.uint64)
    groups: list[np.ndarray] = []
    for first in range((len(symbols) - 1) // lanes * lanes, -1, -lanes):
        now = symbols[first : first + lanes]
        x = states[: len(now)]
        full = x >= limit[now]
        if full.any():
            groups.append(x[full].astype("<u2"))
            x = np.where(full, x >> np.uint64(16), x)
        f = frequency[now]
        above, below = np.divmod(x, f)
        states[: len(now)] = (above << np.uint64(scale_bits)) + below + start[now]
    words = np.concatenate([np.zeros(0, "<u2"), *reversed(groups)])
    return states, words.astype("<u2")


def _pop_side_by_side(
    states: np.ndarray,
    words: np.ndarray,
    frequencies: np.ndarray,
    scale_bits: int,
    size: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    slots = np.repeat(np.arange(len(frequencies), dtype=np.uint32), frequencies)
    start = np.cumsum(frequencies) - frequencies
    frequency = frequencies.astype(np.uint32)[slots]
    inside = (np.arange(len(slots)) - start[slots]).astype(np.uint32)
    shift, mask = np.uint32(scale_bits), np.uint32((1 << scale_bits) - 1)
    symbols = np.empty(size, np.uint32)
    lanes, at = len(states), 0
    for first in range(0, size, lanes):
        count = min(lanes, size - first)
        x = states[:count]
        slot = x & mask
        symbols[first : first + count] = slots[slot]
        x = frequency[slot] * (x >> shift) + inside[slot]
        empty = np.flatnonzero(x < LOWEST)
        new = words[at : at + len(empty)]
        if len(new) < len(empty):
            raise CorruptFileError("an entropy-coded block ends too early.")
        x[empty] = (x[empty] << np.uint32(16)) | new
        states[:count] = x
        at += len(empty)
    return symbols, states, at
