"""Mistakes in a task's own functions end a run with one line and exit code 2."""

import json
import re
import shutil
from typing import Any

import jax
import pytest

from forked import inline
from frugax.errors import ConfigError
from frugax.run import RunFolder, compare_runs
from frugax.train.compiles import use_compile_cache_by_default
from refusals import refuses

HEAD = """\
import jax, jax.numpy as jnp, numpy as np, sys
X = np.linspace(0, 1, 64, dtype="float32").reshape(16, 4)
calls = []
def init(key):
    return {"w": jnp.ones((4, 1))}
def loss(p, b):
    return jnp.mean((b @ p["w"]) ** 2)
def batches(i):
    return X
def evaluate(p):
    return {"e": jnp.mean(p["w"])}
def task():
    from frugax.run import Task
    functions = {k: globals()[k] for k in ("init", "loss", "batches", "evaluate")}
    more = {k: globals().get(k) for k in ("show", "optimizer")}
    return Task(**functions, **more)
"""
CONFIG = "{name: f, task: 'mistake:task', train: {steps: 5%s}}"


def run(home, task, train=""):
    (home / "c.yaml").write_text(CONFIG % train)
    (home / "mistake.py").write_text(HEAD + task)
    return inline("run", "c.yaml", cwd=home)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("sys.exit(0)", "mistake ended the program .* .SystemExit 0."),
        ("x = (", r"importing mistake raised SyntaxError at mistake.py:\d+: "),
        ("def init(key): sys.exit(0)", "init raised SystemExit at mistake.py"),
        ("def init(key): return {1: X, 'a': X}", "task: init: "),
        (
            "def init(key): return {'a.b': X, 'a': {'b': X}}",
            "two leaves are named 'a.b'",
        ),
        ("def init(key): return {'w': np.array([None])}", "task: init: .*dtype object"),
        (
            "def evaluate(p, x): return {'e': 1.0}",
            "take .model.: this model has no car",
        ),
        ("def evaluate(p): return {1: 1.0}", "names a figure 1: a name must be text"),
        (
            "f = jax.jit(lambda p: p['w'] + 1, donate_argnums=0)\n"
            "def evaluate(p): return {'e': f(p).mean()}",
            "evaluate has deleted or donated",
        ),
        (
            "def loss(p, b): return jnp.mean(b @ p['w']), {'': jnp.float32(1)}",
            "a metric of loss: a name must be text",
        ),
        (
            "def loss(p, b): return jnp.mean(b @ p['w']), {'a': jnp.complex64(1)}",
            "'a' of loss must be a real scalar",
        ),
        ("def show(p): return {'s': {'': p['w']}}", "'s' of show: a name must be text"),
        ("def show(p): return {'s': {'w': p['w'][:0]}}", "an array of some"),
        ("def batches(i): return [X, X][i]", "batches raised IndexError at mistake.py"),
        ("class L: dataset, batch_size = X, 3\nbatches = L()", "batches=x.dataset"),
        ("optimizer = 1e-3", "optimizer must be an optimiser of optax, .* 0.001"),
        (
            "import optax\n"
            "optimizer = optax.multi_transform({}, lambda p: {'w': 'train'})",
            "task: optimizer.init raised ValueError: ",
        ),
        ("async def task(): return 1", "a coroutine; write `def` in place of"),
        (
            "class L:\n  def __iter__(self): return self\n"
            "  def __next__(self): return X\n"
            "  def set_state(self, state): pass\n"
            "  def get_state(self): return repr(self).encode()\nbatches = L()",
            r"position holds <mistake.L object at 0x\w+>, an address .* a __repr__",
        ),
    ],
)
def test_an_error_from_the_start_leaves_no_folder(tmp_path, task, message):
    before = {"c.yaml", "mistake.py", "__pycache__"}
    check(run(tmp_path, task), message)
    assert {p.name for p in tmp_path.iterdir()} <= before


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            "def batches(i):\n  if i == 3: raise OSError('disk gone')\n  return X",
            r"batches raised OSError at mistake.py:\d+: disk gone",
        ),
        (
            "def batches(i):\n  if i == 3: sys.exit(0)\n  return X",
            "batches raised SystemExit",
        ),
        ("def batches(i): return None if i == 3 else X", r"batches\(3\) is None"),
        (
            "def batches(i): return np.array(['a']) if i == 3 else X",
            r"batches\(3\) holds text",
        ),
        ("def batches(i): return X[:0] if i == 3 else X", r"batches\(3\) has no rows"),
        (
            "def batches(i): return X[:, :2] if i == 3 else X",
            "loss raised TypeError at",
        ),
        (
            "def evaluate(p):\n  calls.append(1)\n  return {f'e{len(calls)}': 1.0}",
            "evaluate returned .'e1'. before and .'e2'. now",
        ),
    ],
)
def test_an_error_during_training_keeps_the_checkpoint(tmp_path, task, message):
    found = run(tmp_path, task)
    check(found, message)
    assert "Resume with: frugax run --resume runs/f" in found.stdout or "e1" in message
    assert not (tmp_path / "runs" / "f" / "receipt.json").exists()


