"""Interventional means of an SCM by quasi-Monte Carlo, the same at every call.

The noise is a low-discrepancy sequence that all interventions share, so neighbouring
interventions differ by their effects and not by luck, and a search for the best one
converges.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from frugax.options import check_integer

from ._mechanisms import KINDS
from ._noise import noise_from_uniform
from ._sample import add_batch_axis, evaluate
from ._scm import SCM


def interventional_mean(
    scm: SCM,
    name: str,
    values: Mapping[str, Float[np.ndarray, " points"]],
    *,
    nodes: int = 2048,
) -> Float[np.ndarray, " points"]:
    """Compute the mean of a variable under interventions on others.

    Args:
        scm: the model.
        name: the variable.
        values: for each other variable its value at each point; `{}` for the mean
            without an intervention, at one point.
        nodes: quadrature points in the space of the noise, an even number. With 2,048
            the error is about 0.002, rarely 0.01, on nonlinear models of ten variables
            of variance 1; linear models are exact.

    Raises:
        ValueError: the model does not have the variable, or `nodes` is below
            2.

    Example:
        >>> scm = SCM.linear({"x": {}, "y": {"x": 2.0}})
        >>> interventional_mean(scm, "y", {"x": np.array([-1.0, 0.5])}).round(3)
        array([-2.,  1.])
    """
    target = scm.index(name)
    check_integer("nodes", nodes, minimum=2)
    points = max((len(value) for value in values.values()), default=1)
    d = np.shape(scm.mechanisms.bias)[-1]
    # Only ancestors of the variable need to be evaluated.
    needed = [other for other in scm.order if other in {name, *scm.ancestors(name)}]
    m = dataclasses.replace(
        add_batch_axis(scm.mechanisms),
        order=np.array([[scm.index(other) for other in needed]], np.int32),
    )
    if (m.kind[0, m.order] == KINDS.index("linear")).all():
        # Linear functions commute with the mean, so the mean of the noise is enough.
        noise = np.zeros((1, d, 1), np.float32)
    else:
        # Ancestors only: the sequence covers a space of fewer dimensions better.
        kinds = tuple(m.noise[0, m.order[0]].tolist())
        noise = np.zeros((1, d, 2 * (nodes // 2)), np.float32)
        noise[:, m.order[0]] = _quadrature_noise(kinds, nodes)
    # do(x = v) is arithmetic here, a factor of 0 and an addend of v (Pearl 2009,
    # section 3.2). So all points are rows of one table, with the same noise in each.
    count = noise.shape[-1]
    keep = np.ones((1, d, points * count), np.float32)
    offset = np.zeros((1, d, points * count), np.float32)
    for other, value in values.items():
        keep[:, scm.index(other)] = 0
        offset[:, scm.index(other)] = np.repeat(np.asarray(value, np.float32), count)
    x, _ = evaluate(
        m,
        np.tile(noise, points),
        keep=keep,
        offset=offset,
        functions=scm.functions,
        names=scm.variables,
    )
    # Near an optimum the means at neighbouring points differ in their last digits only,
    # which a sum in float32 would lose.
    return x[0, target].reshape(points, count).mean(1, dtype=np.float64)


# A search for an optimum asks for the same points hundreds of times.
@functools.lru_cache(maxsize=8)
def _quadrature_noise(kinds: tuple[int, ...], nodes: int) -> Float[np.ndarray, "1 D n"]:
    """Low-discrepancy noise of unit variance for some variables.

    The sequence is mirrored, so that functions odd about 0 have a mean of exactly 0.
    The seed is fixed: one model has one mean, in every process.
    """
    from scipy.stats import qmc  # takes half a second, which most callers never need

    points = qmc.Halton(len(kinds), rng=0).random(nodes // 2)
    # Away from 0 and 1 in float32 as well, where the inverse distributions diverge.
    points = np.clip(points, 1e-7, 1 - 1e-7)
    uniform = jnp.asarray(np.concatenate([points, 1 - points]), jnp.float32)
    noise = jax.jit(noise_from_uniform)(uniform, jnp.array(kinds, jnp.int32)[None])
    return np.asarray(noise).T[None]
