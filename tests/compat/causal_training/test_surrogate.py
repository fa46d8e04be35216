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

_SETS = (frozenset(), frozenset("a"), frozenset("b"))
_PROBS = np.array([0.5, 0.3, 0.2], np.float32)
_SMALL = guide.SurrogateTrainingConfig(model_hidden_dim=4, model_n_layers=0)


def _posterior(*probs):
    return causal.ParentSetPosterior(
        target="y", parent_sets=_SETS[: len(probs)], probs=np.array(probs)
    )


@pytest.mark.parametrize(
    ("expert", "listed", "probs"),
    [
        (_posterior(0.5, 0.3, 0.2), _SETS, [0.5, 0.3, 0.2]),
        (_posterior(0.5, 0.3, 0.2), _SETS[::-1], [0.2, 0.3, 0.5]),
        # Fewer listed sets: the expert given that one of them is true.
        (_posterior(0.5, 0.3, 0.2), _SETS[:2], [0.625, 0.375]),
        # A posterior of fewer sets: the others have no probability.
        (_posterior(0.6, 0.4), _SETS, [0.6, 0.4, 0.0]),
    ],
)
def test_a_posterior_counts_as_probabilities_of_the_listed_sets(expert, listed, probs):
    logits = jnp.array([0.1, -0.4, 0.7][: len(listed)])
    expected = guide.kl_divergence_loss_jax(logits, jnp.array(probs))
    found = guide.kl_divergence_loss(logits, expert, listed)
    assert float(found) == pytest.approx(float(expected))


def test_a_posterior_needs_sets_that_it_believes_in():
    with refuses(ValueError, "parent_sets", None):
        guide.kl_divergence_loss(jnp.zeros(2), _posterior(0.6, 0.4))
    with refuses(ValueError, "parent_sets", 1, []):
        guide.kl_divergence_loss(jnp.zeros(1), _posterior(0.6, 0.4), [frozenset("ab")])


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


def _problem(d=3, batch_size=4):
    names = [f"v{i}" for i in range(d)]
    equations = {
        n: {m: 1.0} if m else {} for m, n in zip(["", *names], names, strict=False)
    }
    scm = causal.SCM.linear(equations, noise_scale=0.5)
    samples = causal.collect_observational_data(scm, 40, seed=0)
    return guide.create_training_batch(samples, scm, batch_size)


def test_a_batch_lists_the_truth():
    batch = _problem()
    for example in batch.examples:
        posterior = example.expert_posterior
        truth = {"v0": set(), "v1": {"v0"}, "v2": {"v1"}}[posterior.target]
        assert posterior.best == truth
    arrays = guide.convert_to_jax_batch(batch)
    assert arrays.observational_data.shape == (4, 40, 3, 4)
    # The fourth is the first variable again, with fewer rows, filled up.
    assert arrays.observational_data[3, :, :, 3].sum() == 30 * 3


def test_examples_of_different_width_score_as_they_do_alone():
    examples = [*_problem(3, 3).examples, *_problem(5, 2).examples]
    arrays = guide.convert_to_jax_batch(guide.TrainingBatch(examples))
    assert arrays.observational_data.shape == (5, 40, 5, 4)
    np.testing.assert_allclose(arrays.expert_probs.sum(1), 1, rtol=1e-5)
    model = guide.create_parent_set_model(_SMALL)
    params = model.init(jax.random.key(0))
    together = model.apply(params, arrays)["parent_set_logits"]
    alone = guide.convert_to_jax_batch(guide.TrainingBatch(examples[:3]))
    apart = model.apply(params, alone)["parent_set_logits"]
    np.testing.assert_allclose(together[:3, : apart.shape[1]], apart, atol=1e-4)


def test_of_many_variables_the_related_ones_and_the_parents_are_taken():
    example = _problem(15, 6).examples[5]
    assert len(example.samples.variables) == 12
    assert example.expert_posterior.target == "v5"
    assert example.expert_posterior.best == {"v4"}


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
        ({"observational_data": np.zeros((4, 9, 3))}, ((4, 9, 3),)),
        ({"observational_data": np.zeros((4, 9, 13, 4))}, (13, 12)),
    ],
)
def test_batches_whose_parts_do_not_fit_together_are_refused(changed, named):
    model = guide.create_parent_set_model(_SMALL)
    batch = dataclasses.replace(guide.convert_to_jax_batch(_problem()), **changed)
    with refuses(ValueError, *named):
        model.apply(model.init(jax.random.key(0)), batch)


@pytest.mark.slow
def test_one_program_for_all_sizes_and_data_reach_the_weights():
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

    first, _, metrics = call(_problem())
    assert float(metrics["mean_expert_accuracy"]) == 1
    call(_problem(6))  # other variables, other lists of sets
    assert step.compiles == 1
    data = guide.convert_to_jax_batch(_problem()).observational_data
    broken = data.at[:, :, 1, 0].set(jnp.roll(data[:, :, 1, 0], 7, axis=1))
    other, _, _ = call(_problem(), broken)
    assert max(float(jnp.abs(first[n] - other[n]).max()) for n in first) > 1e-5
    logits = model.apply(params, guide.convert_to_jax_batch(_problem()))
    assert logits["parent_set_logits"].shape == (4, 4)


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
