"""Blocks of ggml's K-quants: 256 numbers with steps of sub-blocks, in integers too.

`Q4_K`: eight sub-blocks of 32, each `d * s * q - dmin * m` with q of 4 bits, s and m
of 6 bits; 4.5 bits a number. `Q6_K`: sixteen sub-blocks of 16, each `d * s * q` with q
of 6 bits and s of 8 bits; 6.5625 bits a number. Layouts:
https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from .groups import Grouping, quantise_groups

BLOCK = 256
# From blocks to their bytes, one row each, and the numbers that these stand for.
_Encoder: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
_PART = 1 << 20  # numbers at a time
# Shares of the range of a sub-block that its integers reach over.
_RANGES = np.linspace(0.8, 1.06, 14, dtype=np.float32)


def encode_q4_k(array: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Quantise numbers, 256 n in a row, to blocks; return the decoded ones too.

    The decoded numbers are float32; some are infinite or NaN if float16 cannot hold a
    step.
    """
    return _in_parts(array, _encode_q4_k)


def encode_q6_k(array: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Do the same with 6 bits."""
    return _in_parts(array, _encode_q6_k)


def _in_parts(array: np.ndarray, encode: _Encoder) -> tuple[bytes, np.ndarray]:
    blocks = array.reshape(-1, BLOCK)
    coded: list[bytes] = []
    decoded = np.empty(blocks.shape, np.float32)
    rows = _PART // BLOCK
    with np.errstate(over="ignore", invalid="ignore"):
        for at in range(0, len(blocks), rows):
            part = blocks[at : at + rows].astype(np.float32)
            packed, decoded[at : at + rows] = encode(part)
            coded.append(packed.tobytes())
    return b"".join(coded), decoded.reshape(array.shape)


def _encode_q4_k(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sub = blocks.reshape(len(blocks), 8, 32)
    scales, minima = _fit_ranges(sub)
    d, of_scales = _to_six_bits(scales)
    dmin, of_minima = _to_six_bits(minima)
    step = d.astype(np.float32)[:, None] * of_scales
    shift = dmin.astype(np.float32)[:, None] * of_minima
    q = _divide(sub + shift[..., None], step[..., None])
    q = np.clip(np.rint(q), 0, 15)
    decoded = q * step[..., None] - shift[..., None]
    packed = np.empty((len(blocks), 144), np.uint8)
    packed[:, 0:2] = d[:, None].view(np.uint8)
    packed[:, 2:4] = dmin[:, None].view(np.uint8)
    s, m = of_scales.astype(np.uint8), of_minima.astype(np.uint8)
    packed[:, 4:8] = s[:, :4] | s[:, 4:] >> 4 << 6
    packed[:, 8:12] = m[:, :4] | m[:, 4:] >> 4 << 6
    packed[:, 12:16] = s[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    pairs = q.astype(np.uint8).reshape(-1, 4, 2, 32)
    packed[:, 16:] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return packed, decoded.reshape(blocks.shape)


def _encode_q6_k(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sub = blocks.reshape(len(blocks), 16, 16)
    _, scales = quantise_groups(sub, Grouping(6, 0), np.dtype(np.float32))
    scales = scales[..., 0]
    largest = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)
    d = (largest[:, 0] / -128).astype("<f2")
    size = d.astype(np.float32)[:, None]
    of_scales = np.clip(np.rint(_divide(scales, size)), -128, 127)
    step = (size * of_scales)[..., None]
    q = np.clip(np.rint(_divide(sub, step)), -32, 31)
    decoded = q * step
    packed = np.empty((len(blocks), 210), np.uint8)
    levels = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = levels & 15, levels >> 4
    packed[:, :128] = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed[:, 128:192] = np.bitwise_or.reduce(high << shifts, axis=2).reshape(-1, 64)
    packed[:, 192:208] = of_scales.astype(np.int8).view(np.uint8)
    packed[:, 208:] = d[:, None].view(np.uint8)
    return packed, decoded.reshape(blocks.shape)


def _divide(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.divide(values, by, out=np.zeros_like(values), where=by != 0)


def _to_six_bits(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a float16 step for each block, and integers up to 63 of numbers >= 0."""
    steps = (numbers.max(axis=1) / 63).astype("<f2")
    size = steps.astype(np.float32)[:, None]
    return steps, np.clip(np.rint(_divide(numbers, size)), 0, 63)


def _fit_ranges(sub: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find s and m >= 0 of least squared error for `s * q - m` with q of 4 bits."""
    low = np.minimum(sub.min(axis=-1), 0)
    width = sub.max(axis=-1) - low
    best = np.full(low.shape, np.inf, np.float32)
    scales, minima = np.zeros_like(low), -low
    total, n = sub.sum(axis=-1), sub.shape[-1]
    for share in _RANGES:
        step = width * (share / 15)
        q = np.clip(np.rint(_divide(sub - low[..., None], step[..., None])), 0, 15)
        # Least squares of both, and of the step alone where the shift would be above 0.
        sum_q, sum_qq = q.sum(axis=-1), np.einsum("...i,...i", q, q)
        sum_qx = np.einsum("...i,...i", q, sub)
        determinant = n * sum_qq - sum_q**2
        s = _divide(n * sum_qx - sum_q * total, determinant)
        b = (total - s * sum_q) / n
        above = b > 0
        s = np.where(above, _divide(sum_qx, sum_qq), s)
        b = np.where(above, 0, b)
        error = sub - (s[..., None] * q + b[..., None])
        loss = np.einsum("...i,...i", error, error)
        better = (loss < best) & (s > 0)
        best = np.where(better, loss, best)
        scales, minima = np.where(better, s, scales), np.where(better, -b, minima)
    return scales, minima
