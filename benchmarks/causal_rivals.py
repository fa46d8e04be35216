"""Other ways to choose experiments, for `causal_optimise.py`.

Each takes a `Problem` and a seed, and yields its recommendation after each
experiment. None sees anything but the observations and the answers.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.causal_problems import Problem

Choice = dict[str, float]


def random_search(problem: Problem, seed: int) -> Iterator[tuple[float, Choice]]:
    """Random interventions; recommends the best outcome seen."""
    rng = np.random.default_rng([seed, 3])
    best, found = float(np.mean(problem.observations[problem.target])), Choice()
    names, spent, number = list(problem.ranges), 0.0, 0
    while True:
        size = int(rng.integers(1, problem.max_targets + 1))
        chosen = sorted(rng.choice(names, size, replace=False))
        if spent + problem.price(chosen) > problem.cost:
            chosen = [n for n in names if spent + problem.price([n]) <= problem.cost]
            if not chosen:
                return
            chosen = [chosen[rng.integers(len(chosen))]]
        values = {
            n: float(
                rng.choice(problem.levels[n])
                if n in problem.levels
                else rng.uniform(*problem.ranges[n])
            )
            for n in chosen
        }
        spent += problem.price(chosen)
        outcome = float(np.mean(problem.answer(values, number, seed)[problem.target]))
        number += 1
        if outcome < best:
            best, found = outcome, values
        yield spent, found


class Grid:
    """Candidates as coordinates, and the experiments so far."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.choices = problem.candidates()
        # Ordered values and one-hot codes, then flags for variables that are set.
        rows = [self.embed(values) for values in [{}, *self.choices]]
        self.nothing, *_ = rows
        self.x = np.array(rows[1:])
        self.width = self.x.shape[1] - len(problem.ranges)
        self.sets = [tuple(values) for values in self.choices]
        self.price = np.array([problem.price(values) for values in self.choices])
        seen = problem.observations[problem.target]
        self.centre, self.scale = float(np.mean(seen)), float(np.std(seen))
        self.noise = 1 / problem.rows
        self.at: list[int] = []
        self.y: list[float] = []
        self.last: dict[str, np.ndarray] = {}
        self.spent = 0.0

    def embed(self, values: Choice) -> np.ndarray:
        """Convert an experiment, or {} for none, to coordinates."""
        parts: list[float] = []
        for name, (low, high) in self.problem.ranges.items():
            if name in self.problem.categories:
                levels = self.problem.levels[name]
                parts += [0.7 * (values.get(name) == level) for level in levels]
            else:
                natural = float(np.mean(self.problem.observations[name]))
                value = values.get(name, min(max(natural, low), high))
                parts.append((value - low) / (high - low))
        return np.array([*parts, *(float(n in values) for n in self.problem.ranges)])

    @property
    def affordable(self) -> np.ndarray:
        return self.spent + self.price <= self.problem.cost + 1e-9

    def do(self, pick: int) -> None:
        rows = self.problem.answer(self.choices[pick], len(self.at), self.seed)
        self.last = rows
        outcome = float(np.mean(rows[self.problem.target]))
        self.at.append(pick)
        self.y.append((outcome - self.centre) / self.scale)
        self.spent += float(self.price[pick])

    def best(self, mean: np.ndarray) -> Choice:
        """The least mean, or to do nothing, whose mean is 0."""
        i = int(np.argmin(mean))
        return self.choices[i] if mean[i] < 0 else {}


def gp_ucb(
    problem: Problem, seed: int, *, shared: bool = False
) -> Iterator[tuple[float, Choice]]:
    """Two deviations of hope (Srinivas 2010).

    There is a process for each set of variables, or one `shared` process over the
    values of all variables, and which of them are set.
    """
    grid, rng = Grid(problem, seed), np.random.default_rng([seed, 4])
    groups = {s: i for i, s in enumerate(dict.fromkeys(grid.sets))}
    group = np.array([groups[s] for s in grid.sets])
    half = grid.x[:, : grid.width] * 2
    if shared:
        group[:], half = 0, grid.x * 2

    def kernel(a: np.ndarray, b: np.ndarray, length: float) -> np.ndarray:
        apart = (half[a] ** 2).sum(1)[:, None] + (half[b] ** 2).sum(1)
        apart -= 2 * half[a] @ half[b].T
        same = group[a][:, None] == group[b][None]
        return same * np.exp(-0.5 * apart / length**2)

    every = np.arange(len(grid.choices))
    mean, spread = np.zeros(len(every)), np.ones(len(every))
    while grid.affordable.any():
        hope = np.where(grid.affordable, mean - 2 * spread, np.inf)
        grid.do(int(rng.choice(np.flatnonzero(hope <= hope.min() + 1e-9))))
        at, y = np.array(grid.at), np.array(grid.y)
        best = (-np.inf, 1.0, 0.5)
        for size in (0.3, 1.0, 3.0, 10.0):
            for length in (0.15, 0.3, 0.6, 1.2):
                k = size * kernel(at, at, length) + grid.noise * np.eye(len(y))
                root = np.linalg.cholesky(k)
                z = np.linalg.solve(root, y)
                score = -0.5 * z @ z - np.log(np.diag(root)).sum()
                best = max(best, (score, size, length))
        _, size, length = best
        k = size * kernel(at, at, length) + grid.noise * np.eye(len(y))
        cross = size * kernel(every, at, length)
        solved = np.linalg.solve(k, cross.T)
        mean = solved.T @ y
        left = size - np.einsum("ij,ji->i", cross, solved)
        spread = np.sqrt(np.maximum(left, 0))
        yield grid.spent, grid.best(mean)


def botorch(problem: Problem, seed: int) -> Iterator[tuple[float, Choice]]:
    """BoTorch's single-task process with log expected improvement for each price."""
    import torch
    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(seed)
    grid, rng = Grid(problem, seed), np.random.default_rng([seed, 6])
    x = torch.tensor(grid.x)
    model: Any = None
    first = max(3, min(2 * len(problem.ranges), int(problem.cost // 4)))
    while grid.affordable.any():
        fits = np.flatnonzero(grid.affordable)
        if len(grid.at) < first:
            grid.do(int(rng.choice(fits)))
        else:
            assert model is not None
            hope = LogExpectedImprovement(
                model, best_f=min(0.0, *grid.y), maximize=False
            )
            with torch.no_grad():
                score = hope(x[fits][:, None]).numpy() - np.log(grid.price[fits])
            grid.do(int(fits[np.argmax(score)]))
        # Doing nothing is one more outcome, known from the observations.
        inputs = torch.cat([torch.tensor(grid.nothing)[None], x[grid.at]])
        y = torch.tensor([[0.0], *([each] for each in grid.y)], dtype=torch.double)
        variance = torch.full_like(y, grid.noise)
        variance[0] = 1 / problem.observed
        model = SingleTaskGP(inputs, y, variance)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        with torch.no_grad():
            mean = model.posterior(x).mean[:, 0].numpy()
        yield grid.spent, grid.best(mean)
