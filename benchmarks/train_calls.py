"""One call of a step beside raw `jax.jit`, and a compiled step beside an eager one."""

import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from frugax import train
from frugax.budget import table
from frugax.compat import causal_training

_CALLS = 50
SIZES = (10, 100, 1_000, 10_000, 100_000)
# Layers, width, batch and length of the causal-attention surrogate's net.
NETS = ((2, 16, 4, 16), (2, 64, 16, 16), (2, 128, 32, 16))


def small_loss(params: Any, batch: Any) -> jax.Array:
    return ((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2).mean()


SMALL = {"w": jnp.ones((4, 4)), "b": jnp.zeros((1, 4))}
BATCH = {"x": jnp.ones((2, 4)), "y": jnp.ones((2, 4))}


class Module(eqx.Module):
    """The same weights beside a function and a table of integers."""

    w: jax.Array
    b: jax.Array
    table: jax.Array
    act: Callable[..., jax.Array]


def module_loss(model: Module, batch: Any) -> jax.Array:
    return small_loss({"w": model.w, "b": model.act(model.b)}, batch)


def hand_written_step(
    loss: Callable[..., jax.Array], optimizer: optax.GradientTransformation
) -> Callable[..., Any]:
    """Return the usual hand-written step: value_and_grad, update, apply."""

    def step(state: train.TrainState, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state.params, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return train.TrainState(state.step + 1, params, opt_state), {"loss": value}

    return step


def overhead(rounds: int) -> dict[str, Any]:
    """Measure a call in microseconds of this thread, and static arguments by size."""
    optimizer = optax.sgd(1e-3)
    raw = hand_written_step(small_loss, optimizer)
    functions: dict[str, Callable[..., Any]] = {
        "raw": jax.jit(raw, donate_argnums=0),
        # Another function object with its own program: the difference is noise.
        "raw again": jax.jit(
            hand_written_step(small_loss, optimizer), donate_argnums=0
        ),
        "step": train.make_train_step(small_loss, optimizer),
        "module": train.make_train_step(module_loss, optimizer),
    }
    states = {name: train.init_state(SMALL, optimizer) for name in functions}
    module = Module(**SMALL, table=jnp.arange(9), act=jnp.tanh)
    states["module"] = train.init_state(module, optimizer)
    # The same by hand, as equinox documents it: partition once, combine inside.
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    whole = lambda arrays, batch: module_loss(eqx.combine(arrays, static), batch)
    functions["raw module"] = jax.jit(
        hand_written_step(whole, optimizer), donate_argnums=0
    )
    states["raw module"] = train.init_state(arrays, optimizer)
    spent: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 2):
        names = list(functions)
        for name in names[turn % 5 :] + names[: turn % 5]:
            run, state = functions[name], states[name]
            begun = time.thread_time_ns()
            for _ in range(_CALLS):
                state, _ = run(state, BATCH)
            taken = time.thread_time_ns() - begun
            states[name] = jax.block_until_ready(state)
            if turn >= 2:
                spent[name].append(taken / _CALLS / 1e3)
    us = {name: np.asarray(taken) for name, taken in spent.items()}
    over = lambda name, raw="raw": {
        "p10_us": float(np.percentile(us[name], 10) - np.percentile(us[raw], 10)),
        "median_us": float(np.median(us[name] - us[raw])),
    }
    return {
        "rounds": rounds,
        "raw_median_us": float(np.median(us["raw"])),
        "step": over("step"),
        "module": over("module", "raw module"),
        "control": over("raw again"),
        "static": {str(size): _static(size) for size in SIZES},
    }


def _static(size: int) -> dict[str, float]:
    """Measure freezing, hashing again, and comparing with an equal value."""
    members = [frozenset({i, str(i)}) for i in range(size)]
    begun = time.perf_counter()
    frozen, equal = train.Frozen(members), train.Frozen(list(members))
    freeze_s = (time.perf_counter() - begun) / 2
    assert frozen == equal  # from now on both share the key
    count = 20_000
    best = lambda what: min(timeit.repeat(what, number=count, repeat=7)) / count * 1e6
    empty = best(lambda: None)
    return {
        "freeze_us": freeze_s * 1e6,
        "hash_us": best(lambda: hash(frozen)) - empty,
        "equal_us": best(lambda: frozen == equal) - empty,
    }


def overhead_table(found: dict[str, Any]) -> str:
    calls = table(
        ["per call, over raw jax.jit", "p10", "median"],
        [
            [
                name,
                f"{found[key]['p10_us']:+.2f} us",
                f"{found[key]['median_us']:+.2f} us",
            ]
            for name, key in (
                ("step", "step"),
                ("step of an equinox module, over raw jax.jit of it", "module"),
                ("raw jax.jit again", "control"),
            )
        ],
    )
    static = table(
        ["static members", "frozen once in", "hashed again", "compared"],
        [
            [
                size,
                f"{cost['freeze_us'] / 1e3:.2f} ms",
                f"{cost['hash_us']:.3f} us",
                f"{cost['equal_us']:.3f} us",
            ]
            for size, cost in found["static"].items()
        ],
    )
    return f"{calls}\nRaw: {found['raw_median_us']:.1f} us a call.\n\n{static}"


# --- compiled beside eager --------------------------------------------------------


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
    params = {
        "in": weight(4, width),
        "out": weight(width, 1),
        "layers": [
            {name: weight(*shape) for name, shape in shapes.items()}
            for _ in range(layers)
        ],
    }
    x = jax.random.normal(next(keys), (batch, length, 4))
    return loss, params, {"x": x, "y": x.sum(-1, keepdims=True)}


def eager(rounds: int) -> dict[str, Any]:
    """Time the same Adam step jitted and not, by size, and the cost of compiling it."""
    found: dict[str, Any] = {}
    for size in NETS:
        loss, params, batch = attention(*size)
        step = hand_written_step(loss, optax.adam(1e-3))
        state = train.init_state(params, optax.adam(1e-3))
        jitted = jax.jit(step)
        cost = causal_training.measure_compilation_speedup(jitted, state, batch)
        pace = causal_training.benchmark_sustained_performance(
            jitted, step, (state, batch), n_runs=rounds
        )
        name = "L{} D{} B{} T{}".format(*size)
        found[name] = {
            "weights": sum(x.size for x in jax.tree.leaves(params)),
            "eager_ms": pace.slow_s * 1e3,
            "jit_ms": pace.fast_s * 1e3,
            "ratio": pace.ratio,
            "low": pace.low,
            "high": pace.high,
            "control": pace.control,
            "compile_s": cost.compile_s,
            "compile_over_run": cost.speedup,
            "break_even_steps": cost.break_even(pace.slow_s),
        }
    return found


def eager_table(found: dict[str, Any]) -> str:
    head = ["net", "weights", "eager", "jit", "eager/jit", "compile", "compile/run"]
    return table(
        [*head, "pays after"],
        [
            [
                name,
                f"{one['weights']:,}",
                f"{one['eager_ms']:.1f} ms",
                f"{one['jit_ms']:.2f} ms",
                f"{one['ratio']:.0f} ({one['low']:.0f} to {one['high']:.0f})",
                f"{one['compile_s']:.1f} s",
                f"{one['compile_over_run']:,.0f}",
                f"{one['break_even_steps']:.0f} steps",
            ]
            for name, one in found.items()
        ],
    )


def paired_ratio(ratios: list[float]) -> dict[str, float]:
    """Return the median ratio within rounds, and its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return {
        "ratio": statistics.median(ratios),
        "low": float(low),
        "high": float(high),
    }
