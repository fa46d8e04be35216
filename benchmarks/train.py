"""The cost of a training step beyond raw JAX and in other libraries.

    python -m benchmarks.train [overhead peers]

`overhead` and `peers`: one call of a step; each program runs on its own state, a turn
is many steps with one wait at the end. Peers are in their fastest documented form:
equinox by `eqx.filter_jit` with donation (docs, "API: Transformations"), flax nnx by
the functional loop of the guide "Performance considerations", optax by a donated
`jax.jit`.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from benchmarks.harness import (
    Case,
    run,
    time_cases,
)
from flax import nnx

from frugax import train

Step = Callable[..., Any]


def repeat(step: Callable[[Any], Any], state: Any, steps: int) -> Callable[[], Any]:
    """Take some steps `state -> (state, loss)` at each call, from where it is."""
    held = [state]

    def turn() -> Any:
        now, loss = held[0], None
        for _ in range(steps):
            now, loss = step(now)
        held[0] = now
        return now, loss

    return turn


def hand_written_step(loss: Step, optimizer: optax.GradientTransformation) -> Step:
    """Return the usual hand-written step: value_and_grad, update, apply."""

    def step(state: train.TrainState, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state.params, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return train.TrainState(state.step + 1, params, opt_state), {"loss": value}

    return step


class Module(eqx.Module):
    """Weights beside a function and a table of integers."""

    w: jax.Array
    b: jax.Array
    table: jax.Array
    act: Callable[..., jax.Array]


def overhead(given: argparse.Namespace) -> Iterator[Case]:
    """One call over raw `jax.jit`, of a dict and of an equinox module."""
    batch = {"x": jnp.ones((2, 4)), "y": jnp.ones((2, 4))}
    optimizer, steps = optax.sgd(1e-3), 50

    def loss(params: Any, b: Any) -> jax.Array:
        return ((b["x"] @ params["w"] + params["b"] - b["y"]) ** 2).mean()

    def module_loss(model: Module, b: Any) -> jax.Array:
        return loss({"w": model.w, "b": model.act(model.b)}, b)

    weights = lambda: {"w": jnp.ones((4, 4)), "b": jnp.zeros((1, 4))}
    module = lambda: Module(**weights(), table=jnp.arange(9), act=jnp.tanh)
    # By hand as equinox documents it: partition once, combine inside.
    static = eqx.partition(module(), eqx.is_inexact_array)[1]
    kinds = {
        "dict": (loss, weights, loss, weights),
        "equinox module": (
            module_loss,
            module,
            lambda arrays, b: module_loss(eqx.combine(arrays, static), b),
            lambda: eqx.filter(module(), eqx.is_inexact_array),
        ),
    }
    for name, (own, model, raw, arrays) in kinds.items():

        def ours(own: Step = own, model: Any = model) -> Callable[[], Any]:
            step = train.make_train_step(own, optimizer)
            state = train.init_state(model(), optimizer)
            return repeat(lambda s: step(s, batch), state, steps)

        step = jax.jit(hand_written_step(raw, optimizer), donate_argnums=0)
        state = train.init_state(arrays(), optimizer)
        by_hand = repeat(lambda s, step=step: step(s, batch), state, steps)
        rivals = {"raw jax.jit": by_hand}
        again, clock = ours(), "cpu"
        yield Case(
            name=name,
            ours=ours(),
            control=again,
            rivals=rivals,
            steps=steps,
            clock=clock,
        )


class Net(nnx.Module):
    """A multilayer perceptron of flax."""

    def __init__(self, widths: list[int], rngs: nnx.Rngs) -> None:
        pairs = itertools.pairwise(widths)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)


def peers(given: argparse.Namespace) -> Iterator[Case]:
    """The same net and optimiser in other libraries."""
    # Width, depth, batch and steps in a turn.
    sizes = {"tiny": (16, 2, 8, 50), "small": (256, 4, 128, 10)}
    for name in ("tiny",) if given.quick else sizes:
        width, depth, rows, steps = sizes[name]
        net = f"{depth} layers of width {width}, batch {rows}, Adam"
        programs = peer_steps(width, depth, rows, steps)
        ours, control = programs.pop("frugax"), programs.pop("frugax again")
        task = f"one training step, {name} net ({net})"
        yield Case(
            name=name,
            ours=ours,
            control=control,
            rivals=programs,
            steps=steps,
            task=task,
        )


def peer_steps(width: int, depth: int, rows: int, steps: int) -> dict[str, Any]:
    """Each library's turn of some steps."""
    inputs, outputs = 8, 4
    optimizer = optax.adam(1e-3)
    x = jax.random.normal(jax.random.key(1), (rows, inputs))
    batch = {"x": x, "y": jnp.tanh(x[:, :outputs])}
    widths = [inputs, *[width] * (depth - 1), outputs]

    def loss(params: Any, b: Any) -> jax.Array:
        x = b["x"]
        for p in params[:-1]:
            x = jnp.tanh(x @ p["w"] + p["b"])
        return ((x @ params[-1]["w"] + params[-1]["b"] - b["y"]) ** 2).mean()

    def params() -> Any:
        keys = jax.random.split(jax.random.key(0), depth)
        return [
            {"w": jax.random.normal(k, (a, b)) * a**-0.5, "b": jnp.zeros(b)}
            for k, a, b in zip(keys, widths, widths[1:], strict=False)
        ]

    def module() -> eqx.Module:
        key = jax.random.key(0)
        return eqx.nn.MLP(inputs, outputs, width, depth - 1, jnp.tanh, key=key)

    def module_loss(model: Any, b: Any) -> jax.Array:
        return ((jax.vmap(model)(b["x"]) - b["y"]) ** 2).mean()

    def nnx_loss(model: Any, b: Any) -> jax.Array:
        return ((model(b["x"]) - b["y"]) ** 2).mean()

    def ours(of: Step, model: Any) -> Callable[[], Any]:
        step = train.make_train_step(of, optimizer)
        return repeat(lambda state: step(state, batch), step.init(model), steps)

    def optax_by_hand() -> Callable[[], Any]:
        step = jax.jit(hand_written_step(loss, optimizer), donate_argnums=0)
        state = train.init_state(params(), optimizer)
        return repeat(lambda s: step(s, batch), state, steps)

    def equinox() -> Callable[[], Any]:
        @eqx.filter_jit(donate="all-except-first")
        def step(b: Any, model: Any, opt_state: Any) -> Any:
            value, grads = eqx.filter_value_and_grad(module_loss)(model, b)
            arrays = eqx.filter(model, eqx.is_inexact_array)
            updates, opt_state = optimizer.update(grads, opt_state, arrays)
            return (eqx.apply_updates(model, updates), opt_state), value

        model = module()
        opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        return repeat(lambda s: step(batch, *s), (model, opt_state), steps)

    def flax_nnx() -> Callable[[], Any]:
        model = Net(widths, nnx.Rngs(0))
        both = model, nnx.Optimizer(model, optimizer, wrt=nnx.Param)
        graph, state = nnx.split(both)

        def step(state: Any, b: Any) -> Any:
            model, held = nnx.merge(graph, state)
            value, grads = nnx.value_and_grad(nnx_loss)(model, b)
            held.update(model, grads)
            return nnx.state((model, held)), value

        jitted = jax.jit(step, donate_argnums=0)
        return repeat(lambda s: jitted(s, batch), state, steps)

    def flax_nnx_jit() -> Callable[[], Any]:
        model = Net(widths, nnx.Rngs(0))
        held = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

        @nnx.jit
        def step(model: Any, held: Any, b: Any) -> Any:
            value, grads = nnx.value_and_grad(nnx_loss)(model, b)
            held.update(model, grads)
            return value

        cached = nnx.cached_partial(step, model, held)
        return repeat(lambda _: (None, cached(batch)), None, steps)

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


PARTS = {
    "overhead": time_cases(overhead, compares=False),
    "peers": time_cases(peers, peers=("equinox filter_jit", "flax nnx, jax.jit")),
}


if __name__ == "__main__":
    run("train", PARTS, about=__doc__)
