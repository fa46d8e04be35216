"""Sample tables of rows from an SCM in NumPy, under an intervention or none."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from frugax.causal.data import Samples
from frugax.options import check_integer

from ._equations import call_function
from ._intervention import Intervention, intervention_table
from ._mechanisms import Mechanisms
from ._noise import sample_noise
from ._scm import SCM


def sample(
    scm: SCM,
    n: int,
    *,
    seed: int,
    intervention: Intervention | None = None,
) -> Samples:
    """Sample rows from a causal model.

    The same seed gives the same noise under every intervention, so two calls give
    counterfactual outcomes of the same units.

    Args:
        scm: the model.
        n: rows; >= 0.
        seed: of the noise.
        intervention: none by default.

    Raises:
        TypeError: `intervention` is not an Intervention.
        ValueError: `intervention` is on an unknown or hidden variable; `n` or `seed` is
            not a whole number >= 0; or a value is not a finite float32.

    Example:
        >>> scm = SCM.linear({"x": {}, "y": {"x": 2.0}})
        >>> sample(scm, 3, seed=0, intervention=Intervention()).values.shape
        (3, 2)
    """
    check_integer("n", n, minimum=0)
    check_integer("seed", seed, minimum=0)
    intervention = intervention or Intervention()
    m, rng = add_batch_axis(scm.mechanisms), np.random.default_rng(seed)
    table = intervention_table(scm, intervention, m.order.shape[-1])
    for name in scm.hidden:
        if name in intervention.targets:
            raise ValueError(f"{intervention} changes {name!r}, which is hidden.")
    # The noise is the exogenous state of each unit. Evaluated under another
    # intervention, the same noise gives the unit's counterfactual (Pearl 2009, section
    # 7.1).
    noise = sample_noise(rng, m.noise, n)
    keep, offset = _realize(table.astype(np.float64), n, rng)
    x, _ = evaluate(
        m,
        noise,
        keep=keep[None],
        offset=offset[None],
        functions=scm.functions,
        names=scm.variables,
    )
    # Before hidden variables are left out, because one of them may be the cause.
    _check_finite(x[0], scm)
    with np.errstate(over="ignore"):  # `Samples` raises on values that become infinite
        values = x[0, : len(scm.variables)].T.astype(np.float32)
    is_target = [name in intervention.targets for name in scm.variables]
    samples = Samples(scm.variables, values, np.tile(np.array(is_target), (n, 1)))
    return samples.select(scm.observed)


def collect_observational_data(scm: SCM, n: int = 100, *, seed: int = 0) -> Samples:
    """Sample rows without an intervention.

    Args:
        scm: the model.
        n: rows.
        seed: of the noise.
    """
    return sample(scm, n, seed=seed)


def standardize(scm: SCM, *, n: int = 4096, seed: int = 0) -> SCM:
    """Return a model with the same graph whose variables have mean 0 and variance 1.

    Each variable is standardized before its children are computed. Standardized at the
    end instead, the variances would still reveal the causal order.

    Args:
        scm: the model.
        n: rows from which means and variances are estimated.
        seed: of those rows.

    Raises:
        ValueError: a function of the model gives values that are not finite.
    """
    m = add_batch_axis(scm.mechanisms)
    noise = sample_noise(np.random.default_rng(seed), m.noise, n)
    x, m = evaluate(
        m, noise, functions=scm.functions, names=scm.variables, standardize_rows=n
    )
    _check_finite(x[0], scm)
    return dataclasses.replace(scm, mechanisms=select_model(m, 0))


def add_batch_axis(mechanisms: Mechanisms) -> Mechanisms:
    """Convert one model to NumPy arrays with a leading axis of length 1."""
    return jax.tree.map(lambda array: np.asarray(array)[None], mechanisms)


def select_model(mechanisms: Mechanisms, index: int) -> Mechanisms:
    """Return one of several stacked models."""
    return jax.tree.map(lambda array: array[index], mechanisms)


def evaluate(
    mechanisms: Mechanisms,
    noise: Float[np.ndarray, "batch D n"],
    *,
    keep: Float[np.ndarray, "#batch D #n"] | None = None,
    offset: Float[np.ndarray, "#batch D #n"] | None = None,
    functions: Sequence[Callable[..., Any] | None] = (),
    names: Sequence[str] = (),
    standardize_rows: int = 0,
) -> tuple[Float[np.ndarray, "batch D n"], Mechanisms]:
    """Compute all variables from given noise, in NumPy, for a batch of models at once.

    The loop runs over positions in the causal order only, so thousands of data sets
    need few NumPy calls.

    References:
        Ormaniec et al. 2025, ICLR, "Standardizing structural causal models" (why
        while sampling: scaled afterwards, variances reveal the causal order).
    """
    m, models = mechanisms, np.arange(noise.shape[0])
    x = np.zeros_like(noise)
    if standardize_rows:
        m = dataclasses.replace(m, centre=m.centre.copy(), scale=m.scale.copy())
    # 1 and 2 index `KINDS`; a batch without hidden units skips both.
    activations = ((1, np.tanh), (2, np.cos))[: 2 * bool(m.phase.shape[-1])]
    is_heteroscedastic = m.spread.any()
    # `j` has the variable at this position of each model's own order.
    for j in m.order.T:
        own = noise[models, j] * m.noise_scale[models, j, None]
        if is_heteroscedastic:
            log_scale = np.matmul(m.spread[models, None, :, j], x)[:, 0]
            # tanh bounds the exponent: through a long chain of variables it would
            # overflow.
            own *= np.exp(np.tanh(log_scale))
        if any(functions) and (function := functions[j[0]]) is not None:
            causes = np.flatnonzero(m.parents[0, :, j[0]]).tolist()
            # Read-only views: a function that wrote to them would change its parents.
            by_name = {names[i]: np.broadcast_to(x[0, i], x.shape[2]) for i in causes}
            value = call_function(function, names[int(j[0])], by_name, own[0])
            raw = np.broadcast_to(np.asarray(value, x.dtype), own.shape)
        else:
            # Variables that are not computed yet are 0 in `x`, and so are their
            # weights.
            raw = own + np.matmul(m.weight[models, None, :, j], x)[:, 0]
            raw += m.bias[models, j, None]
            for kind, activation in activations:
                some = np.flatnonzero(m.kind[models, j] == kind)
                if some.size:
                    raw[some] += _hidden_units(m, x, some, j[some], activation)
        if standardize_rows:
            rows = raw[:, :standardize_rows]
            sd = rows.std(1)
            m.centre[models, j] = rows.mean(1)
            # A constant variable has no scale to divide by.
            m.scale[models, j] = np.where(sd > 1e-6, sd, 1)
        natural = (raw - m.centre[models, j, None]) / m.scale[models, j, None]
        if keep is not None and offset is not None:
            at = models if len(keep) > 1 else 0
            natural = natural * keep[at, j] + offset[at, j]
        x[models, j] = natural
    return x, m


def _hidden_units(
    m: Mechanisms,
    x: Float[np.ndarray, "batch D n"],
    some: np.ndarray,
    j: np.ndarray,
    activation: Callable[..., Any],
) -> Float[np.ndarray, "some n"]:
    """Output of the hidden units of variable `j[i]` in model `some[i]`."""
    inner = m.inner[some, :, j].swapaxes(1, 2)  # (some, H, D)
    if len(some) < len(x):  # indexing copies: skip it when all models take part
        x = x[some]
    units = np.matmul(inner, x)
    units += m.phase[some, j, :, None]
    # In place: with a value per hidden unit this is the largest array of a batch.
    activation(units, out=units)
    return np.matmul(m.outer[some, j, None], units)[:, 0]


def _realize(
    table: np.ndarray, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw `keep` and `offset` of each row from an intervention's table, `(D, n)`."""
    keep, value, sd, hit = (np.repeat(row[:, None], n, 1) for row in table)
    # Drawn only if needed and after the noise: one seed gives the same units under
    # every intervention.
    if sd.any():
        value += sd * rng.standard_normal(value.shape)
    if (hit < 1).any():
        missed = rng.random(hit.shape) >= hit
        keep[missed], value[missed] = 1, 0
    return keep, value


def _check_finite(x: np.ndarray, scm: SCM) -> None:
    """Raise on values that are not finite."""
    for name in scm.order:
        row = x[scm.index(name)]
        if not np.isfinite(row).all():
            bad = int(np.flatnonzero(~np.isfinite(row))[0])
            raise ValueError(
                f"{name!r} is {row[bad]} in row {bad}: its equation gives a value that "
                "is not finite. Bound the equation, or change the intervention."
            )
