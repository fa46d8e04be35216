"""The kinds of noise, each with mean 0 and variance 1, drawn in NumPy and in JAX.

NumPy takes the cheapest draw of each kind, as training draws millions. JAX inverts the
distribution function of one uniform number per value: a compiled program then holds one
random draw whatever the kinds are, and compiles fast.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int, Key

NOISES = ("gaussian", "laplace", "uniform", "student")
"""What `Mechanisms.noise` counts. Student's has four degrees of freedom, as its
distribution function then has a closed inverse."""


def draw_noise(
    rng: np.random.Generator,
    kinds: Int[np.ndarray, "batch D"],
    n: int,
    dtype: type[np.float32] | type[np.float64] = np.float64,
) -> Float[np.ndarray, "batch D {n}"]:
    """Independent noise of unit variance.

    Args:
        rng: where the numbers come from.
        kinds: index into `NOISES` of each variable.
        n: values of each.
        dtype: of the result.
    """
    noise = rng.standard_normal((*kinds.shape, n), dtype)
    for index, name in enumerate(NOISES[1:], start=1):
        rows = kinds == index
        shape = (int(rows.sum()), n)
        if not shape[0]:
            continue
        if name == "laplace":
            size = rng.standard_exponential(shape, dtype) / np.sqrt(2, dtype=dtype)
            noise[rows] = np.copysign(size, noise[rows])
        elif name == "uniform":
            noise[rows] = (rng.random(shape, dtype) - 0.5) * np.sqrt(12, dtype=dtype)
        else:
            # t of 4 degrees is z / sqrt(chi2 / 4), its variance 2, and chi2 / 2 of 4
            # degrees is a gamma of shape 2; both factors cancel.
            noise[rows] /= np.sqrt(rng.standard_gamma(2, shape, dtype))
    return noise


def noise_from_uniform(
    uniform: Float[Array, "*shape"], kinds: Int[Array, "*#shape"]
) -> Float[Array, "*shape"]:
    """Unit noise whose distribution function has the given values.

    Args:
        uniform: in (0, 1).
        kinds: index into `NOISES`, broadcast against `uniform`.

    References:
        Shaw 2006, J. Computational Finance 9(4):37-73 (the inverse for Student's t).
    """
    side = jnp.sign(uniform - 0.5)
    tail = jnp.minimum(uniform, 1 - uniform)
    root = jnp.sqrt(4 * uniform * (1 - uniform))
    # Just above 1 in the middle, by rounding: the clip keeps its square root a number.
    heavy = jnp.cos(jnp.arccos(jnp.minimum(root, 1.0)) / 3) / root
    values = (
        ndtri(uniform),
        -side * jnp.log(2 * tail) * 0.5**0.5,
        (uniform - 0.5) * 12**0.5,
        side * jnp.sqrt(2 * jnp.maximum(heavy - 1, 0.0)),
    )
    return jnp.select([kinds == i for i in range(len(NOISES))], list(values))


def simulate_noise(
    key: Key[Array, ""], kinds: Int[Array, " D"], n: int
) -> Float[Array, "{n} D"]:
    """`draw_noise` of one model in JAX; runs under `jit` and `vmap`.

    Args:
        key: random key.
        kinds: index into `NOISES` of each variable.
        n: values of each.
    """
    return noise_from_uniform(uniform_inside(key, (n, kinds.shape[0])), kinds[None])


def uniform_inside(key: Key[Array, ""], shape: tuple[int, int]) -> Float[Array, "n D"]:
    """Uniform numbers away from 0 and 1, where the inverses are infinite.

    Args:
        key: random key.
        shape: of the result.
    """
    edge = float(jnp.finfo(jnp.float32).eps) / 2
    return jax.random.uniform(key, shape, minval=edge, maxval=1 - edge)
