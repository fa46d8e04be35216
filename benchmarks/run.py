"""Whole runs: within a limit of time, and with processes that are killed.

    python -m benchmarks.run limits [--limits 20 60 180]
    python -m benchmarks.run kills [--kills 20]

`limits`: each config asks for a million steps, so that its limit of time ends every
run. A process must end by its limit and 2 %, or refuse within seconds a run that
cannot, and watching alone must not make it exit with 1. The first limit of each config
starts with empty caches.

`kills`: two processes train, of which a random one is killed (SIGKILL) or stopped
(SIGSTOP) after a random step; then all start again. The last loss must be that of a run
that was not interrupted, to the last bit. Time is counted from the fault until the
launcher returns.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Figures, Part, choose, run, say

_NETS = '''
import time

import flax.linen as nn, jax, jax.numpy as jnp, numpy as np
from frugax.run import Task

X = np.random.default_rng(0).normal(size=(512, 16)).astype("float32")
Y = np.sin(X[:, :1])
batches = [{"x": X[i::8], "y": Y[i::8]} for i in range(8)]

def error(out, y):
    return ((out - y) ** 2).mean()

class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for width in (256, 256, 256):
            x = nn.Dense(width)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        return nn.Dense(1)(x)

def linen():
    net = Linen()
    def loss(variables, batch):
        out, new = net.apply(variables, batch["x"], True, mutable=["batch_stats"])
        return error(out, batch["y"]), new
    evaluate = lambda v: {"loss": error(net.apply(v, X, False), Y)}
    return Task(lambda key: net.init(key, X[:1], False), loss, batches, evaluate)

class SlowLoader:
    """An iterator as those of grain, which waits 20 ms for each batch."""
    at = 0
    def __iter__(self):
        return self
    def __next__(self):
        time.sleep(0.02)
        self.at += 1
        return batches[self.at % 8]
    def get_state(self):
        return b"%d" % self.at
    def set_state(self, state):
        self.at = int(state)

def loader():
    init = lambda key: {"w": jax.random.normal(key, (16, 64)), "v": jnp.zeros((64, 1))}
    loss = lambda p, b: error(jnp.tanh(b["x"] @ p["w"]) @ p["v"], b["y"])
    return Task(init, loss, SlowLoader())
'''
_OWN = "{name: %s, task: 'limit_nets:%s', train: {steps: 1}, budgets: {size: 4x}}"
CONFIGS = {
    "own model": ROOT / "examples" / "own_model.yaml",
    "digits": ROOT / "examples" / "digits.yaml",
    "linen, BatchNorm": _OWN % ("linen", "linen"),
    "loader, 20 ms a batch": _OWN % ("loader", "loader"),
}
_FRUGAX = [sys.executable, "-c", "from frugax.cli import main; main()"]


def measure_limits(given: argparse.Namespace) -> Figures:
    """Give whole runs too little time for their steps; see when their process ends."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        (home / "limit_nets.py").write_text(_NETS)
        for name in choose(CONFIGS, given, 1):
            config = CONFIGS[name]
            if isinstance(config, str):
                config = home / f"{len(found)}.yaml"
                config.write_text(str(CONFIGS[name]))
            for limit_s in given.limits[:1] if given.quick else given.limits:
                key = f"{name}, {limit_s:g} s"
                found[key] = run_within(config, limit_s, home / f"cache {name}")
                say(f"{key}: {found[key]}")
    return found


def run_within(config: Path, limit_s: float, cache: Path) -> Figures:
    """Run a config in its own process, as a user does."""
    with tempfile.TemporaryDirectory() as runs:
        changes = ["train.steps=1000000", f"budgets.time.seconds={limit_s}s"]
        load, started = os.getloadavg()[0], time.perf_counter()
        done = subprocess.run(
            [*_FRUGAX, "run", str(config), "--runs", runs, "--set", *changes],
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
            cwd=config.parent,
            capture_output=True,
            text=True,
        )
        wall_s = time.perf_counter() - started
        found: Figures = {
            "wall_s": round(wall_s, 2),
            "over": round(wall_s / limit_s - 1, 4),
            "code": done.returncode,
            "load": round(load, 1),
            "message": done.stderr.strip().splitlines()[-1:],
        }
        receipts = list(Path(runs).glob("*/receipt.json"))
        if receipts:
            receipt = json.loads(receipts[0].read_text())
            spends = receipt["spends"]
            found["steps"] = receipt["steps"]
            found["not_kept"] = [s["name"] for s in spends if s["verdict"] != "kept"]
        else:
            found["left_behind"] = len(list(Path(runs).iterdir()))
        return found


