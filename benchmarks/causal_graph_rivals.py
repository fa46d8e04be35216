"""Published causal Bayesian optimisation with the true graph, as rivals.

Both are written from their papers, on the grid of candidates that all rivals share:

- CBO (Aglietti, Lu, Paleyes & González 2020, AISTATS, PMLR 108:3155-3164): a process
  for each minimal intervention set, whose mean and variance start from the do-calculus
  on the observations (equations 3 and 4), and the expected improvement for each price.
  The observations were paid in advance, so no step observes instead of intervening.
- MCBO (Sussex, Makarova & Krause 2023, ICLR, arXiv:2211.10257): a process for each
  variable given its causes, and the most optimistic model within the confidence bounds
  (equation 9, reparametrised by one eta in [-1, 1] for each variable; the paper's eta
  may also depend on the input, which is one number for each candidate but for noise).
  Processes are Bayesian regressions on random features, as a candidate needs thousands
  of predictions. It assumes that no cause is hidden.
"""

import graphlib
from collections.abc import Iterator, Mapping

import numpy as np
import scipy.special
from benchmarks.causal_optimise import Candidates, Choice
from benchmarks.causal_problems import Problem

_FEATURES = 80
_DRAWS = 4  # of the noise, for each prediction
_BETA = 2.0
_OPTIMISTS = 16
_LOOKED = 240  # candidates of MCBO in each step


