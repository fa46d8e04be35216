"""Measure the coverage of a campaign's 90 % interval for its recommendation.

    python benchmarks/causal_intervals.py
    python benchmarks/causal_intervals.py --seeds 24 --first 24

Three linear models that the models fit, 30 rows observed, six experiments; each seed is
one campaign on each. A calibrated interval holds the true mean 90 times in 100.
"""

import argparse

import numpy as np

from frugax import ExperimentBudget, causal

PARENTS = {
    "independent": {"x": {}, "z": {}, "y": {"z": -1.0, "x": 0.5}},
    "chain": {"x": {}, "z": {"x": 1.0}, "y": {"z": -1.0}},
}
# Which parents, standard deviation of the noise, rows of an experiment.
MODELS = [("independent", 0.5, 1), ("chain", 1.0, 1), ("chain", 0.1, 10)]


def campaign(model: causal.SCM, rows: int, seed: int) -> causal.Recommendation:
    made = causal.Campaign(
        variables={"x": (-2.0, 2.0), "z": (-3.0, 3.0)},
        target="y",
        budget=ExperimentBudget(n=6),
        rows_per_experiment=rows,
        seed=seed,
    )
    made.tell_observations(causal.sample(model, 30, seed=1000 + seed))
    while (ask := made.ask()) is not None:
        at = seed * 100 + ask.id
        data = causal.sample(model, rows, seed=at, intervention=ask.intervention)
        made.tell(ask, data)
    return made.recommend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=48)
    parser.add_argument("--first", type=int, default=0)
    told = parser.parse_args()
    for name, noise, rows in MODELS:
        model = causal.SCM.linear(PARENTS[name], noise_scale=noise)
        off, wide, held = [], [], 0
        for seed in range(told.first, told.first + told.seeds):
            best = campaign(model, rows, seed)
            x, z = best.value.get("x"), best.value.get("z")
            slope = 0.5 if name == "independent" else -1.0
            truth = slope * x if z is None and x is not None else -(z or 0.0)
            held += best.low <= truth <= best.high
            off.append(best.expected - truth)
            wide.append(best.high - best.low)
        print(
            f"{name}, noise {noise}, {rows} rows: {held} of {told.seeds}, mean width "
            f"{np.mean(wide):.2f}, off by {np.sqrt(np.mean(np.square(off))):.3f} (rms)",
            flush=True,
        )


if __name__ == "__main__":
    main()
