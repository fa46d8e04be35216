"""The op for scaled dot-product attention, in JAX and torch alike."""

from typing import Any

from jaxtyping import Shaped

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
    scale: float | None = None,
) -> Shaped[Any, "batch queries *heads out"]:
    """Softmax of scaled products of queries and keys, times values.

    Shapes are (batch, time, heads, features), or (batch, time, features) without heads:
    the output of a linear layer is reshaped to that without a transpose. Keys and
    values may have fewer heads, a divisor of those of queries; neighbouring heads of
    queries then share one.

    The mask is boolean, True where a query may look, or numbers that are added to the
    products; it is broadcast to (batch, heads, queries, keys). A query that may look
    nowhere gets zeros. With `causal` the last query sees all keys, and each query
    before it one key less. `scale` is 1 / sqrt(features) by default.
    Vaswani et al. 2017, arXiv:1706.03762; Ainslie et al. 2023, arXiv:2305.13245.

    Raises:
        ValueError: the shapes do not fit each other.
    """
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
    # Products of independent features have a variance that grows with their number, and
    # saturate the softmax (Vaswani et al., sec. 3.2.1).
    if scale is None:
        scale = features**-0.5
    out = xp.attention(query, key, value, mask, causal=causal, scale=scale)
    if rank == 3:
        return xp.reshape(out, (*out.shape[:2], out.shape[3]))
    return out


def _shapes(*arrays: Any) -> str:
    return " ".join(str(tuple(x.shape)) for x in arrays)
