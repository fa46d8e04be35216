"""Tables drawn from a causal model, under interventions or none.

Reads: a model, a seed. Gives: `Samples`. NumPy only: nothing is compiled.
"""

import dataclasses

import numpy as np

from frugax.causal.data import Samples

from ..checks import check_whole
from ._changed import changes_of
from ._intervention import Intervention
from ._mechanisms import Mechanisms
from ._noise import draw_noise
from ._propagate import propagate
from ._scm import SCM


def sample(
    scm: SCM,
    n: int,
    *,
    seed: int,
    intervention: Intervention | None = None,
    standardise: bool = False,
) -> Samples:
    """Rows that a causal model gives.

    The same seed gives the same noise under every intervention, so two calls show what
    would have happened to the same units.

    Args:
        scm: the model.
        n: rows; >= 0.
        seed: of the noise.
        intervention: what is changed; nothing by default.
        standardise: draw from `standardised(scm)` instead; values of interventions then
            count standard deviations.

    Raises:
        TypeError: `intervention` is none.
        ValueError: it names no variable of the model, a hidden one, or what is no state
            of a discrete one; `n` or `seed` is no whole number >= 0; or the model gives
            values that are no finite float32.

    Example:
        >>> scm = SCM.linear({"x": {}, "y": {"x": 2.0}})
        >>> sample(scm, 3, seed=0, intervention=Intervention()).values.shape
        (3, 2)
    """
    check_whole("n", n, 0)
    check_whole("seed", seed, 0)
    if standardise:
        scm = standardised(scm)
    intervention = intervention or Intervention()
    m, rng = one(scm.mechanisms), np.random.default_rng(seed)
    d = m.order.shape[-1]
    table = changes_of(scm, intervention, d)
    for name in scm.hidden:
        if name in intervention.targets:
            raise ValueError(f"{intervention} changes {name!r}, which is hidden.")
    noise = draw_noise(rng, m.noise, n)
    keep, offset = _reached(table.astype(np.float64), n, rng)
    x, _ = propagate(
        m,
        noise,
        keep=keep[None],
        offset=offset[None],
        functions=scm.functions,
        names=scm.variables,
    )
    _check_finite(x[0], scm)
    with np.errstate(over="ignore"):  # what becomes infinite is refused by `Samples`
        values = x[0, : len(scm.variables)].T.astype(np.float32)
    changed = [name in intervention.targets for name in scm.variables]
    intervened = np.tile(np.array(changed), (n, 1))
    samples = Samples(scm.variables, values, intervened)
    return samples.select(scm.observed) if scm.hidden else samples


def collect_observational_data(scm: SCM, n: int = 100, *, seed: int = 0) -> Samples:
    """Rows of a model to which nobody does anything; `sample` without interventions.

    Args:
        scm: the model.
        n: rows.
        seed: of the noise.
    """
    return sample(scm, n, seed=seed)


def standardised(scm: SCM, *, n: int = 4096, seed: int = 0) -> SCM:
    """The same graph with variables of mean 0 and variance 1.

    Each is centred and scaled as it is made, before others depend on it: scaled at the
    end, the variances would still tell causes from effects.

    Args:
        scm: the model.
        n: rows that means and variances are estimated from.
        seed: of those rows.

    Raises:
        ValueError: a function of the model gives values that are not finite, or a
            variable is discrete.
    """
    for name in scm.variables:
        if scm.states(name):
            raise ValueError(f"{name!r} has states, which nothing can standardise.")
    m = one(scm.mechanisms)
    noise = draw_noise(np.random.default_rng(seed), m.noise, n)
    x, m = propagate(
        m,
        noise,
        functions=scm.functions,
        names=scm.variables,
        standardise_rows=n,
    )
    _check_finite(x[0], scm)
    return dataclasses.replace(scm, mechanisms=first(m))


def one(mechanisms: Mechanisms) -> Mechanisms:
    """NumPy arrays with a leading dimension of 1."""
    return Mechanisms(
        **{
            field.name: np.asarray(getattr(mechanisms, field.name))[None]
            for field in dataclasses.fields(Mechanisms)
        }
    )


def first(mechanisms: Mechanisms, index: int = 0) -> Mechanisms:
    """One of several stacked models."""
    return Mechanisms(
        **{
            field.name: getattr(mechanisms, field.name)[index]
            for field in dataclasses.fields(Mechanisms)
        }
    )


def _reached(
    table: np.ndarray, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """What each row's intervention keeps of each variable and adds to it, `(D, n)`."""
    keep, value, sd, hit = (np.repeat(row[:, None], n, 1) for row in table)
    # Drawn only where it matters, and after the noise, which stays the same.
    if sd.any():
        value += sd * rng.standard_normal(value.shape)
    if (hit < 1).any():
        missed = rng.random(hit.shape) >= hit
        keep[missed], value[missed] = 1, 0
    return keep, value


def _check_finite(x: np.ndarray, scm: SCM) -> None:
    """Refuse what is no number: the first variable that is none is the cause.

    Raises:
        ValueError: a value is not finite.
    """
    for name in scm.order:
        row = x[scm.index(name)]
        if not np.isfinite(row).all():
            bad = int(np.flatnonzero(~np.isfinite(row))[0])
            raise ValueError(
                f"{name!r} is {row[bad]} in row {bad}: its equation leaves the numbers "
                "there. Bound it, or change the intervention."
            )