def check(found, message):
    assert found.returncode == 2, found.stderr
    assert re.search(message, found.stderr), found.stderr
    assert found.stderr.count("\n") == 1
    assert "Traceback" not in found.stderr


def test_weights_that_are_not_finite_at_the_start_leave_nothing(tmp_path):
    check(
        run(tmp_path, "def init(key): return {'w': X[:4, :1] * np.nan}"), "not finite"
    )
    assert not (tmp_path / "runs").exists()


def test_optax_refuses_its_arguments_before_anything_is_written(tmp_path):
    found = run(tmp_path, "", ", optimizer: {name: adam, b1: high}")
    check(found, "train.optimizer: optax with these arguments raised TypeError: unsup")
    assert not (tmp_path / "runs").exists()


def test_a_batch_that_accum_does_not_divide_is_named_without_blaming_the_loss(tmp_path):
    found = run(tmp_path, "", ", accum: 3")
    check(
        found,
        "task: a batch of 16 rows cannot be divided into 3 micro-batches: take a batch",
    )
    check(run(tmp_path, "", ", accum: 99"), "take a batch of 99[.]")


def test_evaluate_may_change_the_dicts_that_it_is_given(tmp_path):
    found = run(tmp_path, "def evaluate(p): return {'e': p.pop('w').mean()}")
    assert found.returncode == 0, found.stderr


def test_a_folder_that_is_removed_meanwhile_is_named(tmp_path):
    task = (
        "import shutil\n"
        "def evaluate(p):\n"
        "  calls.append(1)\n"
        "  if len(calls) > 2: shutil.rmtree('runs')\n"
        "  return {'e': 1.0}"
    )
    check(run(tmp_path, task), "runs/f: files of this run were removed while it ran")


def test_a_bucket_as_runs_folder_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG % "")
    found = inline("run", "c.yaml", "--runs", "gs://bucket/runs", cwd=tmp_path)
    check(found, "the folder of a run must be on a disk")
    assert [p.name for p in tmp_path.iterdir()] == ["c.yaml"]


@pytest.mark.parametrize("origin", ["[]", '{"fing', '{"fingerprints": 3}'])
def test_a_damaged_origin_is_named(tmp_path, origin):
    folder = RunFolder(tmp_path)
    folder.origin.write_text(origin)
    with refuses(ConfigError, "origin.json"):
        folder.read_origin("fingerprints")
    folder.origin.write_text('{"config_folder": 5}')
    with refuses(ConfigError, "config_folder"):
        folder.config_folder()


def test_a_home_that_cannot_be_written_to_does_not_stop_a_run(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    config: Any = jax.config
    before = config.jax_compilation_cache_dir
    config.update("jax_compilation_cache_dir", None)
    try:
        use_compile_cache_by_default()
        assert config.jax_compilation_cache_dir is None
    finally:
        config.update("jax_compilation_cache_dir", before)


def test_a_batch_may_hold_random_keys(tmp_path):
    task = (
        "def batches(i): return X, jax.random.key(i)\n"
        "def loss(p, b): return (b[0] @ p['w']).mean() * jax.random.normal(b[1])"
    )
    found = run(tmp_path, task)
    assert found.returncode == 0, found.stderr


def test_compared_runs_are_named_apart_and_a_damaged_receipt_is_named(tmp_path):
    assert run(tmp_path, "").returncode == 0
    folders = [tmp_path / name / "runs" / "f" for name in ("a", "b")]
    for folder in folders:
        shutil.copytree(tmp_path / "runs" / "f", folder)
    found = compare_runs(folders)
    assert found.names == ("a/runs/f", "b/runs/f")
    assert found.to_page().count('class="wide"') == 1  # their configs are the same
    for text in ("{}", '{"spends": [], "verdict": "kept", "steps": 3}'):
        (folders[1] / "receipt.json").write_text(text)
        with refuses(ConfigError, "f"):
            compare_runs(folders)


def test_carried_arrays_that_turn_nan_are_named_and_not_kept(tmp_path):
    task = (
        "def init(key): return {'w': jnp.ones((4, 1))}, {'mean': X[0]}\n"
        "def loss(p, b, c):\n"
        "  return jnp.mean((b @ p['w']) ** 2), {}, {'mean': c['mean'] * jnp.nan}\n"
        "def evaluate(p, c):\n"
        "  return {'accuracy': np.argmax(X - np.asarray(c['mean']), 1) == 0}\n"
    )
    budgets = "}, budgets: {size: {rel_error: 0.01}, accuracy_drop: 0.1"
    found = run(tmp_path, task, budgets)
    assert found.returncode == 1, found.stderr
    receipt = json.loads((tmp_path / "runs" / "f" / "receipt.json").read_text())
    spends = {spend["name"]: spend for spend in receipt["spends"]}
    lost = spends["accuracy lost by compression"]
    assert (lost["verdict"], lost["measured"]) == ("cannot tell", None)
    assert "NaN is in carried.mean" in lost["problems"]
    assert any("NaN is in carried.mean" in note for note in receipt["notes"])
    assert any("'carried.mean' (4)" in note for note in receipt["notes"])
