"""The encoder by hand: layouts of weights and tokens, ways to write attention."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .contestant import Arrays
from .nets import EPSILON, Encoder
from .variant import Params, Variant, rows_by, transposed


def normal(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)


def by_einsum(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def heads_first(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    q, k, v = (y.transpose(0, 2, 1, 3) for y in (q, k, v))
    scores = q * q.shape[-1] ** -0.5 @ k.swapaxes(2, 3)
    return (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3)


def gelu_by_library(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def gelu_by_erf(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + lax.erf(x * 0.5**0.5))


def separate(arrays: Arrays) -> Arrays:
    """Separate weights for queries, keys and values."""
    made = {k: v for k, v in arrays.items() if ".qkv." not in k}
    for name, both in arrays.items():
        if ".qkv." in name:
            for one, part in zip("qkv", np.split(both, 3), strict=True):
                made[name.replace("qkv", one)] = part
    return made


def joined(arrays: Arrays) -> Arrays:
    """The reverse of `separate`."""
    made = {k: v for k, v in arrays.items() if k.split(".")[1] not in ("q", "k", "v")}
    for name in arrays:
        if ".q." in name:
            parts = [arrays[name.replace(".q.", f".{one}.")] for one in "qkv"]
            made[name.replace(".q.", ".qkv.")] = np.concatenate(parts)
    return made


def stacked(arrays: Arrays) -> Arrays:
    """Each kind of weight of all blocks as one array, the block first."""
    blocks = max(int(name.partition(".")[0]) for name in arrays) + 1
    kinds = [name.partition(".")[2] for name in arrays if name.startswith("0.")]
    return {k: np.stack([arrays[f"{i}.{k}"] for i in range(blocks)]) for k in kinds}


def unstacked(arrays: Arrays) -> Arrays:
    """The reverse of `stacked`."""
    return {f"{i}.{k}": a for k, both in arrays.items() for i, a in enumerate(both)}


def encoder(
    net: Encoder,
    *,
    attention: Callable[..., jax.Array] = by_einsum,
    linear: Callable[..., jax.Array] = jnp.matmul,
    gelu: Callable[[jax.Array], jax.Array] = gelu_by_erf,
    fused: bool = True,
    flat: bool = False,
    scanned: bool = False,
) -> Variant:
    """An encoder.

    Args:
        net: its sizes.
        attention: of queries, keys, values `(batch, length, heads, features)`.
        linear: `jnp.matmul` for weights `(in, out)`, else `(out, in)`.
        gelu: with the error function.
        fused: whether one product makes queries, keys and values.
        flat: whether examples and tokens are one axis outside attention.
        scanned: whether blocks are a `lax.scan`, not written out.
    """
    split = (net.batch, net.length, net.heads, net.width // net.heads)
    inside = (net.batch * net.length, net.width) if flat else net.input_shape

    def block(own: Params, x: jax.Array) -> jax.Array:
        def affine(name: str, x: jax.Array) -> jax.Array:
            return linear(x, own[f"{name}.weight"]) + own[f"{name}.bias"]

        def normed(name: str, x: jax.Array) -> jax.Array:
            return normal(x) * own[f"{name}.weight"] + own[f"{name}.bias"]

        y = normed("norm1", x)
        if fused:
            parts = jnp.split(affine("qkv", y), 3, -1)
        else:
            parts = [affine(one, y) for one in "qkv"]
        mixed = attention(*(p.reshape(split) for p in parts))
        x = x + affine("out", mixed.reshape(inside))
        return x + affine("down", gelu(affine("up", normed("norm2", x))))

    def forward(params: Params, x: jax.Array) -> jax.Array:
        x = x.reshape(inside)
        if scanned:
            x, _ = lax.scan(lambda x, own: (block(own, x), None), x, params)
            return x.reshape(net.input_shape)
        kinds = [name.partition(".")[2] for name in params if name.startswith("0.")]
        for i in range(net.layers):
            x = block({k: params[f"{i}.{k}"] for k in kinds}, x)
        return x.reshape(net.input_shape)

    def load(arrays: Arrays) -> Arrays:
        arrays = arrays if fused else separate(arrays)
        arrays = transposed(arrays) if linear is jnp.matmul else arrays
        return stacked(arrays) if scanned else arrays

    def unload(arrays: Arrays) -> Arrays:
        arrays = unstacked(arrays) if scanned else arrays
        arrays = transposed(arrays) if linear is jnp.matmul else arrays
        return arrays if fused else joined(arrays)

    return Variant(forward, load, unload)


def encoders(net: Encoder) -> dict[str, Variant]:
    usual = functools.partial(
        encoder, attention=jax.nn.dot_product_attention, gelu=gelu_by_library
    )
    return {
        "as usual": usual(net),
        "W (out, in)": encoder(net, linear=rows_by),
        "flat": encoder(net, flat=True),
        "flat, W (out, in)": encoder(net, flat=True, linear=rows_by),
        "flat, W (out, in), heads first": encoder(
            net, flat=True, linear=rows_by, attention=heads_first
        ),
    }
