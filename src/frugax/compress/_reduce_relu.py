"""Merge hidden units of Linear -> ReLU -> Linear into fewer, and bound the change.

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
import numbers
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from .arrays import named_arrays

# w1 (inputs, hidden), b1 (hidden,), w2 (hidden, outputs), b2 (outputs,).
Layers: TypeAlias = tuple[Any, Any, Any, Any]

# Relative to the mean of the diagonal: units that are nearly alike must not cancel in
# a refit.
_RIDGE = 1e-6
# Of k-means, whose result depends on its start.
_STARTS, _ROUNDS = 4, 30
_TINY = np.finfo(float).tiny


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReducedRelu:
    """Two linear layers with a ReLU between them, of fewer hidden units.

    Attributes:
        w1: `(inputs, hidden)`, NumPy, of its original dtype.
        b1: `(hidden,)`.
        w2: `(hidden, outputs)`.
        b2: `(outputs,)`.
        merged_into: for each original unit, the unit that it is part of.
        bound: `(outputs,)`: the two networks differ by no more than this anywhere in
            the box, computed in exact arithmetic from the weights as they are here.
    """

    w1: Float[np.ndarray, "inputs hidden"]
    b1: Float[np.ndarray, " hidden"]
    w2: Float[np.ndarray, "hidden outputs"]
    b2: Float[np.ndarray, " outputs"]
    merged_into: np.ndarray
    bound: Float[np.ndarray, " outputs"]

    @property
    def layers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The arrays in the order of `reduce_relu`'s argument."""
        return self.w1, self.b1, self.w2, self.b2


def reduce_relu(
    layers: Layers,
    *,
    hidden: int,
    box: tuple[Any, Any],
    data: Float[Any, "rows inputs"] | None = None,
    seed: int = 0,
) -> ReducedRelu:
    """Merge the hidden units of `relu(x @ w1 + b1) @ w2 + b2` into fewer.

    Directions of units are clustered, each weighted by its largest contribution within
    the box. Then the second layer is fitted to the original network: on `data` where
    there is some, otherwise in expectation over independent normal inputs with the
    second moments of the box.

    Args:
        layers: `(w1, b1, w2, b2)`, of shapes `(inputs, hidden)`, `(hidden,)`, `(hidden,
            outputs)` and `(outputs,)`, floats of NumPy, JAX or torch; only read. Torch
            keeps its matrices transposed: give `weight.T`.
        hidden: units to keep, at least 1 and at most as many as there are.
        box: `(low, high)`: the inputs for which the bound is to hold, each a number or
            an array `(inputs,)`.
        data: inputs like those to come, without labels.
        seed: of the clustering, which is tried four times.

    Returns:
        The smaller layers, and the largest change of each output; with as many units as
        there are, the same layers and no change. The bound is sound but not tight: a
        network may change far less on the inputs it really meets.

    Raises:
        TypeError: a layer is not an array, `hidden` is not an integer, or `box` is not
            a pair.
        ValueError: shapes that do not fit, weights or limits that are not finite, an
            empty box, or a number of units that is out of range.

    >>> w = np.array([[1.0, 2.0, -1.0]])  # two of these units are parallel
    >>> small = reduce_relu((w, np.zeros(3), w.T, np.zeros(1)), hidden=2, box=(-1, 1))
    >>> small.w1.shape, bool(small.bound < 1e-4)
    ((1, 2), True)
    """
    w1, b1, w2, b2 = _check_layers(layers)
    # Callers are checked at run time, whatever their annotations say.
    if not isinstance(hidden, numbers.Integral) or isinstance(hidden, bool):
        raise TypeError(f"hidden must be a whole number, got {hidden!r}.")
    if not 1 <= hidden <= len(b1):
        raise ValueError(f"hidden must be from 1 to {len(b1)}, got {hidden}.")
    low, high = _check_box(box, len(w1))
    x1 = None if data is None else _append_ones(data, len(w1))
    originals = list(named_arrays(tuple(layers)).values())
    # Not sent through the fit, whose rounding would make a change where none is asked
    # for.
    if hidden == len(b1):
        copies = [array.copy() for array in originals]
        return _make_result(copies, np.arange(hidden), np.zeros(len(b2)))
    before = _Units(np.vstack([w1, b1]).T, w2, b2)
    # Directions are compared as the inputs see them: along an input that hardly varies,
    # units may differ at no cost.
    root = _root_of_moments(low, high)
    merged_into = _cluster(before, root, hidden, np.random.default_rng(seed))
    directions = _mean_directions(before, root, merged_into, hidden)
    if x1 is None:
        after = _refit_in_expectation(before, directions, root)
    else:
        after = _refit_on_data(x1, before, directions)
    reduced = after.u[:, :-1].T, after.u[:, -1], after.v, after.rest
    # Round to the original dtypes first: the bound is for the returned weights.
    arrays = [a.astype(o.dtype) for a, o in zip(reduced, originals, strict=True)]
    n1, c1, n2, c2 = (a.astype(np.float64) for a in arrays)
    rounded = _Units(np.vstack([n1, c1]).T, n2, c2)
    return _make_result(
        arrays, merged_into, _bound_change(before, rounded, merged_into, low, high)
    )


