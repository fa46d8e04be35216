"""Each adapter writes files that its package reads, offline, and leaves no trace."""

import contextlib
import importlib.util
import json
import os
import socket
import sqlite3
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest

from frugax.errors import MissingExtraError
from frugax.watch.sinks import (
    MLflow,
    Rerun,
    Sink,
    TensorBoard,
    WandB,
)
from refusals import refuses

from ..watching import event

pytestmark = pytest.mark.slow

GRID = np.array([[1, 2, 3], [4, 5, 6]])


EVENTS = [
    event("scalar", "", 10, {"loss": np.float32(0.5), "lanes": np.array([1.0, 3.0])}),
    event("scalar", "", 11, {"loss": np.float32(0.25)}),
    event("summary", "episode", 3, {"reward": np.float64(7.5), "won": np.bool_(True)}),
    event("frame", "grid", 10, {"grid": GRID}),
    event("frame", "", 11, {"state": np.linspace(0.0, 1.0, 12).reshape(3, 4)}),
]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Nothing may leave this machine; its own processes may be talked to."""
    connect = socket.socket.connect

    def local_only(self, address):
        if self.family in {socket.AF_INET, socket.AF_INET6}:
            assert address[0] in {"127.0.0.1", "::1", "localhost"}, address
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture(autouse=True)
def no_trace():
    """Environment and threads are after a test as they were before it."""
    known = lambda: {k: v for k, v in os.environ.items() if "PYTEST" not in k}
    environment, threads = known(), set(threading.enumerate())
    yield
    assert known() == environment
    left = {t for t in threading.enumerate() if t.is_alive()} - threads
    assert not {t for t in left if not t.daemon}


def given_all(sink):
    assert isinstance(sink, Sink)
    sink.write(EVENTS[:2])
    sink.write(EVENTS[2:])
    sink.close()
    sink.close()


def test_tensorboard(tmp_path):
    if importlib.util.find_spec("tensorboardX") is None:
        pytest.skip("no tensorboardX here")
    threads = threading.active_count()
    given_all(TensorBoard(tmp_path))
    TensorBoard(tmp_path).close()  # within the same second
    assert threading.active_count() <= threads  # those of earlier tests may end
    files = list(tmp_path.iterdir())
    assert len(files) == 2
    proto = pytest.importorskip("tensorboardX.proto.event_pb2").Event
    masked_crc32c = pytest.importorskip("tensorboardX.record_writer").masked_crc32c
    data: bytes = max((f.read_bytes() for f in files), key=len)
    at, found = 0, []
    while at < len(data):
        (size,) = struct.unpack("<Q", data[at : at + 8])
        body = data[at + 12 : at + 12 + size]
        checks = [data[at + 8 : at + 12], data[at + 12 + size : at + 16 + size]]
        want = [masked_crc32c(data[at : at + 8]), masked_crc32c(body)]
        assert checks == [struct.pack("<I", c) for c in want]
        found.append(proto.FromString(body))
        at += 16 + size
    assert found[0].file_version == "brain.Event:2"
    scalars = {
        (e.step, v.tag): v.simple_value
        for e in found
        for v in e.summary.value
        if v.WhichOneof("value") == "simple_value"
    }
    assert scalars == {
        (10, "loss"): 0.5, (10, "lanes/mean"): 2.0, (10, "lanes/min"): 1.0,
        (10, "lanes/max"): 3.0, (11, "loss"): 0.25, (3, "episode/reward"): 7.5,
        (3, "episode/won"): 1.0,
    }  # fmt: skip
    images = {
        v.tag: v.image for e in found for v in e.summary.value if v.HasField("image")
    }
    assert set(images) == {"grid", "state"}
    assert images["grid"].encoded_image_string[:4] == b"\x89PNG"
    assert (images["grid"].height, images["grid"].width) == (2, 3)


def test_rerun(tmp_path):
    pytest.importorskip("rerun")
    path = tmp_path / "deep" / "run.rrd"
    given_all(Rerun(path))
    reader = pytest.importorskip("rerun.chunk").RrdReader
    rows = {}
    for chunk in reader(path).stream():
        columns = chunk.to_record_batch().to_pydict()
        steps = columns.get("step", [None])
        for name, values in columns.items():
            for step, value in zip(steps, values, strict=False):
                rows[str(chunk.entity_path), name, step] = value
    assert rows["/loss", "Scalars:scalars", 10] == [0.5]
    assert rows["/loss", "Scalars:scalars", 11] == [0.25]
    assert rows["/episode/reward", "Scalars:scalars", 3] == [7.5]
    buffer = bytes(rows["/grid", "SegmentationImage:buffer", 10][0])
    assert buffer == GRID.astype(np.uint8).tobytes()
    assert ("/state", "Image:buffer", 11) in rows


def wandb_records(path):
    """The records of a `.wandb` file: LevelDB's log format behind seven bytes."""
    record = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = 7, []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in {1, 4}:  # whole, or the last part
            yield record.FromString(b"".join(parts))
            parts = []


