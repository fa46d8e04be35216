"""Will a Llama-like decoder of 8 billion weights train on one H100, or on 16 TPUs?

Nothing is run, and neither device is needed:

    frugax plan examples/plan_llama.py:make --target h100x8,tpu-v5e:4x4
    frugax plan examples/plan_llama.py:make --target h100x8 --why
    frugax plan examples/plan_llama.py:small --target h100,l4,rtx-4090

`make` describes a whole training step with Adam, as shapes: no array exists. frugax
plans the gradient inside of it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from frugax import fit

OPTIMIZER = optax.adam(1e-4)


def make() -> fit.Workload:
    """Llama 3 8B: 32 layers, sequences of 4,096 tokens, fully sharded."""
    return describe(layers=32, width=4096, hidden=14336, sequence=4096, batch=16)


def small() -> fit.Workload:
    """The same in small: 12 layers and a small vocabulary, for one device."""
    return describe(
        layers=12, width=768, hidden=2048, sequence=512, batch=8, vocabulary=8192
    )


def describe(
    *,
    layers: int,
    width: int,
    hidden: int,
    sequence: int,
    batch: int,
    vocabulary: int = 128256,
) -> fit.Workload:
    """A training step and the shapes of its arguments."""
    kv = width // 4
    shapes = {
        "embed": (vocabulary, width),
        "out": (width, vocabulary),
        "layers": {
            "q": (layers, width, width),
            "k": (layers, width, kv),
            "v": (layers, width, kv),
            "o": (layers, width, width),
            "gate": (layers, width, hidden),
            "up": (layers, width, hidden),
            "down": (layers, hidden, width),
            "norms": (layers, 2, width),
        },
    }
    weights = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    state = jax.eval_shape(OPTIMIZER.init, weights)
    tokens = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    # Fully sharded: the last axis of every matrix is split, and so is the batch.
    split = lambda x: P(*[None] * (x.ndim - 1), "data") if x.ndim > 1 else P()
    specs = (jax.tree.map(split, weights), jax.tree.map(split, state), P("data"))
    args = (weights, state, tokens)
    return fit.Workload.of(step, args, specs=specs, donate_argnums=(0, 1))


def step(weights: Any, state: Any, tokens: Any) -> Any:
    """A step of Adam."""
    value, grads = jax.value_and_grad(loss)(weights, tokens)
    updates, state = OPTIMIZER.update(grads, state, weights)
    return optax.apply_updates(weights, updates), state, value


def loss(weights: Any, tokens: Any) -> Any:
    """Mean negative log-likelihood of each next token."""
    low = lambda x: x.astype(jnp.bfloat16)
    x = low(weights["embed"])[tokens]
    body = lambda x, w: (layer(x, jax.tree.map(low, w)), None)
    x, _ = jax.lax.scan(body, x, weights["layers"])
    logits = (x @ low(weights["out"]))[:, :-1].astype(jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def layer(x: Any, w: Any) -> Any:
    """One layer: attention with 4 query heads for each key, then a gated MLP."""
    # Without it the compiler may split activations by features, as the weights are.
    x = jax.lax.with_sharding_constraint(x, P("data"))
    batch, length, width = x.shape
    heads = lambda y: y.reshape(batch, length, -1, 64)
    y = normalise(x, w["norms"][0])
    mixed = jax.nn.dot_product_attention(
        heads(y @ w["q"]), heads(y @ w["k"]), heads(y @ w["v"]), is_causal=True
    )
    x = x + mixed.reshape(batch, length, width) @ w["o"]
    y = normalise(x, w["norms"][1])
    return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]


def normalise(x: Any, scale: Any) -> Any:
    """Root-mean-square normalisation."""
    square = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return x * jax.lax.rsqrt(square + 1e-5).astype(x.dtype) * scale
