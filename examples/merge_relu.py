"""Merge the hidden units of a ReLU layer without data, and bound the change.

    pip install scikit-learn
    python examples/merge_relu.py

A unit `v * relu(u @ x)` is a segment along `u`, and the layer a sum of such segments: a
zonotope, whose support function the layer is. Units with nearly the same direction are
merged, as segments that are nearly parallel can be. All arithmetic is in float64;
inputs get a last number 1, so that biases are weights like the others.

References:
    Misiakos, Smyrnis, Retsinas & Maragos 2022, "Neural network approximation based on
    Hausdorff distance of tropical zonotopes", ICLR;
    Cho & Saul 2009, "Kernel methods for deep learning", NeurIPS (the refit without
    data).
"""

import dataclasses
import warnings
from typing import TypeAlias

import numpy as np
from rich.console import Console

# w1 (inputs, hidden), b1 (hidden,), w2 (hidden, outputs), b2 (outputs,): relu(x @ w1 +
# b1) @ w2 + b2.
Layers: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

# Relative to the mean of the diagonal: units that are nearly alike must not cancel in
# a refit.
_RIDGE = 1e-6
# Of k-means, whose result depends on its start.
_STARTS, _ROUNDS = 4, 30
_TINY = np.finfo(float).tiny


def merge_units(
    layers: Layers,
    hidden: int,
    low: np.ndarray,
    high: np.ndarray,
    *,
    data: np.ndarray | None = None,
    seed: int = 0,
) -> tuple[Layers, np.ndarray]:
    """Merge hidden units into fewer, for inputs between two limits.

    Directions of units are clustered, each weighted by its largest contribution within
    the box. Then the second layer is fitted to the original network: on `data` where
    there is some, otherwise in expectation over independent normal inputs with the
    second moments of the box.

    Returns:
        The smaller layers, and for each output a bound on its change anywhere in the
        box. The bound is sound but not tight: a network may change far less on the
        inputs it really meets.
    """
    w1, b1, w2, b2 = layers
    before = _Units(np.vstack([w1, b1]).T, w2, b2)
    # Directions are compared as the inputs see them: along an input that hardly varies,
    # units may differ at no cost.
    root = _root_of_moments(low, high)
    merged_into = _cluster(before, root, hidden, np.random.default_rng(seed))
    directions = _mean_directions(before, root, merged_into, hidden)
    if data is None:
        after = _refit_in_expectation(before, directions, root)
    else:
        x1 = np.column_stack([data, np.ones(len(data))])
        after = _refit_on_data(x1, before, directions)
    bound = _bound_change(before, after, merged_into, low, high)
    return (after.u[:, :-1].T, after.u[:, -1], after.v, after.rest), bound


@dataclasses.dataclass(frozen=True, slots=True)
class _Units:
    """The network `relu(x1 @ u.T) @ v + rest`, where `x1` is `x` and a 1."""

    u: np.ndarray
    v: np.ndarray
    rest: np.ndarray


def _cluster(
    units: _Units, root: np.ndarray, hidden: int, rng: np.random.Generator
) -> np.ndarray:
    """Group units that point nearly the same way."""
    seen = units.u @ root
    length = np.maximum(np.linalg.norm(seen, axis=1), _TINY)
    # The squared size of a unit's output, because k-means minimises squared distances.
    weight = (length * np.linalg.norm(units.v, axis=1)) ** 2
    weight += _TINY + 1e-12 * weight.max()  # all may be 0
    return _k_means(seen / length[:, None], weight, hidden, rng)


def _k_means(
    points: np.ndarray, weight: np.ndarray, k: int, rng: np.random.Generator
) -> np.ndarray:
    """Assign weighted points to `k` clusters, the best of several starts.

    SciPy's `kmeans2` takes no weights. Clusters may stay empty where points are equal.
    """
    best, least = np.zeros(len(points), int), np.inf
    for _ in range(_STARTS):
        assigned, spread = _k_means_once(points, weight, k, rng)
        if spread < least:
            best, least = assigned, spread
    return best


