"""Sample from an SCM in JAX, under `jit`, `grad` and `vmap` over models and keys.

One `lax.scan` runs over the causal order, so the compiled program grows neither with
the graph nor with the kinds of mechanisms. `sample` is the NumPy counterpart, which
needs no compilation.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int, Key

from ._equations import call_function
from ._intervention import Intervention, intervention_table
from ._mechanisms import KINDS, Mechanisms, pad_mechanisms
from ._noise import sample_open_uniform, simulate_noise
from ._scm import SCM


def simulate(
    model: SCM | Mechanisms,
    key: Key[Array, ""],
    n: int,
    intervention: Intervention | Float[Array | np.ndarray, "4 D"] | None = None,
) -> Float[Array, "{n} D"]:
    """Sample all variables, including hidden ones and padding.

    The same key gives the same noise under every intervention.

    Args:
        model: an SCM, or arrays such as those of `stack_models`, to `vmap` over.
        key: random key.
        n: rows.
        intervention: none by default. Pass the array of `Intervention.arrays` to trace
            or map over it, and for bare arrays, which have no names.

    Raises:
        TypeError: an `Intervention` with names is given for arrays without names.
        ValueError: it is on an unknown variable.

    Example:
        >>> import jax
        >>> scm = SCM.linear({"x": {}, "y": {"x": 2.0}})
        >>> simulate(scm, jax.random.key(0), 3).shape
        (3, 2)
    """
    m = model.mechanisms if isinstance(model, SCM) else model
    d = m.order.shape[-1]
    if isinstance(intervention, Intervention):
        if not isinstance(model, SCM):
            raise TypeError(
                f"{intervention} has names and the arrays of a model have none: give "
                "intervention.arrays(variables, D)."
            )
        intervention = intervention_table(model, intervention, d)
    # The key is split even without an intervention, so that the noise never depends on
    # one.
    noise_key, intervention_key = jax.random.split(key)
    # A NumPy array cannot be indexed by the tracer that the scan below passes.
    m = jax.tree.map(jnp.asarray, m)
    noise = simulate_noise(noise_key, m.noise, n)
    if intervention is None:
        keep, offset = jnp.ones((1, d)), jnp.zeros((1, d))
    else:
        keep, value, sd, hit = jnp.asarray(intervention)[:, None]
        miss_key, hit_key = jax.random.split(intervention_key)
        misses = ndtri(sample_open_uniform(miss_key, (n, d)))
        is_hit = jax.random.uniform(hit_key, (n, d)) < hit
        keep = jnp.where(is_hit, keep, 1.0)
        offset = jnp.where(is_hit, value + sd * misses, 0.0)
    keep, offset = (jnp.broadcast_to(a, (n, d)) for a in (keep, offset))
    if isinstance(model, SCM) and model.functions:
        return _evaluate_unrolled(model, m, noise, keep, offset)
    return evaluate_jax(m, noise, keep, offset)


def evaluate_jax(
    m: Mechanisms,
    noise: Float[Array, "n D"],
    keep: Float[Array, "n D"],
    offset: Float[Array, "n D"],
) -> Float[Array, "n D"]:
    """Compute all variables of one model from given noise, in JAX."""

    def place(x: Float[Array, "n D"], j: Int[Array, ""]) -> tuple[Array, None]:
        value = _natural(m, x, noise, j) * keep[:, j] + offset[:, j]
        return x.at[:, j].set(value), None

    x, _ = jax.lax.scan(place, jnp.zeros_like(noise), m.order)
    return x


def stack_models(models: Sequence[SCM], *, pad_to: int | None = None) -> Mechanisms:
    """Stack the arrays of several models, padded to one size, to `vmap` over.

    Args:
        models: with any number of variables, without user-defined functions.
        pad_to: variables with padding; those of the largest model by default.

    Raises:
        ValueError: `models` is empty, one has functions, or one is too large.
    """
    if not models:
        raise ValueError("there is no model to stack.")
    for scm in models:
        for name, function in zip(scm.variables, scm.functions, strict=False):
            if function is not None:
                raise ValueError(
                    f"{name!r} has a function of its own, which is not an array: "
                    "simulate such models one by one."
                )
    sizes = [np.shape(scm.mechanisms.phase) for scm in models]
    d = max(size[0] for size in sizes) if pad_to is None else pad_to
    hidden = max(size[1] for size in sizes)
    padded = [pad_mechanisms(scm.mechanisms, d, hidden) for scm in models]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *padded)


def _natural(
    m: Mechanisms, x: Float[Array, "n D"], noise: Float[Array, "n D"], j: Any
) -> Float[Array, " n"]:
    """The value of variable `j` without an intervention on it."""
    # An accelerator's default matmul precision keeps three digits only: the two
    # samplers would disagree.
    dot = functools.partial(jnp.dot, precision="highest")
    # Both activations are computed, because `kind` is traced.
    units = dot(x, m.inner[:, j]) + m.phase[j][None]
    act = jnp.where(m.kind[j] == KINDS.index("rff"), jnp.cos(units), jnp.tanh(units))
    size = m.noise_scale[j] * jnp.exp(jnp.tanh(dot(x, m.spread[:, j])))
    raw = m.bias[j] + dot(x, m.weight[:, j]) + dot(act, m.outer[j]) + size * noise[:, j]
    return (raw - m.centre[j]) / m.scale[j]


def _evaluate_unrolled(
    scm: SCM,
    m: Mechanisms,
    noise: Float[Array, "n D"],
    keep: Float[Array, "n D"],
    offset: Float[Array, "n D"],
) -> Float[Array, "n D"]:
    """`evaluate_jax` for a model with functions, which are called by name."""
    # A loop in Python: a scan has one body for all variables, and their functions
    # differ.
    x = jnp.zeros_like(noise)
    for name in scm.order:
        j = scm.index(name)
        function: Callable[..., Any] | None = scm.functions[j]
        if function is None:
            natural = _natural(m, x, noise, j)
        else:
            causes = {parent: x[:, scm.index(parent)] for parent in scm.parents(name)}
            raw = call_function(function, name, causes, m.noise_scale[j] * noise[:, j])
            natural = (jnp.asarray(raw, x.dtype) - m.centre[j]) / m.scale[j]
        x = x.at[:, j].set(natural * keep[:, j] + offset[:, j])
    return x
