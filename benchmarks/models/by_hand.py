"""The nets written by hand in JAX, each in the several ways that people write them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .by_hand_conv import convs
from .by_hand_encoder import encoders
from .contestant import Contestant
from .nets import MLP, Conv, Encoder, Net
from .variant import Params, Variant, contestant, rows_by, transposed


def contestants(net: Net, only: str | None = None) -> dict[str, Contestant]:
    """One function for each contestant, or the named one; compiled at each call."""
    named = {f"JAX: {name}": v for name, v in variants(net).items()}
    if only is not None:
        named = {only: named[only]}
    return {name: contestant(net, v) for name, v in named.items()}


def variants(net: Net) -> dict[str, Variant]:
    if isinstance(net, MLP):
        return mlps(net)
    if isinstance(net, Encoder):
        return encoders(net)
    assert isinstance(net, Conv)
    return convs(net)


def mlps(net: MLP) -> dict[str, Variant]:
    def stacked(linear: Callable[..., Any]) -> Callable[..., Any]:
        def forward(params: Params, x: jax.Array) -> jax.Array:
            for i in range(net.depth):
                x = linear(x, params[f"{i}.weight"]) + params[f"{i}.bias"]
                x = jax.nn.relu(x) if i < net.depth - 1 else x
            return x

        return forward

    def columns(params: Params, x: jax.Array) -> jax.Array:
        for i in range(net.depth):
            x = params[f"{i}.weight"] @ x + params[f"{i}.bias"][:, None]
            x = jnp.maximum(x, 0) if i < net.depth - 1 else x
        return x

    return {
        "x @ W, W (in, out)": Variant(stacked(jnp.matmul), transposed, transposed),
        "x @ W.T, W (out, in)": Variant(stacked(lambda x, w: x @ w.T)),
        "dot_general, W (out, in)": Variant(stacked(rows_by)),
        "W @ x, examples last": Variant(columns, data=lambda x: x.T.copy()),
    }
