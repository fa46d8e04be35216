"""Training problems: many random causal models and their data at once, in NumPy.

One call draws a whole batch, variable by variable along a random order: no compiling,
and well under a millisecond of CPU for a data set. Each variable is standardised while
it is drawn, so that variances do not betray the order.
"""

import dataclasses

import numpy as np

from ..scm import generate_batch
from ._task_mechanisms import MECHANISMS

KINDS_OF_NOISE = ("gaussian", "laplace", "uniform", "student")
TRAINING = ("linear", "mlp", "sigmoid", "product")
CALIBRATION = ("wave",)
HELD_OUT = ("rff",)
FAMILIES = TRAINING + CALIBRATION + HELD_OUT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """A batch of data sets, and the graphs behind them.

    Attributes:
        values: float32 [batch, n, width].
        intervened: 1 where the value was set [batch, n, width].
        present: 1 where row and variable are there [batch, n, width].
        graphs: 1 from parent to child [batch, width, width].
        mask: 1 for variables that are there [batch, width].
    """

    values: np.ndarray
    intervened: np.ndarray
    present: np.ndarray
    graphs: np.ndarray
    mask: np.ndarray


def draw_tasks(
    seed: int | list[int],
    batch: int,
    *,
    width: int,
    variables: int | None = None,
    families: tuple[str, ...] = TRAINING,
    noise: str | None = None,
    observed: int = 64,
    experiments: int = 64,
    vary: bool = False,
) -> Tasks:
    """Draw causal models and data.

    Args:
        seed: of everything.
        batch: how many.
        width: variables that arrays have room for.
        variables: how many there are; None for 2 to `width`.
        families: mechanisms to draw from.
        noise: its distribution; None draws one for each model.
        observed: rows without intervention.
        experiments: rows in which one variable was set.
        vary: drop rows, change how values are set, and lose values, at random.
    """
    rng = np.random.default_rng(seed)
    if variables is None:
        sizes = rng.integers(2, width + 1, batch)
        sizes = np.where(rng.random(batch) < 0.3, width, sizes)
    else:
        sizes = np.full(batch, variables)
    mask = (np.arange(width) < sizes[:, None]).astype(np.float32)
    graphs = _graphs(rng, mask)
    n = observed + experiments
    target = (np.arange(experiments) + rng.integers(0, width, (batch, 1))) % sizes[
        :, None
    ]
    if vary:
        some = rng.random(batch) < 0.25
        other = rng.integers(0, 2**30, (batch, experiments)) % sizes[:, None]
        # Few variables are set at all.
        few = other % np.maximum(1, sizes // 2)[:, None]
        target = np.where(some[:, None], few, target)
    hit = np.zeros((batch, n, width), np.float32)
    rows = np.arange(observed, n)
    hit[np.arange(batch)[:, None], rows, target] = 1
    spread = rng.uniform(0.7, 2.0, (batch, 1))
    level = rng.normal(size=(batch, experiments)) * spread
    level = np.where(
        rng.random((batch, 1)) < 0.3, rng.uniform(-3, 3, level.shape), level
    )
    if vary:
        fixed = rng.uniform(-3, 3, (batch, width))[np.arange(batch)[:, None], target]
        level = np.where(rng.random((batch, 1)) < 0.2, fixed, level)
    values = _data(
        rng, graphs, mask, hit, level.astype(np.float32), observed, families, noise
    )
    present = np.broadcast_to(mask[:, None], values.shape).copy()
    if vary:
        present *= _kept(rng, batch, n, width, observed)
    # Names carry nothing: a random order of the variables that are there.
    shuffle = np.argsort(rng.random((batch, width)) + 2 * (1 - mask), axis=1)
    take = shuffle[:, None]
    return Tasks(
        values=np.take_along_axis(values, take, 2),
        intervened=np.take_along_axis(hit, take, 2),
        present=np.take_along_axis(present, take, 2),
        graphs=np.take_along_axis(
            np.take_along_axis(graphs, shuffle[:, :, None], 1), take, 2
        ),
        mask=mask,
    )


def draw_generated(
    seed: int | list[int], batch: int, *, width: int, observed: int, experiments: int
) -> Tasks:
    """The same from `generate_batch`, whose models are drawn in another way.

    Args:
        seed: of everything.
        batch: how many.
        width: variables that arrays have room for.
        observed: rows without intervention.
        experiments: rows in which one variable was changed.
    """
    rng = np.random.default_rng(seed)
    reach = float(rng.uniform(1, 3.5))
    made = generate_batch(
        batch,
        d=(2 if rng.random() < 0.7 else width, width),
        pad_to=width,
        rows=observed + experiments,
        observed=observed,
        family=("linear", "mlp"),
        noise=KINDS_OF_NOISE,
        edges_per_node=(0.4, 2.5),
        weights=(0.3, 2.0),
        noise_scales=(0.2, 1.0),
        heteroscedastic=0.15,
        values=(-reach, reach),
        hidden_units=int(rng.integers(4, 24)),
        seed=rng,
    )
    mask = made.present.astype(np.float32)
    kept = _kept(rng, batch, observed + experiments, width, observed)
    return Tasks(
        values=made.values,
        intervened=made.intervened.astype(np.float32),
        present=kept * mask[:, None],
        graphs=made.adjacency.astype(np.float32),
        mask=mask,
    )


def _kept(
    rng: np.random.Generator, batch: int, n: int, width: int, observed: int
) -> np.ndarray:
    """1 where a value is left: rows are dropped in some data sets, values in others."""
    keep = np.ones((batch, n), np.float32)
    share = np.where(rng.random((batch, 2)) < 0.3, rng.uniform(0.1, 1, (batch, 2)), 1)
    share[:, 1] = np.where(rng.random(batch) < 0.1, 0, share[:, 1])
    keep[:, :observed] = rng.random((batch, observed)) < share[:, :1]
    keep[:, observed:] = rng.random((batch, n - observed)) < share[:, 1:]
    keep[:, :8] = 1
    lost = rng.random((batch, 1, 1)) < 0.1
    return keep[:, :, None] * ~(lost & (rng.random((batch, n, width)) < 0.1))


def _graphs(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    """Random graphs [batch, width, width] in which edges go upwards."""
    batch, width = mask.shape
    size = mask.sum(1)
    density = rng.uniform(0.5, 2.5, batch)
    p = np.minimum(0.9, 2 * density / np.maximum(size - 1, 1))
    lift = np.ones((batch, width, width))
    # In a third of the graphs a few hubs have most of the edges.
    weight = rng.exponential(size=(batch, width)) ** 2 + 0.05
    side = rng.random(batch) < 0.5
    hub = np.where(side[:, None, None], weight[:, :, None], weight[:, None, :])
    hubs = rng.random(batch) < 0.33
    lift = np.where(hubs[:, None, None], hub / weight.mean(1)[:, None, None], lift)
    edge = rng.random((batch, width, width)) < np.minimum(p[:, None, None] * lift, 0.95)
    upper = np.triu(np.ones((width, width)), 1)
    return (edge * upper * mask[:, :, None] * mask[:, None, :]).astype(np.float32)


def _noise(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "gaussian":
        return rng.standard_normal(shape, np.float32)
    if kind == "laplace":
        return rng.laplace(scale=np.sqrt(0.5), size=shape).astype(np.float32)
    if kind == "student":
        return (rng.standard_t(5, shape) / np.sqrt(5 / 3)).astype(np.float32)
    return rng.uniform(-np.sqrt(3), np.sqrt(3), shape).astype(np.float32)


def _data(rng, graphs, mask, hit, level, observed, families, noise):
    batch, width = mask.shape
    n = hit.shape[1]
    kinds = KINDS_OF_NOISE if noise is None else (noise,)
    which = rng.integers(len(kinds), size=batch)
    eps = np.stack([_noise(rng, kind, (batch, n, width)) for kind in kinds])
    eps = eps[which, np.arange(batch)]
    values = np.zeros((batch, n, width), np.float32)
    family = rng.integers(len(families), size=batch)
    scale = np.exp(rng.uniform(np.log(0.2), np.log(1.0), (batch, width))).astype(
        np.float32
    )
    uneven = (rng.random(batch) < (0.15 if noise is None else 0)).astype(np.float32)
    forced = np.zeros((batch, n), np.float32)
    forced[:, observed:] = level
    for i in range(width):
        signal = np.zeros((batch, n), np.float32)
        if i:
            inputs = values[:, :, :i] * graphs[:, None, :i, i]
            for code, name in enumerate(families):
                of = family == code
                if of.any():
                    signal[of] = MECHANISMS[name](rng, inputs[of], graphs[of, :i, i])
        if i:
            base = signal[:, :observed]
            spread = base.std(1, keepdims=True)
            signal = (signal - base.mean(1, keepdims=True)) / np.where(
                spread > 1e-6, spread, 1
            )
        has = (graphs[:, :, i].sum(1) > 0).astype(np.float32)[:, None]
        size = np.where(has > 0, scale[:, i, None], 1)
        size = size * np.exp(0.5 * uneven[:, None] * has * np.sin(signal))
        x = signal * has + size * eps[:, :, i]
        base = x[:, :observed]
        x = (x - base.mean(1, keepdims=True)) / base.std(1, keepdims=True)
        values[:, :, i] = np.where(hit[:, :, i] > 0, forced, x)
    return values * mask[:, None]
