"""The cost of a training step beyond raw JAX and in other libraries, and whole runs.

    python -m benchmarks.train [overhead static eager peers warm precision time]

`overhead` and `peers`: one call of a step; each program runs on its own state, a turn
is many steps with one wait at the end. Peers are in their fastest documented form:
equinox by `eqx.filter_jit` with donation (docs, "API: Transformations"), flax nnx by
the functional loop of the guide "Performance considerations", optax by a donated
`jax.jit`. `eager`: the same step op by op. `warm`: a second process, which finds the
compile cache. `precision`: accuracy of the digits in lower precision. `time`: runs
within a time budget.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.harness import (
    ROOT,
    Case,
    Figures,
    Part,
    run,
    say,
    time_cases,
)
from flax import nnx

from frugax import TimeBudget, train
from frugax.run import load_config, load_task

_DIGITS = ROOT / "examples" / "digits.yaml"
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


def static(given: argparse.Namespace) -> Figures:
    """Freezing static arguments, hashing them again, and comparing equal values."""
    count = 200 if given.quick else 20_000
    best = lambda what: min(timeit.repeat(what, number=count, repeat=7)) / count * 1e6
    found: Figures = {}
    for size in (10, 100, 1_000, 10_000, 100_000)[: 2 if given.quick else None]:
        members = [frozenset({i, str(i)}) for i in range(size)]
        begun = time.perf_counter()
        frozen, equal = train.Frozen(members), train.Frozen(list(members))
        freeze_s = (time.perf_counter() - begun) / 2
        assert frozen == equal  # from now on both share the key
        empty = best(lambda: None)
        found[f"{size:,} members"] = {
            "freeze_us": freeze_s * 1e6,
            "hash_us": best(lambda f=frozen: hash(f)) - empty,
            "equal_us": best(lambda f=frozen, e=equal: f == e) - empty,
        }
    return found


def attention(layers: int, width: int, batch: int, length: int) -> Any:
    """Return loss, weights and batch of a net of attention layers, four heads each."""
    heads = 4

    def norm(x: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def layer(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        split = lambda w: (norm(x) @ w).reshape(batch, length, heads, width // heads)
        q, k, v = split(p["q"]), split(p["k"]), split(p["v"])
        weights = jax.nn.softmax(
            jnp.einsum("bihd,bjhd->bhij", q, k) / (width // heads) ** 0.5
        )
        x = x + jnp.einsum("bhij,bjhd->bihd", weights, v).reshape(x.shape) @ p["o"]
        return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]

    def loss(params: Any, given: Any) -> jax.Array:
        x = given["x"] @ params["in"]
        for p in params["layers"]:
            x = layer(p, x)
        return ((x @ params["out"] - given["y"]) ** 2).mean()

    keys = iter(jax.random.split(jax.random.key(0), 8 * layers + 4))
    weight = lambda a, b: jax.random.normal(next(keys), (a, b)) * a**-0.5
    shapes = {k: (width, width) for k in "qkvo"}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    make_layer = lambda: {name: weight(*shape) for name, shape in shapes.items()}
    params = {"in": weight(4, width), "out": weight(width, 1)}
    params["layers"] = [make_layer() for _ in range(layers)]
    x = jax.random.normal(next(keys), (batch, length, 4))
    return loss, params, {"x": x, "y": x.sum(-1, keepdims=True)}


def eager(given: argparse.Namespace) -> Figures:
    """The same Adam step jitted and op by op, by size, and the cost of compiling it."""
    found: Figures = {}
    nets = ((2, 16, 4, 16), (2, 64, 16, 16), (2, 128, 32, 16))
    for size in ((1, 8, 2, 4),) if given.quick else nets:
        loss, params, batch = attention(*size)
        step = hand_written_step(loss, optax.adam(1e-3))
        state = train.init_state(params, optax.adam(1e-3))
        begun = time.perf_counter()
        jitted = jax.jit(step).lower(state, batch).compile()
        compile_s = time.perf_counter() - begun
        case = Case(
            name="L{} D{} B{} T{}".format(*size),
            ours=lambda f=jitted, s=state, b=batch: f(s, b),
            rivals={"op by op": lambda f=step, s=state, b=batch: f(s, b)},
        )
        say(case.name)
        times = case.measure(0.1 if given.quick else given.seconds)
        found[case.name] = {
            "weights": sum(x.size for x in jax.tree.leaves(params)),
            "jit_us": times["frugax"]["us"],
            "eager/jit": times["op by op"]["ratio"],
            "low": times["op by op"]["low"],
            "high": times["op by op"]["high"],
            "control": times["frugax again"]["ratio"],
            "compile_s": compile_s,
            "break_even_steps": 1e6 * compile_s / times["op by op"]["more_us"],
        }
    return found


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


_STARTED = """
import sys, time
begun = time.perf_counter()
import jax, optax
from benchmarks.train import attention
from frugax import train
train.use_compile_cache()
loss, params, batch = attention(int(sys.argv[1]), 64, 8, 16)
step = train.make_train_step(loss, optax.adam(1e-3))
state = step.init(params)
jax.block_until_ready(state)
ready = time.perf_counter()
step.prepare(state, batch)
done = time.perf_counter()
print(done - ready, done - begun)
"""


def warm(given: argparse.Namespace) -> Figures:
    """Time a process until its first step, with the cache empty and filled."""
    layers, pairs = (1, 1) if given.quick else (12, 5)
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    command = [sys.executable, "-c", _STARTED, str(layers)]
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
    seconds: list[list[float]] = []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            for _ in ("cold", "warm"):
                own = env | {"XDG_CACHE_HOME": folder}
                said = subprocess.run(command, env=own, cwd=ROOT, **how).stdout
                seconds.append([float(x) for x in said.split()])
    cold, warm = seconds[::2], seconds[1::2]
    ratios = [w[0] / c[0] for c, w in zip(cold, warm, strict=True)]
    whole = [w[1] / c[1] for c, w in zip(cold, warm, strict=True)]
    return {
        f"{layers} attention layers of width 64, Adam": {
            "cold_s": statistics.median(c[0] for c in cold),
            "warm_s": statistics.median(w[0] for w in warm),
            "warm/cold": statistics.median(ratios),
            "largest": max(ratios),
            "whole process": statistics.median(whole),
        }
    }


def precision(given: argparse.Namespace) -> Figures:
    """The test accuracy of the digits run in each precision, less than float32's."""
    ways: dict[str, dict[str, Any]] = {
        "f32": {},
        "bf16": {"precision": "bf16"},
        "f16": {"precision": "f16"},
        "accum=4": {"accum": 4},
        "bf16, accum=4": {"precision": "bf16", "accum": 4},
    }
    config = load_config(_DIGITS)
    steps = 2 if given.quick else config.train.steps
    accuracy: dict[str, list[float]] = {way: [] for way in ways}
    for seed in range(1 if given.quick else 5):
        task = load_task(config, config_folder=_DIGITS.parent)
        rate = optax.cosine_decay_schedule(config.train.learning_rate, steps)
        model = task.init(jax.random.key(seed))
        assert task.evaluate is not None
        for way, options in ways.items():
            step = train.make_train_step(task.loss, optax.adam(rate), **options)
            result = train.fit(step, step.init(model), task.batches, steps=steps)
            score = task.evaluate(result.state.model)["accuracy"]
            accuracy[way].append(float(np.mean(score)))
    less = {
        way: [a - b for a, b in zip(accuracy["f32"], got, strict=True)]
        for way, got in accuracy.items()
    }
    return {
        way: {
            "accuracy": statistics.mean(got),
            "less than f32": statistics.mean(less[way]),
            "worst seed": max(less[way]),
            "seeds": len(got),
        }
        for way, got in accuracy.items()
    }


