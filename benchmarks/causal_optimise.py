"""Campaigns on problems whose optimum is known, beside other ways to choose.

    python benchmarks/causal_optimise.py            # everything, to results/
    python benchmarks/causal_optimise.py environments --seeds 4
    python benchmarks/causal_optimise.py random --models 20 --methods campaign random

Regret is how much worse than the best the *true* mean of the target is under what a
method recommends; it is never taken from noisy outcomes. All methods see the same
observations, may do the same experiments at the same cost, and recommend after each.

`environments`: the four problems of the literature, 100 rows observed, 1,000 rows an
experiment (in the code that was published with them an outcome is the mean of 100,000).
`random`: models drawn by `causal.generate_scm`, 100 rows observed, 10 experiments that
set one variable within three standard deviations. Models in which no experiment changes
the target's mean by .3 of its deviation are passed over: there all methods are right.
After every experiment the campaign's probability of being within the tolerance is noted
beside whether it was; the table of both is printed for each family of models.

`gies` (PyPI) is used if it can be imported; without it that method is left out.
"""

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from causal_rivals import gies_regression, gp_ucb, oracle, random_search
from machine import made_with

from frugax import ExperimentBudget, causal
from frugax.budget import table

RESULTS = Path(__file__).parent / "results" / "causal_optimise.json"
TRIALS = {"toy": 20, "complete": 40, "psa": 10, "epidemiology": 30}
# What counts as solved: within so much of the optimum.
GOOD = {
    "toy": 0.02 * 2.172,
    "complete": 0.05 * 3.48,
    "psa": 0.01,
    "epidemiology": 0.049,
}
OBSERVED = 100
Method = Callable[..., Iterator[causal.Intervention]]


def campaign(policy: str, **more: Any) -> Method:
    def run(
        env: causal.Environment,
        observed: causal.Samples,
        trials: int,
        rows: int,
        seed: int,
        said: list[float] | None = None,
    ) -> Iterator[causal.Intervention]:
        made = causal.Campaign(
            variables=env.ranges,
            target=env.target,
            minimize=env.minimize,
            budget=ExperimentBudget(n=trials),
            max_targets=env.max_targets,
            rows_per_experiment=rows,
            policy=policy,
            max_parents=4 if len(env.variables) <= 6 else 3,
            seed=seed,
            **more,
        )
        made.tell_observations(observed)
        while (ask := made.ask()) is not None:
            made.tell(
                ask,
                env.sample(
                    rows, seed=seed * 1000 + ask.id, intervention=ask.intervention
                ),
            )
            best = made.recommend()
            if said is not None:
                said.append(best.prob_optimal)
            yield best.intervention

    return run


METHODS: dict[str, Method] = {
    "campaign": campaign("improvement"),
    "campaign, thompson": campaign("thompson"),
    "campaign, gain": campaign("gain"),
    "campaign, ucb": campaign("ucb"),
    "campaign, random": campaign("random"),
    "gp-ucb": gp_ucb,
    "gies + regression": gies_regression,
    "random": random_search,
    "oracle": oracle,
}


def regrets(
    method: Method,
    env: causal.Environment,
    trials: int,
    rows: int,
    seed: int,
    **more: Any,
) -> tuple[list[float], float]:
    """True regret after each experiment, and CPU-seconds."""
    observed = env.sample(OBSERVED, seed=seed + 500_000)
    begun = time.process_time()
    found = list(method(env, observed, trials, rows, seed, **more))
    spent = time.process_time() - begun
    return [max(env.regret(i), 0.0) for i in found], spent