def _k_means_once(
    points: np.ndarray, weight: np.ndarray, k: int, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    centres = points[rng.choice(len(points), 1, p=weight / weight.sum())]
    # k-means++ (Arthur & Vassilvitskii 2007): far points are likelier to be centres.
    while len(centres) < k:
        far = weight * _squared_distances(points, centres).min(axis=1)
        p = far / far.sum() if far.sum() > 0 else weight / weight.sum()
        centres = np.vstack([centres, points[rng.choice(len(points), 1, p=p)]])
    for _ in range(_ROUNDS):
        nearest = _squared_distances(points, centres).argmin(axis=1)
        one_hot = np.eye(k)[nearest] * weight[:, None]
        total = one_hot.sum(axis=0)
        moved = one_hot.T @ points / np.maximum(total, _TINY)[:, None]
        # An empty cluster keeps its centre: the mean of no points has no direction.
        moved = np.where(total[:, None] > 0, moved, centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    distances = _squared_distances(points, centres)
    return distances.argmin(axis=1), float((weight * distances.min(axis=1)).sum())


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    # |p|^2 + |c|^2 - 2 p.c is one matrix product; its rounding can fall below zero.
    squares = (points**2).sum(1)[:, None] + (centres**2).sum(1)
    return np.maximum(squares - 2 * points @ centres.T, 0)


def _mean_directions(
    units: _Units, root: np.ndarray, merged_into: np.ndarray, hidden: int
) -> np.ndarray:
    """Average the directions of each cluster, weighted by the units' contributions."""
    length = np.linalg.norm(units.u @ root, axis=1)
    each = units.u / np.maximum(length, _TINY)[:, None]
    weight = length * np.linalg.norm(units.v, axis=1)
    one_hot = np.eye(hidden)[merged_into] * weight[:, None]
    total = np.maximum(one_hot.sum(axis=0), _TINY)
    return one_hot.T @ each / total[:, None]


def _refit_in_expectation(units: _Units, u: np.ndarray, root: np.ndarray) -> _Units:
    """Fit the second layer by least squares over normal inputs, in closed form."""
    own = _expected_products(u @ root, u @ root)
    crossed = _expected_products(u @ root, units.u @ root)
    v = np.linalg.solve(_add_ridge(own), crossed @ units.v)
    return _Units(u, v, units.rest)


def _expected_products(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return `E[relu(p @ z) relu(q @ z)]` for standard normal `z` (Cho & Saul 2009)."""
    lengths = np.outer(np.linalg.norm(p, axis=1), np.linalg.norm(q, axis=1))
    # Rounding can lift the cosine of parallel units above 1, where arccos is NaN.
    cosine = np.clip(p @ q.T / np.maximum(lengths, _TINY), -1, 1)
    angle = np.arccos(cosine)
    # Half of their arc-cosine kernel of degree 1, whose definition has a factor of 2.
    return lengths * (np.sin(angle) + (np.pi - angle) * cosine) / (2 * np.pi)


def _refit_on_data(x1: np.ndarray, units: _Units, u: np.ndarray) -> _Units:
    """Fit the second layer, its bias too, by least squares on rows of inputs."""
    wanted = np.maximum(x1 @ units.u.T, 0) @ units.v + units.rest
    have = np.column_stack([np.maximum(x1 @ u.T, 0), np.ones(len(x1))])
    fitted = np.linalg.solve(_add_ridge(have.T @ have), have.T @ wanted)
    return _Units(u, fitted[:-1], fitted[-1])


def _add_ridge(gram: np.ndarray) -> np.ndarray:
    ridge = _RIDGE * np.trace(gram) / len(gram) + _TINY
    return gram + ridge * np.eye(len(gram))


def _bound_change(
    before: _Units,
    after: _Units,
    merged_into: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> np.ndarray:
    """Bound the largest change of each output over the box."""
    # With relu(z) = (z + |z|) / 2 the change is half of one linear function, whose
    # largest value on a box is exact, and of sums of |p| - |q| <= |p - q|.
    centre, radius = (low + high) / 2, (high - low) / 2
    ones = np.append(centre, 1.0)

    def largest(w: np.ndarray) -> np.ndarray:
        # Of `|w @ x1|` over the box, for each row.
        return np.abs(w @ ones) + np.abs(w[:, :-1]) @ radius

    # Each unit is compared with its own share of the unit it is merged into: with the
    # multiple of that direction which is nearest to it.
    squares = (after.u**2).sum(axis=1)
    along = (before.u * after.u[merged_into]).sum(axis=1)
    share = np.maximum(along, 0) / np.where(squares > 0, squares, 1)[merged_into]
    kept = share[:, None] * after.u[merged_into]
    left_over = after.v.copy()
    # `subtract.at`, because units share indices: `-=` would count one unit for each.
    np.subtract.at(left_over, merged_into, share[:, None] * before.v)
    linear = before.v.T @ before.u - after.v.T @ after.u
    linear[:, -1] += 2 * (before.rest - after.rest)
    # The triangle inequality lets no two units cancel: sound, and the slack of the
    # bound.
    bent = np.abs(before.v).T @ largest(before.u - kept)
    bent += np.abs(left_over).T @ largest(after.u)
    bound = (largest(linear) + bent) / 2
    # Add a bound on the rounding error of these sums in float64.
    far = np.append(np.maximum(np.abs(low), np.abs(high)), 1.0)
    size = sum(
        np.abs(units.v).T @ (np.abs(units.u) @ far) + np.abs(units.rest)
        for units in (before, after)
    )
    return bound * (1 + 1e-9) + sum(before.u.shape) * np.finfo(float).eps * size


def _root_of_moments(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the root of the second moment of each input over the box, and of the 1."""
    # The correlation of inputs is unknown without data; taking them as independent and
    # of mean zero kept more of the accuracy than a uniform box.
    squares = (low**2 + low * high + high**2) / 3
    return np.diag(np.sqrt(np.append(squares, 1.0)))


def main() -> None:
    """Merge the units of a net that reads digits; print its accuracy and the bound."""
    from sklearn.datasets import load_digits
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    pixels, digits = load_digits(return_X_y=True)
    x, tested, y, labels = map(
        np.asarray,
        train_test_split(
            *(pixels / 16, digits), test_size=0.3, random_state=0, stratify=digits
        ),
    )
    net = MLPClassifier((256,), max_iter=40, random_state=0, learning_rate_init=3e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the epochs are fixed
        net.fit(x, y)
    (w1, w2), (b1, b2) = net.coefs_, net.intercepts_
    layers = w1, b1, w2, b2
    low, high = np.zeros(64), np.ones(64)
    say = Console(highlight=False).print
    say(f"256 units: {(evaluate(layers, tested).argmax(1) == labels).mean():.3f}")
    for hidden in (64, 32, 16):
        for name, data in (("without data", None), ("fitted on data", x)):
            small, bound = merge_units(layers, hidden, low, high, data=data)
            right = (evaluate(small, tested).argmax(1) == labels).mean()
            change = np.abs(evaluate(small, tested) - evaluate(layers, tested)).max(0)
            say(
                f"{hidden:3} units, {name}: {right:.3f} right, the largest change is "
                f"{float((change / bound).max()):.2f} of its bound"
            )


def evaluate(layers: Layers, x: np.ndarray) -> np.ndarray:
    """Return the outputs of the two layers."""
    w1, b1, w2, b2 = layers
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


if __name__ == "__main__":
    main()
