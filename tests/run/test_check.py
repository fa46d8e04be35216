"""What a task's functions give back is looked at before anything is planned."""

import jax.numpy as jnp
import numpy as np
import pytest

from frugax.errors import ConfigError
from frugax.run._task import Task
from frugax.run._task_checks import check_batch, check_loss, evaluate_model

W, X = jnp.ones((4, 2)), np.ones((8, 4), "float32")


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: (x @ w).mean(),
        lambda w, x: ((x @ w).mean(), {"largest": (x @ w).max(), "n": 8}),
        lambda w, x: 0.5,
    ],
)
def test_a_scalar_with_or_without_metrics_is_a_loss(loss):
    check_loss(loss, W, X)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda w, x: x @ w, r"returns float32\[8, 2\]. Take the mean"),
        (lambda w, x: 3, r"returns 3 \(type int\)"),
        (lambda w, x: jnp.int32(3), r"returns int32\[\]"),
        (lambda w, x: "low", r"returns 'low' \(type str\)"),
        (lambda w, x: None, "returns None"),
        (
            lambda w, x: ((x @ w).mean(), x @ w),
            r"a dict of scalars, got float32\[8, 2\]",
        ),
        (lambda w, x: ((x @ w).mean(), {"a": x}), r"metric 'a' .*got float32\[8, 4\]"),
        (lambda w, x: ((x @ w).mean(), {"loss": 1.0}), "choose another name"),
    ],
)
def test_what_is_no_loss_is_named(loss, message):
    with pytest.raises(ConfigError, match=message):
        check_loss(loss, W, X)


def test_an_error_of_the_users_own_loss_passes_through():
    with pytest.raises(ZeroDivisionError):
        check_loss(lambda w, x: 1 / 0, W, X)


def test_a_batch_is_made_of_arrays():
    check_batch({"x": X, "n": 3})
    with pytest.raises(ConfigError, match=r"batches\(0\)\['x'\] is a generator"):
        check_batch({"x": (i for i in range(3))})


def task(said):
    return Task(lambda key: W, lambda w, x: 0.0, [X], lambda w: said)


def test_an_evaluation_is_a_dict_of_numbers():
    assert evaluate_model(task({"accuracy": jnp.float32(0.5)}), W) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (0.5, r"a dict of numbers.*got 0\.5"),
        ({"accuracy": "high"}, "'high' .*must be a number"),
        ({"accuracy": np.ones(3)}, r"float64\[3\] as 'accuracy'"),
    ],
)
def test_what_is_no_evaluation_is_named(said, message):
    with pytest.raises(ConfigError, match=message):
        evaluate_model(task(said), W)
