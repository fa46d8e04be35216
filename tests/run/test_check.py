"""The results of a task's functions are checked before anything is planned."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import train
from frugax.errors import ConfigError
from frugax.run import Task
from frugax.run._bound_task import BoundTask
from frugax.run._fingerprint import compare
from frugax.run._task_checks import check_batch, check_loss, evaluate_model
from refusals import refuses

W, X = jnp.ones((4, 2)), np.ones((8, 4), "float32")


def check(loss, carried=None):
    step = train.make_train_step(loss, optax.sgd(0.1))
    check_loss(step, step.init(W, carried=carried), X)


def test_a_scalar_with_or_without_metrics_is_a_loss():
    check(lambda w, x: (x @ w).mean())
    check(lambda w, x: train.Weighted((x @ w).sum(), 8))
    weighted = lambda w, x: train.Weighted((x @ w).sum(), x.sum())
    check(
        lambda w, x: ((x @ w).mean(), {"largest": (x @ w).max(), "n": weighted(w, x)})
    )


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (lambda w, x: x @ w, "[8,2]. Take the mean"),
        (lambda w, x: 3, "got 3"),
        (lambda w, x: jnp.int32(3), "int32[]"),
        (lambda w, x: None, "None"),
        (lambda w, x: ((x @ w).mean(), {"a": x}), "'a'"),
        (lambda w, x: ((x @ w).mean(), {"loss": x.sum()}), "'loss'"),
        (lambda w, x: ((x @ w).mean(), {"seconds": x.sum()}), "'seconds'"),
        (lambda w, x: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_result_that_is_not_a_loss_is_named(loss, named):
    with refuses(ConfigError, named):
        check(loss)


def test_a_loss_that_omits_its_carried_arrays_is_refused():
    carried = {"n": jnp.zeros(2)}
    check(lambda w, x, c: ((x @ w).mean(), {}, c), carried)
    with refuses(ConfigError, "carried"):
        check(lambda w, x, c: ((x @ w).mean(), {}), carried)
    with refuses(ConfigError, "'n'"):
        check(lambda w, x, c: ((x @ w).mean(), {}, {"n": c["n"].sum()}), carried)


def test_a_batch_is_made_of_arrays():
    check_batch({"x": X, "n": 3})
    for batch, named in [
        ({"x": (i for i in range(3))}, "'x'"),
        (None, "None"),
        ({}, "empty"),
        (X[:0], "(0, 4)"),
        ({"x": "abc"}, "abc"),
        (np.array(["a", "b"]), "text"),
        (np.array([None]), "pytree"),
    ]:
        with refuses(ConfigError, named):
            check_batch(batch)


def evaluate(said):
    task = Task(lambda key: W, lambda w, x: 0.0, [X], lambda w: said)
    return evaluate_model(BoundTask.build(task, W), W)


def test_an_evaluation_is_a_dict_of_numbers_or_of_one_for_each_example():
    assert evaluate({"accuracy": jnp.float32(0.5)}).values == {"accuracy": 0.5}
    found = evaluate({"accuracy": np.array([True, True, False, True])})
    assert found.values == {"accuracy": 0.75}
    assert found.examples["accuracy"].tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (0.5, 0.5),
        ({"accuracy": "high"}, "high"),
        ({"accuracy": np.ones((3, 2))}, "accuracy"),
        ({"accuracy": np.ones(0)}, "accuracy"),
    ],
)
def test_a_result_that_is_not_an_evaluation_is_named(said, named):
    with refuses(ConfigError, named):
        evaluate(said)


def test_another_number_of_devices_is_a_note_and_another_kind_is_refused():
    versions = lambda device: {"versions": {"device": device, "jax": "1"}}
    before = versions("4 x cpu (cpu)")
    (fewer,) = compare(before, versions("3 x cpu (cpu)"))
    assert fewer == ("number of devices: 4 -> 3", True)
    (other,) = compare(before, versions("4 x H100 (gpu)"))
    assert other == ("device: 4 x cpu (cpu) -> 4 x H100 (gpu)", False)


def test_a_checkout_that_is_not_installed_says_so(monkeypatch):
    import importlib.metadata

    import frugax
    from frugax.run._environment import describe_environment

    def version(name):
        if name == "frugax":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.delitem(vars(frugax), "__version__", raising=False)
    assert describe_environment()["frugax"] == "not installed"
    del frugax.__version__  # or a later test would find it
