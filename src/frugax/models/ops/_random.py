"""Ops that draw random numbers from a `key`; equal keys give equal numbers.

On JAX a key is one of `jax.random` (typed, or two raw uint32); on torch it is an int64
tensor, the seed of a `torch.Generator`. Both have the same distributions, but other
numbers.
"""

from collections.abc import Sequence
from typing import Any

from ._table import op


@op()
def random_uniform(
    xp: Any,
    key: Any,
    *,
    shape: Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    dtype: str | None = None,
) -> Any:
    """Uniform in [low, high)."""
    dtype = xp.float_dtype if dtype is None else xp.as_dtype(dtype)
    return xp.random_uniform(key, tuple(shape), low, high, dtype)


@op()
def random_normal(
    xp: Any,
    key: Any,
    *,
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str | None = None,
) -> Any:
    """Normal with that mean and standard deviation."""
    dtype = xp.float_dtype if dtype is None else xp.as_dtype(dtype)
    drawn = xp.random_normal(key, tuple(shape), dtype)
    # The product with 1 is left out: XLA would remove it, eager torch would not.
    if std != 1:
        drawn = drawn * std
    if mean != 0:
        drawn = drawn + mean
    return drawn


@op()
def random_integers(
    xp: Any,
    key: Any,
    *,
    shape: Sequence[int],
    low: int = 0,
    high: int,
    dtype: str | None = None,
) -> Any:
    """Uniform among low, ..., high - 1, as wide as the backend's numbers."""
    if high <= low:
        raise ValueError(f"random_integers: high={high} is not above low={low}.")
    dtype = xp.int_dtype if dtype is None else xp.as_dtype(dtype)
    return xp.random_integers(key, tuple(shape), low, high, dtype)


@op()
def bernoulli(xp: Any, key: Any, *, shape: Sequence[int], p: float = 0.5) -> Any:
    """True with probability p."""
    if not 0 <= p <= 1:
        raise ValueError(f"bernoulli: p must be in [0, 1], got {p!r}.")
    return xp.bernoulli(key, p, tuple(shape))


@op()
def dropout(
    xp: Any, key: Any, input: Any, *, rate: float = 0.5, inference: bool = False
) -> Any:
    """Set entries to 0 with probability `rate`, and divide the rest by 1 - rate.

    Srivastava et al. 2014, J. Machine Learning Research 15:1929-1958.

    Raises:
        ValueError: `rate` is not in [0, 1].
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout: rate must be in [0, 1], got {rate!r}.")
    (input,) = xp.promote((input,), to_float=True)
    if inference or rate == 0:
        return input
    if rate == 1:  # 1 / (1 - rate) would be infinite
        return xp.where(xp.zeros(input.shape, "bool", like=input), input, 0.0)
    kept = xp.bernoulli(key, 1 - rate, input.shape)
    # Scaled here, so that inference is the identity ("inverted" dropout; the paper
    # scales the weights at inference). Selected, as 0 times infinity is NaN.
    return xp.where(kept, input * (1 / (1 - rate)), 0.0)


@op()
def fold_in(xp: Any, key: Any, *, index: Any) -> Any:
    """Derive a key for each whole number `index` >= 0, which may be traced."""
    return xp.fold_in(key, index)
