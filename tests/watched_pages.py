"""A server for a page, and a journal that does all that it may do."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import numpy as np

GRID = np.arange(20, dtype=np.int8).reshape(4, 5) % 10
COMMAND = (
    sys.executable,
    "-c",
    "from frugax.cli import main; main()",
    "watch",
    "serve",
)

# What a finished run leaves beside its journal.
RECEIPT = {
    "verdict": "kept",
    "spends": [
        {
            "name": "time spent watching",
            "unit": "share",
            "limit": 0.01,
            "predicted": None,
            "measured": 0.004,
            "noise": 0.0,
            "source": "self-measured",
            "verdict": "kept",
        }
    ],
    "memory": {"unplanned_bytes": 4096, "planned_bytes": 2048, "limit_bytes": 3000},
    "evaluations": [[50, {"accuracy": 0.5}], [100, {"accuracy": 0.75}]],
    "notes": [],
    "environment": {"jax": "0.10.2"},
    "stopped_because": "steps",
}


class Server:
    """`frugax watch serve` as a user starts it."""

    def __init__(self, *args):
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if found := re.search(r"http://(\S+?):(\d+)(/\S*)", line):
                self.host, self.port, self.path = found[1], int(found[2]), found[3]
                return
        raise AssertionError(self.said)

    def leave(self, number=signal.SIGINT):
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=60)
        return self.process.returncode, self.said + rest


@contextlib.contextmanager
def shown(browser, *args):
    """A server whose page a browser shows, and which ends cleanly."""
    server = Server(*args, "--port", 0)
    browser.complaints.clear()
    browser.size(1280, 900)
    browser.open(f"http://127.0.0.1:{server.port}{server.path}")
    try:
        yield server
    finally:
        browser.open("about:blank")
        status, said = server.leave()
    assert status == 0, said


def write_random(journal, rng):
    """A few records in some streams, columns that come and go, at times a rewind."""
    for stream in rng.sample(["", "grid", "episodes"], rng.randint(1, 3)):
        step = journal.last_step_of(stream)
        step = 0 if step is None else step + 1
        for i in range(step, step + rng.randint(1, 150)):
            row = {"loss": rng.random()} if rng.random() < 0.9 else {}
            if rng.random() < 0.4:
                row["seen"] = rng.randint(0, 9)
            if stream == "grid":
                row["grid"] = np.full((2, 3), i % 10, np.int8)
            if rng.random() < 0.05:
                row["loss"] = float("nan")
            journal.write(i, row or {"other": 1.0}, stream=stream)
    if rng.random() < 0.4:
        last = max(journal.last_step or 0, 1)
        journal.rewind(rng.randint(0, last), others={"episodes": rng.randint(0, 60)})
    journal.flush()


def write_steps(journal, first, last):
    """Training steps, a grid every tenth of them, an episode every twentieth."""
    for i in range(first, last + 1):
        row = {"loss": np.float32(1 / i), "accuracy": np.float32(0.5), "seconds": i / 8}
        journal.write(i, row)
        if i % 10 == 0:
            grid = GRID.copy()
            grid[0, 0] = i // 10 % 10
            journal.write(i, {"grid": grid}, stream="grid")
        if i % 20 == 0:
            episode = {"total_reward": i / 2, "success": i > 50}
            journal.write(i // 20, episode, stream="episode_summary")
    journal.flush()