class Mechanism:
    """A function of the causes: Bayesian regression on lines and random features."""

    def __init__(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> None:
        self.mean, self.std = x.mean(0), np.maximum(x.std(0), 1e-9)
        self.offset, self.scale = y.mean(), max(float(y.std()), 1e-9)
        target = (y - self.offset) / self.scale
        u = (x - self.mean) / self.std
        best = -np.inf
        base = rng.standard_normal((_FEATURES, x.shape[1]))
        phase = rng.uniform(0, 2 * np.pi, _FEATURES)
        for length in (0.4, 1.0, 2.5):
            f = self._features(u, base / length, phase)
            gram, cross = f.T @ f, f.T @ target
            for noise in (0.01, 0.1, 0.5):
                a = gram / noise + np.eye(len(gram))
                root = np.linalg.cholesky(a)
                z = np.linalg.solve(root, cross / noise)
                score = 0.5 * z @ z - np.log(np.diag(root)).sum()
                score -= 0.5 * (target @ target / noise + len(y) * np.log(noise))
                if score > best:
                    best, self.frequencies, self.phase = score, base / length, phase
                    self.root, self.noise = root, noise
                    self.weights = np.linalg.solve(root.T, z)
        fitted = self._features(u, self.frequencies, self.phase) @ self.weights
        self.residuals = self.scale * (target - fitted)

    @staticmethod
    def _features(u: np.ndarray, w: np.ndarray, phase: np.ndarray) -> np.ndarray:
        waves = np.cos(u @ w.T + phase) * np.sqrt(2 / _FEATURES)
        return np.concatenate([np.ones((len(u), 1)), u, waves], axis=1)

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the function."""
        u = (x - self.mean) / self.std
        f = self._features(u, self.frequencies, self.phase)
        left = np.linalg.solve(self.root, f.T)
        std = np.sqrt((left**2).sum(0))
        return self.offset + self.scale * (f @ self.weights), self.scale * std


class FittedModel:
    """A mechanism for each variable that the target depends on."""

    def __init__(
        self,
        problem: Problem,
        rows: Mapping[str, np.ndarray],
        is_set: Mapping[str, np.ndarray],
        rng: np.random.Generator,
    ) -> None:
        self.target, parents = problem.target, problem.parents
        order = graphlib.TopologicalSorter(parents).static_order()
        needed = ancestors(problem, problem.target) | {problem.target}
        self.order = [v for v in order if v in needed]
        self.parents = {v: sorted(parents.get(v, ())) for v in self.order}
        self.roots, self.mechanisms = dict[str, np.ndarray](), dict[str, Mechanism]()
        self.rng = rng
        for v in self.order:
            free = ~is_set[v]
            if not self.parents[v]:
                self.roots[v] = rows[v][free]
                continue
            x = np.stack([rows[p][free] for p in self.parents[v]], axis=1)
            self.mechanisms[v] = Mechanism(x, rows[v][free], rng)

    def predict(
        self, choices: list[Choice], eta: Mapping[str, float], draws: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the target at each choice, in the model of `eta`."""
        n = len(choices)
        again = np.random.default_rng(17)  # the same noise for all
        found: dict[str, np.ndarray] = {}
        for v in self.order:
            if v in self.roots:
                value = np.tile(again.choice(self.roots[v], draws), (n, 1))
            else:
                x = np.stack([found[p].ravel() for p in self.parents[v]], axis=1)
                mean, std = self.mechanisms[v](x)
                noise = again.choice(self.mechanisms[v].residuals, draws)
                bent = mean + _BETA * eta.get(v, 0.0) * std
                value = bent.reshape(n, draws) + noise - noise.mean()
            fixed = np.array([c.get(v, np.nan) for c in choices])[:, None]
            found[v] = np.where(np.isfinite(fixed), fixed, value)
        y = found[self.target]
        return y.mean(1), y.var(1)


def ancestors(problem: Problem, name: str) -> set[str]:
    found, pending = set[str](), [name]
    while pending:
        for p in problem.parents.get(pending.pop(), ()):
            if p not in found:
                found.add(p)
                pending.append(p)
    return found


def is_minimal(problem: Problem, names: tuple[str, ...]) -> bool:
    """Whether each variable has a path to the target that avoids the others."""
    for name in names:
        others, found, pending = {*names} - {name}, set[str](), [problem.target]
        while pending:
            more = {*problem.parents.get(pending.pop(), ())} - others - found
            found |= more
            pending += more
        if name not in found:
            return False
    return True


def cbo(problem: Problem, seed: int) -> Iterator[tuple[float, Choice]]:
    grid, rng = Candidates(problem, seed), np.random.default_rng([seed, 7])
    rows = {k: np.asarray(v, float) for k, v in problem.observations.items()}
    none = {k: np.zeros(problem.observed, bool) for k in rows}
    model = FittedModel(problem, rows, none, rng)
    sets = list(dict.fromkeys(grid.sets))
    kept = {s for s in sets if is_minimal(problem, s)} or set(sets)
    inside = np.array([s in kept for s in grid.sets])
    prior, size = model.predict(grid.choices, {}, 200)
    # The effect of a variable that shares a hidden cause with the target does not
    # follow from the observations: then the process starts from nothing.
    blind = np.array([bool({*s} & problem.confounded) for s in grid.sets])
    prior = np.where(blind, 0.0, (prior - grid.centre) / grid.scale)
    size = np.where(blind, 0.0, np.sqrt(size) / grid.scale)
    group = np.array([sets.index(s) for s in grid.sets])
    half = grid.x[:, : grid.width] * 2
    every = np.arange(len(grid.choices))

    def kernel(a: np.ndarray, b: np.ndarray, gain: float, length: float) -> np.ndarray:
        apart = ((half[a][:, None] - half[b][None]) ** 2).sum(-1)
        same = group[a][:, None] == group[b][None]
        return same * (
            gain * np.exp(-0.5 * apart / length**2) + size[a][:, None] * size[b][None]
        )

    mean, spread = prior, np.sqrt(1 + size**2)
    while (fits := grid.affordable & inside).any():
        best = min([0.0, *grid.y])
        z = (best - mean) / spread
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        hope = (best - mean) * scipy.special.ndtr(z) + spread * density
        score = np.where(fits, hope / grid.price, -np.inf)
        grid.do(int(rng.choice(np.flatnonzero(score >= score.max()))))
        at = np.array(grid.at)
        gap = np.array(grid.y) - prior[at]
        chosen = (-np.inf, 1.0, 0.5)
        for gain in (0.1, 0.3, 1.0, 3.0, 10.0):
            for length in (0.15, 0.3, 0.6, 1.2):
                k = kernel(at, at, gain, length) + grid.noise * np.eye(len(at))
                root = np.linalg.cholesky(k)
                half_gap = np.linalg.solve(root, gap)
                fit = -0.5 * half_gap @ half_gap - np.log(np.diag(root)).sum()
                chosen = max(chosen, (fit, gain, length))
        _, gain, length = chosen
        k = kernel(at, at, gain, length) + grid.noise * np.eye(len(at))
        cross = kernel(every, at, gain, length)
        solved = np.linalg.solve(k, cross.T)
        mean = prior + solved.T @ gap
        left = gain + size**2 - np.einsum("ij,ji->i", cross, solved)
        spread = np.sqrt(np.maximum(left, 1e-12))
        yield grid.spent, grid.best(np.where(inside, mean, np.inf))


def mcbo(problem: Problem, seed: int) -> Iterator[tuple[float, Choice]]:
    grid, rng = Candidates(problem, seed), np.random.default_rng([seed, 8])
    rows = {k: np.asarray(v, float) for k, v in problem.observations.items()}
    is_set = {k: np.zeros(problem.observed, bool) for k in rows}
    model = FittedModel(problem, rows, is_set, rng)
    kept = np.array([is_minimal(problem, s) for s in grid.sets])
    kept = kept if kept.any() else np.ones(len(kept), bool)
    while (fits := np.flatnonzero(grid.affordable & kept)).size:
        look = rng.permutation(fits)[:_LOOKED]
        choices = [grid.choices[i] for i in look]
        now = float(model.predict([{}], {}, _DRAWS * 50)[0][0])
        hope = np.full(len(look), np.inf)
        for _ in range(_OPTIMISTS):
            eta = {v: float(rng.choice([-1.0, 1.0])) for v in model.order}
            hope = np.minimum(hope, model.predict(choices, eta, _DRAWS)[0])
        gain = np.maximum(now - hope, 1e-9) / grid.price[look]
        pick = int(look[np.argmax(gain)])
        grid.do(pick)
        for name in rows:
            told = np.full(problem.rows, name in grid.choices[pick])
            rows[name] = np.append(rows[name], grid.last[name])
            is_set[name] = np.append(is_set[name], told)
        model = FittedModel(problem, rows, is_set, rng)
        ahead = np.full(len(kept), np.inf)
        places = np.flatnonzero(kept)
        mean = model.predict([grid.choices[i] for i in places], {}, _DRAWS * 2)[0]
        ahead[places] = (mean - grid.centre) / grid.scale
        yield grid.spent, grid.best(ahead)