_STEPS = 60
_WORKER = """
import json, os, signal, sys, time
from pathlib import Path

import jax, jax.numpy as jnp, numpy as np, optax
from frugax import train
from frugax.train import distributed

folder, steps, fault = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
distributed.initialize()
layout = distributed.Layout.over(kind="fully-sharded")
rows = layout.local_rows(32)

def loss(params, batch):
    out = jnp.tanh(batch["x"] @ params["a"]) @ params["b"]
    return ((out - batch["y"]) ** 2).mean()

def batch_of(index):
    x = np.random.default_rng(index).normal(size=(32, 64)).astype(np.float32)[rows]
    return layout.from_local({"x": x, "y": np.sin(x[:, :4])})

def on_step(number, metrics, state):
    if fault and [jax.process_index(), number] == fault[:2]:
        (folder / "fault").write_text(str(time.time()))
        os.kill(os.getpid(), signal.Signals[fault[2]])

rng = np.random.default_rng(0)
a, b = rng.normal(size=(64, 512)) / 8, rng.normal(size=(512, 4)) / 20
step = train.make_train_step(loss, optax.adam(1e-2), layout=layout)
state = step.init({"a": a.astype(np.float32), "b": b.astype(np.float32)})
checkpoints = train.Checkpoints(folder / "checkpoints")
last = checkpoints.latest_intact_step()
if last is not None:
    state, _ = checkpoints.restore(state, step=last)
how = dict(checkpoints=checkpoints, save_every=10, on_step=on_step)
result = train.fit(step, state, batch_of, steps=steps, **how)
if jax.process_index() == 0:
    (folder / "loss").write_text(repr(result.loss))
"""


def launch(folder: Path, steps: int, fault: tuple[Any, ...] | None = None) -> float:
    """Train in two processes; return the seconds from the fault until all are out."""
    folder.mkdir(exist_ok=True)
    (folder / "worker.py").write_text(_WORKER)
    work = [sys.executable, str(folder / "worker.py"), str(folder), str(steps)]
    # Compiled programs of an earlier run would hide that it works without.
    env = {**os.environ, "XLA_FLAGS": "", "FRUGAX_COMPILE_CACHE": "0"}
    command = [*_FRUGAX, "launch", "-n", "2", "--", *work, json.dumps(fault)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if fault is None:
        assert done.returncode == 0, done.stderr
        return 0.0
    return time.time() - float((folder / "fault").read_text())


def measure_kills(given: argparse.Namespace) -> Figures:
    """Stop a random process at a random step, start all again, compare the loss."""
    rng, steps = random.Random(0), 12 if given.quick else _STEPS
    found: Figures = {}
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        launch(whole, steps)
        expected = (whole / "loss").read_text()
        for i in range(1 if given.quick else given.kills):
            folder = Path(place) / str(i)
            kind = "SIGKILL" if given.quick else rng.choice(["SIGKILL", "SIGSTOP"])
            fault = (rng.randrange(2), rng.randrange(1, steps), kind)
            out_s = launch(folder, steps, fault)
            launch(folder, steps)
            found[f"kill {i}"] = {
                "process": fault[0],
                "step": fault[1],
                "signal": fault[2],
                "all_out_s": round(out_s, 2),
                "same_loss": (folder / "loss").read_text() == expected,
                "load": round(os.getloadavg()[0], 1),
            }
            say(str(found[f"kill {i}"]))
    return found


PARTS = {"limits": Part(measure=measure_limits), "kills": Part(measure=measure_kills)}


def add_options(ask: argparse.ArgumentParser) -> None:
    ask.add_argument("--limits", type=float, nargs="+", default=[20, 60, 180])
    ask.add_argument("--kills", type=int, default=20)


if __name__ == "__main__":
    run("run", PARTS, about=__doc__, options=add_options)
