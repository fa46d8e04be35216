"""One config in several processes: one model, one folder, one receipt."""

import sys

import numpy as np
import pytest

from forked import frugax
from frugax import compress, watch
from frugax.budget import Verdict
from frugax.run import Outcome
from frugax.train import distributed

pytestmark = pytest.mark.slow

TASK = """
import os, signal
import jax, jax.numpy as jnp, numpy as np
from frugax.run import Task

def task(kill_at=-1):
    def init(key):
        a, b = jax.random.split(key)
        return {"w": jax.random.normal(a, (8, 2048)) / 4, "v": jnp.zeros((2048, 1))}

    def data(step):
        x = np.random.default_rng(step).normal(size=(16, 8)).astype("float32")
        return x, np.sin(x[:, :1])

    def batches(step):
        if step == kill_at and jax.process_index() == 1 and not os.path.exists("shot"):
            open("shot", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return data(step)

    def loss(p, batch):
        x, y = batch
        return jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2)

    def evaluate(p):
        x, y = data(10_000)
        error = jnp.abs(jnp.tanh(x @ p["w"]) @ p["v"] - y)[:, 0]
        return {"loss": error.mean(), "accuracy": np.asarray(error) < 0.5}

    def show(p):
        return {"weights": {"w": p["w"][:, :4]}}

    return Task(init=init, loss=loss, batches=batches, evaluate=evaluate, show=show)
"""
CONFIG = """
name: spread
task: spread:task
options: {kill_at: KILL_AT}
train:
  steps: 40
  learning_rate: 1e-3
  ema: 0.9
  evaluate_every: 10
  save_every: 10
  keep: best
  layout: {kind: KIND, shape: [4]}
budgets:
  time: {seconds: 10min, compiles: 1}
  memory: 64MiB
  size: 3x
  accuracy_drop: 0.5
"""


def write(folder, kind="fully-sharded", kill_at=-1):
    (folder / "spread.py").write_text(TASK)
    text = CONFIG.replace("KIND", kind).replace("KILL_AT", str(kill_at))
    (folder / "spread.yaml").write_text(text)


def start(folder, monkeypatch, *more, **options):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.chdir(folder)
    command = [sys.executable, "-m", "frugax.cli", "run", "spread.yaml", *more]
    return distributed.launch(command, processes=2, devices=2, **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    ["fully-sharded", "data"],
)
def test_two_processes_train_the_model_that_one_trains(tmp_path, monkeypatch, kind):
    write(tmp_path, kind)
    alone = frugax("run", "spread.yaml", "--runs", "alone", cwd=tmp_path)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert start(tmp_path, monkeypatch) == 0
    folders = [tmp_path / "alone" / "spread", tmp_path / "runs" / "spread"]
    assert not (tmp_path / "runs" / "spread-2").exists()
    one, two = (Outcome.from_json((f / "receipt.json").read_text()) for f in folders)
    assert two.steps == one.steps
    assert [step for step, _ in two.evaluations] == [0, 10, 20, 30, 40]
    for (_, here), (_, there) in zip(one.evaluations, two.evaluations, strict=True):
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-4)
    assert {s.name for s in two.receipt.spends} == {s.name for s in one.receipt.spends}
    assert two.receipt.verdict is not Verdict.BROKEN
    weights = [compress.decompress((f / "model.fxz").read_bytes()) for f in folders]
    for name, values in weights[0].items():
        np.testing.assert_allclose(values, weights[1][name], atol=1e-2)
    journals = folders[1] / "journal", folders[1] / "process1" / "journal"
    first, other = (watch.read(path, strict=True) for path in journals)
    assert first["loss"][-1] == other["loss"][-1]


@pytest.mark.thorough
def test_a_run_that_lost_a_process_continues_after_the_restart(tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    write(whole)
    assert start(whole, monkeypatch) == 0
    write(killed, kill_at=25)
    assert start(killed, monkeypatch, "--resume-latest", restarts=1) == 0
    assert (killed / "shot").exists()
    assert [p.name for p in (killed / "runs").iterdir()] == ["spread"]
    models = [f / "runs" / "spread" / "model.fxz" for f in (whole, killed)]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.thorough
def test_an_impossible_config_is_refused_by_every_process(tmp_path, monkeypatch, capfd):
    write(tmp_path)
    code = start(tmp_path, monkeypatch, "--set", "train.layout.shape=[2]")
    assert code == 2
    assert "uses the devices of 1 of 2 processes" in capfd.readouterr().err
    assert not list((tmp_path / "runs").glob("*"))
