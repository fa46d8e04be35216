"""Campaigns on laboratories with a known truth, and other ways to choose experiments.

Each method takes a `Problem` and a seed, and yields its recommendation after each
experiment. None sees anything but the observations and the answers, but for those in
`causal_graph_rivals.py`, which are told the true graph. Regret is the difference of the
target's *true* mean under the best intervention and under the recommended one, in
standard deviations of the target.
"""

import functools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from benchmarks.causal_problems import Problem

from frugax import ExperimentBudget
from frugax.causal.campaign import Binary, Campaign, Categorical, Grid, Integer

Choice = dict[str, float]
Method = Callable[[Problem, int], Iterator[tuple[float, Choice]]]


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


class Candidates:
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
    grid, rng = Candidates(problem, seed), np.random.default_rng([seed, 4])
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
    grid, rng = Candidates(problem, seed), np.random.default_rng([seed, 6])
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


def begin(problem: Problem, seed: int, **more: Any) -> Campaign:
    variables: dict[str, Any] = dict(problem.ranges)
    for name, levels in problem.levels.items():
        if name in problem.categories:
            variables[name] = Categorical(tuple(f"level {x:g}" for x in levels))
        elif levels == (0.0, 1.0):
            variables[name] = Binary()
        elif levels == tuple(range(int(levels[0]), int(levels[-1]) + 1)):
            variables[name] = Integer(int(levels[0]), int(levels[-1]))
        else:
            variables[name] = Grid(levels)
    prices = {n: problem.prices.get(n, 1.0) for n in variables}
    campaign = Campaign(
        variables=variables,
        target=problem.target,
        budget=ExperimentBudget(cost=problem.cost, costs=prices),
        max_targets=problem.max_targets,
        rows_per_experiment=problem.rows,
        seed=seed,
        **more,
    )
    campaign.tell_observations(problem.observations)
    return campaign


def run_campaign(problem: Problem, seed: int) -> dict[str, list[float]]:
    """Regret and the stated interval after each experiment."""
    campaign = begin(problem, seed)
    found: dict[str, list[float]] = {
        key: [] for key in ("spent", "regret", "stated", "inside", "stop")
    }
    forecast = campaign.forecast_regret()[-1]
    found["planned"] = [
        each / problem.scale
        for each in (forecast.low, forecast.expected, forecast.high)
    ]
    while (one := campaign.ask()) is not None:
        answer = problem.answer(one.intervention.values, one.id, seed)
        campaign.tell(one, answer)
        best, truth = campaign.recommend(), problem.mean(campaign.recommend().value)
        found["spent"].append(campaign.spent)
        found["regret"].append(problem.regret(best.value))
        found["stated"].append(best.prob_optimal)
        found["inside"].append(float(best.low <= truth <= best.high))
        found["stop"].append(float(campaign.advise().stop))
    assert campaign.spent <= problem.cost, "overdrawn"
    return found


def observe_only(problem: Problem, seed: int) -> Iterator[tuple[float, Choice]]:
    """The recommendation before any experiment."""
    yield 0.0, begin(problem, seed).recommend().value


def graph_rivals() -> Any:
    """The module that is told the true graph; it uses the candidates of this one."""
    from benchmarks import causal_graph_rivals

    return causal_graph_rivals


RIVALS: dict[str, Method] = {
    "gp-ucb": gp_ucb,
    "gp-ucb, shared": functools.partial(gp_ucb, shared=True),
    "cbo, true graph": lambda p, seed: graph_rivals().cbo(p, seed),
    "mcbo, true graph": lambda p, seed: graph_rivals().mcbo(p, seed),
    "botorch": botorch,
    "random": random_search,
    "observations only": observe_only,
}


def run(method: str, problem: Problem, seed: int) -> dict[str, Any]:
    begun = time.process_time()
    if method == "campaign":
        found: dict[str, Any] = run_campaign(problem, seed)
    else:
        steps = list(RIVALS[method](problem, seed))
        found = {
            "spent": [spent for spent, _ in steps],
            "regret": [problem.regret(steps[-1][1])],
        }
    found["cpu_s"] = time.process_time() - begun
    return found
