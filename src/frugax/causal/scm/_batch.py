"""Many random models and their data at once: no compile, no loop over the sets.

Reads: kinds of graphs, mechanisms and noise. Gives: values, interventions, true graphs.
For training, whose steps should not wait for data.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from ..checks import check_whole
from ._graphs import random_graphs, shuffled
from ._mechanisms import KINDS, Mechanisms, blank
from ._noise import NOISES, draw_noise
from ._propagate import propagate

FAMILIES = (*KINDS[:3], "mixed")
"""How effects come about; `"mixed"` draws a kind for each variable."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GeneratedBatch:
    """Data sets of random models, padded to `D` variables; all arrays are NumPy's.

    Attributes:
        values: float32 `(sets, rows, D)`; mean 0 and variance 1 over observations.
        intervened: which variable was set in which row; bool `(sets, rows, D)`.
        adjacency: true edges `[set, parent, child]`; bool.
        present: which columns are variables; the others are 0; bool `(sets, D)`.
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
    shifts: float = 0.0,
    hidden_units: int = 16,
    seed: int | np.random.Generator,
) -> GeneratedBatch:
    """Random models and data of each: first observations, then interventions.

    Every variable is centred and scaled as it is made, so neither its variance nor its
    mean tells its place. A row with an intervention changes one variable, any of them.

    Args:
        sets: how many models.
        d: variables of each, or the range they are drawn from, ends included.
        pad_to: columns; the most variables by default.
        rows: of each data set.
        observed: the first so many rows are without intervention; half by default.
        graph: kinds of graph, one drawn for each model; see `GRAPHS`.
        family: how effects come about: `"linear"`, `"mlp"`, `"rff"`, `"mixed"`, one
            drawn for each model.
        noise: kinds of noise, one drawn for each model.
        edges_per_node: of random graphs, or a range.
        weights: range of the size of linear effects; the sign is random.
        noise_scales: range of the noise's standard deviation.
        heteroscedastic: share of models whose noise depends on the parents.
        values: range that interventions set variables to, in standard deviations.
        shifts: share of models whose interventions shift instead of setting.
        hidden_units: of each effect that is not linear.
        seed: a number, or a NumPy generator that goes on.

    Raises:
        ValueError: an unknown kind, or sizes that do not fit together.

    Example:
        >>> batch = generate_batch(8, d=(3, 5), rows=20, seed=0)
        >>> batch.values.shape, batch.adjacency.shape
        ((8, 20, 5), (8, 5, 5))
    """
    rng = np.random.default_rng(seed)
    least, most = d if isinstance(d, tuple) else (d, d)
    check_whole("d", least, 1)
    check_whole("d", most, 1)
    if least > most:
        raise ValueError(f"d must go up from the least to the most, got {d}.")
    width = most if pad_to is None else pad_to
    if width < most:
        raise ValueError(f"pad_to must be >= {most}, the most of d, got {pad_to}.")
    observed = (rows + 1) // 2 if observed is None else observed
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
        low, high = ends if isinstance(ends, tuple) else (ends, ends)
        if not 0 <= low <= high < np.inf:
            raise ValueError(f"{what} must go up from 0 or more, got {ends}.")
    sizes = rng.integers(least, most + 1, sets)
    edges = _edges(graph, sizes, width, edges_per_node, rng)
    kinds = _pick(family, FAMILIES, sets, "family", rng)
    each = np.where(
        (kinds == FAMILIES.index("mixed"))[:, None],
        rng.integers(0, 3, (sets, width)),
        kinds[:, None],
    ).astype(np.int32)
    m = _mechanisms(edges, each, weights, hidden_units, rng)
    present = np.arange(width) < sizes[:, None]
    scale = _uniform(noise_scales, (sets, width), rng)
    m = dataclasses.replace(
        m,
        present=present,
        noise=np.tile(_pick(noise, NOISES, sets, "noise", rng)[:, None], (1, width)),
        noise_scale=np.where(present, scale, 0).astype(np.float32),
    )
    if heteroscedastic:
        spread = edges * rng.standard_normal(edges.shape, np.float32)
        some = rng.random((sets, 1, 1)) < heteroscedastic
        m = dataclasses.replace(m, spread=np.where(some, spread, np.float32(0)))
    keep, offset, intervened = _interventions(
        sizes, width, rows, observed, values, shifts, rng
    )
    x, m = propagate(
        m,
        draw_noise(rng, m.noise, rows, np.float32),
        keep=keep,
        offset=offset,
        standardise_rows=observed,
    )
    return _shuffled(x, intervened, m, shuffled(sizes, width, rng))


def _uniform(
    ends: tuple[float, float], shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """Numbers between two ends; float32."""
    low, high = np.asarray(ends, np.float32)
    return low + (high - low) * rng.random(shape, np.float32)


def _pick(
    given: str | Sequence[str],
    known: tuple[str, ...],
    sets: int,
    what: str,
    rng: np.random.Generator,
) -> Int[np.ndarray, " {sets}"]:
    """For each set one of the given kinds, as its index among those there are.

    Raises:
        ValueError: there is no such kind.
    """
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in known:
            raise ValueError(f"{what} {name!r} is none of {', '.join(known)}.")
    if not names:
        raise ValueError(f"{what} is empty: name at least one of {', '.join(known)}.")
    indices = np.array([known.index(name) for name in names], np.int32)
    return indices[rng.integers(0, len(indices), sets)]


def _edges(
    graph: str | Sequence[str],
    sizes: np.ndarray,
    d: int,
    edges_per_node: float | tuple[float, float],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "sets {d} {d}"]:
    """A graph for each model."""
    kinds = [graph] if isinstance(graph, str) else list(graph)
    ends = edges_per_node
    density = _uniform(
        ends if isinstance(ends, tuple) else (ends, ends), sizes.shape, rng
    )
    picked = rng.integers(0, len(kinds), len(sizes))
    edges = np.zeros((len(sizes), d, d), bool)
    for index, kind in enumerate(kinds):
        mine = np.flatnonzero(picked == index)
        edges[mine] = random_graphs(kind, sizes[mine], d, density[mine], rng)
    return edges


def _mechanisms(
    edges: np.ndarray,
    kinds: np.ndarray,
    weights: tuple[float, float],
    hidden: int,
    rng: np.random.Generator,
) -> Mechanisms:
    """Random effects along the edges; parents have variance 1."""
    sets, d = kinds.shape
    linear = kinds == KINDS.index("linear")
    m = blank((sets,), d, 0 if linear.all() else hidden)
    m.parents[:], m.kind[:] = edges, kinds
    # The sign comes from the interval's other half: one draw for both.
    draw = _uniform((-1, 1), edges.shape, rng)
    size = np.float32(weights[0]) + np.abs(draw) * np.float32(weights[1] - weights[0])
    m.weight[:] = np.copysign(size, draw) * (edges & linear[:, None])
    if linear.all():
        return m
    rff = kinds == KINDS.index("rff")
    effects = edges & ~linear[:, None]
    # Length scales of 1 to 2.5 deviations: from several bends to nearly a line.
    lengths = np.where(rff, _uniform((1.0, 2.5), rff.shape, rng), 1)[:, None, :, None]
    m.inner[:] = rng.standard_normal(m.inner.shape, np.float32) / lengths
    m.inner[~effects] = 0
    phase = _uniform((0, 2 * np.pi), m.phase.shape, rng)
    m.phase[:] = np.where(rff[..., None], phase, phase - np.pi)
    # cos has a mean square of 1/2, tanh here of about 1/2: both effects get a standard
    # deviation drawn like the weight of one linear parent.
    gain = _uniform(weights, rff.shape, rng) * np.sqrt(2 / hidden, dtype=np.float32)
    m.outer[:] = rng.standard_normal(m.outer.shape, np.float32) * gain[..., None]
    m.outer[~effects.any(1)] = 0
    return m


def _interventions(
    sizes: np.ndarray,
    d: int,
    rows: int,
    observed: int,
    values: tuple[float, float],
    shifts: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is kept, what is added, `(sets, d, rows)`, and where anything is changed."""
    shape = (len(sizes), rows - observed)
    targets = (rng.random(shape) * sizes[:, None]).astype(int)
    changed = np.zeros((len(sizes), d, rows), bool)
    changed[:, :, observed:] = targets[:, None] == np.arange(d)[:, None]
    offset = np.zeros(changed.shape, np.float32)
    offset[:, :, observed:] = _uniform(values, (len(sizes), 1, shape[1]), rng)
    offset *= changed
    keep = (~changed).astype(np.float32)
    if shifts:
        keep[rng.random(len(sizes)) < shifts] = 1
    return keep, offset, changed


def _shuffled(
    x: np.ndarray, changed: np.ndarray, m: Mechanisms, place: np.ndarray
) -> GeneratedBatch:
    """The same models with columns in another order: so far causes came first."""
    sets = np.arange(len(x))[:, None]
    pairs = (sets[..., None], place[:, :, None], place[:, None, :])
    by_pair = ("parents", "weight", "inner", "spread")
    moved = {
        field.name: getattr(m, field.name)[
            pairs if field.name in by_pair else (sets, place)
        ]
        for field in dataclasses.fields(Mechanisms)
    }
    moved["order"] = place.argsort(1).astype(np.int32)
    m = Mechanisms(**moved)
    return GeneratedBatch(
        values=np.ascontiguousarray(x[sets, place].swapaxes(1, 2)),
        intervened=np.ascontiguousarray(changed[sets, place].swapaxes(1, 2)),
        adjacency=m.parents,
        present=m.present,
        mechanisms=m,
    )
