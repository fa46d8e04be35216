"""The older guide's names: losses, batches, and the three steps."""

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import causal
from frugax.compat import causal_training as guide

_SETS = (frozenset(), frozenset("a"), frozenset("b"))
_PROBS = np.array([0.5, 0.3, 0.2], np.float32)


@pytest.mark.parametrize(
    "loss", [guide.kl_divergence_loss, guide.uncertainty_weighted_loss]
)
def test_losses_take_arrays_and_posteriors(loss):
    logits = jnp.array([0.1, -0.4, 0.7], jnp.float32)
    expert = causal.ParentSetPosterior(target="y", parent_sets=_SETS, probs=_PROBS)
    turned = causal.ParentSetPosterior(
        target="y", parent_sets=_SETS[::-1], probs=_PROBS[::-1]
    )
    expected = loss(logits, jnp.asarray(_PROBS), _SETS)
    assert float(loss(logits, expert, _SETS)) == pytest.approx(float(expected))
    assert float(loss(logits, turned, _SETS)) == pytest.approx(float(expected))
    assert float(loss(jnp.log(_PROBS), expert, _SETS)) == pytest.approx(0, abs=1e-6)
    # Fewer listed sets: the expert given that one of them is true.
    given = jnp.asarray(_PROBS[:2] / _PROBS[:2].sum())
    fewer = loss(logits[:2], expert, _SETS[:2])
    assert float(fewer) == pytest.approx(float(loss(logits[:2], given, _SETS[:2])))
    # A posterior of fewer sets: the others have no probability.
    known = causal.ParentSetPosterior(
        target="y", parent_sets=_SETS[:2], probs=np.array([0.6, 0.4])
    )
    padded = jnp.array([0.6, 0.4, 0.0], jnp.float32)
    expected = loss(logits, padded, _SETS)
    assert float(loss(logits, known, _SETS)) == pytest.approx(float(expected))
    with pytest.raises(ValueError, match="believes in none of the 1 parent_sets"):
        loss(logits[:1], known, [frozenset("ab")])
    with pytest.raises(ValueError, match="needs parent_sets"):
        loss(logits, expert)


def test_kl_divergence_equals_its_formula():
    logits = np.array([0.1, -0.4, 0.7], np.float32)
    q = np.exp(logits) / np.exp(logits).sum()
    expected = (_PROBS * np.log(_PROBS / q)).sum()
    found = guide.kl_divergence_loss_jax(jnp.asarray(logits), jnp.asarray(_PROBS))
    assert float(found) == pytest.approx(expected, rel=1e-4)
    padded = guide.kl_divergence_loss_jax(
        jnp.append(jnp.asarray(logits), jnp.float32(-1e9)),
        jnp.append(jnp.asarray(_PROBS), jnp.float32(0)),
    )
    assert float(padded) == pytest.approx(expected, rel=1e-4)


def test_other_losses():
    logits = jnp.zeros(3, jnp.float32)
    kl = guide.kl_divergence_loss(logits, jnp.asarray(_PROBS), _SETS)
    found = guide.calibrated_loss(logits, jnp.asarray(_PROBS), _SETS, _SETS[1], 0.5)
    assert float(found - kl) == pytest.approx(0.5 * np.log(3), rel=1e-4)
    with pytest.raises(ValueError, match="'c'"):
        guide.calibrated_loss(logits, jnp.asarray(_PROBS), _SETS, frozenset("c"))
    both = guide.multi_target_loss([logits] * 2, [jnp.asarray(_PROBS)] * 2, [_SETS] * 2)
    assert float(both) == pytest.approx(float(kl))


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
    assert batch.batch_size == 4
    for example in batch.examples:
        truth = {"v0": set(), "v1": {"v0"}, "v2": {"v1"}}[example.target_variable]
        assert example.expert_posterior.best == truth
    arrays = guide.convert_to_jax_batch(batch)
    assert arrays.observational_data.shape == (4, 40, 3, 4)
    # The fourth is the first variable again, with fewer rows, filled up.
    assert arrays.observational_data[3, :, :, 3].sum() == 30 * 3


