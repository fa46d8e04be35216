"""`frugax plan CONFIG --target` plans the step that `frugax run` trains with."""

import dataclasses
import re

import jax
import pytest

from frugax import fit, run, train
from frugax.cli import main
from frugax.run import load_config
from frugax.targets import Target
from tiers import mostly_thorough

TASK = """
import jax, jax.numpy as jnp

def loss(w, x):
    y = jnp.tanh(x @ w["in"])
    return jnp.mean((y @ w["out"] - 1) ** 2), {"size": jnp.mean(y**2)}

def carrying(w, x, carried):
    value, metrics = loss(w, x)
    return value, metrics, {"mean": 0.9 * carried["mean"] + 0.1 * x.mean(0)}

def init(key):
    return {"in": jax.random.normal(key, (8, 64)), "out": jnp.ones((64, 4))}

def task():
    return init, loss, lambda step: jnp.ones((32, 8)), lambda w: {"loss": 0.0}

def carried():
    start = lambda key: (init(key), {"mean": jnp.zeros(8)})
    return start, carrying, lambda step: jnp.ones((32, 8))
"""
CONFIG = """
name: planned
task: planned_step_task:task
train: {steps: 4, optimizer: sgd}
"""
# A value that differs from the default, for each key of `train`.
CHANGES = {
    "steps": "train.steps=5",
    "learning_rate": "train.learning_rate=0.5",
    "optimizer": "train.optimizer=adamw",
    "schedule": "train.schedule=constant",
    "warmup": "train.warmup=2",
    "weight_decay": "train.optimizer=adamw train.weight_decay=0.1",
    "clip": "train.clip=1.0",
    "ema": "train.ema=0.9",
    "accum": "train.accum=4",
    "precision": "train.precision=bf16",
    "evaluate_every": "train.evaluate_every=2",
    "early_stop": "train.evaluate_every=2 train.early_stop.metric=loss",
    "save_every": "train.save_every=2",
    "keep": "train.keep=3",
    "layout": "train.layout.kind=data",
    "prefetch": "train.prefetch=1",
}
MORE = [
    "train.precision=f16",
    "train.accum=2 train.precision=bf16 train.clip=1.0",
    "train.accum=2 train.layout.shape=[4,2] train.layout.kind=fully-sharded",
    "task=planned_step_task:carried train.accum=2",
    "budgets.memory=100%",
]


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planned_step_task.py").write_text(TASK)
    file = tmp_path / "planned.yaml"
    file.write_text(CONFIG)
    return file


def trained_step(config_file, changes, monkeypatch):
    """The step that `frugax run` compiles, with its arguments."""
    seen = []
    prepare = train.TrainStep.prepare

    def remember(step, state, batch):
        # Shapes alone: the state is donated later.
        seen.append((step, *jax.eval_shape(lambda *x: x, state, batch)))
        prepare(step, state, batch)

    config = load_config(config_file, overrides=changes)
    with monkeypatch.context() as patch:
        patch.setattr(train.TrainStep, "prepare", remember)
        run.plan(config, config_folder=config_file.parent)
    return seen[-1]


def planned_step(config_file, changes, monkeypatch):
    """The program that `frugax plan` compiles for a target, its bytes, their kind."""
    seen = []
    compare = fit.compare

    def remember(workload, targets, budget, **options):
        # Without a layout a run of one process trains on one device.
        has_layout = any("layout" in change for change in changes)
        target = targets[0] if has_layout else Target.of_devices(jax.devices()[:1])
        plan = compare(workload, [target], budget, **options)
        jaxpr = jax.make_jaxpr(workload.plain(target))(*workload.place(target))
        (row,) = plan.rows
        kind = row.budget.kind if row.budget else "total"
        seen.extend([jaxpr, row.predicted, kind])
        return plan

    monkeypatch.setattr(fit, "compare", remember)
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(config_file), "--target", "cpu", "--set", *changes])
    assert ended.value.code == 0
    return seen


def without_addresses(jaxpr):
    return re.sub("0x[0-9a-f]+", "", str(jaxpr))


def test_every_key_of_train_is_changed_here(config_file):
    settings = load_config(config_file).train
    assert {f.name for f in dataclasses.fields(settings)} == set(CHANGES)


@pytest.mark.parametrize(
    "changes",
    # Of the keys that change the program of a step, `MORE` has all but this one.
    mostly_thorough(
        [*CHANGES.values(), *MORE], in_ci=[CHANGES["ema"], *MORE].__contains__
    ),
)
def test_the_planned_step_is_the_one_that_is_trained(changes, config_file, monkeypatch):
    changes = changes.split()
    step, state, batch = trained_step(config_file, changes, monkeypatch)
    planned, predicted_bytes, kind = planned_step(config_file, changes, monkeypatch)
    assert predicted_bytes == step.program.bytes_of(kind)
    if not any("layout" in change for change in changes):
        traced = step.trace(state, batch).jaxpr
        assert without_addresses(planned) == without_addresses(traced)


def test_a_key_that_changes_the_step_changes_its_plan(config_file, monkeypatch):
    plain, *_ = planned_step(config_file, ["train.accum=1"], monkeypatch)
    assert "scan" not in str(plain)
    assert "bf16" not in str(plain)
    changes = ["train.accum=4", "train.precision=bf16"]
    planned, *_ = planned_step(config_file, changes, monkeypatch)
    assert "scan" in str(planned)
    assert "bf16" in str(planned)