def within_time(given: argparse.Namespace) -> Figures:
    """Time `fit` from call to return, compiling and saving included."""
    # Width, depth and batch: steps of less than a millisecond up to a tenth of a
    # second.
    speeds = ((16, 2, 8), (256, 4, 128), (1024, 6, 512))
    runs, seconds = (1, 2.0) if given.quick else (20, 30.0)
    over: dict[str, list[float]] = {}
    for i in range(runs):
        width, depth, rows = speeds[i % len(speeds)]
        keys = jax.random.split(jax.random.key(i), depth)
        params = [jax.random.normal(k, (width, width)) * width**-0.5 for k in keys]
        x = jax.random.normal(jax.random.key(i), (rows, width))

        def loss(params: Any, batch: Any) -> jax.Array:
            h = batch
            for w in params:
                h = jnp.tanh(h @ w)
            return ((h - batch) ** 2).mean()

        step = train.make_train_step(loss, optax.adam(1e-4))
        state, score = step.init(params), jax.jit(loss)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            train.fit(
                step,
                state,
                [x],
                steps=10**9,
                budget=TimeBudget(seconds=seconds),
                evaluate=lambda s, score=score, x=x: {"loss": score(s.params, x)},
                evaluate_every=2000,
                checkpoints=train.Checkpoints(folder),
                save_every=5000,
                compile_cache=False,
            )
            wall = time.perf_counter() - begun
        say(f"run {i + 1}: {wall:.2f} s")
        name = f"{depth} x {width}, batch {rows}, {seconds:g} s"
        over.setdefault(name, []).append(wall / seconds - 1)
    return {
        name: {
            "runs": len(each),
            "least over": min(each),
            "median": statistics.median(each),
            "most": max(each),
        }
        for name, each in over.items()
    }


PARTS = {
    "overhead": time_cases(overhead, compares=False),
    "static": Part(measure=static),
    "eager": Part(measure=eager),
    "peers": time_cases(peers, peers=("equinox filter_jit", "flax nnx, jax.jit")),
    "warm": Part(measure=warm),
    "precision": Part(measure=precision),
    "time": Part(measure=within_time),
}


if __name__ == "__main__":
    run("train", PARTS, about=__doc__)