def _make_result(
    arrays: list[np.ndarray], merged_into: np.ndarray, bound: np.ndarray
) -> ReducedRelu:
    w1, b1, w2, b2 = arrays
    return ReducedRelu(w1=w1, b1=b1, w2=w2, b2=b2, merged_into=merged_into, bound=bound)


@dataclasses.dataclass(frozen=True, slots=True)
class _Units:
    """The network `relu(x1 @ u.T) @ v + rest`, where `x1` is `x` and a 1."""

    u: np.ndarray
    v: np.ndarray
    rest: np.ndarray


def _check_layers(layers: Layers) -> list[np.ndarray]:
    # The layers in float64.
    arrays = list(named_arrays(tuple(layers)).values())
    shapes = [a.shape for a in arrays]
    ranks = [a.ndim for a in arrays]
    if ranks != [2, 1, 2, 1] or not (
        shapes[0][1] == shapes[1][0] == shapes[2][0] and shapes[2][1] == shapes[3][0]
    ):
        raise ValueError(
            "layers must be (inputs, hidden), (hidden,), (hidden, outputs) and "
            f"(outputs,), got {', '.join(map(str, shapes))}."
        )
    for name, array in zip(("w1", "b1", "w2", "b2"), arrays, strict=True):
        if array.dtype.kind in "iubc":
            raise ValueError(f"{name} must hold floats, got {array.dtype}.")
        if wrong := np.count_nonzero(~np.isfinite(array.astype(float))):
            raise ValueError(
                f"{name} must hold finite floats: {wrong} of its {array.size} numbers "
                "are NaN or infinite."
            )
    return [array.astype(np.float64) for array in arrays]


def _check_box(box: tuple[Any, Any], inputs: int) -> tuple[np.ndarray, np.ndarray]:
    # The lower and the upper limit of each input.
    if not isinstance(box, tuple | list) or len(box) != 2:
        raise TypeError(
            f"box must be (low, high), such as (-1, 1) or two arrays ({inputs},), got "
            f"{box!r:.60}."
        )
    low, high = (np.asarray(side, np.float64) for side in box)
    for name, side in (("low", low), ("high", high)):
        if not np.isfinite(side).all():
            raise ValueError(f"box: {name} must be finite, got {side}.")
        if side.shape not in ((), (inputs,)):
            raise ValueError(
                f"box: {name} must be a number or ({inputs},), got shape {side.shape}."
            )
    if (low > high).any():
        raise ValueError("box: low must not be above high.")
    return np.broadcast_to(low, inputs), np.broadcast_to(high, inputs)


def _append_ones(data: Any, inputs: int) -> np.ndarray:
    # Inputs in float64, with a last number 1.
    (x,) = named_arrays((data,)).values()
    if x.ndim != 2 or x.shape[1] != inputs or not len(x):
        raise ValueError(f"data must be (rows, {inputs}), got {x.shape}.")
    x = x.astype(np.float64)
    if not np.isfinite(x).all():
        raise ValueError("data must be finite.")
    return np.column_stack([x, np.ones(len(x))])


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
    # of mean zero kept more of the accuracy than a uniform box (the nets of `python -m
    # benchmarks.tropical zonotope`).
    squares = (low**2 + low * high + high**2) / 3
    return np.diag(np.sqrt(np.append(squares, 1.0)))
