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
    nodes: int = 1024,
) -> Float[np.ndarray, " points"]:
    """The mean of a variable where others are set.

    Args:
        scm: the model.
        name: the variable.
        values: what each other variable is set to, at each point; none for the mean
            without an intervention, at one point.
        nodes: points in the space of the noise. 1,024 are good for two digits after
            the point on variables of variance 1.

    Raises:
        ValueError: the model has no such variable.

    Example:
        >>> scm = SCM.linear({"x": {}, "y": {"x": 2.0}})
        >>> expectation(scm, "y", {"x": np.array([-1.0, 0.5])}).round(3)
        array([-2.,  1.])
    """
    target = scm.index(name)
    points = max((len(value) for value in values.values()), default=1)
    d = np.shape(scm.mechanisms.bias)[-1]
    keep = np.ones((points, d, 1), np.float32)
    offset = np.zeros((points, d, 1), np.float32)
    for other, value in values.items():
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
        noise = _even_noise(tuple(m.noise[0].tolist()), nodes)
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
def _even_noise(kinds: tuple[int, ...], nodes: int) -> np.ndarray:
    """Noise of unit variance that fills its space evenly, `(1, D, nodes)`."""
    uniform = jnp.asarray(_lattice(nodes, len(kinds)), jnp.float32)
    noise = noise_from_uniform(uniform, jnp.array(kinds, jnp.int32)[None])
    return np.asarray(noise).T[None]


def _lattice(n: int, d: int) -> Float[np.ndarray, "{n} {d}"]:
    """Points that fill the unit cube more evenly than random ones.

    Each coordinate advances by a power of the root of `g ** (d + 1) == g + 1`, which
    keeps the points apart in any number of dimensions.

    Args:
        n: points.
        d: dimensions.

    References:
        Roberts 2018, "The unreasonable effectiveness of quasirandom sequences".
    """
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (d + 1))
    steps = root ** -np.arange(1, d + 1)
    # The baker's fold makes each coordinate periodic: the error of a smooth integrand
    # then falls about with n squared.
    return 1 - np.abs(2 * ((0.5 + np.outer(np.arange(1, n + 1), steps)) % 1) - 1)
