"""Training: one program, NumPy and JAX agree, the truth lowers the loss."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import TimeBudget, causal
from frugax.causal.surrogate import (
    CALIBRATION,
    TRAINING,
    draw_tasks,
    set_index,
    training_batch,
)
from frugax.causal.surrogate.evidence import other_variables, set_members
from frugax.causal.surrogate.network import apply_network, initial_weights
from frugax.train.distributed import Layout


def _weights(hidden=8, blocks=1):
    rng = np.random.default_rng(3)
    return {
        name: w + 0.1 * rng.standard_normal(w.shape, np.float32)
        for name, w in initial_weights(0, hidden, blocks).items()
    }


def test_numpy_and_jax_give_the_same_answer():
    batch = training_batch(0, 0, 4, 4)
    told, mask = batch["evidence"], batch["mask"]
    weights = _weights(blocks=2)
    here = apply_network(weights, told, mask)
    there = jax.jit(lambda weights: apply_network(weights, told, mask, xp=jnp))(weights)
    np.testing.assert_allclose(here.edges, np.asarray(there.edges), atol=1e-5)
    np.testing.assert_allclose(np.exp(here.log_sets).sum(-1), 1, rtol=1e-5)
    assert here.edges.max() > 0.05


def test_before_training_both_posteriors_count_the_same():
    batch = training_batch(0, 2, 3, 4)
    told, mask = batch["evidence"], batch["mask"]
    answer = apply_network(initial_weights(0, 8, 1), told, mask)
    linear, curved = (np.maximum(p, -40) for p in (told.linear, told.curved))
    expected = np.where(told.linear < -1e8, 0, np.exp((linear + curved) / 2))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.exp(answer.log_sets), expected, atol=1e-5)


@pytest.mark.parametrize("family", TRAINING + CALIBRATION)
def test_tasks_are_standardised(family):
    tasks = draw_tasks(5, 6, width=5, families=(family,), observed=40)
    calm, there = tasks.values[:, :40], tasks.mask > 0
    np.testing.assert_allclose(calm.mean(1)[there], 0, atol=1e-4)
    np.testing.assert_allclose(calm.std(1)[there], 1, rtol=1e-3)
    assert (tasks.intervened[:, :40] == 0).all()
    assert (tasks.intervened[:, 40:].sum(2) == 1).all()
    assert (tasks.graphs.sum((1, 2)) > 0).any()
    assert (np.linalg.matrix_power(tasks.graphs, 5) == 0).all()


@pytest.mark.parametrize("index", [4, 5])  # one of either generator
def test_a_batch_for_training_has_its_truth_and_repeats(index):
    batch, again = (training_batch(0, index, 8, 4) for _ in range(2))
    np.testing.assert_array_equal(again["evidence"].pairs, batch["evidence"].pairs)
    graphs, code = batch["graphs"], set_index(batch["graphs"])
    np.testing.assert_array_equal(batch["sets"], code)
    for b in range(8):
        for child in range(4):
            parents = other_variables(4)[child][set_members(4)[code[b, child]] > 0]
            np.testing.assert_array_equal(np.flatnonzero(graphs[b, :, child]), parents)


def test_the_posterior_depends_on_the_variables_that_were_set():
    made = causal.generate_batch(4, d=4, rows=128, seed=1)
    rows = made.values, made.intervened.astype(np.float32), np.ones_like(made.values)
    surrogate = causal.load_default_surrogate()
    told = surrogate.predict(*rows).edges
    blind = surrogate.predict(rows[0], 0 * rows[1], rows[2]).edges
    right = lambda p: np.abs(p - made.adjacency).mean()
    assert right(told) < 0.8 * right(blind)


@pytest.mark.slow
@pytest.mark.thorough
def test_training_compiles_once_and_improves():
    trained = causal.train_surrogate(
        seed=0, steps=30, variables=4, hidden=8, blocks=1, batch=16
    )
    assert trained.steps == 30
    assert [spend.measured for spend in trained.receipt.spends] == [1]
    made = causal.generate_batch(40, d=4, seed=9)
    rows = made.values, made.intervened.astype(np.float32), np.ones_like(made.values)

    def loss(surrogate):
        p = np.clip(surrogate.predict(*rows).edges, 1e-6, 1 - 1e-6)
        return -np.where(made.adjacency, np.log(p), np.log1p(-p)).mean()

    assert loss(trained.surrogate) < loss(causal.Surrogate(initial_weights(0, 8, 1)))


@pytest.mark.thorough
def test_training_on_several_devices_equals_training_on_one():
    small: dict[str, Any] = {
        "seed": 0,
        "steps": 4,
        "variables": 3,
        "hidden": 4,
        "blocks": 1,
    }
    one = causal.train_surrogate(**small, batch=8)
    eight = causal.train_surrogate(
        **small, batch=8, layout=Layout.over((8,), "data"), budget=TimeBudget("10min")
    )
    assert eight.receipt.verdict.value == "kept"
    assert len(eight.receipt.spends) == 2  # the compile and the time
    np.testing.assert_allclose(eight.losses, one.losses, atol=1e-5)
    begun = initial_weights(0, 4, 1)
    for name, weight in one.surrogate.weights.items():
        np.testing.assert_allclose(
            eight.surrogate.weights[name], weight, atol=1e-5, err_msg=name
        )
    assert np.abs(one.surrogate.weights["edge"] - begun["edge"]).max() > 1e-3
