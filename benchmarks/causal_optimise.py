"""Campaigns on laboratories with a known truth, beside other ways to choose.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.causal_optimise --count 4
    python -m benchmarks.causal_optimise --chosen --methods campaign random
    python -m benchmarks.causal_optimise --laboratories --count 3

Regret is the difference of the target's *true* mean under the best intervention and
under the recommended one, in standard deviations of the target. All methods have the
same observations, experiments and prices; `causal_problems.py` describes the families.
The probabilities and intervals that the campaign stated after each experiment, and the
regret that it forecast before the first, are compared with the truth.

Rules were chosen by problems with even numbers, or fifteen laboratories (`--chosen`);
the others are reported. Intervals are bootstrapped over problems.
BoTorch (PyPI) is used if it can be imported; without it that method is left out.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.causal_graph_rivals import cbo, mcbo
from benchmarks.causal_laboratories import laboratories
from benchmarks.causal_problems import Problem, problems
from benchmarks.causal_rivals import Choice, botorch, gp_ucb, random_search
from benchmarks.causal_structure import interval
from benchmarks.machine import made_with

from frugax import ExperimentBudget
from frugax.budget import table
from frugax.causal.campaign import Binary, Campaign, Categorical, Grid, Integer

Method = Callable[[Problem, int], Iterator[tuple[float, Choice]]]


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


RIVALS: dict[str, Method] = {
    "gp-ucb": gp_ucb,
    "gp-ucb, shared": functools.partial(gp_ucb, shared=True),
    "cbo, true graph": cbo,
    "mcbo, true graph": mcbo,
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


def summarize(results: dict[str, dict[str, Any]]) -> str:
    """Mean regret of each family, and the ratio to the best rival's."""
    methods = list(results)
    families = list(dict.fromkeys(n.rsplit(" ", 1)[0] for n in results[methods[0]]))
    mean = {
        m: [
            np.mean(
                [
                    r["regret"][-1]
                    for n, r in results[m].items()
                    if n.rsplit(" ", 1)[0] == f
                ]
            )
            for f in families
        ]
        for m in methods
    }
    lines: list[list[str]] = []
    for i, f in enumerate(families):
        row = [f, *(f"{mean[m][i]:.3f}" for m in methods)]
        if others := [mean[m][i] for m in methods if m != "campaign"]:
            row.append(f"{mean[methods[0]][i] - min(others):+.3f}")
            row.append(f"{mean[methods[0]][i] / max(min(others), 1e-3):.2f}")
        lines.append(row)
    lines.append(["all", *(f"{np.mean(mean[m]):.3f}" for m in methods)])
    cpu = (np.mean([r["cpu_s"] for r in results[m].values()]) for m in methods)
    lines.append(["CPU-s", *(f"{each:.1f}" for each in cpu)])
    last = {
        m: np.array([r["regret"][-1] for r in results[m].values()]) for m in methods
    }
    ahead = (interval(last[methods[0]] - last[m]) for m in methods[1:])
    ends = (f"{low:+.3f} to {high:+.3f}" for low, high in ahead)
    lines.append([f"{methods[0]} less it, 95 %", "", *ends])
    headings = ["regret", *methods, "to the best other", "of it"]
    width = len(lines[0])
    lines = [[*line, *[""] * (width - len(line))] for line in lines]
    return str(table(headings[:width], lines))


def describe_claims(results: dict[str, Any]) -> str:
    """Compare the campaign's stated intervals with the truth."""
    runs = list(results.values())
    stated = np.concatenate([r["stated"] for r in runs])
    good = np.concatenate([r["regret"] for r in runs]) <= 0.05
    inside = np.concatenate([r["inside"] for r in runs])
    lines: list[list[str]] = []
    ends = (0.0, 0.25, 0.5, 0.75, 0.9, 1.01)
    for low, high in itertools.pairwise(ends):
        these = (stated >= low) & (stated < high)
        if these.any():
            lines.append(
                [
                    f"{low:g} to {min(high, 1):g}",
                    f"{stated[these].mean():.2f}",
                    f"{good[these].mean():.2f}",
                    f"{these.sum()}",
                ]
            )
    stops = [
        r["regret"][int(np.argmax(r["stop"][:-1]))] for r in runs if any(r["stop"][:-1])
    ]
    bad = sum(regret > 0.5 for regret in stops)
    planned = np.array([r["planned"] for r in runs])
    last = np.array([r["regret"][-1] for r in runs])
    kept = ((planned[:, 0] <= last + 1e-9) & (last <= planned[:, 2])).mean()
    return (
        f"{table(['stated', 'mean', 'was', 'n'], lines)}\n"
        f"90 % intervals: {inside.mean():.2f} of {len(inside)} held the true mean.\n"
        f"Early stops: {len(stops)} of {len(runs)} campaigns, {bad} with more than .5 "
        "of regret.\n"
        f"Regret forecast before the first experiment: {planned[:, 1].mean():.3f} on "
        f"average, {last.mean():.3f} was; {kept:.2f} of the 90 % intervals held it."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5, help="problems of each family")
    parser.add_argument(
        "--chosen", action="store_true", help="the problems that rules were chosen by"
    )
    parser.add_argument("--laboratories", action="store_true")
    parser.add_argument("--new", action="store_true", help="the latest laboratories")
    parser.add_argument("--seed", type=int, default=0, help="of answers and methods")
    parser.add_argument("--methods", nargs="*", default=["campaign", *RIVALS])
    parser.add_argument("--families", nargs="*")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--peers", type=Path, help="site-packages that hold botorch")
    asked = parser.parse_args()
    if asked.peers:
        # Last, so that these packages replace none of ours.
        sys.path.append(str(asked.peers))
    if importlib.util.find_spec("botorch") is None and "botorch" in asked.methods:
        asked.methods.remove("botorch")
    results: dict[str, dict[str, Any]] = {m: {} for m in asked.methods}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = laboratories if asked.laboratories else problems
        if asked.new:
            source = functools.partial(laboratories, new=True)
        for problem in source(asked.count, chosen=asked.chosen):
            if asked.families and problem.family not in asked.families:
                continue
            for method in asked.methods:
                results[method][problem.name] = run(method, problem, asked.seed)
            row = (f"{m} {results[m][problem.name]['regret'][-1]:.3f}" for m in results)
            print(f"{problem.name:20}", *row, flush=True)
            if asked.to:
                text = json.dumps({"made with": made_with(), **results}, indent=1)
                asked.to.write_text(text + "\n")
    print(summarize(results))
    if "campaign" in results:
        print(describe_claims(results["campaign"]))


if __name__ == "__main__":
    main()
