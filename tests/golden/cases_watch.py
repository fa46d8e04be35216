"""Rows, losses and bytes of journals of twelve programs, exports, and the page's JSON.

Every program is watched at level "full", which keeps each record whatever it costs, and
computes whole numbers and their halves, so that all values are exact on every machine.
Bytes are those of the same rows written again with `Journal.write_many`, since the
thread that collects records may divide them into blocks by time; they may differ by 2%
with the random salt of a journal and the version of zstd.

Left out: the streams "watch" and "system", which hold times; levels between "off" and
"full", whose strides follow the measured overhead; and sentences on the page, such as
the reason why a run counts as closed.
"""

import contextlib
import csv
import hashlib
import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import OverheadBudget, watch
from frugax.watch.journal import Follower, merge
from watched_pages import RECEIPT, Server, write_steps

from .table import Case, Cell

_CALLS = 200
# The thread of the watcher writes times into these.
_TIMED = {"watch", "system"}
Step = Callable[..., Any]


def cases() -> Iterator[Case]:
    """One case for each program, then exports, sinks, and pages."""
    for program in _PROGRAMS:
        name = program.__name__.removeprefix("_").replace("_", " ")
        yield Case(
            f"program: {name}",
            lambda p=program: _watch(p),
            quick=program in (_numbers, _branch),
            tolerance={"bytes": 0.02},
        )
    yield Case(
        "program: level off",
        lambda: _watch(_numbers, level="off"),
        tolerance={"bytes": 0.02},
    )
    yield Case("records as an output", _collect)
    yield Case("run that alerts", _run_with_alert)
    yield Case("export", _export, quick=True, tolerance={"npz bytes": 0.02})
    yield Case("json lines", lambda: _write_sinks("json"), quick=True)
    yield Case("tensorboard", lambda: _write_sinks("tensorboard"))
    yield Case("pictures of frames", lambda: _write_sinks("svg"))
    yield Case("rewind, follow and merge", _rewind, quick=True)
    yield Case("page of a run", _serve_run)
    yield Case("page of several runs", _serve_runs)


# --- programs -------------------------------------------------------------------------


def _numbers(x: jax.Array) -> jax.Array:
    """Two numbers and one with parts, once a call."""
    watch.record("loss", x.sum())
    watch.record("parts", {"a": x[0], "b": -x[1]})
    return x + 1


def _norms(x: jax.Array) -> jax.Array:
    """Norms of a tree: of (3, 4) and (6, 8) times the number of the call."""
    watch.norms("grad", {"w": x[:2] * jnp.array([3, 4]), "b": x[:2] * 2})
    return x


