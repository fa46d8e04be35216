"""Eleven training steps: the loss after twelve of them, and the bits of the weights.

One net and the same batches, with each option of `train.make_train_step` in turn. Final
losses are compared up to rounding, and digests of the weights on the same machine only.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from frugax import MemoryBudget, train

from .table import Case, Cell

_STEPS, _ROWS, _WIDTH, _DEPTH = 12, 64, 32, 6


def cases() -> Iterator[Case]:
    """One case for each option."""
    over = train.distributed.Layout.over
    options: dict[str, Callable[[], dict[str, Any]]] = {
        "plain": dict,
        "bfloat16": lambda: {"precision": "bf16"},
        "float16": lambda: {"precision": "f16"},
        "four micro-batches": lambda: {"accum": 4},
        "clipped": lambda: {"clip": 0.05},
        "half of the memory": lambda: {"budget": MemoryBudget("64KiB")},
        "eight devices, batch": lambda: {"layout": over((8,))},
        "two by four devices, tensor": lambda: {"layout": over((2, 4), "tensor")},
        "four by two devices, fully sharded": lambda: {
            "layout": over((4, 2), "fully-sharded")
        },
        "bfloat16, micro-batches, clipped": lambda: {
            "precision": "bf16",
            "accum": 4,
            "clip": 0.05,
        },
    }
    for name, make in options.items():
        yield Case(
            name,
            functools.partial(_train, make),
            quick=name == "bfloat16, micro-batches, clipped",
            # Half precision rounds to three digits.
            tolerance={"loss": 5e-3 if "16" in name else 1e-4},
            machine=("weights",),
        )
    yield Case(
        "carried state",
        _train_carried,
        quick=True,
        tolerance={"loss": 1e-5, "carried": 1e-5},
        machine=("weights",),
    )


def _weights() -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), _DEPTH)
    return [jax.random.normal(k, (_WIDTH, _WIDTH)) / _WIDTH**0.5 for k in keys]


def _batches() -> Iterator[tuple[jax.Array, jax.Array]]:
    for i in range(_STEPS):
        x = jax.random.normal(jax.random.key(100 + i), (_ROWS, _WIDTH))
        yield x, jnp.sin(x[:, ::-1])


def _predict(ws: Any, x: Any) -> Any:
    for w in ws:
        x = x + jnp.tanh(x @ w)
    return x


def _loss(ws: Any, batch: Any) -> Any:
    x, y = batch
    return jnp.mean((_predict(ws, x) - y) ** 2)


def _train(make: Callable[[], dict[str, Any]]) -> dict[str, Cell]:
    step = train.make_train_step(_loss, optax.adam(1e-3), **make())
    state = step.init(_weights())
    metrics = {}
    for batch in _batches():
        state, metrics = step(state, batch)
    spends = step.report().spends
    return {
        "loss": float(metrics["loss"]),
        "metrics": sorted(metrics),
        "receipt": [[s.name, s.predicted, s.measured, str(s.verdict)] for s in spends],
        "weights": _digest(state.params),
    }


def _train_carried() -> dict[str, Cell]:
    """A loss that keeps a running mean of its data in the state."""

    def loss(ws: Any, batch: Any, carried: Any) -> Any:
        mean = 0.9 * carried["mean"] + 0.1 * batch[0].mean(0)
        value = _loss(ws, (batch[0] - mean, batch[1]))
        return value, {"size": jnp.mean(mean**2)}, {"mean": mean}

    step = train.make_train_step(loss, optax.adam(1e-3))
    state = step.init(_weights(), carried={"mean": jnp.zeros(_WIDTH)})
    metrics = {}
    for batch in _batches():
        state, metrics = step(state, batch)
    return {
        "loss": float(metrics["loss"]),
        "metrics": sorted(metrics),
        "carried": float(jnp.linalg.norm(state.carried["mean"])),
        "weights": _digest(state.params),
    }


def _digest(tree: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]
