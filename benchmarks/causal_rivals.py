"""Other ways to choose experiments, for `causal_optimise.py`.

Each is a generator: it does one experiment that sets one set of variables, then says
what it would recommend now.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from frugax import causal

Points = list[tuple[tuple[str, ...], np.ndarray]]


def candidates(env: causal.Environment) -> Points:
    """The same grid of experiments for every rival: 41 values, or 15 x 15 for pairs."""
    found: Points = []
    for k in range(1, env.max_targets + 1):
        for names in itertools.combinations(env.ranges, k):
            side = {1: 41, 2: 15}.get(k, 7)
            axes = [np.linspace(*env.ranges[n], side) for n in names]
            found += [(names, np.array(v)) for v in itertools.product(*axes)]
    return found


def done(env: causal.Environment, names: tuple[str, ...], values: np.ndarray) -> Any:
    return causal.intervene(**dict(zip(names, map(float, values), strict=True)))


def random_search(
    env: causal.Environment, observed: causal.Samples, trials: int, rows: int, seed: int
) -> Iterator[causal.Intervention]:
    """Any set, any values; recommends what gave the best outcome."""
    rng = np.random.default_rng([seed, 3])
    sign = 1 if env.minimize else -1
    sets = list(dict.fromkeys(names for names, _ in candidates(env)))
    best, found = np.inf, None
    for t in range(trials):
        names = sets[rng.integers(len(sets))]
        low, high = np.array([env.ranges[n] for n in names]).T
        what = done(env, names, rng.uniform(low, high))
        data = env.sample(rows, seed=seed * 1000 + t, intervention=what)
        outcome = sign * float(data[env.target].mean())
        if outcome < best:
            best, found = outcome, what
        assert found is not None
        yield found


def oracle(
    env: causal.Environment, observed: causal.Samples, trials: int, rows: int, seed: int
) -> Iterator[causal.Intervention]:
    """Who knows the truth."""
    for _ in range(trials):
        yield env.best


def gp_ucb(
    env: causal.Environment, observed: causal.Samples, trials: int, rows: int, seed: int
) -> Iterator[causal.Intervention]:
    """A Gaussian process for each set of variables, no graph; two deviations of hope.

    Amplitude, length and noise maximise the evidence over a grid after each experiment;
    the mean without experiments is the target's own. Recommends the best mean.
    """
    rng = np.random.default_rng([seed, 4])
    sign = 1 if env.minimize else -1
    points = candidates(env)
    group = {names: i for i, names in enumerate(dict.fromkeys(n for n, _ in points))}
    widest = max(len(n) for n in group)
    x = np.zeros((len(points), 1 + widest))
    for i, (names, values) in enumerate(points):
        half = np.array([(env.ranges[n][1] - env.ranges[n][0]) / 2 for n in names])
        x[i, 0] = group[names]
        x[i, 1 : 1 + len(names)] = values / half
    y_seen = sign * observed[env.target].astype(float)
    centre, scale = y_seen.mean(), y_seen.std()
    at: list[int] = []
    y: list[float] = []
    kernel = lambda a, b, length: (
        (a[:, None, 0] == b[None, :, 0])
        * np.exp(-0.5 * ((a[:, None, 1:] - b[None, :, 1:]) ** 2).sum(-1) / length**2)
    )
    noise = 1.0 / rows
    for t in range(trials):
        mean, spread = np.zeros(len(points)), np.ones(len(points))
        if at:
            mean, spread = _posterior(x, x[at], np.array(y), noise, kernel)
        hope = mean - 2 * spread
        pick = int(rng.choice(np.flatnonzero(hope <= hope.min() + 1e-9)))
        what = done(env, *points[pick])
        data = env.sample(rows, seed=seed * 1000 + t, intervention=what)
        at.append(pick)
        y.append((sign * float(data[env.target].mean()) - centre) / scale)
        mean, _ = _posterior(x, x[at], np.array(y), noise, kernel)
        yield done(env, *points[int(np.argmin(mean))])


def _posterior(
    x: np.ndarray, seen: np.ndarray, y: np.ndarray, noise: float, kernel: Any
) -> tuple[np.ndarray, np.ndarray]:
    best: tuple[float, float, float, float] = (-np.inf, 1.0, 0.5, 1.0)
    for size in (0.3, 1.0, 3.0, 10.0):
        for length in (0.15, 0.3, 0.6, 1.2):
            for share in (0.3, 1.0):
                k = size * kernel(seen, seen, length) + noise * share * np.eye(len(y))
                root = np.linalg.cholesky(k)
                half = np.linalg.solve(root, y)
                score = -0.5 * half @ half - np.log(np.diag(root)).sum()
                best = max(best, (score, size, length, share))
    _, size, length, share = best
    k = size * kernel(seen, seen, length) + noise * share * np.eye(len(y))
    cross = size * kernel(x, seen, length)
    solved = np.linalg.solve(k, cross.T)
    variance = size - np.einsum("ij,ji->i", cross, solved)
    return solved.T @ y, np.sqrt(np.maximum(variance, 0))


def gies_regression(
    env: causal.Environment, observed: causal.Samples, trials: int, rows: int, seed: int
) -> Iterator[causal.Intervention]:
    """GIES for the graph, least squares for its edges; does what looks best.

    The first three experiments, and every third after, set a variable at random: greedy
    alone never learns which way undirected edges point.
    """
    rng = np.random.default_rng([seed, 5])
    sign = 1 if env.minimize else -1
    points, names = candidates(env), observed.variables
    target = names.index(env.target)
    data = [observed.values.astype(float)]
    targets: list[list[int]] = [[]]
    best = None
    for t in range(trials):
        if t < 3 or t % 3 == 0 or best is None:
            what = done(env, *points[rng.integers(len(points))])
        else:
            what = best
        rows_of = env.sample(rows, seed=seed * 1000 + t, intervention=what)
        data.append(rows_of.values.astype(float))
        targets.append(sorted(names.index(n) for n in what.targets))
        weights, constant = _gies_model(data, targets, rng)
        best, least = None, np.inf
        for where, values in points:
            at = [names.index(n) for n in where]
            cut, fixed = weights.copy(), constant.copy()
            cut[:, at], fixed[at] = 0.0, values
            mean = np.linalg.solve(np.eye(len(names)) - cut.T, fixed)[target]
            if sign * mean < least:
                least, best = sign * mean, done(env, where, values)
        assert best is not None
        yield best


def _gies_model(
    data: list[np.ndarray], targets: list[list[int]], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Weights `[parent, child]` and constants of a linear model on GIES' graph."""
    import gies

    # One entry for each set of targets, as gies wants it.
    merged: dict[tuple[int, ...], list[np.ndarray]] = {}
    for rows, where in zip(data, targets, strict=True):
        merged.setdefault(tuple(where), []).append(rows)
    tables = [np.concatenate(v) for v in merged.values()]
    few = [len(v) < 2 for v in tables]
    tables = [t for t, small in zip(tables, few, strict=True) if not small]
    sets = [list(k) for k, small in zip(merged, few, strict=True) if not small]
    found, _ = gies.fit_bic(tables, sets)
    graph = _directed(np.asarray(found) != 0)
    d = len(graph)
    weights, constant = np.zeros((d, d)), np.zeros(d)
    for v in range(d):
        rows = np.concatenate(
            [r for r, where in zip(data, targets, strict=True) if v not in where]
        )
        parents = np.flatnonzero(graph[:, v])
        columns = np.column_stack([np.ones(len(rows)), rows[:, parents]])
        fit = np.linalg.lstsq(columns, rows[:, v], rcond=None)[0]
        constant[v], weights[parents, v] = fit[0], fit[1:]
    return weights, constant


def _directed(graph: np.ndarray) -> np.ndarray:
    """A directed acyclic graph of a partly directed one: extended as in Dor & Tarsi."""
    left, result = set(range(len(graph))), graph & ~graph.T
    work = graph.copy()
    while left:
        for v in sorted(left):
            rest = sorted(left - {v})
            out = any(work[v, u] and not work[u, v] for u in rest)
            near = [u for u in rest if work[u, v] and work[v, u]]
            adjacent = [u for u in rest if work[u, v] or work[v, u]]
            if not out and all(
                work[u, w] or work[w, u] for u in near for w in adjacent if u != w
            ):
                result[near, v] = True
                left.discard(v)
                break
        else:
            left.discard(min(left))  # no consistent extension: leave the rest as it is
    return result
