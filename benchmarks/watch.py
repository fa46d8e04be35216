"""Measure the time that watching adds to a program, and whether it recompiles.

    python -m benchmarks.watch [--parts scan,frames,call,vmap,cache] [--seconds 60]

Each part is merged into `benchmarks/results/watch.json` as soon as it is done; the
printed tables cover all parts in that file. Programs take turns of some milliseconds in
a new random order for each round; the result is the ratio to the unwatched program of
the same round, in processor time of all threads (the clock's time means nothing on a
shared machine). Where a program's code and constants come to lie changes its time by a
percent or more, so all are compiled six times: the table shows the middle of the six,
the least and the largest, between which the middle of all lies in 97 of 100 cases.
"unwatched, again" is the same program compiled once more: its distance from 1 is the
noise. "ops" counts the operations in a round of the compiled
loop, which no neighbour changes; up to eight XLA runs in order on CPU, of more it runs
some in parallel, which costs a round about a microsecond.
"""

import argparse
import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from benchmarks import watch_programs as programs
from benchmarks.parts import Part, run_parts

from frugax.budget import table
from frugax.measure import time_interleaved

UNWATCHED, AGAIN = "unwatched", "unwatched, again"
STEPS = 2000
# About 12 us on the machine on which the bars were set; the table has today's time.
SCANNED = {"matrix": (programs.matrix_step, 480), "SGD": (programs.sgd_step, 64)}
NUMBERS = ("held", "worked out")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


def timed(
    compiled: Callable[[], Mapping[str, Callable[[Any], Any]]],
    state: Any,
    seconds: float,
    steps: int,
    times: int = 6,
) -> dict[str, Any]:
    """Each program beside `UNWATCHED`, by name, compiled again several times."""
    turns = [
        time_interleaved(
            compiled(),
            (state,),
            seconds=seconds / times,
            chunk_s=0.005,
            clock=time.process_time,
        )
        for _ in range(times)
    ]
    found = {}
    for name in turns[0].seconds:
        ratios = [each.ratio(name, UNWATCHED).middle for each in turns]
        added = [each.added(name, UNWATCHED).middle for each in turns]
        took = [np.median(each.seconds[name]) for each in turns]
        found[name] = {
            "us": float(np.median(took)) / steps * 1e6,
            "added_ns": float(np.median(added)) / steps * 1e9,
            "ratio": float(np.median(ratios)),
            "low": min(ratios),
            "high": max(ratios),
            "rounds": [each.rounds for each in turns],
        }
    return found


def operations(lowered: Any) -> int | None:
    """Count the operations in a round of the innermost loop; None without a loop."""
    text = lowered.compile().as_text()
    bodies = {
        name: re.findall(r"= (?:\([^=]*?\)|\S+) ([\w-]+)\(", body)
        for name, body in re.findall(
            r"^%([\w.-]+) \(.*?\{\n(.*?)^\}", text, re.M | re.S
        )
        if f"body=%{name}" in text
    }
    counts = [
        sum(op not in _FREE for op in body)
        for body in bodies.values()
        if "while" not in body
    ]
    return max(counts, default=None)


def scan(seconds: float) -> dict[str, Any]:
    """Two numbers of every step of a scan, by step and by kind of number."""
    found = {}
    for name, (make, size) in SCANNED.items():
        step, state = make(size)
        for numbers in NUMBERS:
            loop = functools.partial(programs.looped, step, numbers, STEPS)

            def compiled(loop: Callable[..., Any] = loop) -> dict[str, Any]:
                return {
                    UNWATCHED: jax.jit(loop(programs.unwatched)),
                    AGAIN: jax.jit(loop(programs.unwatched)),
                    "watch.jit": programs.watched(loop(programs.recorded), 1),
                    "by hand, one more output": jax.jit(loop(programs.outputs)),
                }

            case = timed(compiled, state, seconds / 4, STEPS)
            for key, run in compiled().items():
                case[key]["ops"] = operations(run.lower(state))
            if numbers == "held":
                case |= _peers(loop, state)
            found[f"{name}, {numbers}"] = case
    return found


def _peers(loop: Callable[..., Any], state: Any) -> dict[str, Any]:
    """Callbacks cost far more, so a few rounds suffice."""
    compiled = lambda: {
        UNWATCHED: jax.jit(loop(programs.unwatched)),
        "jax.debug.callback": jax.jit(loop(programs.debugged)),
        "io_callback": jax.jit(loop(programs.called)),
        "callback behind a gate that stays shut": jax.jit(loop(programs.gated)),
    }
    found = timed(compiled, state, 3.0, STEPS, times=1)
    del found[UNWATCHED]
    return found


def frames(seconds: float) -> dict[str, Any]:
    """The same with frames, one in a block of steps, of which 30 a second are made."""
    found = {}
    steps = 5000
    for name, (make, size) in SCANNED.items():
        step, state = make(size)

        def compiled(step: Callable[..., Any] = step) -> dict[str, Any]:
            loop = functools.partial(programs.looped, step, "held", steps)
            runs: dict[str, Any] = {
                UNWATCHED: jax.jit(loop(programs.unwatched)),
                AGAIN: jax.jit(loop(programs.unwatched)),
            }
            for every in (2500, 100):
                both = loop(programs.recorded, every=every)
                alone = loop(programs.unwatched, every=every)
                frame = f"frames every {every} steps"
                runs |= {
                    f"numbers, {frame} when 30/s ask": programs.paced(both),
                    f"numbers, {frame} in each call": programs.watched(both, 2),
                    f"no number, {frame} in each call": programs.watched(alone, 2),
                }
            return runs

        found[name] = timed(compiled, state, seconds / 2, steps)
    return found


