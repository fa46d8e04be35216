"""A run that was killed or interrupted resumes to the same numbers, bit for bit."""

import random
import shutil
import signal
import time

import filelock
import numpy as np
import pytest

from forked import Command, frugax
from frugax import watch
from frugax.run import load_config, unfinished_folder

pytestmark = pytest.mark.slow

TASK = """
import time
import jax, jax.numpy as jnp, numpy as np
def task(pause=0.0):
    def init(key):
        a, b = jax.random.split(key)
        return {"w": jax.random.normal(a, (8, 32)), "v": jax.random.normal(b, (32, 1))}
    def loss(p, x):
        return jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] - jnp.sin(x[:, :1])) ** 2)
    def batches(step):
        time.sleep(pause)  # so that there is time to kill it
        return np.random.default_rng(step).normal(size=(16, 8)).astype("float32")
    return init, loss, batches
"""
CONFIG = """
name: small
task: resumable:task
options: {pause: PAUSE}
train: {steps: 120, save_every: 20, learning_rate: 1e-2}
budgets: {time: {seconds: 10min, compiles: 1}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("resume")
    (home / "resumable.py").write_text(TASK)
    (home / "slow.yaml").write_text(CONFIG.replace("PAUSE", "0.03"))
    (home / "fast.yaml").write_text(CONFIG.replace("PAUSE", "0.0"))
    done = frugax("run", "fast.yaml", "--runs", "whole", cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    return home


def start(home, runs):
    process = Command("run", "slow.yaml", "--runs", runs, cwd=home)
    checkpoints = home / runs / "small" / "checkpoints"
    while not list(checkpoints.glob("*/frugax.json")):
        assert process.poll() is None, process.wait()
        time.sleep(0.02)
    return process


def go_on(home, runs):
    done = frugax("run", "--resume", f"{runs}/small", cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_same_run(home, runs):
    whole, resumed = home / "whole" / "small", home / runs / "small"
    # Without a size budget the file is exact and deterministic: equal bytes are equal
    # weights, to the last bit.
    assert (whole / "model.fxz").read_bytes() == (resumed / "model.fxz").read_bytes()
    a, b = (watch.read(run / "journal", strict=True) for run in (whole, resumed))
    # Which steps are recorded depends on the machine: watching thins itself.
    _, in_a, in_b = np.intersect1d(a.steps, b.steps, return_indices=True)
    np.testing.assert_array_equal(a["loss"][in_a], b["loss"][in_b])
    assert a.steps[-1] == b.steps[-1]
    assert len(in_a) > 1


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_a_random_moment(home, seed):
    runs = f"killed{seed}"
    process = start(home, runs)
    time.sleep(random.Random(seed).uniform(0, 3.0))
    process.send_signal(signal.SIGKILL)
    process.wait()
    go_on(home, runs)
    assert_same_run(home, runs)


@pytest.mark.thorough
def test_a_scheduler_that_ends_the_run_gets_its_code_and_a_checkpoint(home):
    process = start(home, "terminated")
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    done = process.wait()
    assert (done.returncode, done.stderr) == (143, "")
    assert "resuming after step" in go_on(home, "terminated")


def test_interrupted_by_ctrl_c(home):
    process = start(home, "interrupted")
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    done = process.wait()
    assert done.returncode == 130, done
    assert "frugax run --resume interrupted/small" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "resuming after step" in go_on(home, "interrupted")
    assert_same_run(home, "interrupted")


@pytest.mark.thorough
def test_two_processes_cannot_work_in_one_folder(home):
    process = start(home, "shared")
    second = frugax("run", "--resume", "shared/small", cwd=home)
    assert second.returncode == 2
    assert "another frugax run is working in this folder" in second.stderr
    assert process.wait().returncode == 0
    assert_same_run(home, "shared")
    assert not (home / "shared" / "small" / ".lock").exists()


@pytest.mark.thorough
def test_a_resumed_run_out_of_time_is_finished_with_its_weights(home):
    process = start(home, "late")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    process.wait()
    change = ["--set", "budgets.time=2s"]
    done = frugax("run", "--resume", "late/small", *change, "--allow-broken", cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 120 steps: the time budget was used up" in done.stdout
    assert (home / "late" / "small" / "model.fxz").exists()


def test_too_little_time_for_one_step_is_reported_for_the_whole_run(home):
    done = frugax(
        "run", "slow.yaml", "--runs", "none", "--set", "budgets.time=100ms", cwd=home
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "budgets.time: this run" in done.stderr
    assert "but the budget is 0.1 (" in done.stderr
    assert not (home / "none" / "small").exists()


def test_the_newest_unfinished_run_of_a_config_is_found(home, tmp_path):
    config = load_config(home / "fast.yaml")
    for name in ("small", "small-2", "small-3", "small-4"):
        shutil.copytree(home / "whole" / "small", tmp_path / name)
    assert unfinished_folder(tmp_path, config) is None
    for name in ("small", "small-2", "small-4"):
        (tmp_path / name / "receipt.json").unlink()
    # Of another config, by one key.
    text = (tmp_path / "small-4" / "config.yaml").read_text()
    (tmp_path / "small-4" / "config.yaml").write_text(text.replace("120", "121"))
    found = unfinished_folder(tmp_path, config)
    assert found is not None
    assert found.path.name == "small-2"
    with filelock.FileLock(found.lock, is_singleton=False):  # another process's
        found = unfinished_folder(tmp_path, config)
    assert found is not None
    assert found.path.name == "small"
