"""An example script: a small decoder learns to continue sequences of bytes.

It knows nothing of frugax. Ask whether a larger one fits devices that are not here:
`frugax plan train.py --target h100,l4 -- --width 4096 --layers 16`, or train it within
less memory: `frugax exec --memory 60% train.py`.
"""

import argparse

import jax
import jax.numpy as jnp

HEADS, VOCABULARY = 8, 256


def init(key: jax.Array, layers: int, width: int) -> dict[str, jax.Array]:
    """The weights; those of all layers are stacked, for `jax.lax.scan`."""
    keys = jax.random.split(key, 5)
    scale = width**-0.5
    shapes = {
        "embed": (VOCABULARY, width),
        "qkv": (layers, width, 3 * width),
        "out": (layers, width, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
    }
    return {
        name: scale * jax.random.normal(k, shape)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def normalize(x: jax.Array) -> jax.Array:
    """Root mean square normalisation."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def layer(x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    """One block: causal attention, then two dense layers."""
    rows, length, width = x.shape
    qkv = (normalize(x) @ weights["qkv"]).reshape(rows, length, 3, HEADS, -1)
    mixed = jax.nn.dot_product_attention(
        qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True
    )
    x = x + mixed.reshape(rows, length, width) @ weights["out"]
    return x + jax.nn.gelu(normalize(x) @ weights["up"]) @ weights["down"], None


def loss(params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """The mean cross-entropy of the next byte."""
    x = params["embed"][tokens[:, :-1]]
    layers = {k: v for k, v in params.items() if k != "embed"}
    x, _ = jax.lax.scan(layer, x, layers)
    log_probs = jax.nn.log_softmax(normalize(x) @ params["embed"].T)
    return -jnp.take_along_axis(log_probs, tokens[:, 1:, None], -1).mean()


@jax.jit
def step(
    params: dict[str, jax.Array], momentum: dict[str, jax.Array], tokens: jax.Array
) -> tuple[dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    """One step of gradient descent with momentum."""
    value, grads = jax.value_and_grad(loss)(params, tokens)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
    return params, momentum, value


def main() -> None:
    """Train on arithmetic progressions of bytes."""
    parser = argparse.ArgumentParser()
    for name, default in (
        ("layers", 4),
        ("width", 128),
        ("length", 128),
        ("batch", 8),
        ("steps", 20),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    params = init(jax.random.key(0), args.layers, args.width)
    momentum = jax.tree.map(jnp.zeros_like, params)
    print(f"{sum(p.size for p in params.values()):,} weights")
    for i in range(args.steps):
        first, by = jax.random.randint(jax.random.key(i), (2, args.batch, 1), 0, 16)
        tokens = (first + by * jnp.arange(args.length + 1)[None]) % VOCABULARY
        params, momentum, value = step(params, momentum, tokens)
        print(f"step {i}: loss {value:.4f}")


if __name__ == "__main__":
    main()
