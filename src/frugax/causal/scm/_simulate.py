"""The sampler in JAX: `jit`, `grad`, `vmap` over models, keys and interventions.

Reads: arrays of a model, a key. Gives: values. One `lax.scan` over the causal order, so
what is compiled grows neither with the graph nor with the kinds of mechanisms. Its
twin in NumPy, for data without a compile: `_propagate.py`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int, Key

from ._changed import changes_of
from ._equations import value_of
from ._intervention import Intervention
from ._mechanisms import KINDS, Mechanisms, padded
from ._noise import simulate_noise, uniform_inside
from ._scm import SCM


def simulate(
    model: SCM | Mechanisms,
    key: Key[Array, ""],
    n: int,
    intervention: Intervention | Float[Array | np.ndarray, "4 D"] | None = None,
) -> Float[Array, "{n} D"]:
    """Values of all variables, hidden and padding ones included.

    The same key gives the same noise under every intervention.

    Args:
        model: an SCM, or arrays such as those of `stack`, to `vmap` over.
        key: random key.
        n: rows.
        intervention: what is changed; as the array of `Intervention.arrays` where it is
            to be mapped over or traced, and for bare arrays, which have no names.

    Raises:
        TypeError: an `Intervention` with names for arrays without.
        ValueError: it names no variable of the model, or what is no state of a
            discrete one.

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
        intervention = changes_of(model, intervention, d)
    noise_key, change_key = jax.random.split(key)
    m = jax.tree.map(jnp.asarray, m)
    noise = simulate_noise(noise_key, m.noise, n)
    if intervention is None:
        keep, offset = jnp.ones((1, d)), jnp.zeros((1, d))
    else:
        keep, value, sd, hit = jnp.asarray(intervention)[:, None]
        miss_key, hit_key = jax.random.split(change_key)
        misses = ndtri(uniform_inside(miss_key, (n, d)))
        reached = jax.random.uniform(hit_key, (n, d)) < hit
        keep = jnp.where(reached, keep, 1.0)
        offset = jnp.where(reached, value + sd * misses, 0.0)
    keep, offset = (jnp.broadcast_to(a, (n, d)) for a in (keep, offset))
    if isinstance(model, SCM) and model.functions:
        return _unrolled(model, m, noise, keep, offset)
    return values_from_noise(m, noise, keep, offset)


def values_from_noise(
    m: Mechanisms,
    noise: Float[Array, "n D"],
    keep: Float[Array, "n D"],
    offset: Float[Array, "n D"],
) -> Float[Array, "n D"]:
    """What the mechanisms make of given noise of unit variance.

    Args:
        m: arrays of one model, without functions.
        noise: of unit variance.
        keep: what each variable's own value is multiplied by.
        offset: then added.
    """

    def place(x: Float[Array, "n D"], j: Int[Array, ""]) -> tuple[Array, None]:
        return x.at[:, j].set(_made(m, x, noise, j) * keep[:, j] + offset[:, j]), None

    x, _ = jax.lax.scan(place, jnp.zeros_like(noise), m.order)
    return x


def stack(models: Sequence[SCM], *, pad_to: int | None = None) -> Mechanisms:
    """The arrays of several models, padded to one size, to `vmap` over.

    Args:
        models: of any number of variables; without functions of the user's own.
        pad_to: variables with padding; the most of any model by default.

    Raises:
        ValueError: no models, one that has functions, or one that is too large.
    """
    if not models:
        raise ValueError("there is no model to stack.")
    for scm in models:
        if scm.functions:
            own = next(
                name
                for name, function in zip(scm.variables, scm.functions, strict=True)
                if function is not None
            )
            raise ValueError(
                f"{own!r} has a function of its own, which is no array: simulate such "
                "models one by one."
            )
    sizes = [np.shape(scm.mechanisms.phase) for scm in models]
    d = max(size[0] for size in sizes) if pad_to is None else pad_to
    hidden = max(size[1] for size in sizes)
    same = [padded(scm.mechanisms, d, hidden) for scm in models]
    return Mechanisms(
        **{
            field.name: np.stack([getattr(m, field.name) for m in same])
            for field in dataclasses.fields(Mechanisms)
        }
    )


def _made(
    m: Mechanisms, x: Float[Array, "n D"], noise: Float[Array, "n D"], j: Any
) -> Float[Array, " n"]:
    """The natural value of variable `j`."""
    # Exact products: an accelerator's faster ones are good for three digits only.
    dot = functools.partial(jnp.dot, precision="highest")
    units = dot(x, m.inner[:, j]) + m.phase[j][None]
    act = jnp.where(m.kind[j] == KINDS.index("rff"), jnp.cos(units), jnp.tanh(units))
    size = m.noise_scale[j] * jnp.exp(jnp.tanh(dot(x, m.spread[:, j])))
    raw = m.bias[j] + dot(x, m.weight[:, j]) + dot(act, m.outer[j]) + size * noise[:, j]
    return (raw - m.centre[j]) / m.scale[j]


def _unrolled(
    scm: SCM,
    m: Mechanisms,
    noise: Float[Array, "n D"],
    keep: Float[Array, "n D"],
    offset: Float[Array, "n D"],
) -> Float[Array, "n D"]:
    """`values_from_noise` for a model with functions: they are called by name."""
    x = jnp.zeros_like(noise)
    for name in scm.order:
        j = scm.index(name)
        function: Callable[..., Any] | None = scm.functions[j]
        if function is None:
            made = _made(m, x, noise, j)
        else:
            causes = {parent: x[:, scm.index(parent)] for parent in scm.parents(name)}
            raw = value_of(function, name, causes, m.noise_scale[j] * noise[:, j])
            made = (jnp.asarray(raw, x.dtype) - m.centre[j]) / m.scale[j]
        x = x.at[:, j].set(made * keep[:, j] + offset[:, j])
    return x
