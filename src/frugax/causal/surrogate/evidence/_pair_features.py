"""The input of the surrogate's network: parent-set posteriors and pairwise features."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ._moments import BASIS
from ._parent_sets import (
    NEVER,
    log_scores,
    log_sum_exp,
    order_posterior,
    set_members,
    to_parent_child,
)

_RIDGES = (0.5, 2.0)  # of the linear and the nonlinear score
_FLOOR = np.float32(-40)  # smaller log-probabilities are equally negligible
PAIR_FEATURES = 20


class Evidence(NamedTuple):
    """The input of the network; it needs no weights.

    Attributes:
        pairs: features of each pair, parent first.
        linear: log-posterior of each child's parent sets under linear mechanisms,
            over all orders, at least -40; about -1e9 for sets with an absent variable.
        curved: the same under nonlinear mechanisms.
    """

    pairs: Float[np.ndarray, "b w w p"]
    linear: Float[np.ndarray, "b w s"]
    curved: Float[np.ndarray, "b w s"]


def compute_evidence(
    moments: Float[np.ndarray, "b w2 f f"], mask: Float[np.ndarray, "b w"]
) -> Evidence:
    """Compute posteriors of parent sets under two simple models, and pair features."""
    width = mask.shape[1]
    n = moments[:, :, 0, 0]
    # Sums of products about the mean, S - s s' / n. Values were standardized before, so
    # little cancels in this difference.
    centre = moments[:, :, :, :1] / np.maximum(n, 1.0)[:, :, None, None]
    centred = (moments - centre * moments[:, :, :1, :])[:, :, 1:, 1:]
    centred = centred.reshape(-1, width + 2, BASIS, width, BASIS, width)
    # Scores are exact to a few digits in float32, which halves their time.
    gram = np.transpose(centred[:, :width], (1, 2, 3, 4, 5, 0)).astype(np.float32)
    count, there = n[:, :width].T, mask.T
    features = []
    posteriors = []
    for kinds, ridge in zip((1, BASIS), _RIDGES, strict=True):
        score = log_scores(gram[:, :kinds, :, :kinds], count, there, ridge)
        # The posterior of each child by itself. Where it differs from the one averaged
        # over orders, acyclicity has decided.
        local = score - log_sum_exp(score, 1)[:, None]
        alone = score[:, 1 << np.arange(width - 1)] - score[:, :1]
        alone = np.clip(np.transpose(alone, (2, 0, 1)), -50, None)
        posterior = np.ascontiguousarray(np.moveaxis(order_posterior(score), 2, 0))
        believed = np.maximum(posterior, _FLOOR)
        posteriors.append(np.where(posterior < NEVER / 2, posterior, believed))
        features += [
            _logit(marginal_edges(posterior)),
            _logit(marginal_edges(np.moveaxis(local, 2, 0))),
            _squash(to_parent_child(alone)),
        ]
    features += _correlations(centred[:, width], centred[:, width + 1])
    features += _effects(moments, width)
    both = mask[:, :, None] * mask[:, None, :]
    pairs = np.stack(features, axis=-1, dtype=np.float32) * both[..., None]
    return Evidence(pairs, posteriors[0], posteriors[1])


def marginal_edges(log_sets: np.ndarray) -> np.ndarray:
    """Compute the probability of each edge from those of parent sets."""
    width = log_sets.shape[1]
    return to_parent_child(np.exp(log_sets) @ set_members(width))


def exclude_two_cycles(
    edges: Float[np.ndarray, "*sets d d"],
) -> Float[np.ndarray, "*sets d d"]:
    """Scale edges so that an edge and its reverse add up to at most 1.

    The parents of each variable are inferred independently, and no graph has both.
    """
    return edges / np.maximum(edges + edges.swapaxes(-1, -2), 1)


def _logit(p):
    # Divided by 4, logits stay within 3 of 0, as inputs of a network should.
    p = np.clip(p, 1e-5, 1 - 1e-5)
    return (np.log(p) - np.log1p(-p)) / 4


def _squash(x):
    # Linear near 0 and logarithmic beyond: log Bayes factors grow with the rows.
    return np.arcsinh(x) / 3


def _correlations(observed, pooled):
    """Correlations between x of one variable and a basis function of the other."""
    found = []
    for g in (observed, pooled):
        size = np.sqrt(np.maximum(np.einsum("bkiki->bki", g), 0.0) + 1e-6)
        r = g / (size[:, :, :, None, None] * size[:, None, None, :, :])
        found.append(r[:, 0, :, 0])
        if g is observed:
            found += [r[:, 1, :, 0], r[:, 2, :, 0], r[:, 0, :, 2], r[:, 2, :, 2]]
    return found


def _effects(moments, width):
    """Effects on the other variables in the rows in which one was set."""
    n = moments[:, :, 0, 0]
    in_all = moments[:, width + 1 :, :, :]
    done = in_all - moments[:, :width]  # rows in which i was set: [b, i, f, f]
    times = done[:, :, 0, 0]
    some = np.maximum(times, 1.0)[:, :, None]
    total = done[:, :, 0, 1 : width + 1]
    mean = total / some
    squares = np.einsum("bijj->bij", done[:, :, 1 : width + 1, 1 : width + 1])
    # Compared with the rows without intervention.
    baseline_n = np.maximum(n[:, width], 1.0)[:, None]
    usual_mean = moments[:, width, 0, 1 : width + 1] / baseline_n
    usual = np.einsum("bjj->bj", moments[:, width, 1 : width + 1, 1 : width + 1])
    usual = np.maximum(usual / baseline_n - usual_mean**2, 0.0)
    spread = np.maximum(squares / some - mean**2, 0.0)
    # Ridge regression of j on the basis functions of i in these rows, by elimination:
    # `gains` are residual sums of squares with 0, 1... basis functions.
    index = np.arange(width)
    own = np.stack([index * 0] + [1 + k * width + index for k in range(BASIS)], 1)
    block = done[:, index[:, None, None], own[:, :, None], own[:, None, :]]
    # A ridge of 1 keeps pivots above 0 where a variable was never set.
    block = block + np.eye(BASIS + 1)[None, None]
    cross = np.take_along_axis(
        done[:, :, :, 1 : width + 1], own[None, :, :, None], axis=2
    )
    left, gains = squares + 1.0, []
    for _ in range(BASIS + 1):
        # Without rounding a pivot is at least the ridge.
        pivot = np.maximum(block[:, :, 0, 0], 1.0)[:, :, None]
        left = left - cross[:, :, 0] ** 2 / pivot
        scaled = block[:, :, 1:, 0] / pivot
        cross = cross[:, :, 1:] - scaled[..., None] * cross[:, :, :1]
        block = block[:, :, 1:, 1:] - scaled[..., None] * block[:, :, :1, 1:]
        gains.append(np.maximum(left, 1e-3))
    weight = times[:, :, None]
    # Half the rows times the logarithm of a ratio of residual sums: the log likelihood
    # ratio of nested Gaussian regressions.
    linear = 0.5 * weight * np.log(gains[0] / gains[1])
    curved = 0.5 * weight * np.log(gains[1] / gains[-1])
    shape = mean.shape
    shift = (mean - usual_mean[:, None]) * np.sqrt(some)
    counts = [
        np.broadcast_to(np.log1p(times)[:, :, None] / 3, shape),
        np.broadcast_to(np.log1p(n[:, :width])[:, None, :] / 5, shape),
        np.broadcast_to(np.log1p(n[:, width])[:, None, None] / 5, shape),
    ]
    return [
        _squash(linear),
        _squash(curved),
        _squash(shift),
        np.clip(mean, -3.0, 3.0) * (times > 0)[:, :, None],
        np.log((spread + 0.1) / (usual[:, None] + 0.1)) * (times > 1)[:, :, None],
        *counts,
    ]