def call(seconds: float) -> dict[str, Any]:
    """A Python loop of calls, of which nothing is due."""
    found = {}
    for name, size, calls in (("26 us", 720, 150), ("as small as can be", 4, 60)):
        step, state = programs.matrix_step(size)
        one = functools.partial(programs.single, step)

        def compiled(
            one: Callable[..., Any] = one, state: Any = state, calls: int = calls
        ) -> dict[str, Any]:
            each = {
                UNWATCHED: jax.jit(one(programs.unwatched)),
                AGAIN: jax.jit(one(programs.unwatched)),
                "watch.jit, nothing due": programs.idle(one(programs.recorded)),
                "a Python function around jax.jit": programs.passed_on(
                    one(programs.unwatched)
                ),
                "callback behind a gate that stays shut": jax.jit(one(programs.gated)),
            }
            runs = {key: _repeated(run, calls) for key, run in each.items()}
            for run in runs.values():  # `watch.jit` rests from its second call on
                run(state)
            return runs

        found[name] = timed(compiled, state, seconds / 2, calls)
    return found


def _repeated(run: Callable[[Any], Any], calls: int) -> Callable[[Any], Any]:
    def repeated(state: Any) -> Any:
        for _ in itertools.repeat(None, calls):
            state = run(state)
        return state

    return repeated


def vmap(seconds: float) -> dict[str, Any]:
    """64 lanes of which four are watched, small and larger."""
    found = {}
    for size, numbers in itertools.product((4, 64), NUMBERS):
        loop = functools.partial(programs.lanes, size, numbers=numbers, length=STEPS)
        _, state = loop(_untold)

        def compiled(loop: Callable[..., Any] = loop) -> dict[str, Any]:
            return {
                UNWATCHED: jax.jit(loop(_untold)[0]),
                AGAIN: jax.jit(loop(_untold)[0]),
                "watch.jit, 4 lanes": programs.watched(
                    loop(programs.four_recorded)[0], 1
                ),
            }

        found[f"{size} numbers a lane, {numbers}"] = timed(
            compiled, state, seconds / 4, STEPS
        )
    return found


def _untold(_: Any) -> None:
    pass


_PROCESS = """
    import jax, jax.monitoring, jax.numpy as jnp
    from frugax import watch
    from frugax.watch.probes import record, frame, scan
    events = []
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name)
    )
    class Taker:
        level, stride = 2, 1
        def due(self, step): return self.level
        def wants_frames(self): return self.level == 2
        def take(self, step, probes, records): pass
    def run(x):
        def step(x, _):
            record("sum", x.sum())
            frame("x", x)
            return jnp.tanh(x), None
        return scan(step, x, length=20, every=5)[0][0]
    taker = Taker()
    run = watch.jit(run, watcher=taker)
    x = jnp.ones((8, 8))
    before = len(events)
    run(x)
    of = lambda kind: sum(e.endswith(kind) for e in events[before:])
    hits, misses = of("cache_hits"), of("cache_misses")
    compiled.clear()
    for taker.level in (0, 1, 2, 1, 0):
        for taker.stride in (1, 2, 0):
            run(x)
    again = sum(name.endswith("backend_compile_duration") for name in compiled)
    print(hits, misses, again)
"""


def cache() -> dict[str, Any]:
    """Count the cache hits of a second process and the compiles of a changed level."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_ENABLE_COMPILATION_CACHE": "true",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            "JAX_PLATFORMS": "cpu",
        }
        command = [sys.executable, "-c", textwrap.dedent(_PROCESS)]
        found = []
        for _ in range(2):
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, check=True
            )
            found.append([int(n) for n in done.stdout.split()])
    keys = ("found in the cache", "compiled", "compiled when level or stride change")
    return {
        name: dict(zip(keys, numbers, strict=True))
        for name, numbers in zip(("first process", "second"), found, strict=True)
    }


def cases_table(found: dict[str, Any]) -> str:
    """The rows of every case; "ops" where they were counted."""
    head = ["program", "one step", "added", "of unwatched", "of six", "ops"]
    texts = []
    for case, rows in found.items():
        lines = [
            [
                name,
                f"{row['us']:.2f} us",
                "" if name == UNWATCHED else f"{row['added_ns']:+.0f} ns",
                f"{row['ratio']:.3f}",
                "" if name == UNWATCHED else f"{row['low']:.3f} to {row['high']:.3f}",
                str(row.get("ops") or ""),
            ]
            for name, row in rows.items()
        ]
        texts.append(f"{case}\n{table(head, lines)}")
    return "\n\n".join(texts)


def cache_table(found: dict[str, Any]) -> str:
    names = list(next(iter(found.values())))
    rows = [[name, *map(str, row.values())] for name, row in found.items()]
    return table(["programs", *names], rows)


PARTS: dict[str, Part] = {
    "scan": (lambda given: scan(given.seconds), cases_table),
    "frames": (lambda given: frames(given.seconds), cases_table),
    "call": (lambda given: call(given.seconds), cases_table),
    "vmap": (lambda given: vmap(given.seconds), cases_table),
    "cache": (lambda _: cache(), cache_table),
}


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--seconds", type=float, default=60.0, help="of each part")
    run_parts("benchmarks.watch", PARTS, ask)


if __name__ == "__main__":
    main()
