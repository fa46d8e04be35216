"""Scores and posteriors of parent sets against the plain formulas."""

from itertools import permutations

import numpy as np
import pytest

from frugax.causal.surrogate.evidence import (
    NEVER,
    log_scores,
    order_posterior,
    other_variables,
    set_members,
)


def _gram(rng, width, rows, k=1):
    x = rng.normal(size=(rows, width)).astype(np.float32)
    for i in range(1, width):
        x[:, i] += x[:, i - 1]
    columns = np.stack([x**p for p in range(1, k + 1)], 1)
    columns -= columns.mean(0)
    flat = columns.reshape(rows, -1)
    gram = (flat.T @ flat).reshape(k, width, k, width)
    return columns, np.broadcast_to(gram[None, ..., None], (width, *gram.shape, 1))


@pytest.mark.parametrize("k", [1, 2])
def test_scores_equal_bayesian_regression(k):
    width, rows, ridge = 4, 30, 0.7
    columns, gram = _gram(np.random.default_rng(0), width, rows, k)
    ones = np.ones((width, 1), np.float32)
    found = log_scores(np.ascontiguousarray(gram), rows * ones, ones, ridge)[..., 0]
    for child in range(width):
        y = columns[:, 0, child].astype(float)
        for code, row in enumerate(set_members(width)):
            parents = other_variables(width)[child][row > 0]
            x = columns[:, :, parents].reshape(rows, -1).astype(float)
            a = x.T @ x + ridge * np.eye(x.shape[1])
            left = y @ y - y @ x @ np.linalg.solve(a, x.T @ y)
            expected = -0.5 * np.linalg.slogdet(a / ridge)[1]
            expected -= 0.5 * (rows - 1) * np.log(left / (y @ y))
            expected -= 1.2 * len(parents)
            assert found[child, code] == pytest.approx(expected, abs=0.02)


def test_the_posterior_is_the_sum_over_all_orders():
    width = 4
    rng = np.random.default_rng(1)
    score = rng.normal(size=(width, 8, 2)).astype(np.float32) * 3
    found = np.exp(order_posterior(score))
    for b in range(2):
        p = np.exp(score[..., b].astype(float))
        expected = np.zeros((width, 8))
        for order in permutations(range(width)):
            ways = np.zeros((width, 8))
            for place, child in enumerate(order):
                before = np.isin(other_variables(width)[child], order[:place])
                allowed = (set_members(width) * ~before).sum(1) == 0
                ways[child] = p[child] * allowed
            reach = ways.sum(1)
            expected += ways * (reach.prod() / reach)[:, None]
        expected /= expected.sum(1, keepdims=True)
        np.testing.assert_allclose(found[..., b], expected, rtol=1e-4)


def test_absent_variables_do_not_change_the_scores():
    rng = np.random.default_rng(2)
    _, gram = _gram(rng, 3, 40)
    ones = np.ones((3, 1), np.float32)
    small = order_posterior(
        log_scores(np.ascontiguousarray(gram), 40 * ones, ones, 1.0)
    )
    wide = np.zeros((5, 1, 5, 1, 5, 1), np.float32)
    wide[:3, :, :3, :, :3] = gram
    mask = np.array([1, 1, 1, 0, 0], np.float32)[:, None]
    padded = order_posterior(log_scores(wide, 40 * mask, mask, 1.0))
    np.testing.assert_allclose(padded[:3, :4], small, atol=1e-4)
    assert (padded[:3, 4:] < NEVER / 2).all()
