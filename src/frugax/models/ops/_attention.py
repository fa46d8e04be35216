"""Ops for scaled dot-product attention, with and without a KV cache."""

import math
from typing import Any

from jaxtyping import Int, Shaped

from ._promote import require_whole
from ._table import op


@op(promote="none")
def attention(
    xp: Any,
    query: Shaped[Any, "batch queries *heads features"],
    key: Shaped[Any, "batch keys *kv_heads features"],
    value: Shaped[Any, "batch keys *kv_heads out"],
    mask: Shaped[Any, "..."] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
) -> Shaped[Any, "batch queries *heads out"]:
    """Softmax of scaled products of queries and keys, times values.

    Shapes are (batch, time, heads, features), or (batch, time, features) without heads:
    the output of a linear layer is reshaped to that without a transpose. Keys and
    values may have fewer heads, a divisor of those of queries; neighbouring heads of
    queries then share one.

    The mask is boolean, True where a query may look, or numbers that are added to the
    products: (queries, keys), (batch, queries, keys), or what broadcasts to (batch,
    heads, queries, keys). A query that may look
    nowhere gets zeros. With `causal` the last query sees all keys, and each query
    before it one key less; with a `window` as well, it sees the last `window` of these
    (Beltagy et al. 2020, arXiv:2004.05150). `scale` is 1 / sqrt(features) by default.
    Vaswani et al. 2017, arXiv:1706.03762; Ainslie et al. 2023, arXiv:2305.13245.

    Raises:
        ValueError: the shapes do not fit each other, or there is a window and `causal`
            is False.
    """
    if window is not None and (window < 1 or not causal):
        raise ValueError(
            f"attention: window={window} counts keys back from the query, so it must "
            "be >= 1 and needs causal=True."
        )
    rank = len(query.shape)
    if rank not in (3, 4) or len(key.shape) != rank or len(value.shape) != rank:
        raise ValueError(
            "attention: query, key and value must be (batch, time, heads, features), "
            f"or without heads, not {_shapes(query, key, value)}."
        )
    if rank == 3:
        query, key, value = (xp.expand_dims(x, 2) for x in (query, key, value))
    heads, features = query.shape[2:]
    same_keys = key.shape[:3] == value.shape[:3] and key.shape[3] == features
    if not same_keys or query.shape[0] != key.shape[0] or heads % key.shape[2]:
        raise ValueError(
            "attention: keys and values must agree in batch, time and heads, queries "
            "and keys in batch and features, and the heads of keys divide those of "
            f"queries; not {_shapes(query, key, value)}."
        )
    if mask is not None and len(mask.shape) > 4:
        raise ValueError(
            "attention: the mask must broadcast to (batch, heads, queries, keys), not "
            f"be {tuple(mask.shape)}."
        )
    if mask is not None and (dtype := xp.dtype_of(mask)).kind in "iu":
        # 0 and 1 are often meant as no and yes; added, they would hide nothing.
        raise ValueError(
            f"attention: a mask of {dtype} could mean two things: for 1 where a query "
            "may look, write mask != 0, and cast numbers to add to float32."
        )
    if mask is not None and len(mask.shape) == 3:
        if mask.shape[0] not in (1, query.shape[0]):
            raise ValueError(
                "attention: a mask of three axes is (batch, queries, keys), not "
                f"{tuple(mask.shape)} for a batch of {query.shape[0]}; one for each "
                "head has four, (1, heads, queries, keys)."
            )
        mask = xp.expand_dims(mask, 1)
    # Products of independent features have a variance that grows with their number, and
    # saturate the softmax (Vaswani et al., sec. 3.2.1).
    if scale is None:
        scale = features**-0.5
    if window is not None:
        near = _is_near(xp, query, key, window)
        if mask is None:
            mask = near
        elif xp.dtype_of(mask) == "bool":
            mask = xp.logical_and(mask, near)
        else:
            mask = xp.where(near, mask, -math.inf)
    out = xp.attention(query, key, value, mask, causal=causal, scale=scale)
    if rank == 3:
        return xp.reshape(out, (*out.shape[:2], out.shape[3]))
    return out


def _is_near(xp: Any, query: Any, key: Any, window: int) -> Any:
    """Which keys are at most `window` - 1 before the query, (queries, keys)."""
    reads, seen = query.shape[1], key.shape[1]
    last = xp.reshape(xp.arange(reads, like=query) + (seen - reads), (-1, 1))
    return xp.greater(xp.arange(seen, like=query)[None], last - window)


@op(outputs=("output", "new_keys", "new_values"))
def cached_attention(
    xp: Any,
    query: Shaped[Any, "batch time heads features"],
    key: Shaped[Any, "batch time kv_heads features"],
    value: Shaped[Any, "batch time kv_heads out"],
    position: Int[Any, "..."],
    keys: Shaped[Any, "batch length kv_heads features"],
    values: Shaped[Any, "batch length kv_heads out"],
    *,
    window: int | None = None,
    scale: float | None = None,
) -> tuple[Any, Any, Any]:
    """Causal attention of new positions to those in a cache and to themselves.

    `query`, `key` and `value` are of the new positions alone; `position`, a scalar or
    (batch,), is the number of positions before them. `keys` and `values` hold those
    before, and are returned with the new ones written behind. Positions below 0 or
    beyond `length` do not fit; their results are NaN: a compiled program cannot raise.
    """
    length, time = keys.shape[1], key.shape[1]
    require_whole(xp, "cached_attention", "position", position)
    slots = xp.expand_dims(xp.arange(length, like=query), 0)
    start = xp.reshape(xp.cast(position, xp.dtype_of(slots)), (-1, 1))
    places = start + xp.expand_dims(xp.arange(time, like=query), 0)
    ahead = slots - start
    count = xp.lengths((time,))  # an array, as the number of new ones may be free
    is_new = xp.logical_and(xp.greater_equal(ahead, 0), xp.less(ahead, count))
    at = xp.minimum(xp.maximum(ahead, 0), count - 1)
    at = xp.reshape(at, (-1, length, 1, 1))

    def write(old: Any, new: Any) -> Any:
        # A select over the cache costs no more than attention, which reads all of it.
        fitted = xp.take_along_axis(
            new, xp.broadcast_to(at, (new.shape[0], length, *new.shape[2:])), 1
        )
        is_here = xp.reshape(is_new, (-1, length, 1, 1))
        return xp.where(is_here, xp.cast_like(fitted, old), old)

    keys, values = write(keys, key), write(values, value)
    back = xp.expand_dims(places, -1) - xp.expand_dims(slots, 1)
    seen = xp.greater_equal(back, 0)
    if window is not None:
        seen = xp.logical_and(seen, xp.less(back, window))
    if scale is None:
        scale = query.shape[-1] ** -0.5
    out = xp.attention(
        query,
        xp.cast_like(keys, query),
        xp.cast_like(values, query),
        xp.expand_dims(seen, 1),
        causal=False,
        scale=scale,
    )
    fits = xp.logical_and(xp.greater_equal(places, 0), xp.less(places, length))
    fits = xp.reshape(fits, (-1, time, 1, 1))
    return xp.where(fits, out, math.nan), keys, values


def _shapes(*arrays: Any) -> str:
    return " ".join(str(tuple(x.shape)) for x in arrays)
