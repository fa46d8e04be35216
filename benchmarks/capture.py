"""Scripts under `frugax exec`: what a step of theirs costs more.

    python -m benchmarks.capture exec [--rounds 20]

`exec`: a script whose jitted step takes about a millisecond, run by `python` and by
`frugax exec` without a budget, a process each, in turns. The script measures its own
steps. "python again" is the A/A control: its distance from 1 is the noise.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from benchmarks.harness import Figures, Part, paired_ratio, run, say

_SCRIPT = """
import json, sys, time

import jax, jax.numpy as jnp

def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return (x**2).mean()

@jax.jit
def step(w, x):
    value, grad = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * grad, value

w, x = 0.1 * jnp.ones((160, 160)), jnp.ones((192, 160))
seconds = []
for _ in range(1500):
    begun = time.perf_counter()
    w, value = step(w, x)
    value.block_until_ready()
    seconds.append(time.perf_counter() - begun)
seconds = sorted(seconds[500:])
json.dump(seconds[len(seconds) // 2], open(sys.argv[1], "w"))
"""
_COMMANDS = {
    "python": [sys.executable],
    "python again": [sys.executable],
    "frugax exec": [sys.executable, "-m", "frugax.cli", "exec"],
}


def measure_exec(given: argparse.Namespace) -> Figures:
    """The median step of the script in each round, beside that by `python`."""
    rounds = 2 if given.quick else given.rounds
    seconds: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        script, answer = Path(folder, "train.py"), Path(folder, "seconds.json")
        script.write_text(_SCRIPT)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name in draw.permutation(list(_COMMANDS)):
                subprocess.run(
                    [*_COMMANDS[name], str(script), str(answer)],
                    cwd=folder,
                    capture_output=True,
                    check=True,
                )
                seconds[name].append(json.loads(answer.read_text()))
    plain = np.array(seconds["python"])
    return {
        name: {"us": 1e6 * float(np.median(found))}
        | (paired_ratio(np.array(found) / plain) if name != "python" else {})
        for name, found in seconds.items()
    }


PARTS = {"exec": Part(measure=measure_exec, is_timed=True, short=("--rounds", "5"))}


def add_options(ask: argparse.ArgumentParser) -> None:
    """Options beside those of every benchmark."""
    ask.add_argument("--rounds", type=int, default=20, help="processes of each program")


if __name__ == "__main__":
    run("capture", PARTS, about=__doc__, options=add_options)
