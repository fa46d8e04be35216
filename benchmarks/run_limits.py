"""Give whole runs too little time for their steps; measure when their process ends.

    python -m benchmarks.run_limits --limits 20 60 180

Each config asks for a million steps, so that its limit of time ends every run. A
process must end by its limit and 2%, or refuse within seconds a run that cannot;
watching alone must not make it exit with 1. The first limit of each config starts with
empty caches. Writes benchmarks/results/run_limits.json and prints the table of
docs/run.md.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import made_with

from frugax.budget import table

_ROOT = Path(__file__).parents[1]
_RESULTS = Path(__file__).parent / "results" / "run_limits.json"
_MOST_OVER = 0.02

_NETS = '''
import time

import flax.linen as nn, jax, jax.numpy as jnp, numpy as np
from flax import nnx
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

class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.Linear(16, 512, rngs=rngs)
        self.norm = nnx.BatchNorm(512, rngs=rngs)
        self.b = nnx.Linear(512, 512, rngs=rngs)
        self.c = nnx.Linear(512, 1, rngs=rngs)
    def __call__(self, x):
        return self.c(nnx.relu(self.b(nnx.relu(self.norm(self.a(x))))))

def of_nnx():
    loss = lambda m, batch: error(m(batch["x"]), batch["y"])
    def evaluate(m):
        m.eval()
        return {"loss": float(error(m(X), Y))}
    return Task(lambda key: Nnx(nnx.Rngs(0)), loss, batches, evaluate)

class SlowLoader:
    """An iterator as those of grain, which waits 20 ms for each batch."""
    def __init__(self):
        self.at = 0
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
_CONFIGS = {
    "digits": _ROOT / "examples" / "digits.yaml",
    "own model": _ROOT / "examples" / "own_model.yaml",
    "linen, BatchNorm": _OWN % ("linen", "linen"),
    "nnx, BatchNorm": _OWN % ("nnx", "of_nnx"),
    "loader, 20 ms a batch": _OWN % ("loader", "loader"),
}


def run(config: Path, limit_s: float, cache: Path) -> dict[str, Any]:
    """Run a config in its own process, as a user does."""
    with tempfile.TemporaryDirectory() as runs:
        changes = ["train.steps=1000000", f"budgets.time.seconds={limit_s}s"]
        command = "from frugax.cli import main; main()"
        load = os.getloadavg()[0]
        started = time.perf_counter()
        options = ["--runs", runs, "--set", *changes]
        done = subprocess.run(
            [sys.executable, "-c", command, "run", config, *options],
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
            cwd=config.parent,
            capture_output=True,
            text=True,
        )
        wall_s = time.perf_counter() - started
        left = list(Path(runs).iterdir())
        found: dict[str, Any] = {
            "limit_s": limit_s,
            "wall_s": round(wall_s, 2),
            "over": round(wall_s / limit_s - 1, 4),
            "code": done.returncode,
            "load": round(load, 1),
            "said": done.stderr.strip()[-300:],
        }
        if left and (left[0] / "receipt.json").exists():
            receipt = json.loads((left[0] / "receipt.json").read_text())
            spends = receipt["spends"]
            found["steps"] = receipt["steps"]
            found["not_kept"] = [s["name"] for s in spends if s["verdict"] != "kept"]
        else:
            found["left_behind"] = len(left)
        return found


def judge(found: dict[str, Any]) -> str:
    """Describe how a run ended, with the bar that it missed, if any."""
    if found["code"] == 2 and not found.get("left_behind"):
        needs = re.search(r"needs? (?:at least |about )?[\d.]+ ?\w+", found["said"])
        missed = "" if found["over"] <= _MOST_OVER else " **too late**"
        return f"refused after {found['wall_s']:.1f} s{missed}" + (
            f" ({needs[0]})" if needs else ""
        )
    words = [f"{found['wall_s']:.1f} s ({found['over']:+.1%})"]
    if found["code"] != 0:
        words.append(f"exit {found['code']}: {', '.join(found.get('not_kept', ['?']))}")
    if found["over"] > _MOST_OVER:
        words.append("**too late**")
    return ", ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--limits", type=float, nargs="+", default=[20, 60, 180])
    parser.add_argument("--configs", nargs="+", default=list(_CONFIGS))
    args = parser.parse_args()
    rows, results = [], []
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        (home / "limit_nets.py").write_text(_NETS)
        for name in args.configs:
            config = _CONFIGS[name]
            if isinstance(config, str):
                config = home / f"{len(results)}.yaml"
                config.write_text(str(_CONFIGS[name]))
            cells = []
            for limit_s in args.limits:
                found = {"config": name} | run(config, limit_s, home / f"cache {name}")
                print(json.dumps(found), flush=True)
                results.append(found)
                cells.append(judge(found))
            rows.append([name, *cells])
    _RESULTS.write_text(
        json.dumps({"made_with": made_with(), "runs": results}, indent=1) + "\n"
    )
    print(table(["config", *(f"{limit:g} s" for limit in args.limits)], rows))


if __name__ == "__main__":
    main()
