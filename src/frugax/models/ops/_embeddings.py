"""Ops for token embeddings and positional encodings, in JAX and torch alike."""

import math
from typing import Any

from jaxtyping import Int, Shaped

from ._promote import require_whole
from ._settings import Natural, Positive
from ._table import op


@op()
def embedding(
    xp: Any, indices: Int[Any, "*shape"], weight: Shaped[Any, "rows features"]
) -> Shaped[Any, "*shape features"]:
    """Rows of the weight at the indices.

    An index outside [0, rows) gives NaN, since a compiled program cannot raise.
    """
    return xp.embedding(indices, weight)


@op(promote="float")
def learned_positions(
    xp: Any,
    input: Shaped[Any, "*batch time features"],
    weight: Shaped[Any, "longest features"],
    *,
    offset: int = 0,
) -> Shaped[Any, "*batch time features"]:
    """Add a learnt vector to each position; `offset` is the position of the first."""
    end = offset + input.shape[-2]
    if end > weight.shape[0]:
        raise ValueError(
            f"learned_positions: position {end - 1} is not among {weight.shape[0]}."
        )
    # The slice is static: the length of the sequence is known while tracing.
    rows = weight[offset:end]
    return input + xp.reshape(rows, (1,) * (len(input.shape) - 2) + rows.shape)


@op(promote="float")
def sinusoidal_positions(
    xp: Any,
    input: Shaped[Any, "*batch time features"],
    *,
    base: Positive = 10000.0,
    offset: Natural = 0,
) -> Shaped[Any, "*batch time features"]:
    """Add sines and cosines of the position to an even number of features.

    Sines are added to the first half of the features, cosines to the second. `offset`
    is the position of the first, `base` the ratio of the highest to the lowest
    frequency: wavelengths go from 2 pi to 10000 * 2 pi positions, as in the paper.
    Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5.
    """
    features = _even("sinusoidal_positions", input.shape[-1])
    angles = _angles(
        xp, input, xp.arange(offset, offset + input.shape[-2], like=input), base
    )
    # The paper alternates sines and cosines; halves are a permutation of that, which
    # the next linear layer can absorb.
    waves = xp.concat([xp.sin(angles), xp.cos(angles)], axis=-1)
    lead = (1,) * (len(input.shape) - 2)
    waves = xp.reshape(waves, (*lead, input.shape[-2], features))
    return input + xp.cast_like(waves, input)


@op(promote="none")
def rotary_positions(
    xp: Any,
    input: Shaped[Any, "batch time heads features"],
    positions: Int[Any, "... time"] | None = None,
    start: Int[Any, "..."] | None = None,
    *,
    base: Positive = 10000.0,
    offset: Natural = 0,
    interleaved: bool = False,
) -> Shaped[Any, "batch time heads features"]:
    """Rotate pairs of features by an angle that grows with the position.

    For queries and keys of attention. The number of features is even. A pair is feature
    i and i + features / 2, as in GPT-NeoX and Llama; with `interleaved` 2 i and
    2 i + 1, as in the paper. `base` is the ratio of the highest to the lowest
    frequency; a checkpoint fixes its own, Llama 3 500000. Positions are `offset`,
    `offset + 1`, ..., or given, int32 (time,) or (batch, time); `start`, a scalar or
    (batch,), is the position of the first, which is added to them.
    Su et al. 2021, arXiv:2104.09864.
    """
    features = _even("rotary_positions", input.shape[-1])
    times: Any = positions
    if times is None:
        times = xp.arange(offset, offset + input.shape[-3], like=input)
    if start is not None:
        require_whole(xp, "rotary_positions", "start", start)
        first = xp.reshape(xp.cast(start, xp.dtype_of(times)), (-1, 1))
        times = first + (times if len(times.shape) == 2 else times[None])
    # Angles are computed in float32 and only their sines are cast: around 1000 rad the
    # numbers of bfloat16 are 4 rad apart.
    angles = _angles(xp, input, times, base)
    lead = (1,) * (2 - len(times.shape))
    shape = (*lead, *times.shape, 1, features // 2)
    cosines = xp.cast_like(xp.reshape(xp.cos(angles), shape), input)
    sines = xp.cast_like(xp.reshape(xp.sin(angles), shape), input)
    if interleaved:
        left, right = input[..., 0::2], input[..., 1::2]
    else:
        left, right = input[..., : features // 2], input[..., features // 2 :]
    # Rotations of queries and keys leave only the difference of positions in their
    # products (sec. 3.2).
    rotated = left * cosines - right * sines, right * cosines + left * sines
    if not interleaved:
        return xp.concat(list(rotated), axis=-1)
    return xp.reshape(xp.stack(list(rotated), axis=-1), input.shape)


def _even(op: str, features: int) -> int:
    if features % 2:
        raise ValueError(f"{op}: the features must be even in number, not {features}.")
    return features


def _angles(xp: Any, input: Any, positions: Any, base: float) -> Any:
    """Positions times decreasing frequencies, (..., features / 2), widened."""
    half = input.shape[-1] // 2
    # bfloat16 cannot tell positions beyond 256 apart.
    wide = xp.widened(input)
    frequencies = xp.exp(
        xp.cast_like(xp.arange(half, like=input), wide) * (-math.log(base) / half)
    )
    places = xp.cast_like(positions, wide)
    shape = (1,) * len(positions.shape) + (half,)
    return xp.expand_dims(places, -1) * xp.reshape(frequencies, shape)
