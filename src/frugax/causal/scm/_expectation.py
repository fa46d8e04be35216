"""What a variable is on average under interventions, without chance.

Reads: a model, values that variables are set to. Gives: one mean for each. The noise is
spread evenly over its space, so neighbouring interventions differ by what they do and
not by luck, and a search for the best one converges.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ._changed import check_states
from ._mechanisms import KINDS, Mechanisms
from ._noise import noise_from_uniform
from ._propagate import propagate
from ._sample import one
from ._scm import SCM


def expectation(
    scm: SCM,
    name: str,
    values: Mapping[str, Float[np.ndarray, " points"]],
    *,
    nodes: int = 2048,
) -> Float[np.ndarray, " points"]:
    """The mean of a variable where others are set.

    Args:
        scm: the model.
        name: the variable.
        values: what each other variable is set to, at each point; none for the mean
            without an intervention, at one point.
        nodes: points in the space of the noise, an even number. With 2,048 the
            error is about 0.002, seldom 0.01, on bent models of ten variables of
            variance 1; linear ones are exact.

    Raises:
        ValueError: the model has no such variable or state, or there are less than two
            nodes.

    Example:
        >>> scm = SCM.linear({"x": {}, "y": {"x": 2.0}})
        >>> expectation(scm, "y", {"x": np.array([-1.0, 0.5])}).round(3)
        array([-2.,  1.])
    """
    target = scm.index(name)
    if nodes < 2:
        raise ValueError(f"nodes must be an even number from 2, got {nodes}.")
    points = max((len(value) for value in values.values()), default=1)
    d = np.shape(scm.mechanisms.bias)[-1]
    keep = np.ones((points, d, 1), np.float32)
    offset = np.zeros((points, d, 1), np.float32)
    for other, value in values.items():
        check_states(scm, other, value, "values")
        keep[:, scm.index(other), 0] = 0
        offset[:, scm.index(other), 0] = value
    # What is no cause of the variable need not be evaluated.
    needed = [other for other in scm.order if other in {name, *scm.ancestors(name)}]
    m = dataclasses.replace(
        one(scm.mechanisms),
        order=np.array([[scm.index(other) for other in needed]], np.int32),
    )
    if (m.kind[0, m.order] == KINDS.index("linear")).all():
        # The mean of what is linear is what its noise's mean gives, exactly.
        noise = np.zeros((1, d, 1), np.float32)
    else:
        # Causes only: points fill a space of fewer dimensions better.
        kinds = tuple(m.noise[0, m.order[0]].tolist())
        noise = np.zeros((1, d, 2 * (nodes // 2)), np.float32)
        noise[:, m.order[0]] = _even_noise(kinds, nodes)
    if scm.functions:
        # They are written for one model at a time.
        apart = [_means(scm, m, noise, keep[[i]], offset[[i]]) for i in range(points)]
        return np.array([mean[0, target] for mean in apart])
    m = Mechanisms(
        **{
            field.name: np.broadcast_to(array, (points, *array.shape[1:]))
            for field in dataclasses.fields(Mechanisms)
            for array in [getattr(m, field.name)]
        }
    )
    noise = np.broadcast_to(noise, (points, *noise.shape[1:]))
    return _means(scm, m, noise, keep, offset)[:, target]


def _means(
    scm: SCM,
    m: Mechanisms,
    noise: np.ndarray,
    keep: np.ndarray,
    offset: np.ndarray,
) -> Float[np.ndarray, "points D"]:
    """The mean of every variable at every point."""
    x, _ = propagate(
        m,
        noise,
        keep=keep,
        offset=offset,
        functions=scm.functions,
        names=scm.variables,
    )
    return x.mean(-1, dtype=np.float64)


@functools.lru_cache(maxsize=8)
def _even_noise(kinds: tuple[int, ...], nodes: int) -> Float[np.ndarray, "1 D n"]:
    """Noise of unit variance that fills the space of some variables evenly."""
    even = jnp.asarray(_even(nodes, len(kinds)), jnp.float32)
    noise = noise_from_uniform(even, jnp.array(kinds, jnp.int32)[None])
    return np.asarray(noise).T[None]


def _even(n: int, d: int) -> Float[np.ndarray, "points {d}"]:
    """Points that fill the unit cube more evenly than random ones.

    Each coordinate counts in another prime base, digits reversed and their names
    shuffled; then all points are mirrored, so that what is symmetric about 0 has a mean
    of exactly 0.

    Args:
        n: points; an even number.
        d: dimensions.

    References:
        Halton 1960, Numerische Mathematik 2:84-90; Owen 2017, arXiv:1706.02808
        (why shuffled: large bases fill the space late otherwise).
    """
    rng, points = np.random.default_rng(0), np.empty((n // 2, d))
    for column, base in enumerate(_primes(d)):
        count, place, total = np.arange(1, n // 2 + 1), 1.0, np.zeros(n // 2)
        # Zeros in front are shuffled too, as far as single precision can tell.
        while place > 2**-24:
            place /= base
            total += place * rng.permutation(base)[count % base]
            count //= base
        points[:, column] = np.clip(total + place / 2, 1e-7, 1 - 1e-7)
    return np.concatenate([points, 1 - points])


def _primes(n: int) -> list[int]:
    """The first primes."""
    found: list[int] = []
    candidate = 2
    while len(found) < n:
        if all(candidate % prime for prime in found):
            found.append(candidate)
        candidate += 1
    return found
