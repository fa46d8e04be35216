"""The contestants of one net against each other, fairly on a shared machine.

Each library has its own process, with the same two CPUs and two threads; contestants in
JAX share one, so that only their programs differ. In a round each contestant runs for
one short slice, in a new random order. Its result is the ratio to the reference in the
same round, so that other load on the machine affects all alike.

The reference is the best of the hand-written variants. It is found in separate rounds,
which do not count otherwise, and is compiled a second time: this control shows the
noise of a ratio of one.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.remat_cases import said

CONTROL = "the same, compiled again"
# Short against the seconds in which the machine's load changes, long against a clock.
SLICE_S = 0.06
MOST_CALLS = 2000
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "OMP_NUM_THREADS": "2",
    # Torch's threads spin while they wait, which takes the CPU from the next one.
    "OMP_WAIT_POLICY": "PASSIVE",
}
Seconds = dict[str, list[tuple[float, float]]]


class Worker:
    """A process of `worker.py`."""

    def __init__(self, kind: str, net: str):
        command = [sys.executable, "-m", "benchmarks.models.worker", kind, net]
        self._process = subprocess.Popen(
            command,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, do: str, **wish: Any) -> dict[str, Any]:
        """Its answer.

        Raises:
            RuntimeError: it could not do that.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do} | wish) + "\n")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self._process.wait()}.")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def workers(net: str, kinds: tuple[str, ...]) -> Iterator[dict[str, Worker]]:
    """One process for each kind; ended afterwards."""
    started = {kind: Worker(kind, net) for kind in kinds}
    try:
        yield started
    finally:
        for worker in started.values():
            worker.end()


def race(
    net: str,
    labels: tuple[str, ...],
    rounds: int,
    *,
    kinds: tuple[str, ...],
    clock: str,
) -> dict[str, Any]:
    """Time one net.

    Args:
        net: its name.
        labels: of "step" and "forward".
        rounds: that count.
        kinds: of processes; "jax" is one of them.
        clock: "wall" or "cpu", by which the reference is chosen.

    Returns:
        For each of `labels` the reference's name and a summary of each contestant; how
        far gradients differ; contestants that could not run, and why.

    Raises:
        RuntimeError: the JAX contestants could not run.
    """
    with workers(net, kinds) as started, tempfile.TemporaryDirectory() as folder:
        whose: dict[str, Worker] = {}
        differences: dict[str, float] = {}
        failed: dict[str, str] = {}
        for kind, worker in started.items():
            said(f"{net}: {kind} gets ready")
            try:
                found = worker.ask("load", file=f"{folder}/wanted.safetensors")
            except RuntimeError as e:
                if kind == "jax":
                    raise
                failed[kind] = str(e)
                continue
            differences |= found
            whose |= dict.fromkeys(found, worker)
        record = {"gradients_differ_by": differences, "failed": failed}
        for what in labels:
            found = _raced(whose, what, rounds, each=clock == "wall", clock=clock)
            said(f"{net}, {what}: the reference is {found['reference']!r}")
            record[what] = found
        return record


def _raced(
    whose: dict[str, Worker], what: str, rounds: int, *, each: bool, clock: str
) -> dict[str, Any]:
    hands = [name for name in whose if name.startswith("JAX")]
    calls = {
        name: _calls(worker, name, what, each=each) for name, worker in whose.items()
    }

    def play(names: list[str], rounds: int, seed: int) -> Seconds:
        seconds: Seconds = {name: [] for name in names}
        order = random.Random(seed)
        for _ in range(rounds):
            for name in order.sample(names, len(names)):
                t = whose[name].ask(
                    "time", who=name, what=what, calls=calls[name], each=each
                )
                seconds[name].append((t["wall"], t["cpu"]))
        return seconds

    column = ("wall", "cpu").index(clock)
    qualifying = play(hands, max(5, rounds // 3), 0)
    typical = {k: np.median(np.array(s)[:, column]) for k, s in qualifying.items()}
    reference = min(hands, key=lambda k: typical[k])
    whose = whose | {CONTROL: whose[reference]}
    calls[CONTROL] = calls[reference]
    whose[reference].ask("again", who=reference, called=CONTROL)
    seconds = play(list(whose), rounds, 1)
    base = np.array(seconds[reference])
    summaries = {k: _summary(np.array(s), base) for k, s in seconds.items()}
    return {"reference": reference, "rounds": rounds, "contestants": summaries}


def _calls(worker: Worker, name: str, what: str, *, each: bool) -> int:
    """How many make a slice."""
    calls = 1
    while True:
        t = worker.ask("time", who=name, what=what, calls=calls, each=each)["wall"]
        if calls * t > SLICE_S / 4 or calls == MOST_CALLS:
            return min(MOST_CALLS, max(1, round(SLICE_S / t)))
        calls = min(MOST_CALLS, 4 * calls)


def _summary(seconds: np.ndarray, base: np.ndarray) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column, clock in enumerate(("wall", "cpu")):
        ratios = seconds[:, column] / base[:, column]
        # A bootstrap of the median over rounds, 95 %.
        drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
        low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
        found[clock] = {
            "seconds": float(np.median(seconds[:, column])),
            "ratio": float(np.median(ratios)),
            "low": float(low),
            "high": float(high),
        }
    return found
