"""One random model, by kind of graph and of effects, or by how hard it is.

The same code that makes thousands for training (`_batch.py`) makes this one.
"""

import numpy as np

from ._batch import generate_batch
from ._sample import first
from ._scm import SCM

_DIFFICULTIES = {
    "easy": ((3, 5), "linear", (0.7, 1.5)),
    "medium": ((5, 10), ("linear", "mlp"), (1.0, 2.0)),
    "hard": ((10, 40), ("mlp", "rff", "mixed"), (1.5, 2.5)),
}


def generate(
    graph: str,
    d: int,
    *,
    family: str = "linear",
    noise: str = "gaussian",
    edges_per_node: float = 1.5,
    weights: tuple[float, float] = (0.5, 2.0),
    noise_scales: tuple[float, float] = (0.3, 1.0),
    heteroscedastic: bool = False,
    seed: int | np.random.Generator,
) -> SCM:
    """A random model whose variables have mean 0 and variance 1.

    Args:
        graph: `"erdos_renyi"`, `"scale_free"` (hubs are causes), `"scale_free_effects"`
            (hubs are effects), `"small_world"`, `"tree"`, `"chain"`, `"fork"`,
            `"collider"`, `"diamond"`, `"butterfly"`, `"full"` or `"empty"`.
        d: variables, called `x0`, `x1`...
        family: `"linear"`, `"mlp"`, `"rff"` or `"mixed"`.
        noise: `"gaussian"`, `"laplace"`, `"uniform"` or `"student"`.
        edges_per_node: of random graphs, on average.
        weights: range of the size of effects.
        noise_scales: range of the noise's standard deviation, before standardising.
        heteroscedastic: whether the noise depends on the parents.
        seed: a number, or a NumPy generator that goes on.

    Returns:
        The model; its target is the last effect in causal order, if there is any.

    Raises:
        ValueError: an unknown kind, or `d` is less than 1.

    Example:
        >>> scm = generate("collider", 3, seed=0)
        >>> len(scm.parents(scm.target))
        2
    """
    batch = generate_batch(
        1,
        d=d,
        # As many rows as it takes for the standardisation to be close, no intervention.
        rows=2048,
        observed=2048,
        graph=graph,
        family=family,
        noise=noise,
        edges_per_node=edges_per_node,
        weights=weights,
        noise_scales=noise_scales,
        heteroscedastic=float(heteroscedastic),
        seed=seed,
    )
    names = tuple(f"x{j}" for j in range(d))
    scm = SCM(names, first(batch.mechanisms))
    effects = [name for name in scm.order if scm.parents(name)]
    return scm.with_target(effects[-1] if effects else None)


def generate_scm_for_difficulty(difficulty: str, *, seed: int = 0) -> SCM:
    """A random model to learn on: more variables and bent effects where it is harder.

    Args:
        difficulty: `"easy"` (3 to 5 variables, linear), `"medium"` (5 to 10, linear or
            a network) or `"hard"` (10 to 40, networks and random Fourier features).
        seed: of the model.

    Raises:
        ValueError: there is no such difficulty.
    """
    if difficulty not in _DIFFICULTIES:
        known = ", ".join(map(repr, _DIFFICULTIES))
        raise ValueError(f"there is no difficulty {difficulty!r}: take one of {known}.")
    (least, most), families, (sparse, dense) = _DIFFICULTIES[difficulty]
    rng = np.random.default_rng(seed)
    families = (families,) if isinstance(families, str) else families
    return generate(
        str(rng.choice(["erdos_renyi", "scale_free"])),
        int(rng.integers(least, most + 1)),
        family=str(rng.choice(families)),
        edges_per_node=float(rng.uniform(sparse, dense)),
        seed=rng,
    )
