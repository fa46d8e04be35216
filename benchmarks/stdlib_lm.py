"""The character model of `examples/stdlib_lm.yaml`, with and without its memory budget.

Trains it 200 steps from the same seed without a budget and with it, a step of each in
turn; the first 50 steps also without a budget a second time, as a control. Writes the
figures to `benchmarks/results/stdlib_lm.json` and prints them as a table:

    python -m benchmarks.stdlib_lm

Bytes, flops and losses are the same each time. Step times are paired, so that other
work of the machine affects all alike; the control shows how much of them is noise.
"""

import argparse
import dataclasses
import json
import random
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from benchmarks.machine import made_with

from frugax import train
from frugax.budget import format_bytes, format_share
from frugax.fileio import write_whole
from frugax.run import load_config, load_task
from frugax.trees import PyTree

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "examples" / "stdlib_lm.yaml"
RESULTS = ROOT / "benchmarks" / "results" / "stdlib_lm.json"
# Rounds that do not count, until caches, clocks and threads have settled.
WARM_UP = 5
CONTROL_STEPS = 50


@dataclasses.dataclass(eq=False)
class Racer:
    """One training, step by step."""

    step: train.TrainStep
    state: train.TrainState
    losses: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)

    def go(self, batch: PyTree) -> None:
        begun = time.perf_counter()
        self.state, metrics = self.step(self.state, batch)
        jax.block_until_ready((self.state, metrics))
        self.seconds.append(time.perf_counter() - begun)
        self.losses.append(float(metrics["loss"]))


def race(overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train with and without the budget, and return the figures as plain data."""
    config = load_config(CONFIG, overrides=overrides)
    steps = config.train.steps
    task = load_task(config, config_folder=CONFIG.parent)
    setting, batches = config.budgets.memory, task.batches
    # As the example has them.
    assert callable(batches)
    assert task.evaluate is not None
    assert setting is not None
    schedule = optax.cosine_decay_schedule(config.train.learning_rate, steps)
    optimizer = optax.adam(schedule)

    def racer(step: train.TrainStep) -> Racer:
        params = task.init(jax.random.key(config.seed))
        made = Racer(step, train.init_state(params, optimizer))
        step.prepare(made.state, batches(0))
        return made

    plain = racer(train.make_train_step(task.loss, optimizer))
    again = racer(train.make_train_step(task.loss, optimizer))
    budget = setting.budget(plain.step.program.bytes_of(setting.kind))
    planned = racer(train.make_train_step(task.loss, optimizer, budget=budget))

    order = random.Random(config.seed)
    for number in range(steps):
        batch = jax.device_put(batches(number))
        racers = [plain, planned, *([again] if number < CONTROL_STEPS else [])]
        for one in order.sample(racers, len(racers)):
            one.go(batch)

    plan = planned.step.plan
    assert plan is not None  # the step has a budget
    unplanned_bytes = plain.step.program.temp_bytes
    planned_bytes = planned.step.program.temp_bytes
    return {
        "environment": made_with(),
        "task": task.summary,
        "steps": steps,
        "budget_bytes": budget.limit_bytes,
        "unplanned_temp_bytes": unplanned_bytes,
        "planned_temp_bytes": planned_bytes,
        "planned_share": planned_bytes / unplanned_bytes,
        "verdict": str(planned.step.report().verdict),
        "extra_flops_share": plan.extra_share,
        "compiles_to_plan": plan.compiles,
        "seconds_to_plan": planned.step.compile_seconds,
        "loss_difference": difference(planned, plain),
        "loss_difference_control": difference(again, plain),
        "first_loss": plain.losses[0],
        "last_loss": {"unplanned": plain.losses[-1], "planned": planned.losses[-1]},
        "evaluated": {
            "unplanned": task.evaluate(plain.state.params),
            "planned": task.evaluate(planned.state.params),
        },
        "step_seconds_median": float(np.median(plain.seconds[WARM_UP:])),
        "step_time_ratio": ratio(planned, plain),
        "step_time_ratio_control": ratio(again, plain),
    }


def difference(one: Racer, other: Racer) -> float:
    """Largest difference of two loss curves, in bits per character."""
    pairs = zip(one.losses, other.losses, strict=False)  # the control stops earlier
    return max(abs(a - b) for a, b in pairs)


def ratio(one: Racer, other: Racer) -> dict[str, float]:
    """Median of the paired ratios of step times, and its 95% bootstrap interval."""
    pairs = [a / b for a, b in zip(one.seconds, other.seconds, strict=False)][WARM_UP:]
    drawn = np.random.default_rng(0).choice(pairs, (2000, len(pairs)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return {"median": float(np.median(pairs)), "low": float(low), "high": float(high)}


def markdown(figures: dict[str, Any]) -> str:
    """Format the figures as a table for the documentation."""
    scores = figures["evaluated"]
    times = figures["step_time_ratio"]
    control = figures["step_time_ratio_control"]
    same = figures["loss_difference_control"]
    of_plain = lambda r: f"{r['median']:.3f} ({r['low']:.3f} to {r['high']:.3f})"
    rows = [
        (
            "temporaries of the step, as XLA measures them",
            format_bytes(figures["unplanned_temp_bytes"]),
            f"{format_bytes(figures['planned_temp_bytes'])} "
            f"({figures['planned_share']:.3f})",
        ),
        ("more flops", "-", format_share(figures["extra_flops_share"])),
        (
            f"loss at step {figures['steps']}, bits per character",
            f"{figures['last_loss']['unplanned']:.4f}",
            f"{figures['last_loss']['planned']:.4f}",
        ),
        (
            f"largest difference of the loss in {figures['steps']} steps",
            f"{same:.1e} (control, {CONTROL_STEPS} steps)",
            f"{figures['loss_difference']:.1e}",
        ),
        (
            "validation, bits per character",
            f"{scores['unplanned']['bits_per_character']:.4f}",
            f"{scores['planned']['bits_per_character']:.4f}",
        ),
        (
            "step time, paired ratio (95%)",
            f"{of_plain(control)} (control)",
            of_plain(times),
        ),
    ]
    lines = ["|  | no budget | in the budget |", "|---|---|---|"]
    return "\n".join(lines + [f"| {a} | {b} | {c} |" for a, b, c in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with and without the budget.")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    figures = race(tuple(given.set))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(given.out, json.dumps(figures, indent=1) + "\n")
    print(figures["task"])
    print(markdown(figures))


if __name__ == "__main__":
    main()
