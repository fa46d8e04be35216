"""Compare watching with W&B, TensorBoard and jax-tqdm, each as its guide shows it.

    python -m benchmarks.watch_peers [--parts log,progress] [--seconds 30]

log: a Python loop of training steps that keeps the loss and the gradient's norm of
every step: `watch.run` at level "full", `wandb.log` in an offline run, `add_scalar` of
TensorBoard's writer, and the least that a loop could do by hand: both numbers
converted and appended to a list. progress: a `lax.scan` that shows how far it is:
jax-tqdm's decorator at its default rate, and `watch.jit`, which records two numbers of
every step instead. Programs take turns in random order; the time is the processor time
of this process with all its threads. W&B writes in a process of its own, which is not
counted.
"""

import argparse
import functools
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from benchmarks import watch_programs as programs
from benchmarks.parts import Part, run_parts
from benchmarks.real_weights import install
from benchmarks.watch import AGAIN, STEPS, UNWATCHED, cases_table

from frugax import watch
from frugax.measure import time_interleaved

PEERS = (
    *("wandb", "xxhash", "cwevals", "platformdirs", "requests", "urllib3"),
    *("charset-normalizer", "opentelemetry-api", "opentelemetry-sdk"),
    *("opentelemetry-semantic-conventions", "opentelemetry-proto"),
    *("opentelemetry-exporter-otlp-proto-http", "googleapis-common-protos"),
    *("opentelemetry-exporter-otlp-proto-common", "gitpython", "sentry-sdk"),
    *("opentelemetry-exporter-otlp-common", "opentelemetry-exporter-http-transport"),
    *("tensorboard", "jax-tqdm", "chex", "toolz", "tqdm"),
)
CALLS = 200  # of a Python loop, in one turn
WIDTHS = {"small": 64, "larger": 1024}
OURS = "frugax"
Run = Callable[[Any], Any]


def log(seconds: float) -> dict[str, Any]:
    """Two numbers of every step of a Python loop, kept."""
    found = {}
    for name, width in WIDTHS.items():
        _, params = programs.sgd_step(width)
        with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
            runs = {
                key: opened.enter_context(start(Path(folder), width))
                for key, start in LOGGERS.items()
            }
            found[name] = _timed(runs, params, seconds / len(WIDTHS), CALLS)
    return found


def _step(width: int) -> Callable[[Any], tuple[Any, jax.Array, jax.Array]]:
    step, _ = programs.sgd_step(width)

    def one(params: Any) -> tuple[Any, jax.Array, jax.Array]:
        new, told = step(params, programs.outputs, "worked out")
        return new, told[0], told[1]

    return one


def _repeated(one: Run, keep: Callable[[int, Any, Any], Any]) -> Run:
    """A loop of steps whose numbers are kept under rising step numbers."""
    steps = itertools.count()

    def run(params: Any) -> Any:
        for _ in range(CALLS):
            params, loss, norm = one(params)
            keep(next(steps), loss, norm)
        return params

    return run


@contextmanager
def _unwatched(folder: Path, width: int) -> Iterator[Run]:
    yield _repeated(jax.jit(_step(width)), lambda *_: None)


@contextmanager
def _by_hand(folder: Path, width: int) -> Iterator[Run]:
    kept: list[tuple[int, float, float]] = []
    add = lambda n, loss, norm: kept.append((n, float(loss), float(norm)))
    yield _repeated(jax.jit(_step(width)), add)


@contextmanager
def _frugax(folder: Path, width: int) -> Iterator[Run]:
    one = _step(width)
    with watch.run(folder / "frugax", level="full") as watched:

        @watched.jit
        def step(params: Any) -> Any:
            params, loss, norm = one(params)
            watch.record("loss", loss)
            watch.record("norm", norm)
            return params

        def run(params: Any) -> Any:
            for _ in range(CALLS):
                params = step(params)
            return params

        yield run


@contextmanager
def _wandb(folder: Path, width: int) -> Iterator[Run]:
    # Its telemetry, which goes over the network, would take more than its records.
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    import wandb  # pyright: ignore[reportMissingImports]

    with wandb.init(project="loop", mode="offline", dir=str(folder)) as run:
        # Numbers of Python: an array of JAX takes it milliseconds to convert.
        add = lambda _, loss, norm: run.log({"loss": float(loss), "norm": float(norm)})
        yield _repeated(jax.jit(_step(width)), add)


@contextmanager
def _tensorboard(folder: Path, width: int) -> Iterator[Run]:
    from torch.utils.tensorboard.writer import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def add(number: int, loss: Any, norm: Any) -> None:
            writer.add_scalar("loss", float(loss), number)
            writer.add_scalar("norm", float(norm), number)

        yield _repeated(jax.jit(_step(width)), add)


LOGGERS: dict[str, Callable[[Path, int], Any]] = {
    UNWATCHED: _unwatched,
    AGAIN: _unwatched,
    OURS: _frugax,
    "a list by hand": _by_hand,
    "W&B offline": _wandb,
    "TensorBoard": _tensorboard,
}


def progress(seconds: float) -> dict[str, Any]:
    """A scan that says how far it is."""
    import jax_tqdm  # pyright: ignore[reportMissingImports]

    found = {}
    for name, width in WIDTHS.items():
        step, params = programs.sgd_step(width)
        steps = STEPS if width == WIDTHS["small"] else STEPS // 10
        loop = functools.partial(programs.looped, step, "worked out", steps)

        @jax_tqdm.scan_tqdm(steps)
        def shown(params: Any, _: Any, step: Any = step) -> Any:
            return step(params, programs.unwatched, "worked out")

        def scan(params: Any, shown: Any = shown, steps: int = steps) -> Any:
            return jax.lax.scan(shown, params, jnp.arange(steps))

        runs: dict[str, Run] = {
            UNWATCHED: jax.jit(loop(programs.unwatched)),
            AGAIN: jax.jit(loop(programs.unwatched)),
            OURS: programs.watched(loop(programs.recorded), 1),
            "jax-tqdm": jax.jit(scan),
        }
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            found[name] = _timed(runs, params, seconds / len(WIDTHS), steps)
    return found


def _timed(
    runs: dict[str, Run], params: Any, seconds: float, steps: int
) -> dict[str, Any]:
    times = time_interleaved(
        runs, (params,), seconds=seconds, chunk_s=0.02, clock=time.process_time
    )
    case = {}
    for name in runs:
        ratio, added = times.ratio(name, UNWATCHED), times.added(name, UNWATCHED)
        case[name] = {
            "us": float(jnp.median(times.seconds[name])) / steps * 1e6,
            "added_ns": added.middle / steps * 1e9,
            "added_low_ns": added.low / steps * 1e9,
            "added_high_ns": added.high / steps * 1e9,
            "ratio": ratio.middle,
            "low": ratio.low,
            "high": ratio.high,
            "rounds": times.rounds,
        }
        if name not in (OURS, UNWATCHED):
            beside = times.ratio(name, OURS)
            case[name]["of_ours"] = [beside.middle, beside.low, beside.high]
    return case


PARTS: dict[str, Part] = {
    "log": (lambda given: log(given.seconds), cases_table),
    "progress": (lambda given: progress(given.seconds), cases_table),
}


def main() -> None:
    sys.path.append(str(install(*PEERS)))
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--seconds", type=float, default=30.0, help="of each part")
    run_parts("benchmarks.watch_peers", PARTS, ask)


if __name__ == "__main__":
    main()