def test_batches_of_different_width_are_one():
    examples = [*_problem(3, 3).examples, *_problem(5, 2).examples]
    arrays = guide.convert_to_jax_batch(guide.TrainingBatch(examples))
    assert arrays.observational_data.shape == (5, 40, 5, 4)
    np.testing.assert_allclose(arrays.expert_probs.sum(1), 1, rtol=1e-5)


def test_of_many_variables_the_near_ones_and_the_parents_are_taken():
    example = _problem(15, 6).examples[5]
    assert len(example.variable_order) == 12
    assert example.target_variable == "v5"
    assert "v4" in example.variable_order


def test_bad_sizes_are_refused():
    wrong: list[dict[str, Any]] = [
        {"model_hidden_dim": 6},
        {"learning_rate": 0.0},
        {"batch_size": 0},
        {"model": "row"},
    ]
    for bad in wrong:
        with pytest.raises(ValueError, match=next(iter(bad))):
            guide.SurrogateTrainingConfig(**bad)


@pytest.mark.slow
def test_one_program_for_all_sizes_and_data_reach_the_weights():
    config = guide.SurrogateTrainingConfig(model_hidden_dim=4, model_n_layers=1)
    model = guide.create_parent_set_model({"model_hidden_dim": 4, "model_n_layers": 1})
    assert model.config == config
    optimizer = optax.sgd(0.1)
    step = guide.create_jax_surrogate_train_step(
        model, optimizer, guide.kl_divergence_loss, config
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


@pytest.mark.slow
@pytest.mark.thorough
def test_the_raw_model_learns_and_knows_no_order_of_variables_or_rows():
    config = guide.SurrogateTrainingConfig(
        model="raw", model_rows=40, model_hidden_dim=8, model_n_layers=1
    )
    model = guide.create_parent_set_model(config)
    optimizer = optax.adam(0.01)
    step = guide.create_jax_surrogate_train_step(
        model, optimizer, guide.kl_divergence_loss
    )
    params = model.init(jax.random.key(0))
    state, losses = optimizer.init(params), []
    b = guide.convert_to_jax_batch(_problem())
    for _ in range(12):
        params, state, metrics = step(
            params, state, b.parent_sets, b.variable_orders, b.target_variables,
            b.observational_data, b.expert_probs, b.expert_accuracies,
        )  # fmt: skip
        losses.append(float(metrics["kl_loss"]))
    assert step.compiles == 1
    assert losses[-1] < 0.9 * losses[0]
    logits = model.apply(params, b)["parent_set_logits"]
    turn = [2, 0, 1]
    turned = dataclasses.replace(
        b,
        observational_data=b.observational_data[:, ::-1][:, :, jnp.array(turn)],
        variable_orders=[[order[i] for i in turn] for order in b.variable_orders],
    )
    same = model.apply(params, turned)["parent_set_logits"]
    np.testing.assert_allclose(same, logits, atol=1e-4)
    assert np.abs(np.diff(np.asarray(logits), axis=1)).max() > 0.1


@pytest.mark.thorough
def test_a_model_that_cannot_be_compiled_runs_with_one_warning():
    model = guide.create_parent_set_model({"model_hidden_dim": 4, "model_n_layers": 0})
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


@pytest.mark.slow
def test_progressive_learning_compiles_once():
    config = guide.SurrogateTrainingConfig(
        model_hidden_dim=4, model_n_layers=0, batch_size=3, max_epochs=2
    )
    params, stages = guide.progressive_learning(
        config, ("easy", "medium"), problems=1, rows=30
    )
    assert [s.difficulty for s in stages] == ["easy", "medium"]
    assert stages[-1].compiles == 1
    assert np.isfinite([s.last_loss for s in stages]).all()
    before = guide.create_parent_set_model(config).init(jax.random.key(0))
    assert float(jnp.abs(params["row"] - before["row"]).max()) > 1e-4
