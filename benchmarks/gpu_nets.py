"""The nets of the GPU check: the six of `benchmarks.nets` at sizes that fill a GPU."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from benchmarks import nets
from benchmarks.nets import Net

SHARES = (0.5, 0.25)


def attention(
    depth: int = 8,
    width: int = 1024,
    batch: int = 8,
    length: int = 2048,
    heads: int = 16,
    implementation: Literal["cudnn", "xla"] | None = None,
) -> Net:
    """Decoder blocks in bfloat16, whose attention is one fused kernel.

    Args:
        implementation: as for `jax.nn.dot_product_attention`; None for cuDNN on a GPU,
            and XLA elsewhere.
    """
    if implementation is None:
        implementation = "cudnn" if jax.default_backend() == "gpu" else "xla"

    def block(p: Any, x: jax.Array) -> jax.Array:
        split = lambda y: y.reshape(batch, length, heads, -1)
        q, k, v = (split(y) for y in jnp.split(x @ p["qkv"], 3, -1))
        mixed = jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=implementation
        )
        x = x + mixed.reshape(x.shape) @ p["out"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    def make(wrap: Callable[..., Any]) -> Callable[..., Any]:
        layer = wrap(block)

        def loss(params: Any, x: jax.Array) -> jax.Array:
            x = x.astype(jnp.bfloat16)
            for p in params:
                x = layer(jax.tree.map(lambda w: w.astype(jnp.bfloat16), p), x)
            return jnp.mean(x.astype(jnp.float32) ** 2)

        return loss

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    shapes = {
        "qkv": f32(width, 3 * width),
        "out": f32(width, width),
        "up": f32(width, 4 * width),
        "down": f32(4 * width, width),
    }
    return Net(
        make(lambda layer: layer), [shapes] * depth, f32(batch, length, width), make
    )


def pallas(depth: int = 12, width: int = 2048, batch: int = 8192) -> Net:
    """Residual layers whose activation and its gradient are Pallas kernels."""
    from jax.experimental import pallas as pl

    is_interpreted = jax.default_backend() != "gpu"
    rows, columns = min(batch, 64), min(width, 256)

    def call(kernel: Callable[..., Any], *arrays: jax.Array) -> jax.Array:
        block = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype),
            grid=(batch // rows, width // columns),
            in_specs=[block] * len(arrays),
            out_specs=block,
            interpret=is_interpreted,
        )(*arrays)

    def forward(x_ref: Any, y_ref: Any) -> None:
        x = x_ref[...]
        y_ref[...] = x / (1 + jnp.exp(-x))

    def backward(x_ref: Any, g_ref: Any, y_ref: Any) -> None:
        x = x_ref[...]
        s = 1 / (1 + jnp.exp(-x))
        y_ref[...] = g_ref[...] * (s + x * s * (1 - s))

    @jax.custom_vjp
    def silu(x: jax.Array) -> jax.Array:
        return call(forward, x)

    silu.defvjp(lambda x: (call(forward, x), x), lambda x, g: (call(backward, x, g),))

    def make(wrap: Callable[..., Any]) -> Callable[..., Any]:
        layer = wrap(lambda w, x: x + silu(x @ w))

        def loss(params: Any, x: jax.Array) -> jax.Array:
            for w in params:
                x = layer(w, x)
            return jnp.mean(x**2)

        return loss

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return Net(
        make(lambda layer: layer), [f32(width, width)] * depth, f32(batch, width), make
    )


# Each net in a size that fills a GPU, and in one that a laptop runs in seconds.
NETS: dict[str, tuple[Callable[[], Net], Callable[[], Net]]] = {
    "mlp24": (lambda: nets.mlp(24, 2048, 16384), nets.mlp),
    "transformer12": (
        lambda: nets.transformer(12, 1024, 4, 1024, 16),
        nets.transformer,
    ),
    "unet": (lambda: nets.unet(3, 64, 16, 256), nets.unet),
    "resnet34": (lambda: nets.resnet(width=64, batch=128, size=64), nets.resnet),
    "rnn1000": (lambda: nets.rnn(1000, 1024, 256), lambda: nets.rnn(100)),
    "scan48": (
        lambda: nets.scanned_transformer(48, 768, 4, 512, 12),
        nets.scanned_transformer,
    ),
}
KERNELS: dict[str, tuple[Callable[[], Net], Callable[[], Net]]] = {
    "attention": (attention, lambda: attention(4, 64, 4, 128, 4)),
    "pallas": (pallas, lambda: pallas(6, 64, 512)),
}


def make(name: str, *, is_small: bool) -> Net:
    """The net of this name, in one of its two sizes."""
    return (NETS | KERNELS)[name][is_small]()
