"""Quantisers that others use, and how good weights still are.

NF4, int8 and GPTQ as their papers say, HQQ by its own package. Each gives back decoded
values and how many bytes these take: codes and scales.

References:
    Dettmers et al. 2023, arXiv:2305.14314 (NF4: table of bitsandbytes, absolute
    largest of 64, here with 16-bit scales, so 4.25 bits; bitsandbytes' own float32
    scales would be 4.5); Badri & Shaji 2023 (HQQ, github.com/mobiusml/hqq);
    Frantar et al. 2023, arXiv:2210.17323 (GPTQ, github.com/IST-DASLab/gptq);
    Cover & Thomas 2006, Elements of Information Theory, sec. 10.3.3 (the bound).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Weights = Mapping[str, np.ndarray]

# bitsandbytes' create_normal_map: quantiles of a normal number, in [-1, 1].
NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
        *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ],
    np.float32,
)


def nf4(w: np.ndarray) -> tuple[np.ndarray, float]:
    """NF4 in groups of 64 with 16-bit scales: decoded values, bytes."""
    groups = w.reshape(-1, 64)
    scale = np.abs(groups).max(axis=1, keepdims=True).astype(np.float16)
    scale = np.maximum(scale.astype(np.float32), 1e-12)
    middles = (NF4[1:] + NF4[:-1]) / 2
    code = np.searchsorted(middles, groups / scale)
    return (NF4[code] * scale).reshape(w.shape), w.size / 2 + 2 * len(groups)


def int8(w: np.ndarray) -> tuple[np.ndarray, float]:
    """Symmetric int8 with a float32 scale for each row: decoded values, bytes."""
    scale = np.maximum(np.abs(w).max(axis=1, keepdims=True) / 127, 1e-12)
    code = np.clip(np.rint(w / scale), -127, 127)
    return (code * scale).astype(np.float32), w.size + 4 * len(w)


def hqq(bits: int) -> Callable[[np.ndarray], tuple[np.ndarray, float]]:
    """HQQ in groups of 64, as its package does it: decoded values, bytes."""
    import torch
    from hqq.core.quantize import (
        Quantizer,
    )

    def quantise(w: np.ndarray) -> tuple[np.ndarray, float]:
        code, meta = Quantizer.quantize(
            torch.from_numpy(w.copy()),
            nbits=bits,
            group_size=64,
            axis=1,
            device="cpu",
            compute_dtype=torch.float32,
        )
        back = Quantizer.dequantize(code, meta).float().numpy().reshape(w.shape)
        return back, w.size * bits / 8 + 4 * w.size / 64  # 16-bit scale and zero

    return quantise


def round_groups(bits: int, group: int) -> Callable[[np.ndarray], tuple[Any, float]]:
    """Round to nearest between the least and the largest of each group."""

    def quantise(w: np.ndarray) -> tuple[np.ndarray, float]:
        groups = w.reshape(-1, group)
        scale, zero = _grid(groups, bits)
        code = np.clip(np.rint(groups / scale + zero), 0, 2**bits - 1)
        return ((code - zero) * scale).reshape(w.shape).astype(np.float32), (
            w.size * bits / 8 + 4 * w.size / group  # 16-bit scale and zero, as HQQ has
        )

    return quantise


def _grid(groups: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    # Scale and zero point of each row, as GPTQ's `Quantizer.find_params` has them.
    low = np.minimum(groups.min(axis=1, keepdims=True), 0)
    high = np.maximum(groups.max(axis=1, keepdims=True), 0)
    scale = np.maximum((high - low) / (2**bits - 1), 1e-9)
    return scale, np.rint(-low / scale)


def gptq(
    w: np.ndarray, gram: np.ndarray, bits: int, group: int
) -> tuple[np.ndarray, float]:
    """GPTQ of a linear layer, `(outputs, inputs)`: decoded values, bytes.

    Algorithm 1 of the paper column by column, which blocks change in speed alone, with
    the options of its code: 1% damping, inputs in the order of their size (act order),
    and grids from the weights as they were (static groups).

    Args:
        w: the weights.
        gram: second moments of the inputs.
        bits: of each code.
        group: neighbouring inputs that share scale and zero point.
    """
    count = len(gram)
    groups = w.reshape(len(w), -1, group).astype(np.float64)
    grids = [_grid(groups[:, i], bits) for i in range(count // group)]
    order = np.argsort(-np.diag(gram), kind="stable")
    damped = gram[np.ix_(order, order)] + 0.01 * np.diag(gram).mean() * np.eye(count)
    inverse = np.linalg.cholesky(np.linalg.inv(damped)).T
    left, back = w[:, order].astype(np.float64), np.empty_like(w)
    for i, column in enumerate(order):
        scale, zero = (part[:, 0] for part in grids[column // group])
        code = np.clip(np.rint(left[:, i] / scale + zero), 0, 2**bits - 1)
        back[:, column] = (code - zero) * scale
        error = (left[:, i] - back[:, column]) / inverse[i, i]
        left[:, i:] -= np.outer(error, inverse[i, i:])
    return back, w.size * bits / 8 + 4 * w.size / group


def sentences() -> list[str]:
    """180 sentences: 12 people, 5 acts, 3 places."""
    who = (
        "A child|The teacher|My neighbour|An old sailor|The engineer|A nurse|Two dogs|"
        "The orchestra|A tired student|The minister|Her brother|A young painter"
    )
    act = (
        "is waiting for the train|repaired a broken clock|sings a quiet song|"
        "argues about the price of bread|has written a long letter"
    )
    where = "in the rain|near the old harbour|at the end of the day"
    return [
        f"{a} {b} {c}."
        for a in who.split("|")
        for b in act.split("|")
        for c in where.split("|")
    ]


def bound_db(weights: Weights, nbytes: float) -> float:
    """The rate-distortion bound of Gaussian rows in dB, at a number of bytes."""
    rows = [
        w.reshape(len(w), -1) if w.ndim > 1 else w.reshape(1, -1)
        for w in weights.values()
        if w.dtype.kind == "f"
    ]
    variance = np.concatenate(
        [np.mean(r.astype(np.float64) ** 2, axis=1) for r in rows]
    )
    count = np.concatenate([np.full(len(r), r.shape[1]) for r in rows])
    used = variance > 0
    variance, count = variance[used], count[used]
    low = level = variance.min() * 1e-12
    high = variance.max()
    for _ in range(200):
        level = math.sqrt(low * high)
        bits = (count * np.maximum(0, np.log2(variance / level) / 2)).sum()
        low, high = (level, high) if bits > 8 * nbytes else (low, level)
    energy = (count * variance).sum()
    return float(10 * np.log10(energy / (count * np.minimum(level, variance)).sum()))


def snr_db(weights: Weights, back: Weights) -> float:
    """Signal over error of all float weights, in dB."""
    floats = [k for k, w in weights.items() if w.dtype.kind == "f"]
    gap = sum(
        float(((back[k].astype(np.float64) - weights[k]) ** 2).sum()) for k in floats
    )
    energy = sum(float((weights[k].astype(np.float64) ** 2).sum()) for k in floats)
    return 10 * math.log10(energy / gap)