def environments(
    names: Sequence[str],
    seeds: int,
    rows: int,
    methods: Sequence[str],
    first_seed: int = 0,
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in names:
        env = causal.load_environment(name)
        for method in methods:
            runs = [
                regrets(METHODS[method], env, TRIALS[name], rows, seed)
                for seed in range(first_seed, first_seed + seeds)
            ]
            last = np.array([r[-1] for r, _ in runs])
            solved = last <= GOOD[name]
            first = [
                next((i + 1 for i in range(len(r)) if max(r[i:]) <= GOOD[name]), None)
                for r, _ in runs
            ]
            result.setdefault(name, {})[method] = {
                "optimum": env.optimum,
                "good": GOOD[name],
                "regret": last.tolist(),
                "solved": int(solved.sum()),
                "solved_after": first,
                "seeds": seeds,
                "trials": TRIALS[name],
                "rows": rows,
                "cpu_s": float(np.mean([s for _, s in runs])),
            }
            r = result[name][method]
            print(
                f"{name:13} {method:20} solved {r['solved']}/{seeds}, regret median "
                f"{np.median(last):.4f} worst {last.max():.3f}, {r['cpu_s']:.1f} CPU-s",
                flush=True,
            )
    return result


def models(count: int) -> Iterator[tuple[str, causal.Environment]]:
    """Random models that an experiment can change, each with its optimum."""
    seed = 0
    families = ("linear", "mlp", "rff")
    graphs = ("erdos_renyi", "scale_free")
    while count:
        rng = np.random.default_rng([11, seed])
        seed += 1
        family, graph = families[seed % 3], graphs[seed // 3 % 2]
        d = int(rng.integers(4, 11))
        scm = causal.generate_scm(graph, d, family=family, seed=rng)
        if scm.target is None:
            continue
        env = causal.environment_from_scm(scm)
        if env.regret() < 0.3:
            continue
        count -= 1
        yield f"{family} {graph} {d}", env


def random_models(
    count: int, trials: int, rows: int, methods: Sequence[str], first: int = 0
) -> dict[str, Any]:
    found: dict[str, list[list[float]]] = {m: [] for m in methods}
    names: list[str] = []
    nothing: list[float] = []
    cpu = dict.fromkeys(methods, 0.0)
    sure: list[list[float]] = []
    good: list[list[bool]] = []
    for i, (name, env) in enumerate(models(count)):
        if i < first:
            continue
        names.append(name)
        nothing.append(env.regret())
        for method in methods:
            said: list[float] = []
            more = {"said": said} if method == "campaign" else {}
            each, spent = regrets(METHODS[method], env, trials, rows, i, **more)
            if said:
                sure.append(said)
                tolerance = 0.05 * float(
                    env.sample(OBSERVED, seed=i + 500_000)[env.target].std()
                )
                good.append([regret <= tolerance for regret in each])
            found[method].append(each)
            cpu[method] += spent / (count - first)
        print(
            f"{i:3} {name:22} "
            + " ".join(f"{m} {found[m][-1][-1]:.3f}" for m in methods),
            flush=True,
        )
    summary: dict[str, Any] = {}
    for method in methods:
        last = np.array([r[-1] for r in found[method]])
        summary[method] = {
            "mean": float(last.mean()),
            "median": float(np.median(last)),
            "interval": interval(last),
            "after": np.array(found[method]).mean(0).tolist(),
            "cpu_s": cpu[method],
        }
        if "campaign" in found and method != "campaign":
            ours = np.array([r[-1] for r in found["campaign"]])
            summary[method]["campaign minus it"] = interval(ours - last)
            summary[method]["campaign over it"] = (
                float(ours.mean() / last.mean()) if last.mean() else None
            )
    return {
        "models": names,
        "doing nothing": float(np.mean(nothing)),
        "trials": trials,
        "rows": rows,
        "regret": found,
        "summary": summary,
        "confidence": sure,
        "good": good,
    }


def reliability(part: dict[str, Any]) -> str:
    """How often the campaign was right when it said that it was, by family."""
    families = np.array([name.split()[0] for name in part["models"]])
    sure, good = np.array(part["sure"]), np.array(part["good"])
    ends = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
    lines: list[list[str]] = []
    for family in (*sorted(set(families)), "all"):
        which = families == family if family != "all" else families != ""
        p, right = sure[which], good[which]
        cells = [family]
        for low, high in itertools.pairwise(ends):
            inside = (p >= low) & (p < high)
            cells.append(
                f"{p[inside].mean():.2f} {right[inside].mean():.2f} ({inside.sum()})"
                if inside.any()
                else ""
            )
        stopped = (p >= 0.95).any(1)
        when = (p >= 0.95).argmax(1)
        came = right[np.arange(len(right)), when][stopped]
        cells.append(f"{came.sum()} of {len(came)}" if len(came) else "")
        cells.append(f"{((p - right) ** 2).mean():.3f}")
        lines.append(cells)
    bins = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(ends)]
    return str(table(["said, was (n)", *bins, "stops at .95 right", "Brier"], lines))


def interval(values: np.ndarray) -> list[float]:
    """Bootstrapped 95 % interval of a mean."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (4000, len(values)))].mean(1)
    return np.quantile(means, (0.025, 0.975)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="all")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="model, or seed")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--names", nargs="*", default=list(TRIALS))
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    have = [m for m in METHODS if m != "gies + regression" or _has_gies()]
    result: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if asked.part in ("all", "environments"):
            methods = asked.methods or ["campaign", "random"]
            result["environments"] = environments(
                asked.names, asked.seeds, asked.rows or 1000, methods, asked.first
            )
        if asked.part in ("all", "random"):
            part = random_models(
                asked.models,
                asked.trials,
                asked.rows or 10,
                asked.methods or have,
                asked.first,
            )
            result[f"random, {part['rows']} rows"] = part
            head = ["method", "mean regret", "95 %", "campaign minus it", "CPU-s"]
            lines = [
                [
                    m,
                    f"{s['mean']:.3f}",
                    "{:.3f} to {:.3f}".format(*s["interval"]),
                    "{:+.3f} to {:+.3f}".format(*s["campaign minus it"])
                    if "campaign minus it" in s
                    else "",
                    f"{s['cpu_s']:.2f}",
                ]
                for m, s in part["summary"].items()
            ]
            print(table(head, lines))
            if part["sure"]:
                print(reliability(part))
    if asked.to:
        result["made with"] = made_with()
        asked.to.write_text(json.dumps(result, indent=1) + "\n")


def _has_gies() -> bool:
    try:
        import gies  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