def _loop(x: jax.Array) -> jax.Array:
    """A number in each round of a loop, every second one of them gated."""

    def one(x: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        watch.record("round", x[0])
        watch.record("even", x[1], when=i % 2 == 0)
        return x + 1, None

    return jax.lax.scan(one, x, jnp.arange(7))[0]


def _frames(x: jax.Array) -> jax.Array:
    """An array of every fourth round, and one of every call."""

    def one(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        watch.frame("state", x.reshape(2, 2).astype(jnp.int8))
        return x + 1, None

    watch.frame("start", x)
    return watch.scan(one, x, length=8, every=4)[0][0]


def _lanes(x: jax.Array) -> jax.Array:
    """The first two of four examples of a batch."""

    def one(x: jax.Array) -> jax.Array:
        watch.record("lane", 2 * x, lanes=2)
        return x + 1

    return jax.vmap(one)(x)


def _reductions(x: jax.Array) -> jax.Array:
    """A histogram, a picture, a table and a text."""
    watch.histogram("weights", x, bins=4)
    watch.image("image", x.reshape(2, 2) / 32)
    watch.table("worst", {"index": jnp.arange(2), "loss": x[:2]})
    watch.text("answer", "yes")
    return x + 1


def _branch(x: jax.Array) -> jax.Array:
    """Summaries and numbers in one branch of two."""

    def record(x: jax.Array) -> jax.Array:
        watch.record("odd", x[0])
        watch.summarise("episode", {"reward": x[1], "won": x[0] > 9})
        return x + 1

    return jax.lax.cond(x[0] % 2 == 1, record, lambda x: x + 1, x)


def _while(x: jax.Array) -> jax.Array:
    """The last value of a loop of unknown length, and how many there were."""

    def one(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, n = state
        watch.record("inner", x[0])
        return x + 1, n + 1

    return jax.lax.while_loop(lambda s: s[1] < 3, one, (x, jnp.zeros((), int)))[0]


def _gradient(x: jax.Array) -> jax.Array:
    """Numbers inside of a differentiated and recomputed function."""

    @jax.checkpoint
    def loss(x: jax.Array) -> jax.Array:
        watch.record("inside", x[0])
        return (x**2).sum()

    value, slope = jax.value_and_grad(loss)(x)
    watch.record("loss", value)
    return x + slope / 2 - x + 1


def _same_name(x: jax.Array) -> jax.Array:
    """One name three times, one of them in a function that is called twice."""
    inner = jax.jit(lambda x: watch.record("same", x[0]) or x + 1)
    watch.record("same", x[1])
    return inner(inner(x))


def _integers(x: jax.Array) -> jax.Array:
    """Other dtypes than float32."""
    watch.record("count", x[0].astype(jnp.int32))
    watch.record("flag", x[0] > 5)
    watch.record("half", x[0].astype(jnp.bfloat16))
    watch.frame("bytes", x.astype(jnp.uint8))
    return x + 1


def _not_finite(x: jax.Array) -> jax.Array:
    """Numbers that are NaN and infinite."""
    watch.record("nan", jnp.where(x[0] > 5, jnp.nan, x[0]))
    watch.record("infinite", jnp.where(x[0] > 9, -jnp.inf, x[0]))
    return x + 1


_PROGRAMS: tuple[Step, ...] = (
    *(_numbers, _norms, _loop, _frames, _lanes, _reductions, _branch, _while),
    *(_gradient, _same_name, _integers, _not_finite),
)


def _watch(program: Step, *, level: str = "full") -> dict[str, Cell]:
    """The rows of 200 calls; every second also gives a number from outside."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        journal = watch.Journal.create(path, {"seed": 0})
        watcher = watch.Watcher(journal, OverheadBudget("100%"), level=level)
        with journal, watcher:
            step = watch.jit(program)
            x = jnp.arange(4.0)
            for call in range(_CALLS):
                x = step(x)
                if call % 2:
                    watcher.record(call, {"host": call / 2})
        records = watch.read(path, strict=True)
        cells = _describe_records(records)
        for kind, tally in sorted(watcher.losses.tallies.items()):
            counts = [tally.given, tally.kept, tally.left_out, tally.lost]
            cells[f"losses of {kind}"] = counts
        cells["bytes"] = _rewrite(records, Path(folder, "again"))
    return cells


def _describe_records(records: watch.Records) -> dict[str, Cell]:
    """Columns, number of rows, and a digest of steps and values of each stream."""
    cells: dict[str, Cell] = {}
    for stream, rows in sorted({"": records, **records.streams}.items()):
        if stream in _TIMED or not len(rows):
            continue
        state = hashlib.sha256(rows.steps.tobytes())
        columns: list[str] = []
        for name in sorted(rows.names):
            values = np.asarray(rows[name])
            columns.append(f"{name} {values.dtype} {values.shape}")
            state.update(rows.steps_with(name).tobytes())
            state.update(np.ascontiguousarray(values).tobytes())
        cells[f"stream {stream!r}"] = [len(rows), state.hexdigest()[:12], *columns]
    return cells


def _rewrite(records: watch.Records, path: Path) -> int:
    """Bytes of a journal with the same rows, each stream written at once."""
    with watch.Journal.create(path, {"seed": 0}) as journal:
        for stream, rows in sorted({"": records, **records.streams}.items()):
            if stream in _TIMED:
                continue
            whole = [n for n in rows.names if len(rows[n]) == len(rows)]
            if whole:
                values = {name: np.asarray(rows[name]) for name in whole}
                journal.write_many(rows.steps, values, stream)
    return path.stat().st_size


def _collect() -> dict[str, Cell]:
    """Records that `collect` and `scan` return."""

    def loop(x: jax.Array) -> Any:
        def one(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
            watch.record("size", x.sum())
            watch.frame("grid", x)
            return x + 1, None

        (x, _), records = watch.scan(one, x, length=10, every=3)
        return x, records

    _, by_scan = jax.jit(loop)(jnp.arange(4.0))
    _, by_collect = jax.jit(watch.collect(_branch))(jnp.arange(4.0))
    cells: dict[str, Cell] = {}
    for what, records in (("scan", by_scan), ("collect", by_collect)):
        for name in sorted(records):
            for path, leaf in jax.tree_util.tree_leaves_with_path(records[name]):
                key = f"{what} {name}{jax.tree_util.keystr(path)}"
                cells[key] = [str(leaf.dtype), *np.ravel(leaf).astype(float).tolist()]
    return cells


def _run_with_alert() -> dict[str, Cell]:
    """`watch.run` with a bound that a number leaves."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "first")
        bounds = {"loss": (None, 9.0)}
        options: dict[str, Any] = {"config": {"lr": 0.1}, "tags": ["a", "b"]}
        with watch.run(folder, level="full", bounds=bounds, **options) as run:
            step = run.jit(_numbers)
            x = jnp.zeros(4)
            for _ in range(5):
                x = step(x)
        records = watch.read(folder / "journal", strict=True)
        return _describe_records(records) | {
            "exit code": run.exit_code,
            "files": sorted(p.name for p in folder.iterdir()),
            "alerts": len((folder / "alerts.txt").read_text().splitlines()),
            "config": json.loads((folder / "config.yaml").read_text())["config"]["lr"],
        }


# --- files ----------------------------------------------------------------------------


@contextlib.contextmanager
def _journal() -> Iterator[Path]:
    """A journal of 100 steps with numbers, grids and summaries."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small", "journal")
        path.parent.mkdir()
        with watch.Journal.create(path, {"name": "small"}) as journal:
            write_steps(journal, 1, 100)
        yield path


def _export() -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    with _journal() as path:
        done = watch.export(path, path.parent / "a.npz")
        cells["records"] = [f"{k or 'steps'} {n}" for k, n in done.records.items()]
        cells["npz bytes"] = (path.parent / "a.npz").stat().st_size
        with np.load(path.parent / "a.npz", allow_pickle=False) as arrays:
            for name in sorted(set(arrays) - {"journal.json"}):
                array = arrays[name]
                about = f"{array.dtype} {array.shape}"
                cells[f"npz {name}"] = f"{about} {_digest(array.tobytes())}"
            cells["npz journal.json"] = _flatten(json.loads(arrays["journal.json"]))
        done = watch.export(path, path.parent / "a.csv", "csv")
        for file in done.paths:
            rows = [*csv.reader(file.read_text().splitlines())]
            cells[f"csv {file.name}"] = [
                len(rows),
                _digest(file.read_bytes()),
                *rows[0],
            ]
    return cells


def _write_sinks(kind: str) -> dict[str, Cell]:
    """What a sink gets of two programs, one with 200 rounds: it shows 64 of them."""

    def many(x: jax.Array) -> jax.Array:
        def one(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
            watch.record("round", x[0])
            return x + 1, None

        watch.frame("grid", x.reshape(2, 2).astype(jnp.int8))
        watch.summarise("episode", {"reward": x[1]})
        return jax.lax.scan(one, x, length=200)[0] - 199

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "out")
        if kind == "json":
            sink: watch.Sink = watch.sinks.JsonLines(folder / "lines")
        elif kind == "tensorboard":
            sink = watch.sinks.TensorBoard(folder)
        else:
            sink = watch.sinks.SvgFiles(folder)
        budget = OverheadBudget("100%")
        with watch.Watcher(None, budget, level="full", sinks=[sink]) as watcher:
            step = watch.jit(many)
            x = jnp.arange(4.0)
            for call in range(5):
                x = step(x)
                watcher.record(call, {"loss": call / 2, "count": call})
        if kind == "json":
            return _read_json_lines(folder / "lines")
        if kind == "tensorboard":
            return _read_tensorboard(folder)
        files = sorted(folder.rglob("*.svg"))
        return {str(f.relative_to(folder)): _digest(f.read_bytes()) for f in files}


def _read_json_lines(path: Path) -> dict[str, Cell]:
    of_stream: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["stream"] not in _TIMED:
            of_stream.setdefault(f"{row['kind']} {row['stream']}", []).append(
                f"{row['step']} {json.dumps(row['values'], sort_keys=True)}"
            )
    return {
        name: [len(lines), _digest("\n".join(lines).encode()), lines[0], lines[-1]]
        for name, lines in of_stream.items()
    }


def _read_tensorboard(folder: Path) -> dict[str, Cell]:
    from tensorboardX.proto import event_pb2

    parse: Any = vars(event_pb2)["Event"].FromString
    found: dict[str, list[float]] = {}
    for file in folder.iterdir():
        data, at = file.read_bytes(), 0
        while at < len(data):
            # A length of 8 bytes, its checksum of 4, the event, and its checksum.
            size = int.from_bytes(data[at : at + 8], "little")
            event = parse(data[at + 12 : at + 12 + size])
            at += 16 + size
            for value in event.summary.value:
                row = found.setdefault(value.tag, [])
                if value.WhichOneof("value") == "simple_value":
                    row += [event.step, value.simple_value]
                else:
                    row += [event.step, value.image.height, value.image.width]
    return {
        tag: [len(row), *row[:4], *row[-2:]]
        for tag, row in sorted(found.items())
        if tag.split("/")[0] not in _TIMED
    }


def _rewind() -> dict[str, Cell]:
    """What readers see of a journal with a rewind, and of two that are merged."""
    with _journal() as path:
        follower = Follower(path)
        names = [type(change).__name__ for change in follower.poll()]
        with watch.Journal.append_to(path) as journal:
            journal.rewind(50, others={"episode_summary": 2})
            write_steps(journal, 61, 70)
        names += [type(change).__name__ for change in follower.poll()]
        cells = _describe_records(watch.read(path, strict=True))
        cells["changes"] = names
        other = path.parent / "other"
        with watch.Journal.create(other, {}) as journal:
            journal.write_many(range(40, 65), {"loss": np.arange(25.0)})
        rows = [
            (r.step, r.process, float(r.values["loss"])) for r in merge([path, other])
        ]
        cells["merged"] = [len(rows), _digest(repr(rows).encode())]
        return cells


# --- pages ----------------------------------------------------------------------------


class _Client(Server):
    """A server as a user starts it, and requests to it."""

    def get(self, path: str) -> bytes:
        """Return the body of an answer."""
        address = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.read()

    def get_json(self, path: str, is_ready: Callable[[Any], bool] = bool) -> Any:
        """Return an answer of JSON, asked again until the server has read the files."""
        while not is_ready(found := json.loads(self.get(path))):
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[_Client]:
    client = _Client(folder, "--port", 0)
    try:
        yield client
    finally:
        client.leave()


def _serve_run() -> dict[str, Cell]:
    with _journal() as path:
        counts = np.arange(40, dtype=np.int32).reshape(5, 8)
        edges = {
            "low": np.zeros(5),
            "high": np.full(5, 4.0),
            "not_finite": counts[:, 0],
        }
        with watch.Journal.append_to(path) as journal:
            journal.write_many(range(5), {"counts": counts, **edges}, "weights")
        config = (
            "name: small\ntrain: {steps: 100}\nbudgets: {overhead: {share: 0.01}}\n"
        )
        (path.parent / "config.yaml").write_text(config)
        (path.parent / "receipt.json").write_text(json.dumps(RECEIPT))
        with _serving(path.parent) as client:
            is_read = lambda found: found["read"]
            state = client.get_json("/api/run?run=0", is_read)
            frame = client.get("/api/frame?run=0&stream=grid&column=grid&number=4")
            length = int.from_bytes(frame[:4], "little")
            curves = "/api/curves?run=0&stream=&column=loss&stream=&column="
            curves += "seconds+per+step"
            short = curves + "&from=10&to=90&points=20"
            rows = client.get_json("/api/rows?run=0&stream=episode_summary")
            histogram = client.get_json("/api/histogram?run=0&stream=weights")
            return {
                "state": _flatten(state),
                "curves": _flatten(_shorten(client.get_json(curves))),
                "few points": _flatten(_shorten(client.get_json(short))),
                "rows": _flatten(rows),
                "histogram": _flatten(histogram),
                "frame": _flatten(json.loads(frame[4 : 4 + length])),
                "frame numbers": _digest(frame[4 + length :]),
            }


def _serve_runs() -> dict[str, Cell]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "runs")
        for number, name in enumerate(("first", "second")):
            (folder / name).mkdir(parents=True)
            meta = {"name": name, "started": 1000.0, "config": {"lr": number / 2}}
            steps = np.arange(500)
            loss = (500.0 - steps) * (number + 1)
            with watch.Journal.create(folder / name / "journal", meta) as journal:
                journal.write_many(steps, {"loss": loss, "val/loss": loss + 1})
        with _serving(folder) as client:
            is_read = lambda found: all(run["read"] for run in found["runs"])
            runs = client.get_json("/api/runs", is_read)
            curves = client.get_json("/api/curves?stream=&column=loss&points=50")
            one = client.get_json("/api/run?run=1", lambda found: found["read"])
            return {
                "runs": _flatten(runs),
                "curves": _flatten(_shorten(curves)),
                "one": _flatten(one),
            }


# What depends on the folder, the clock or zstd, and sentences for people.
_LEFT_OUT = {
    *("folder", "grown_at", "steps_per_s", "read_bytes", "journal_bytes", "cursor"),
    *("why", "missing", "source", "changes", "rewinds", "bytes", "modified"),
}


def _flatten(found: Any, path: str = "") -> list[str]:
    """The leaves of an answer as texts, such as `streams.grid.records = 10`."""
    if isinstance(found, Mapping):
        keys = [key for key in sorted(found) if key not in _LEFT_OUT]
        return [t for key in keys for t in _flatten(found[key], f"{path}.{key}")]
    if isinstance(found, list) and any(isinstance(one, Mapping) for one in found):
        return [t for i, one in enumerate(found) for t in _flatten(one, f"{path}.{i}")]
    return [f"{path.removeprefix('.')} = {json.dumps(found)}"]


def _shorten(found: Any) -> Any:
    """An answer with lists of numbers as their length, digest and last number."""
    if isinstance(found, Mapping):
        return {key: _shorten(value) for key, value in found.items()}
    if isinstance(found, list) and any(isinstance(one, Mapping) for one in found):
        return [_shorten(one) for one in found]
    if isinstance(found, list) and len(found) > 8:
        return [len(found), _digest(json.dumps(found).encode()), found[-1]]
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
