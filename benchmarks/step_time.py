"""Predicted step times beside measured ones, on the processor of this machine.

    python -m benchmarks.step_time [chosen] [others] [h100] [--seconds 2]

`chosen`: the ten programs on which the constants of `measure.step_time` were chosen.
`others`: twenty programs of ten kinds, which say what the prediction is worth.
`h100`: the nets that `scripts/gpu_check` ran on an H100, plain and with a checkpoint of
each layer, predicted from NVIDIA's rates; the measured times are those that it wrote.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from benchmarks import gpu_nets
from benchmarks.harness import RESULTS, Figures, Part, run, say
from benchmarks.step_time_programs import CHOSEN_ON, OTHERS, Program

from frugax import measure
from frugax.targets import Target


def _compare(programs: Mapping[str, Callable[[], Program]], seconds: float) -> Figures:
    here = Target("cpu")
    found: Figures = {}
    for name, make in programs.items():
        step, args = make()
        compiled = jax.jit(step).lower(*args).compile()
        predicted = measure.step_time(compiled, here)
        found[name] = _judge(predicted, _median(compiled, args, seconds))
    return _count(found)


def _judge(predicted: measure.StepTime, seconds: float) -> dict[str, float]:
    return {
        "ms": 1e3 * seconds,
        "low_ms": 1e3 * predicted.low,
        "high_ms": 1e3 * predicted.high,
        "within": float(predicted.judge(seconds) == "kept"),
    }


def _count(found: Figures) -> Figures:
    within = sum(row["within"] for row in found.values())
    say(f"{within:.0f} of {len(found)} within the range")
    return found


def _median(compiled: Any, args: tuple[Any, ...], seconds: float) -> float:
    jax.block_until_ready(compiled(*args))
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 15:
        started = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def _of(programs: Mapping[str, Callable[[], Program]]) -> Callable[..., Figures]:
    def measured(given: argparse.Namespace) -> Figures:
        return _compare(programs, min(given.seconds, 0.2 if given.quick else 2.0))

    return measured


def _compare_h100(given: argparse.Namespace) -> Figures:
    target = Target("h100")
    measured = json.loads((RESULTS / "gpu_check.json").read_text())
    found: Figures = {}
    for name in gpu_nets.NETS:
        rows = measured[f"net:{name}"]["rows"]
        net = gpu_nets.make(name, is_small=False)
        losses = {"plain": net.loss, "by layer": net.by_layer(jax.checkpoint)}
        for kind, loss in losses.items():
            compiled = target.compile(jax.jit(jax.value_and_grad(loss)), *net.shapes)
            ratio = statistics.median(rows[kind]["time"])
            seconds = ratio * rows["plain"]["milliseconds"] / 1e3
            predicted = measure.step_time(compiled, target)
            found[f"{name}, {kind}"] = _judge(predicted, seconds)
    return _count(found)


PARTS = {
    "h100": Part(measure=_compare_h100),
    "chosen": Part(measure=_of(CHOSEN_ON), is_timed=True),
    "others": Part(measure=_of(OTHERS), is_timed=True),
}

if __name__ == "__main__":
    run("step_time", PARTS, about=__doc__)
