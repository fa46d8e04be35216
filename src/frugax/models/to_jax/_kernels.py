"""`Kernels`: JAX linear maps, norms, attention and lookups, fast on XLA:CPU.

`Kernels` is what `JaxNamespace` inherits: linear maps, norms, attention, lookups and
pieces here; convolutions and pools in `_kernels_conv.py`. Ratios in comments are of
CPU time, two cores, float32.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ._arrays import Arrays
from ._grouped_linear import grouped_linear
from ._kernels_conv import ConvolutionKernels


class Kernels(ConvolutionKernels, Arrays):
    """Methods that `JaxNamespace` inherits."""

    precision: Any
    # A recurrent step multiplies input and state side by side in one product, if the
    # input is the narrower one: 0.5-0.9 of the time of projecting all inputs first, and
    # 0.6-1.0 in the backward pass.
    joins_steps = True

    def linear(
        self, input: jax.Array, weight: jax.Array, bias: jax.Array | None
    ) -> jax.Array:
        """Times W^T plus bias over the last axis; the weight is (out, in)."""
        # One product of two matrices: over more axes XLA:CPU copies and transposes in
        # the gradient, which costs an encoder 5 % of its step and half of its
        # compilation time (`python -m benchmarks.models step`).
        leading = input.shape[:-1]
        x = input.reshape(math.prod(leading), input.shape[-1])
        out = lax.dot_general(x, weight, (((1,), (1,)), ((), ())), self.precision)
        if bias is not None:
            out = out + bias[None]
        if len(leading) == 1:
            return out
        return out.reshape(*leading, weight.shape[0])

    def grouped_linear(
        self, input: jax.Array, weight: jax.Array, counts: jax.Array
    ) -> jax.Array:
        """Rows times the transposed weight of their group; the weight is 3-D."""
        if not isinstance(input.shape[0], int):  # blocks need a number of rows
            flipped = lax.transpose(weight, (0, 2, 1))
            return lax.ragged_dot(input, flipped, counts, self.precision)
        return grouped_linear(input, weight, counts, 2, self.precision)

    def embedding(self, indices: jax.Array, weight: jax.Array) -> jax.Array:
        """Rows of `weight`; NaN for an index out of range, including negative ones."""
        return weight.at[indices].get(
            mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
        )

    def pick(self, scores: jax.Array, labels: jax.Array) -> jax.Array:
        """The label's score in each row of the last axis; NaN for an invalid label."""
        # take_along_axis would wrap a negative label round to another class. The
        # comparison after it tells valid labels from clipped ones.
        at = jnp.clip(labels, 0, scores.shape[-1] - 1)
        picked = jnp.take_along_axis(scores, at[..., None], axis=-1)[..., 0]
        return jnp.where(at == labels, picked, jnp.nan)

    def widened(self, input: jax.Array | float) -> jax.Array:
        """Convert half precision to float32 for sums and exponentials."""
        input = self.asarray(input)
        if input.dtype in (jnp.bfloat16, jnp.float16):
            return input.astype(jnp.float32)
        return input

    def cast_like(self, input: jax.Array, like: jax.Array) -> jax.Array:
        """Cast to the dtype of `like`."""
        return input.astype(like.dtype)

    def parts(self, input: jax.Array, count: int) -> list[jax.Array]:
        """Split the last axis into equal pieces."""
        return jnp.split(input, count, axis=-1)

    def unbiased_factor(self, like: jax.Array, shape: tuple[Any, ...]) -> Any:
        """Bessel's correction n / (n - 1) for n elements of a shape; 1 if n is 1."""
        size = math.prod(shape)
        if isinstance(size, int):
            return size / max(size - 1, 1)
        size = jnp.array(size).astype(like.dtype)  # a symbolic dimension
        return size / jnp.maximum(size - 1, 1)

    def layer_norm(
        self,
        input: jax.Array,
        weight: jax.Array | None,
        bias: jax.Array | None,
        epsilon: float,
    ) -> jax.Array:
        """Zero mean and unit variance along the last axis, then scaled and moved."""
        x = self.widened(input)
        # The mean square of the centred values, not E[x^2] - E[x]^2, which cancels for
        # numbers far from 0 and whose gradient is not faster.
        x = x - x.mean(axis=-1, keepdims=True)
        scale = lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
        return self._affine(x * scale, weight, bias).astype(input.dtype)

    def rms_norm(
        self, input: jax.Array, weight: jax.Array | None, epsilon: float
    ) -> jax.Array:
        """Unit mean square along the last axis, then scaled."""
        x = self.widened(input)
        scale = lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
        return self._affine(x * scale, weight, None).astype(input.dtype)

    def _affine(
        self, x: jax.Array, weight: jax.Array | None, bias: jax.Array | None
    ) -> jax.Array:
        """X times weight plus bias along the last axis, in x's dtype."""
        lead = range(x.ndim - 1)
        if weight is not None:
            x = x * lax.expand_dims(weight.astype(x.dtype), lead)
        if bias is not None:
            x = x + lax.expand_dims(bias.astype(x.dtype), lead)
        return x

    def attention(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        *,
        causal: bool,
        scale: float,
    ) -> jax.Array:
        """Softmax attention on (batch, time, heads, features); see `ops`."""
        batch, reads, heads, features = query.shape
        seen, groups = key.shape[1], key.shape[2]
        # Heads before time take 0.5-0.9 of the time of `jax.nn.dot_product_attention`,
        # which contracts with the heads inside.
        heads_first = lambda x: lax.transpose(x, (0, 2, 1, 3))
        # Heads that share a key (grouped-query attention) become queries of one head.
        shared = heads // groups * reads
        q = heads_first(query * scale).reshape(batch, groups, shared, features)
        k, v = heads_first(key), heads_first(value)
        wide = self.widened(query).dtype
        scores = jnp.einsum(
            "bhqd,bhkd->bhqk",
            q,
            k,
            precision=self.precision,
            preferred_element_type=wide,
        ).reshape(batch, heads, reads, seen)
        if mask is not None and mask.dtype == jnp.bool_:
            mask = lax.expand_dims(mask, range(4 - mask.ndim))
            scores = jnp.where(mask, scores, -jnp.inf)
        elif mask is not None:
            mask = lax.expand_dims(mask, range(4 - mask.ndim))
            scores = scores + mask.astype(wide)
        if causal:
            last = lax.broadcasted_iota(jnp.int32, (reads, seen), 0) + (seen - reads)
            allowed = lax.broadcasted_iota(jnp.int32, (reads, seen), 1) <= last
            scores = jnp.where(allowed[None, None], scores, -jnp.inf)
        highest = lax.stop_gradient(scores.max(axis=-1, keepdims=True))
        if causal or mask is not None:
            # A row with all masked has no highest: exp(-inf) makes it 0 then.
            highest = jnp.where(highest == -jnp.inf, 0.0, highest)
        shares = jnp.exp(scores - highest)
        total = shares.sum(axis=-1, keepdims=True)
        if causal or mask is not None:
            total = jnp.where(total == 0, 1.0, total)
        # Divided at the end: `features` numbers for each query instead of `seen`.
        mixed = jnp.einsum(
            "bhqk,bhkd->bhqd",
            shares.reshape(batch, groups, shared, seen).astype(v.dtype),
            v,
            precision=self.precision,
            preferred_element_type=wide,
        ).reshape(batch, heads, reads, value.shape[-1])
        return heads_first((mixed / total).astype(query.dtype))
