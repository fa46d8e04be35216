"""Measure whole runs: warm starts, lower precision, and keeping a time budget."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from frugax import TimeBudget, run, train
from frugax.budget import table

_DIGITS = Path(__file__).parents[1] / "examples" / "digits.yaml"

# --- a second process reuses the compile cache ------------------------------------

_STARTED = """
import sys, time
begun = time.perf_counter()
import jax, optax
from benchmarks.train_calls import attention
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
_LAYERS = 12


def warm(rounds: int) -> dict[str, Any]:
    """Time a process until its first step, with the cache empty and filled."""
    pairs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append([_start(folder), _start(folder)])
    ratios = [again[0] / first[0] for first, again in pairs]
    whole = [again[1] / first[1] for first, again in pairs]
    return {
        "net": f"{_LAYERS} attention layers of width 64, Adam",
        "rounds": rounds,
        "cold_s": statistics.median(first[0] for first, _ in pairs),
        "warm_s": statistics.median(again[0] for _, again in pairs),
        "ratio": statistics.median(ratios),
        "largest": max(ratios),
        "process_ratio": statistics.median(whole),
    }


def _start(folder: str) -> tuple[float, float]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    said = subprocess.run(
        [sys.executable, "-c", _STARTED, str(_LAYERS)],
        env=env | {"XDG_CACHE_HOME": folder},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return float(said[0]), float(said[1])


def warm_table(found: dict[str, Any]) -> str:
    return table(
        [found["net"], "cold", "warm", "warm/cold", "largest", "whole process"],
        [
            [
                f"{found['rounds']} pairs of processes",
                f"{found['cold_s']:.2f} s",
                f"{found['warm_s']:.2f} s",
                f"{found['ratio']:.2f}",
                f"{found['largest']:.2f}",
                f"{found['process_ratio']:.2f}",
            ]
        ],
    )


# --- as good in lower precision, and in micro-batches -----------------------------

_WAYS: dict[str, dict[str, Any]] = {
    "f32": {},
    "bf16": {"precision": "bf16"},
    "f16": {"precision": "f16"},
    "accum=4": {"accum": 4},
    "bf16, accum=4": {"precision": "bf16", "accum": 4},
}


def precision(seeds: int) -> dict[str, Any]:
    """Measure the test accuracy of the digits run in each precision."""
    config = run.load_config(_DIGITS)
    accuracy: dict[str, list[float]] = {way: [] for way in _WAYS}
    for seed in range(seeds):
        task = run.load_task(config, config_folder=_DIGITS.parent)
        rate = optax.cosine_decay_schedule(
            config.train.learning_rate, config.train.steps
        )
        model = task.init(jax.random.key(seed))
        for way, options in _WAYS.items():
            step = train.make_train_step(task.loss, optax.adam(rate), **options)
            result = train.fit(
                step, step.init(model), task.batches, steps=config.train.steps
            )
            assert task.evaluate is not None
            accuracy[way].append(float(task.evaluate(result.state.model)["accuracy"]))
    return {"seeds": seeds, "steps": config.train.steps, "accuracy": accuracy}


def precision_table(found: dict[str, Any]) -> str:
    plain = found["accuracy"]["f32"]
    rows = []
    for way, got in found["accuracy"].items():
        less = [b - g for b, g in zip(plain, got, strict=True)]
        mean = statistics.mean(got)
        rows.append(
            [way, f"{mean:.4f}", f"{statistics.mean(less):+.4f}", f"{max(less):+.4f}"]
        )
    head = [f"digits, {found['seeds']} seeds", "accuracy", "less than f32"]
    return table([*head, "worst seed"], rows)


# --- no run over its time ---------------------------------------------------------

# Width, depth and batch: steps of well under a millisecond up to a tenth of a second.
_SPEEDS = ((16, 2, 8), (256, 4, 128), (1024, 6, 512))


def within_time(runs: int, seconds: float) -> dict[str, Any]:
    """Time `fit` from call to return, compiling and saving included."""
    found = []
    for i in range(runs):
        width, depth, rows = _SPEEDS[i % len(_SPEEDS)]
        keys = jax.random.split(jax.random.key(i), depth)
        params = [jax.random.normal(k, (width, width)) * width**-0.5 for k in keys]
        x = jax.random.normal(jax.random.key(i), (rows, width))

        def loss(params: Any, batch: Any) -> jax.Array:
            h = batch
            for w in params:
                h = jnp.tanh(h @ w)
            return ((h - batch) ** 2).mean()

        step = train.make_train_step(loss, optax.adam(1e-4))
        state = step.init(params)
        score = jax.jit(loss)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            result = train.fit(
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
        found.append(
            {
                "net": f"{depth} x {width}, batch {rows}",
                "steps": result.steps,
                "wall_s": wall,
                "over": wall / seconds - 1,
            }
        )
        print(f"  run {i + 1}: {wall:.2f} s", file=sys.stderr, flush=True)
    return {"runs": runs, "seconds": seconds, "found": found}


def time_table(found: dict[str, Any]) -> str:
    rows = []
    for net in dict.fromkeys(one["net"] for one in found["found"]):
        over = [one["over"] for one in found["found"] if one["net"] == net]
        steps = statistics.median(
            one["steps"] for one in found["found"] if one["net"] == net
        )
        rows.append(
            [
                net,
                str(len(over)),
                f"{steps:,.0f}",
                f"{min(over):+.1%}",
                f"{statistics.median(over):+.1%}",
                f"{max(over):+.1%}",
            ]
        )
    head = [f"{found['seconds']:g} s each", "runs", "steps", "least", "median", "most"]
    return table(head, rows)
