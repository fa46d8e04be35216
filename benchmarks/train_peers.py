"""The same net and optimiser in other libraries, each in its fastest documented form.

equinox: `eqx.filter_jit` with donation (docs, "API: Transformations"). flax nnx:
the functional loop of the guide "Performance considerations", `nnx.split` once, a
donated `jax.jit` that merges and splits inside. optax: a donated `jax.jit` by hand.
Each runs on its own state; a turn is many steps with one wait at the end.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.train_calls import hand_written_step, paired_ratio
from flax import nnx

from frugax import train
from frugax.budget import table

# Width, depth, batch and steps in a turn.
NETS = {"tiny": (16, 2, 8, 50), "small": (256, 4, 128, 10)}
_IN, _OUT = 8, 4

# Takes some steps and returns the result of the last one.
Turn = Callable[[int], Any]


def _turn(step: Callable[..., Any], state: Any) -> Turn:
    """Turn a step `state -> (state, loss)` into a function that takes several."""
    held = [state]

    def turn(steps: int) -> Any:
        now, said = held[0], None
        for _ in range(steps):
            now, said = step(now)
        held[0] = now
        return jax.block_until_ready((now, said))

    return turn


class Net(nnx.Module):
    def __init__(self, widths: list[int], rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(
            [nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(widths)]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)


def _turns(width: int, depth: int, rows: int) -> dict[str, Turn]:
    optimizer = optax.adam(1e-3)
    x = jax.random.normal(jax.random.key(1), (rows, _IN))
    batch = {"x": x, "y": jnp.tanh(x[:, :_OUT])}
    widths = [_IN, *[width] * (depth - 1), _OUT]

    def mlp(params: Any, x: jax.Array) -> jax.Array:
        for p in params[:-1]:
            x = jnp.tanh(x @ p["w"] + p["b"])
        return x @ params[-1]["w"] + params[-1]["b"]

    def loss(params: Any, b: Any) -> jax.Array:
        return ((mlp(params, b["x"]) - b["y"]) ** 2).mean()

    def params() -> Any:
        keys = jax.random.split(jax.random.key(0), depth)
        return [
            {"w": jax.random.normal(k, (a, b)) * a**-0.5, "b": jnp.zeros(b)}
            for k, a, b in zip(keys, widths, widths[1:], strict=False)
        ]

    def module() -> eqx.Module:
        return eqx.nn.MLP(_IN, _OUT, width, depth - 1, jnp.tanh, key=jax.random.key(0))

    def module_loss(model: Any, b: Any) -> jax.Array:
        return ((jax.vmap(model)(b["x"]) - b["y"]) ** 2).mean()

    def nnx_loss(model: Any, b: Any) -> jax.Array:
        return ((model(b["x"]) - b["y"]) ** 2).mean()

    def ours(of: Callable[..., Any], model: Any) -> Turn:
        step = train.make_train_step(of, optimizer)
        return _turn(lambda state: step(state, batch), step.init(model))

    def optax_by_hand() -> Turn:
        step = jax.jit(hand_written_step(loss, optimizer), donate_argnums=0)
        return _turn(lambda s: step(s, batch), train.init_state(params(), optimizer))

    def equinox() -> Turn:
        @eqx.filter_jit(donate="all-except-first")
        def step(b: Any, model: Any, opt_state: Any) -> Any:
            value, grads = eqx.filter_value_and_grad(module_loss)(model, b)
            updates, opt_state = optimizer.update(
                grads, opt_state, eqx.filter(model, eqx.is_inexact_array)
            )
            return (eqx.apply_updates(model, updates), opt_state), value

        model = module()
        opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        return _turn(lambda s: step(batch, *s), (model, opt_state))

    def flax_nnx() -> Turn:
        model = Net(widths, nnx.Rngs(0))
        graph, state = nnx.split(
            (model, nnx.Optimizer(model, optimizer, wrt=nnx.Param))
        )

        @jax.jit
        def first(state: Any) -> Any:
            return state

        def step(state: Any, b: Any) -> Any:
            model, held = nnx.merge(graph, state)
            value, grads = nnx.value_and_grad(nnx_loss)(model, b)
            held.update(model, grads)
            return nnx.state((model, held)), value

        jitted = jax.jit(step, donate_argnums=0)
        return _turn(lambda s: jitted(s, batch), state)

    def flax_nnx_jit() -> Turn:
        model = Net(widths, nnx.Rngs(0))
        held = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

        @nnx.jit
        def step(model: Any, held: Any, b: Any) -> Any:
            value, grads = nnx.value_and_grad(nnx_loss)(model, b)
            held.update(model, grads)
            return value

        cached = nnx.cached_partial(step, model, held)

        def taken(_: Any) -> Any:
            return None, cached(batch)

        return _turn(taken, None)

    return {
        "frugax": ours(loss, params()),
        "frugax again": ours(loss, params()),
        "optax, jax.jit by hand": optax_by_hand(),
        "equinox filter_jit": equinox(),
        "frugax, equinox module": ours(module_loss, module()),
        "flax nnx, jax.jit": flax_nnx(),
        "flax nnx.jit, cached": flax_nnx_jit(),
        "frugax, nnx module": ours(nnx_loss, Net(widths, nnx.Rngs(0))),
    }


def peers(rounds: int) -> dict[str, Any]:
    """Time a step of each library, and its ratio to ours in the same round."""
    found: dict[str, Any] = {}
    for name, (width, depth, rows, steps) in NETS.items():
        turns = _turns(width, depth, rows)
        taken: dict[str, list[float]] = {who: [] for who in turns}
        order = np.random.default_rng(0)
        for i in range(rounds + 2):
            for who in order.permutation(list(turns)):
                begun = time.perf_counter()
                turns[who](steps)
                if i >= 2:
                    taken[who].append((time.perf_counter() - begun) / steps)
        ratios = {
            who: [t / o for t, o in zip(of, taken["frugax"], strict=True)]
            for who, of in taken.items()
        }
        found[name] = {
            "net": f"{depth} layers of width {width}, batch {rows}, Adam",
            "who": {
                who: {
                    "us": float(np.median(taken[who])) * 1e6,
                    **paired_ratio(ratios[who]),
                }
                for who in turns
            },
        }
    return found


def table_of(one: dict[str, Any]) -> str:
    return table(
        [one["net"], "a step", "to frugax", "95 %"],
        [
            [
                who,
                f"{of['us']:.0f} us",
                f"{of['ratio']:.2f}",
                f"{of['low']:.2f} to {of['high']:.2f}",
            ]
            for who, of in one["who"].items()
        ],
    )


def tables(found: dict[str, Any]) -> str:
    return "\n\n".join(map(table_of, found.values()))
