"""Nets of other libraries train, are saved and come back at the first try."""

import sys

import jax
import numpy as np
import pytest

from frugax.errors import ConfigError, InfeasibleBudgetError
from frugax.run import (
    Observer,
    RunConfig,
    RunFolder,
    TrainConfig,
    compare_runs,
    load_trained,
    plan,
    run,
)
from refusals import refuses

TASKS = '''
import equinox as eqx, flax.linen as nn, jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from frugax.run import Task

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X[:, :1]
batches = [{"x": X[:32], "y": Y[:32]}, {"x": X[32:], "y": Y[32:]}]

def error(out, y):
    return ((out - y) ** 2).mean()

class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(1)(nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x)))

def linen():
    net = Linen()
    def loss(variables, batch):
        out, new = net.apply(variables, batch["x"], True, mutable=["batch_stats"])
        return error(out, batch["y"]), new
    evaluate = lambda v: {"loss": error(net.apply(v, X, False), Y)}
    return Task(lambda key: net.init(key, X[:1], False), loss, batches, evaluate)

class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.b = nnx.Linear(8, 1, rngs=rngs)
    def __call__(self, x):
        return self.b(self.norm(self.a(x)))

def of_nnx():
    loss = lambda m, batch: error(m(batch["x"]), batch["y"])
    def evaluate(m):
        m.eval()
        return {"loss": float(error(m(X), Y))}
    return Task(lambda key: Nnx(nnx.Rngs(0)), loss, batches, evaluate)

def pair():
    def init(key):
        return {"w": jnp.zeros((4, 1))}, {"seen": jnp.zeros(()), "key": key}
    def loss(p, batch, state):
        new = {"seen": state["seen"] + 1, "key": jax.random.split(state["key"])[0]}
        return error(batch["x"] @ p["w"], batch["y"]), {}, new
    return Task(init, loss, batches, lambda p, s: {"loss": s["seen"]})

class Positions:
    """An iterator as those of grain."""
    def __init__(self):
        self.at = 0
    def __iter__(self):
        return self
    def __next__(self):
        self.at += 1
        return batches[(self.at - 1) % 2]
    def get_state(self):
        return b"%d" % self.at
    def set_state(self, state):
        self.at = int(state)

def iterator():
    loss = lambda p, batch: error(batch["x"] @ p["w"], batch["y"])
    return Task(lambda key: {"w": jnp.zeros((4, 1))}, loss, Positions())

class Examples:
    """A data set as those of torch."""
    def __len__(self):
        return len(X)
    def __getitem__(self, i):
        return {"x": X[i], "y": Y[i].tolist()}

def examples():
    loss = lambda p, batch: error(batch["x"] @ p["w"], batch["y"])
    return Task(lambda key: {"w": jnp.zeros((4, 1))}, loss, Examples(), batch_size=16)

def half_frozen():
    def labels(params):
        return {"w": "train", "fixed": "freeze"}
    def loss(p, batch):
        return error(batch["x"] @ (p["w"] + p["fixed"]), batch["y"])
    init = lambda key: {"w": jnp.zeros((4, 1)), "fixed": jnp.ones((4, 1))}
    kinds = {"train": optax.sgd(0.1), "freeze": optax.set_to_zero()}
    own = optax.multi_transform(kinds, labels)
    return Task(init, loss, batches, optimizer=own)

def huge():
    loss = lambda p, batch: (p ** 2).mean()
    return Task(lambda key: jnp.zeros((1_000_000, 1_000_000)), loss, batches)

def plain():
    loss = lambda p, batch: error(batch["x"] @ p["w"], batch["y"])
    init = lambda key: {"w": np.zeros((4, int(jax.random.bits(key) > -1)), "float32")}
    return Task(init, loss, batches)
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("nets")
    (home / "own_nets.py").write_text(TASKS)
    yield home
    sys.modules.pop("own_nets", None)


def train(home, name, *, folder=None, resume=False, accept=False, seed=0, **options):
    config = RunConfig(
        name=name,
        task=f"own_nets:{name}",
        train=TrainConfig(steps=6, **options),
        seed=seed,
    )
    folder = folder or RunFolder(home / name)
    return folder, run(
        config, folder, config_folder=home, resume=resume, accept_changes=accept
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("linen", marks=pytest.mark.thorough), "of_nnx"]
)
def test_batch_norm_trains_is_saved_and_comes_back(home, name):
    folder, outcome = train(home, name, keep="best", evaluate_every=3)
    model, task = load_trained(folder.path)
    assert task.evaluate is not None
    # Running averages came back with the weights: without them this would differ.
    found = float(task.evaluate(model)["loss"])
    assert found == pytest.approx(outcome.model.after["loss"], rel=1e-6)


def test_carried_arrays_are_counted_saved_and_given_to_evaluate(home):
    folder, outcome = train(home, "pair")
    assert outcome.model.after == {"loss": 6.0}
    (_, state), _ = load_trained(folder.path)
    assert float(state["seen"]) == 6.0
    assert jax.random.bits(state["key"]) != jax.random.bits(jax.random.key(0))


@pytest.mark.parametrize("name", ["iterator", "examples"])
def test_other_sources_of_data(home, name):
    _, outcome = train(home, name)
    assert outcome.steps == 6


def test_a_task_may_bring_its_own_optimizer(home):
    folder, outcome = train(home, "half_frozen")
    (weights, _) = load_trained(folder.path)
    assert np.ptp(weights["fixed"]) == 0 < np.ptp(weights["w"])
    assert outcome.learning_rates == ()  # its rate is not known, and not guessed
    with refuses(ConfigError, "train.warmup"):
        train(home, "half_frozen", folder=RunFolder(home / "warm"), warmup=2)


@pytest.mark.thorough
def test_runs_are_compared_by_figures_and_by_differences(home):
    folders = [train(home, "pair", folder=RunFolder(home / n), seed=s)[0].path
               for n, s in (("one", 0), ("two", 1))]  # fmt: skip
    found = compare_runs(folders)
    assert found.differences == {"seed": ("0", "1")}
    assert found.rows["training steps"] == ("6", "6")
    assert set(found.curves["loss"]) == {"one", "two"}
    assert "loss, from the file" in str(found)
    assert found.to_page().count("<svg") == len(found.curves)
    with refuses(ConfigError, "none"):
        compare_runs([folders[0], home / "none"])
    with refuses(ConfigError):
        compare_runs(folders[:1])


@pytest.mark.thorough
def test_a_resumed_run_names_changed_settings(home):
    folder, _ = train(home, "examples", folder=RunFolder(home / "changed"))
    folder.receipt.unlink()
    again = {"folder": folder, "resume": True}
    train(home, "examples", **again)
    with refuses(ConfigError, "train.learning_rate", 0.001, 0.5):
        train(home, "examples", learning_rate=0.5, **again)
    _, outcome = train(home, "examples", learning_rate=0.5, accept=True, **again)
    assert "resumed although" in outcome.notes[0]


def test_weights_that_this_machine_cannot_hold_are_refused_before_they_are_made(home):
    with refuses(InfeasibleBudgetError, "machine") as e:
        train(home, "huge")
    assert e.value.needed >= 4 * 10**12
    assert not (home / "huge").exists()


def test_fingerprints_ignore_comments_and_see_code(tmp_path, monkeypatch):
    from frugax.run._fingerprint import code_fingerprint, compare, data_fingerprint

    file = tmp_path / "fingerprinted.py"
    file.write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("fingerprinted")
    before = code_fingerprint(tmp_path)
    file.write_text("x  =  1  # one\n")
    assert code_fingerprint(tmp_path) == before
    file.write_text("x = 2\n")
    after = code_fingerprint(tmp_path)
    (change,) = compare({"code": before}, {"code": after})
    assert change.text == "the code of fingerprinted has changed"
    one, two = (data_fingerprint({"first batch": np.full(3, n)}, 3) for n in (1, 2))
    (change,) = compare({"data": one}, {"data": two})
    assert change.text == "the first batch of the data has changed"


def test_an_init_that_jax_cannot_trace_is_reported_as_unchecked(home):
    """The memory check needs shapes; leaving it out in silence hides a later crash."""
    notes = []

    class Listener(Observer):
        def note(self, text):
            notes.append(text)

    config = RunConfig(name="a", task="own_nets:plain", train=TrainConfig(steps=1))
    plan(config, config_folder=home, observer=Listener())
    (note,) = notes
    assert "memory of the model is not checked" in note
    assert "ConcretizationTypeError" in note
