"""A campaign's candidate experiments: a grid, refined around promising points."""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from frugax.causal.policy import mean_improvement, permitted
from frugax.causal.posterior import Points

from ._settings import CampaignSettings
from .actions import snap

# Candidates in all: predicting one takes some twenty microseconds a sample.
_MAX_POINTS = 700
_MANY_SETS = 100
_DRAWS = 5000  # points among which joint limits leave some
_NUM_NEARBY = 12  # new candidates around each promising one


def make_grid(
    settings: CampaignSettings, names: tuple[str, ...], rng: np.random.Generator
) -> Points:
    """Make candidates over all ranges, with the ends of each."""
    sets = [s for s in settings.allowed_sets() if set(s) <= set(names)]
    larger = [s for s in sets if len(s) > 1]
    num_single = len(sets) - len(larger)
    # Half of the candidates set single variables, which are finer per dimension.
    per_single = int(np.clip(_MAX_POINTS // 2 // max(num_single, 1), 9, 65))
    # At least 16, so that three variables get their eight corners and as many points in
    # between; of very many sets only corners and middles.
    least = 16 if len(larger) <= _MANY_SETS else 9
    per_larger = int(np.clip(_MAX_POINTS // max(len(larger), 1), least, 400))
    groups: list[tuple[int, ...]] = []
    values: list[np.ndarray] = []
    for s in sets:
        low, high = np.array([settings.ranges[n] for n in s]).T
        if len(s) == 1:
            unit = np.linspace(0.0, 1.0, per_single)[:, None]
        else:
            unit = _fill_unit_cube(len(s), per_larger, rng)
        found = _keep_limits(low + unit * (high - low), s, settings)
        if len(found) < len(unit) // 2 and settings.joint_limits:
            # Limits that leave a small part of the ranges leave few points of a grid.
            more = low + rng.random((_DRAWS, len(s))) * (high - low)
            more = _keep_limits(more, s, settings)[: len(unit)]
            found = np.concatenate([found, more])
        if len(found):
            groups.append(tuple(names.index(n) for n in s))
            values.append(found)
    return Points(tuple(groups), tuple(values))


def refine_grid(
    points: Points,
    centres: Sequence[int],
    settings: CampaignSettings,
    names: tuple[str, ...],
    rng: np.random.Generator,
) -> Points:
    """Make more candidates around some points, within the ranges."""
    extra: dict[tuple[int, ...], list[np.ndarray]] = {}
    # The criteria often agree on a point, which is refined once. A dict keeps their
    # order; that of a set could change the draws.
    for i in dict.fromkeys(centres):
        targets, centre = points.at(i)
        low, high = np.array([settings.ranges[names[v]] for v in targets]).T
        size = len(points.values[points.targets.index(targets)])
        # From the step of the grid down to a twentieth of it.
        step = (high - low) / max(size ** (1 / len(targets)) - 1, 1.0)
        widths = np.geomspace(1.0, 0.05, _NUM_NEARBY)[:, None]
        moves = step * widths * rng.uniform(-1, 1, (_NUM_NEARBY, len(targets)))
        # Clipping piles points up at the ends of a range. They are welcome there: the
        # best value of a monotone effect is an end.
        extra.setdefault(targets, []).append(np.clip(centre + moves, low, high))
    found: list[np.ndarray] = []
    for targets, values in extra.items():
        each = [names[v] for v in targets]
        new = _keep_limits(np.concatenate(values), each, settings)
        if any(not isinstance(settings.variables[n], tuple) for n in each):
            old = points.values[points.targets.index(targets)]
            new = new[~(new[:, None] == old).all(2).any(1)]
        found.append(new)
    return Points(tuple(extra), tuple(found))


def _keep_limits(
    values: Float[np.ndarray, "points targets"],
    names: Sequence[str],
    settings: CampaignSettings,
) -> Float[np.ndarray, "_ targets"]:
    """Move points to values that can be set, each once, and keep those that may be."""
    actions = [settings.variables[n] for n in names]
    if not all(isinstance(action, tuple) for action in actions):
        columns = [snap(x, action) for x, action in zip(values.T, actions, strict=True)]
        values = np.unique(np.stack(columns, axis=1), axis=0)
    for limit in settings.joint_limits:
        values = values[limit.permits(names, values, settings.variables)]
    return values


def select_promising(
    loss: Float[np.ndarray, "samples points"],
    allowed: Bool[np.ndarray, "samples points"],
    breach: Float[np.ndarray, " points"],
) -> list[int]:
    """Select the candidates around which to refine the grid.

    They are the three best on average, the three with the largest expected improvement,
    and the best one of each of four samples.
    """
    mean = np.where(permitted(allowed, breach), loss.mean(0), np.inf)
    improvement = mean_improvement(np.full(len(loss), mean.min()), loss, allowed)
    # The best points of single samples, as in Thompson sampling, keep alternatives that
    # the mean hides.
    each = np.where(allowed, loss, np.inf).argmin(1)
    centres = [*np.argsort(mean)[:3], *np.argsort(-improvement)[:3], *each[:4]]
    return [int(c) for c in centres]


def _fill_unit_cube(
    dimensions: int, count: int, rng: np.random.Generator
) -> Float[np.ndarray, "points {dimensions}"]:
    """Make a grid in two dimensions; corners and a Latin hypercube in more."""
    if dimensions == 2:
        side = np.linspace(0.0, 1.0, max(int(count**0.5), 3))
        return np.array(list(itertools.product(side, side)))
    # Optima often lie in corners, as effects are often monotone.
    if 2**dimensions <= count // 2:
        corners = np.array(list(itertools.product((0.0, 1.0), repeat=dimensions)))
    else:
        corners = rng.integers(0, 2, (count // 2, dimensions)).astype(float)
    rest = count - len(corners)
    # A Latin hypercube as scipy.stats.qmc makes one, from the campaign's generator:
    # another would change the questions of saved campaigns.
    cells = np.stack([rng.permutation(rest) for _ in range(dimensions)], axis=1)
    return np.concatenate([corners, (cells + rng.random((rest, dimensions))) / rest])
