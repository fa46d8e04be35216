"""Optimisers that need the loss function, and saves by their share of the time."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import train
from frugax.errors import CheckpointError
from refusals import refuses

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = np.tanh(X @ np.ones((4, 2), np.float32))


def loss(params, batch):
    x, y = batch
    return jnp.mean((jnp.tanh(x @ params["w"]) - y) ** 2)


def test_lbfgs_trains_as_by_hand():
    step = train.make_train_step(loss, optax.lbfgs())
    state = step.init({"w": jnp.full((4, 2), 0.3)})
    result = train.fit(step, state, [(X, Y)], steps=12)
    assert result.loss is not None
    assert result.loss < 1e-8  # gradient descent is far from it after 12 steps
    assert step.compiles == 1


def test_an_optimiser_gets_the_extra_arguments_that_it_names():
    optimizer = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.05))
    step = train.make_train_step(loss, optimizer)
    params = {"w": jnp.full((4, 2), 0.3)}
    own = optimizer.init(params)
    for _ in range(4):
        grads = jax.grad(loss)(params, (X, Y))
        with jax.numpy_dtype_promotion("standard"):
            updates, own = optimizer.update(grads, own, params)
        params = optax.apply_updates(params, updates)
    state = step.init({"w": jnp.full((4, 2), 0.3)})
    result = train.fit(step, state, [(X, Y)], steps=4)
    expected: Any = params
    np.testing.assert_allclose(result.state.params["w"], expected["w"], rtol=1e-5)


def test_a_line_search_over_micro_batches_is_refused_by_name():
    step = train.make_train_step(loss, optax.lbfgs(), accum=2)
    state = step.init({"w": jnp.full((4, 2), 0.3)})
    with refuses(TypeError, "accum=1"):
        step.prepare(state, (X, Y))


class Iterator:
    """An iterator whose position can be saved, as those of grain."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return X[self.at : self.at + 8], Y[self.at : self.at + 8]

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_iterator_resumes_at_the_checkpoint(tmp_path, prefetch):
    step = train.make_train_step(loss, optax.adam(0.1))
    new = lambda: step.init({"w": jnp.full((4, 2), 0.3)})
    whole = train.fit(step, new(), Iterator(), steps=9)
    checkpoints = train.Checkpoints(tmp_path)
    train.fit(
        step, new(), Iterator(), steps=5, checkpoints=checkpoints, prefetch=prefetch
    )
    state, _ = checkpoints.restore(new())
    rest = train.fit(step, state, Iterator(), steps=9, checkpoints=checkpoints)
    np.testing.assert_array_equal(rest.state.params["w"], whole.state.params["w"])
    with refuses(ValueError, 0):
        train.fit(step, rest.state, Iterator(), steps=12)

    class Other(Iterator):
        def set_state(self, state):
            raise ValueError("another source\n  a")

    state, _ = checkpoints.restore(new())
    named = "another source a"
    with refuses(CheckpointError, named):
        train.fit(step, state, Other(), steps=12, checkpoints=checkpoints)


def test_saves_take_their_share_of_the_time(tmp_path, monkeypatch):
    step = train.make_train_step(loss, optax.sgd(0.1))
    clock = itertools.count(step=0.5)  # each look at the clock takes half a second
    checkpoints = train.Checkpoints(tmp_path, keep=99)
    save = checkpoints.save

    def slow_save(*args, **options):
        save(*args, **options)
        checkpoints.last_write_s = 2.0

    monkeypatch.setattr(checkpoints, "save", slow_save)
    result = train.fit(
        step, step.init({"w": jnp.full((4, 2), 0.3)}), [(X, Y)], steps=200,
        checkpoints=checkpoints, save_share=0.05, clock=lambda: next(clock),
    )  # fmt: skip
    saves = len(checkpoints.steps())
    # Saves of two seconds at a share of 5% are 40 seconds apart, the first and last
    # ones aside.
    assert 3 <= saves <= 3 + result.ledger.wall_s / 40