@pytest.mark.slow
def test_wandb(tmp_path):
    wandb = pytest.importorskip("wandb")
    pytest.importorskip("PIL")
    given_all(WandB(tmp_path, project="p", run="r", config={"seed": 3}))
    assert wandb.run is None
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = list(wandb_records(path))
    rows = [
        {"/".join(i.nested_key) or i.key: i.value_json for i in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    assert [(row["step"], row["loss"]) for row in rows if "loss" in row] == [
        ("10", "0.5"),
        ("11", "0.25"),
    ]
    assert any(row.get("episode/reward") == "7.5" for row in rows)
    assert any('"image-file"' in value for row in rows for value in row.values())
    runs = [r.run for r in records if r.HasField("run")]
    assert (runs[0].project, runs[0].display_name) == ("p", "r")


def test_metrics_whose_names_a_tool_changes_stay_apart(tmp_path):
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    values = {"step": 1.0, "step.1": 2.0, "a:b": 3.0, "a?b": 4.0}
    for sink in (WandB(tmp_path), MLflow(tmp_path / "runs")):
        sink.write([event("scalar", "", 10, values)])
        sink.close()
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    (row,) = [r.history.item for r in wandb_records(path) if r.HasField("history")]
    told = {float(i.value_json) for i in row if "timestamp" not in str(i)}
    assert {10.0, 1.0, 2.0, 3.0, 4.0} <= told
    files = (tmp_path / "runs").glob("*/*/metrics/*")
    assert {float(f.read_text().split()[1]) for f in files} == {1.0, 2.0, 3.0, 4.0}


def test_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    address = mlflow.get_tracking_uri()
    given_all(MLflow(tmp_path / "runs", run="r", params={"seed": 3}))
    given_all(MLflow(tmp_path / "runs"))
    assert mlflow.get_tracking_uri() == address
    assert mlflow.active_run() is None
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # MLflow's own reader asks for it
    try:
        client = mlflow.MlflowClient(tracking_uri=(tmp_path / "runs").as_uri())
        experiment = client.get_experiment_by_name("frugax")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        assert len(runs) == 2
        run = next(r for r in runs if r.data.params)
        assert (run.info.run_name, run.info.status) == ("r", "FINISHED")
        assert run.data.params == {"seed": "3"}
        assert run.data.metrics["episode/reward"] == 7.5
        history = client.get_metric_history(run.info.run_id, "loss")
        assert [(m.step, m.value) for m in history] == [(10, 0.5), (11, 0.25)]
        (image,) = client.list_artifacts(run.info.run_id, "frames/grid")
        assert image.path == "frames/grid/step_000010.png"
    finally:
        del os.environ["MLFLOW_ALLOW_FILE_STORE"]


@pytest.mark.parametrize(
    ("sink", "package", "extra"),
    [
        (TensorBoard, "tensorboardX", "tensorboard"),
        (Rerun, "rerun", "rerun"),
        (WandB, "wandb", "wandb"),
        (MLflow, "mlflow", "mlflow"),
    ],
)
def test_a_sink_without_its_package_names_it(
    tmp_path, monkeypatch, sink, package, extra
):
    if sink is WandB:
        pytest.importorskip("PIL")
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with refuses(MissingExtraError, extra):
        sink(tmp_path / "x")


def test_trackio(tmp_path):
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("no trackio here")
    script = (
        "import numpy as np; from frugax.watch.sinks import Event, Trackio;"
        "sink = Trackio('p', run='r', config={'lr': 0.1});"
        "sink.write([Event('scalar', '', s, {'loss': np.float32(1 / s)})"
        " for s in (1, 2)]);"
        "sink.write([Event('summary', 'episode', 7, {'reward': np.float64(7.5)})]);"
        "sink.close(); sink.close()"
    )
    # In its own process: Trackio reads its folder when it is imported.
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    with contextlib.closing(sqlite3.connect(tmp_path / "p.db")) as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    told = [(step, json.loads(metrics)) for step, metrics in rows]
    assert told == [
        (1, {"loss": 1.0}),
        (2, {"loss": 0.5}),
        (2, {"episode/reward": 7.5, "episode/step": 7}),
    ]
