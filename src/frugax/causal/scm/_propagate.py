"""From noise to variables in NumPy: one model, or many at once.

Reads: stacked mechanisms, noise, interventions. Gives: values. Models run side by side:
the loop is over positions in the causal order only, so thousands of data sets cost few
calls. The JAX twin, tested against this one: `_simulate.py`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ._equations import value_of
from ._mechanisms import Mechanisms


def propagate(
    mechanisms: Mechanisms,
    noise: Float[np.ndarray, "batch D n"],
    *,
    keep: Float[np.ndarray, "#batch D #n"] | None = None,
    offset: Float[np.ndarray, "#batch D #n"] | None = None,
    functions: Sequence[Callable[..., Any] | None] = (),
    names: Sequence[str] = (),
    standardise_rows: int = 0,
) -> tuple[Float[np.ndarray, "batch D n"], Mechanisms]:
    """The values of all variables, and the mechanisms that gave them.

    Args:
        mechanisms: NumPy arrays with one leading dimension.
        noise: of unit variance.
        keep: what each variable's own value is multiplied by.
        offset: then added. Both or none.
        functions: the user's own, by variable; for a batch of one only.
        names: of the variables, for those functions.
        standardise_rows: with n > 0 each variable gets mean 0 and variance 1 over its
            first n values before anything depends on it, and the returned mechanisms
            have what that took in `centre` and `scale`.

    References:
        Ormaniec et al. 2025, ICLR, "Standardizing structural causal models" (why while
        drawing: scaled afterwards, a variable's variance gives its place away).
    """
    m, models = mechanisms, np.arange(noise.shape[0])
    x = np.zeros_like(noise)
    if standardise_rows:
        m = dataclasses.replace(m, centre=m.centre.copy(), scale=m.scale.copy())
    spreads, hides = m.spread.any(), bool(m.phase.shape[-1])
    for j in m.order.T:
        own = noise[models, j] * m.noise_scale[models, j, None]
        if spreads:
            toward = np.matmul(m.spread[models, None, :, j], x)[:, 0]
            own *= np.exp(np.tanh(toward))
        if any(functions) and (function := functions[j[0]]) is not None:
            causes = np.flatnonzero(m.parents[0, :, j[0]]).tolist()
            # Read-only: a function that wrote into them would change its parents.
            read = {names[i]: np.broadcast_to(x[0, i], x.shape[2]) for i in causes}
            value = value_of(function, names[int(j[0])], read, own[0])
            raw = np.broadcast_to(np.asarray(value, x.dtype), own.shape)
        else:
            raw = own + np.matmul(m.weight[models, None, :, j], x)[:, 0]
            raw += m.bias[models, j, None]
            for kind, act in ((1, np.tanh), (2, np.cos)) if hides else ():
                some = np.flatnonzero(m.kind[models, j] == kind)
                if some.size:
                    raw[some] += _hidden(m, x, some, j[some], act)
        if standardise_rows:
            seen = raw[:, :standardise_rows]
            sd = seen.std(1)
            m.centre[models, j] = seen.mean(1)
            # A constant stays: there is nothing to divide by.
            m.scale[models, j] = np.where(sd > 1e-6, sd, 1)
        made = (raw - m.centre[models, j, None]) / m.scale[models, j, None]
        if keep is not None and offset is not None:
            at = models if len(keep) > 1 else 0
            made = made * keep[at, j] + offset[at, j]
        x[models, j] = made
    return x, m


def _hidden(
    m: Mechanisms,
    x: Float[np.ndarray, "batch D n"],
    some: np.ndarray,
    j: np.ndarray,
    act: Callable[..., Any],
) -> Float[np.ndarray, "some n"]:
    """What the hidden units of variable `j[i]` add in model `some[i]`."""
    inner = m.inner[some, :, j].swapaxes(1, 2)  # (some, H, D)
    causes = x if len(some) == len(x) else x[some]
    units = np.matmul(inner, causes)
    units += m.phase[some, j, :, None]
    act(units, out=units)
    return np.matmul(m.outer[some, j, None], units)[:, 0]
