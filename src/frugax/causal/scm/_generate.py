"""Generate random SCMs, one or many at once with their data, in NumPy.

`generate_batch` serves training, whose steps must not wait for data: nothing is
compiled, and no Python loop runs over the data sets.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.options import check_choice, check_integer

from ._mechanisms import KINDS, Mechanisms, empty_mechanisms
from ._noise import NOISES, sample_noise
from ._random_graphs import random_graphs, shuffle_positions
from ._sample import evaluate, select_model
from ._scm import SCM

FAMILIES = (*KINDS[:3], "mixed")
"""Families of mechanisms; `"mixed"` draws a kind for each variable."""

# By name: the ends of the number of variables, the families, and the ends of the edges
# per node.
_DIFFICULTIES = {
    "easy": ((3, 5), ("linear",), (0.7, 1.5)),
    "medium": ((5, 10), ("linear", "mlp"), (1.0, 2.0)),
    "hard": ((10, 40), ("mlp", "rff", "mixed"), (1.5, 2.5)),
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GeneratedBatch:
    """Data sets of random models, padded to `D` variables; all arrays are NumPy's.

    Attributes:
        values: float32 `(sets, rows, D)`; mean 0 and variance 1 over observations.
        intervened: True where a variable was set; bool `(sets, rows, D)`.
        adjacency: true edges `[set, parent, child]`; bool.
        present: False for padding columns, which are 0; bool `(sets, D)`.
        mechanisms: the models themselves, stacked.
    """

    values: Float[np.ndarray, "sets rows D"]
    intervened: Bool[np.ndarray, "sets rows D"]
    adjacency: Bool[np.ndarray, "sets D D"]
    present: Bool[np.ndarray, "sets D"]
    mechanisms: Mechanisms


def generate_batch(
    sets: int,
    *,
    d: int | tuple[int, int] = (3, 10),
    pad_to: int | None = None,
    rows: int = 128,
    observed: int | None = None,
    graph: str | Sequence[str] = ("erdos_renyi", "scale_free"),
    family: str | Sequence[str] = "linear",
    noise: str | Sequence[str] = "gaussian",
    edges_per_node: float | tuple[float, float] = (0.7, 2.5),
    weights: tuple[float, float] = (0.5, 2.0),
    noise_scales: tuple[float, float] = (0.3, 1.0),
    heteroscedastic: float = 0.0,
    values: tuple[float, float] = (-3.0, 3.0),
    hidden_units: int = 16,
    seed: int | np.random.Generator,
) -> GeneratedBatch:
    """Generate random models, and data of each: first observations, then interventions.

    Every variable is standardized before its children are computed, so neither its
    variance nor its mean reveals its position. A row with an intervention changes one
    random variable.

    Args:
        sets: number of models.
        d: variables of each model, or a range, ends included.
        pad_to: columns; the most variables by default.
        rows: of each data set.
        observed: number of leading rows without intervention; half by default.
        graph: kinds of graph (`GRAPHS`), one drawn for each model.
        family: kinds of mechanism (`"linear"`, `"mlp"`, `"rff"`, `"mixed"`), one drawn
            for each model.
        noise: kinds of noise (`NOISES`), one drawn for each model.
        edges_per_node: of random graphs, or a range.
        weights: range of the size of linear effects; the sign is random.
        noise_scales: range of the noise's standard deviation.
        heteroscedastic: share of models whose noise depends on the parents.
        values: range that interventions set variables to, in standard deviations.
        hidden_units: of each nonlinear mechanism.
        seed: a number, or a NumPy generator to continue.

    Raises:
        ValueError: a kind is unknown, or sizes do not fit together.

    Example:
        >>> batch = generate_batch(8, d=(3, 5), rows=20, seed=0)
        >>> batch.values.shape, batch.adjacency.shape
        ((8, 20, 5), (8, 5, 5))
    """
    rng = np.random.default_rng(seed)
    least, most = _as_range(d)
    check_integer("d", least)
    check_integer("d", most)
    if least > most:
        raise ValueError(f"d must go up from the least to the most, got {d}.")
    width = most if pad_to is None else pad_to
    if width < most:
        raise ValueError(f"pad_to must be >= {most}, the most of d, got {pad_to}.")
    if observed is None:
        observed = (rows + 1) // 2
    if sets < 1 or not 1 < observed <= rows:
        raise ValueError(
            f"sets must be >= 1 and observed in 2..rows, got {sets} sets with "
            f"{observed} of {rows} rows."
        )
    for what, ends in (
        ("edges_per_node", edges_per_node),
        ("weights", weights),
        ("noise_scales", noise_scales),
    ):
        low, high = _as_range(ends)
        if not 0 <= low <= high < np.inf:
            raise ValueError(f"{what} must go up from 0 or more, got {ends}.")
    sizes = rng.integers(least, most + 1, sets)
    edges = _draw_edges(graph, sizes, width, edges_per_node, rng)
    kinds = _draw_kinds(family, FAMILIES, sets, "family", rng)
    each = np.where(
        (kinds == FAMILIES.index("mixed"))[:, None],
        rng.integers(0, 3, (sets, width)),
        kinds[:, None],
    ).astype(np.int32)
    m = _draw_mechanisms(edges, each, weights, hidden_units, rng)
    present = np.arange(width) < sizes[:, None]
    scale = _uniform(noise_scales, (sets, width), rng)
    m = dataclasses.replace(
        m,
        present=present,
        noise=np.tile(
            _draw_kinds(noise, NOISES, sets, "noise", rng)[:, None], (1, width)
        ),
        noise_scale=np.where(present, scale, 0).astype(np.float32),
    )
    # Location-scale noise (Immer et al. 2023, ICML), on which methods that assume
    # additive noise can fail.
    if heteroscedastic:
        spread = edges * rng.standard_normal(edges.shape, np.float32)
        some = rng.random((sets, 1, 1)) < heteroscedastic
        m = dataclasses.replace(m, spread=np.where(some, spread, np.float32(0)))
    offset, intervened = _draw_interventions(sizes, width, rows, observed, values, rng)
    x, m = evaluate(
        m,
        sample_noise(rng, m.noise, rows, np.float32),
        keep=(~intervened).astype(np.float32),
        offset=offset,
        # Only observations define mean 0 and variance 1: the effects of interventions
        # must stay visible.
        standardize_rows=observed,
    )
    return _permute_columns(x, intervened, m, shuffle_positions(sizes, width, rng))


def generate_scm(
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
    """Generate a random model whose variables have mean 0 and variance 1.

    Args:
        graph: `"erdos_renyi"`, `"scale_free"` (hubs are causes), `"scale_free_effects"`
            (hubs are effects), `"small_world"`, `"tree"`, `"chain"`, `"fork"`,
            `"collider"`, `"diamond"`, `"butterfly"`, `"full"` or `"empty"`.
        d: number of variables, called `x0`, `x1`...
        family: `"linear"`, `"mlp"`, `"rff"` or `"mixed"`.
        noise: `"gaussian"`, `"laplace"`, `"uniform"` or `"student"`.
        edges_per_node: of random graphs, on average.
        weights: range of the size of effects.
        noise_scales: range of the noise's standard deviation, before standardizing.
        heteroscedastic: whether the noise depends on the parents.
        seed: a number, or a NumPy generator to continue.

    Returns:
        The model; its target is the last effect in causal order, if there is one.

    Raises:
        ValueError: a kind is unknown, or `d` is less than 1.

    Example:
        >>> scm = generate_scm("collider", 3, seed=0)
        >>> len(scm.parents(scm.target))
        2
    """
    batch = generate_batch(
        1,
        d=d,
        # Enough rows for means and variances to be within some 2 % of 0 and 1.
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
    scm = SCM(names, select_model(batch.mechanisms, 0))
    # The last effect can have the most ancestors, which makes it the richest target.
    effects = [name for name in scm.order if scm.parents(name)]
    return scm.with_target(effects[-1]) if effects else scm


def generate_scm_for_difficulty(difficulty: str, *, seed: int = 0) -> SCM:
    """Generate a random model with more variables and curvature as it gets harder.

    Args:
        difficulty: `"easy"` (3 to 5 variables, linear), `"medium"` (5 to 10, linear or
            a network) or `"hard"` (10 to 40, networks and random Fourier features).
        seed: of the model.

    Raises:
        ValueError: the difficulty is unknown.
    """
    check_choice("difficulty", difficulty, _DIFFICULTIES)
    (least, most), families, (sparse, dense) = _DIFFICULTIES[difficulty]
    rng = np.random.default_rng(seed)
    return generate_scm(
        str(rng.choice(["erdos_renyi", "scale_free"])),
        int(rng.integers(least, most + 1)),
        family=str(rng.choice(families)),
        edges_per_node=float(rng.uniform(sparse, dense)),
        seed=rng,
    )


def _as_range(value: Any) -> tuple[Any, Any]:
    """Return both ends of a range; one number is both."""
    return value if isinstance(value, tuple) else (value, value)


def _uniform(
    ends: tuple[float, float], shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """Draw float32 numbers between two ends."""
    low, high = np.asarray(ends, np.float32)
    return low + (high - low) * rng.random(shape, np.float32)


def _draw_kinds(
    given: str | Sequence[str],
    known: tuple[str, ...],
    sets: int,
    what: str,
    rng: np.random.Generator,
) -> Int[np.ndarray, " {sets}"]:
    """Draw one of the given kinds for each set, as an index into the known kinds."""
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        check_choice(what, name, known)
    if not names:
        raise ValueError(f"{what} is empty: name at least one of {', '.join(known)}.")
    indices = np.array([known.index(name) for name in names], np.int32)
    return indices[rng.integers(0, len(indices), sets)]


def _draw_edges(
    graph: str | Sequence[str],
    sizes: np.ndarray,
    d: int,
    edges_per_node: float | tuple[float, float],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "sets {d} {d}"]:
    """Draw a graph for each model."""
    kinds = [graph] if isinstance(graph, str) else list(graph)
    density = _uniform(_as_range(edges_per_node), sizes.shape, rng)
    picked = rng.integers(0, len(kinds), len(sizes))
    edges = np.zeros((len(sizes), d, d), bool)
    for index, kind in enumerate(kinds):
        mine = np.flatnonzero(picked == index)
        edges[mine] = random_graphs(kind, sizes[mine], d, density[mine], rng)
    return edges


def _draw_mechanisms(
    edges: np.ndarray,
    kinds: np.ndarray,
    weights: tuple[float, float],
    hidden: int,
    rng: np.random.Generator,
) -> Mechanisms:
    """Draw effects along the edges; parents have variance 1."""
    sets, d = kinds.shape
    linear = kinds == KINDS.index("linear")
    m = empty_mechanisms((sets,), d, 0 if linear.all() else hidden)
    m.parents[:], m.kind[:] = edges, kinds
    # One draw in (-1, 1) gives both the size and the sign.
    draw = _uniform((-1, 1), edges.shape, rng)
    size = np.float32(weights[0]) + np.abs(draw) * np.float32(weights[1] - weights[0])
    # Sizes stay away from 0: a weak effect is almost a violation of faithfulness, and
    # samples cannot reveal it (Uhler et al. 2013, Annals of Statistics 41:436-463).
    m.weight[:] = np.copysign(size, draw) * (edges & linear[:, None])
    if linear.all():
        return m
    rff = kinds == KINDS.index("rff")
    effects = edges & ~linear[:, None]
    # Length scales of 1 to 2.5 standard deviations: several bends to almost linear.
    lengths = np.where(rff, _uniform((1.0, 2.5), rff.shape, rng), 1)[:, None, :, None]
    m.inner[:] = rng.standard_normal(m.inner.shape, np.float32) / lengths
    # `evaluate` multiplies by all variables at once, so the weights of those that are
    # not parents must be exactly 0.
    m.inner[~effects] = 0
    # Random Fourier features need phases from a full turn (Rahimi & Recht 2007); for
    # tanh they are biases around 0.
    phase = _uniform((0, 2 * np.pi), m.phase.shape, rng)
    m.phase[:] = np.where(rff[..., None], phase, phase - np.pi)
    # The mean square of cos is 1/2, that of tanh here about 1/2. So the standard
    # deviation of both effects is distributed like the weight of one linear parent.
    gain = _uniform(weights, rff.shape, rng) * np.sqrt(2 / hidden, dtype=np.float32)
    m.outer[:] = rng.standard_normal(m.outer.shape, np.float32) * gain[..., None]
    # Without parents the hidden units would add a constant.
    m.outer[~effects.any(1)] = 0
    return m


def _draw_interventions(
    sizes: np.ndarray,
    d: int,
    rows: int,
    observed: int,
    values: tuple[float, float],
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the values that are set, 0 elsewhere, and their mask, `(sets, d, rows)`."""
    shape = (len(sizes), rows - observed)
    targets = (rng.random(shape) * sizes[:, None]).astype(int)
    changed = np.zeros((len(sizes), d, rows), bool)
    changed[:, :, observed:] = targets[:, None] == np.arange(d)[:, None]
    offset = np.zeros(changed.shape, np.float32)
    offset[:, :, observed:] = _uniform(values, (len(sizes), 1, shape[1]), rng)
    return offset * changed, changed


def _permute_columns(
    x: np.ndarray, changed: np.ndarray, m: Mechanisms, place: np.ndarray
) -> GeneratedBatch:
    """Permute the columns: until here they are in causal order."""
    sets = np.arange(len(x))[:, None]
    pairs = (sets[..., None], place[:, :, None], place[:, None, :])
    by_pair = ("parents", "weight", "inner", "spread")
    moved = {}
    for field in dataclasses.fields(Mechanisms):
        index = (sets, place)
        if field.name in by_pair:
            index = pairs
        moved[field.name] = getattr(m, field.name)[index]
    # The columns were in causal order, so the inverse permutation lists their new
    # places in that order.
    moved["order"] = place.argsort(1).astype(np.int32)
    m = Mechanisms(**moved)
    return GeneratedBatch(
        values=np.ascontiguousarray(x[sets, place].swapaxes(1, 2)),
        intervened=np.ascontiguousarray(changed[sets, place].swapaxes(1, 2)),
        adjacency=m.parents,
        present=m.present,
        mechanisms=m,
    )
