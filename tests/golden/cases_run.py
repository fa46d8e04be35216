"""Receipts of the example configs, cut to few steps, and their plans for two devices.

The figures that depend on time, the share spent watching and the seconds, are left out.
`frugax run` and `frugax plan` are called as commands.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frugax.targets import installed_compilers

from .table import Case, Cell, MissingPackageError

_ROOT = Path(__file__).parents[2]
# Steps that are enough for every stage to run.
_EXAMPLES = {
    "digits": 30,
    "mnist5k": 30,
    "own_model": 30,
    "arc_nca": 8,
    "stdlib_lm": 4,
}
_TARGETS = ("cpu", "h100")


def cases() -> Iterator[Case]:
    """A run of each example, then a plan of each for each target."""
    for name, steps in _EXAMPLES.items():
        yield Case(
            f"{name}, {steps} steps",
            functools.partial(_run, name, steps),
            tolerance={"loss": 1e-3},
            # Files hold weights, whose last bits are the machine's.
            machine=("file bytes", "file", "loss"),
        )
    for name in _EXAMPLES:
        for target in _TARGETS:
            yield Case(f"{name} for {target}", functools.partial(_plan, name, target))


def _run(name: str, steps: int) -> dict[str, Cell]:
    with tempfile.TemporaryDirectory() as folder:
        every = ("train.save_every", "train.evaluate_every")
        changes = [f"train.steps={steps}", *(f"{key}={steps}" for key in every)]
        changes.append("budgets.time.seconds=20min")
        config = f"examples/{name}.yaml"
        command = ["run", config, "--runs", folder, "--allow-broken", "--set", *changes]
        done = _frugax(*command)
        (receipt_file,) = Path(folder).glob("*/receipt.json")
        receipt = json.loads(receipt_file.read_text())
    found: dict[str, Cell] = {"exit code": done.returncode, "steps": receipt["steps"]}
    for spend in receipt["spends"]:
        what = str(spend["name"])
        if "time" in what:
            found[what] = spend["limit"]
            continue
        cells = [spend["limit"], spend["predicted"], spend["measured"]]
        key = "file" if what.startswith("file") else what
        if what.startswith(("temp", "compiles", "file")):
            found[key] = cells
    found["loss"] = _last_loss(receipt["evaluations"])
    return found


def _plan(name: str, target: str) -> dict[str, Cell]:
    if target != "cpu":
        gpu = next(c for c in installed_compilers() if c.platform == "gpu")
        if gpu.problem:
            raise MissingPackageError("the compiler for GPUs")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        config = f"examples/{name}.yaml"
        done = _frugax("plan", config, "--target", target, "--json", str(file))
        if not file.exists():
            return {"exit code": done.returncode}
        plan = json.loads(file.read_text())
    return {"exit code": done.returncode} | _numbers(plan["rows"][0])


def _frugax(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "frugax.cli", *arguments]
    # One device, as most users have.
    env = os.environ | {"XLA_FLAGS": ""}
    return subprocess.run(
        command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False
    )


def _last_loss(evaluations: list[tuple[int, dict[str, float]]]) -> Cell:
    """The loss of the last evaluation, to four digits."""
    values = [metrics["loss"] for _, metrics in evaluations if "loss" in metrics]
    return float(f"{values[-1]:.4g}") if values else None


def _numbers(row: dict[str, Any]) -> dict[str, Cell]:
    """The counts of a plan: bytes, flops and flags; no text and no parts."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, bool | int | float) and "seconds" not in key
    }
