"""A script for the GPU check: a small residual network learns to name random pictures.

It knows nothing of frugax.
"""

import argparse

import jax
import optax


def convolve(x: jax.Array, weights: jax.Array) -> jax.Array:
    """A convolution over pictures whose last axis are channels."""
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, weights, (1, 1), "SAME", dimension_numbers=axes
    )


def loss(params: dict[str, jax.Array], x: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy of the labels."""
    x = convolve(x, params["first"])
    for weights in params["blocks"]:
        x = x + 0.1 * jax.nn.gelu(convolve(x, weights))
    logits = x.mean((1, 2)) @ params["last"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def main() -> None:
    """Train on a fixed batch."""
    parser = argparse.ArgumentParser()
    for name, default in (("width", 8), ("blocks", 6), ("batch", 16), ("steps", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), 5)
    normal = lambda key, *shape: 0.1 * jax.random.normal(key, shape)
    params = {
        "first": normal(keys[0], 3, 3, 3, args.width),
        "blocks": normal(keys[1], args.blocks, 3, 3, args.width, args.width),
        "last": normal(keys[2], args.width, 10),
    }
    x = jax.random.normal(keys[3], (args.batch, 32, 32, 3))
    labels = jax.random.randint(keys[4], (args.batch,), 0, 10)
    optimizer = optax.adam(1e-3)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, labels):
        value, grads = jax.value_and_grad(loss)(params, x, labels)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    for i in range(args.steps):
        params, state, value = step(params, state, x, labels)
        print(f"step {i}: loss {value:.6f}")


if __name__ == "__main__":
    main()
