"""The losses are what their formulas say, also at the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.models import accuracy, cross_entropy


def test_cross_entropy_agrees_with_its_definition():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(8, 5)) * 3, rng.integers(0, 5, 8)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = -np.log(p[np.arange(8), labels]).mean()
    got = cross_entropy(jnp.asarray(logits, "f4"), jnp.asarray(labels))
    # A few roundings of numbers below 16.
    np.testing.assert_allclose(got, expected, atol=16 * 4 * 2.0**-23)


def test_cross_entropy_and_its_gradient_stay_finite_on_large_scores():
    logits = jnp.array([[1e4, -1e4], [3e38, 0.0]])
    loss, grad = jax.value_and_grad(cross_entropy)(logits, jnp.array([1, 0]))
    assert float(loss) == 1e4
    assert np.isfinite(grad).all()


@pytest.mark.parametrize("label", [-1, 2, 100])
def test_a_label_that_is_no_class_gives_nan_not_a_wrong_number(label):
    labels = jnp.array([0, label])
    assert np.isnan(jax.jit(cross_entropy)(jnp.zeros((2, 2)), labels))


def test_accuracy_counts_the_right_ones():
    logits = jnp.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert float(accuracy(logits, jnp.array([1, 0, 0, 1]))) == 0.75
