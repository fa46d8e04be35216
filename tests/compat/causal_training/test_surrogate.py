"""The older guide's names: losses, batches, and the three steps."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import causal
from frugax.compat import causal_training as guide
from refusals import refuses

_PROBS = np.array([0.5, 0.3, 0.2], np.float32)
_SMALL = guide.SurrogateTrainingConfig(model_hidden_dim=4, model_n_layers=0)


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (guide.kl_divergence_loss_jax, 1.0),
        (guide.uncertainty_weighted_loss_jax, 2 - 1.0296530 / np.log(3)),
    ],
)
def test_losses_equal_their_formulas(loss, weight):
    logits = np.array([0.1, -0.4, 0.7], np.float32)
    q = np.exp(logits) / np.exp(logits).sum()
    expected = weight * (_PROBS * np.log(_PROBS / q)).sum()
    found = loss(jnp.asarray(logits), jnp.asarray(_PROBS))
    assert float(found) == pytest.approx(expected, rel=1e-4)
    # Padding has a logit of -1e9 and no probability, and so no gradient either.
    padded = (jnp.append(logits, -1e9), jnp.append(_PROBS, 0.0))
    assert float(loss(*padded)) == pytest.approx(expected, rel=1e-4)
    assert jnp.isfinite(jax.grad(loss)(*padded)).all()


def _samples(d=3, rows=40):
    names = [f"v{i}" for i in range(d)]
    equations = {
        n: {m: 1.0} if m else {} for m, n in zip(["", *names], names, strict=False)
    }
    scm = causal.SCM.linear(equations, noise_scale=0.5)
    return causal.collect_observational_data(scm, rows, seed=0), scm


def _problem(d=3, batch_size=4, rows=40):
    return guide.create_training_batch(*_samples(d, rows), batch_size)


def test_a_batch_lists_the_truth():
    batch = _problem()
    assert batch.target_variables == ["v0", "v1", "v2", "v0"]
    truth = {"v0": set(), "v1": {"v0"}, "v2": {"v1"}}
    for target, sets, probs in zip(
        batch.target_variables, batch.parent_sets, batch.expert_probs, strict=True
    ):
        assert len(sets) == len(set(sets)) == 4
        assert sets[int(probs.argmax())] == truth[target]
    data = batch.observational_data
    assert data.shape == (4, 40, 3, 4)
    # The fourth is the first variable again, with rows drawn with replacement.
    assert not np.array_equal(data[3], data[0])
    assert np.unique(data[3, :, 0, 0]).size < 40


def test_scores_depend_on_the_set_and_not_on_its_place():
    batch = guide.convert_to_jax_batch(_problem(5, 5))
    turned = dataclasses.replace(
        batch, parent_sets=[sets[::-1] for sets in batch.parent_sets]
    )
    model = guide.create_parent_set_model(_SMALL)
    params = model.init(jax.random.key(0))
    logits = model.apply(params, batch)["parent_set_logits"]
    # 15 sets of up to three of four others, and room for a larger true one.
    assert logits.shape == (5, 16)
    again = model.apply(params, turned)["parent_set_logits"]
    np.testing.assert_allclose(again[:, :15], logits[:, 14::-1], rtol=1e-5)
    assert (logits[:, 15] < -1e8).all()


def test_scores_are_those_of_a_surrogate_with_the_same_weights():
    batch = _problem(5, 5)
    model = guide.create_parent_set_model(_SMALL)
    params = model.init(jax.random.key(0))
    surrogate = causal.Surrogate(jax.tree.map(np.asarray, params))
    samples, _ = _samples(5)
    logits = np.asarray(model.apply(params, batch)["parent_set_logits"])
    for target, sets, found in zip(
        batch.target_variables, batch.parent_sets, logits, strict=True
    ):
        posterior = surrogate.posterior(samples, target)
        known = dict(zip(posterior.parent_sets, posterior.probs, strict=True))
        expected = np.log([known[names] for names in sets])
        scores = found[: len(sets)]
        assert np.ptp(expected) > 1
        np.testing.assert_allclose(
            scores - scores[0], expected - expected[0], atol=1e-4
        )


def test_of_many_variables_the_related_ones_and_the_parents_are_taken():
    batch = _problem(15, 6)
    assert [len(order) for order in batch.variable_orders] == [12] * 6
    assert batch.parent_sets[5][0] == {"v4"}
    assert {"v4", "v5"} <= set(batch.variable_orders[5])


@pytest.mark.parametrize(
    ("name", "value"),
    [("model_hidden_dim", 6), ("learning_rate", 0.0), ("batch_size", 0)],
)
def test_sizes_out_of_range_are_refused(name, value):
    with refuses(ValueError, name, value):
        guide.SurrogateTrainingConfig(**{name: value})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"target_variables": ["q"] * 4}, ("q",)),
        ({"parent_sets": [[frozenset("q")]] * 4}, ("q",)),
        ({"parent_sets": [[frozenset({"v0"})]] * 4}, ("v0",)),
        ({"expert_probs": np.ones((4, 3))}, (0, 4, 3)),
        ({"variable_orders": [["v0", "v1", "v2", "v3"]] * 4}, (0, 4, 3)),
        ({"observational_data": np.zeros((4, 9, 13, 4))}, (13, 12)),
    ],
)
def test_batches_whose_parts_do_not_fit_together_are_refused(changed, named):
    model = guide.create_parent_set_model(_SMALL)
    batch = dataclasses.replace(guide.convert_to_jax_batch(_problem()), **changed)
    with refuses(ValueError, *named):
        model.apply(model.init(jax.random.key(0)), batch)


@pytest.mark.slow
def test_one_program_for_any_rows_and_data_reach_the_weights():
    model = guide.create_parent_set_model(
        guide.SurrogateTrainingConfig(model_hidden_dim=4, model_n_layers=1)
    )
    optimizer = optax.sgd(0.1)
    step = guide.create_jax_surrogate_train_step(
        model, optimizer, guide.kl_divergence_loss
    )
    params = model.init(jax.random.key(0))
    state = optimizer.init(params)

    def call(batch, data=None):
        b = guide.convert_to_jax_batch(batch)
        return step(
            params, state, b.parent_sets, b.variable_orders, b.target_variables,
            b.observational_data if data is None else data,
            b.expert_probs, b.expert_accuracies, jax.random.key(0),
        )  # fmt: skip

    first, _, _ = call(_problem())
    call(_problem(batch_size=4, rows=30))
    assert step.compiles == 1
    data = guide.convert_to_jax_batch(_problem()).observational_data
    broken = data.at[:, :, 1, 0].set(jnp.roll(data[:, :, 1, 0], 7, axis=1))
    other, _, _ = call(_problem(), broken)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), first, other)
    assert max(jax.tree.leaves(moved)) > 1e-5


@pytest.mark.thorough
def test_a_model_that_cannot_be_compiled_runs_with_one_warning():
    model = guide.create_parent_set_model(_SMALL)
    optimizer = optax.sgd(0.1)

    def branching(logits, probs, sets):
        loss = guide.kl_divergence_loss_jax(logits, probs, sets)
        return loss if loss > 0 else -loss

    make = guide.create_adaptive_train_step
    steps = [
        make(model, optimizer, branching),
        make(model, optimizer, guide.kl_divergence_loss, use_jax_compilation=False),
    ]
    b = guide.convert_to_jax_batch(_problem())
    losses, metrics = [], {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in steps:
            params = model.init(jax.random.key(0))
            state = optimizer.init(params)
            for _ in range(2):
                params, state, metrics = step(
                    params, state, b.parent_sets, b.variable_orders,
                    b.target_variables, b.observational_data, b.expert_probs,
                    b.expert_accuracies,
                )  # fmt: skip
            losses.append(float(metrics["total_loss"]))
    about = [w for w in told if "TracerBoolConversionError" in str(w.message)]
    assert len(about) == 1
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
