"""The noise distributions of SCMs, of mean 0 and variance 1.

`sample_noise` uses the cheapest method for each kind, because training draws millions
of values. Averages over even uniform numbers need the inverse distribution functions.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int

NOISES = ("gaussian", "laplace", "uniform", "student")
"""The kinds that `Mechanisms.noise` indexes. Student's t has four degrees of freedom,
because its distribution function then has a closed inverse."""


def sample_noise(
    rng: np.random.Generator,
    kinds: Int[np.ndarray, "batch D"],
    n: int,
    dtype: type[np.float32] | type[np.float64] = np.float64,
) -> Float[np.ndarray, "batch D {n}"]:
    """Sample independent noise of unit variance."""
    noise = rng.standard_normal((*kinds.shape, n), dtype)
    for index, name in enumerate(NOISES[1:], start=1):
        rows = kinds == index
        shape = (int(rows.sum()), n)
        if not shape[0]:
            continue
        if name == "laplace":
            # The normal draw supplies the sign. A Laplace variable of scale b has
            # variance 2 b^2.
            size = rng.standard_exponential(shape, dtype) / np.sqrt(2, dtype=dtype)
            noise[rows] = np.copysign(size, noise[rows])
        elif name == "uniform":
            # On an interval of width w a uniform variable has variance w^2 / 12.
            noise[rows] = (rng.random(shape, dtype) - 0.5) * np.sqrt(12, dtype=dtype)
        else:
            # Student's t with 4 degrees of freedom is z / sqrt(chi2 / 4) and has
            # variance 2; chi2 / 2 is gamma distributed with shape 2. The factors
            # cancel, so z / sqrt(gamma) has variance 1.
            noise[rows] /= np.sqrt(rng.standard_gamma(2, shape, dtype))
    return noise


def noise_from_uniform(
    uniform: Float[Array, "*shape"], kinds: Int[Array, "*#shape"]
) -> Float[Array, "*shape"]:
    """Apply the inverse distribution function of unit noise.

    References:
        Shaw 2006, J. Computational Finance 9(4):37-73 (the inverse for Student's t).
    """
    # All four distributions are symmetric: the smaller tail and a sign serve both
    # halves.
    side = jnp.sign(uniform - 0.5)
    tail = jnp.minimum(uniform, 1 - uniform)
    root = jnp.sqrt(4 * uniform * (1 - uniform))
    # Rounding lifts `root` just above 1 in the middle, where arccos is not defined.
    heavy = jnp.cos(jnp.arccos(jnp.minimum(root, 1.0)) / 3) / root
    # For Student's t, t = 2 sqrt(heavy - 1), here divided by its standard deviation
    # sqrt(2). `heavy` is 1 at the median, where rounding may put it below.
    values = (
        ndtri(uniform),
        -side * jnp.log(2 * tail) * 0.5**0.5,
        (uniform - 0.5) * 12**0.5,
        side * jnp.sqrt(2 * jnp.maximum(heavy - 1, 0.0)),
    )
    # All kinds are computed and one is selected. A branch would do the same: under
    # `vmap`, `lax.switch` becomes a select.
    return jnp.select([kinds == i for i in range(len(NOISES))], list(values))
