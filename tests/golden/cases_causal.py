"""Regret of 26 campaigns and ten laboratories, and edges in families of random graphs.

The campaigns are `benchmarks.causal_problems.problems(2)`, two problems of thirteen
families, and `laboratories(2, new=True)`, two of five laboratories that no rule was
chosen on; each once, with seed 0, run by `benchmarks.causal_optimise.run_campaign` to
the end of its budget. Regret is in standard deviations of the target. One rounded bit
may lead a campaign another way, so its cells are compared on the same kind of machine
only; linear algebra has one thread.

The twelve families are four kinds of mechanisms with three kinds of noise, 200 graphs
of ten variables each with seed 7; the surrogate sees 64 observed rows and 64 in which
one variable was set.
"""

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import threadpoolctl

from frugax import causal

from .table import Case, Cell

_CELLS = ("regret", "mean regret", "spent", "stated", "inside", "stops", "planned")
_MECHANISMS = ("linear", "mlp", "rff", "mixed")
_NOISES = ("gaussian", "laplace", "student")
# Of float32 in the network, beside probabilities and scores of up to 1. Between a
# processor with AVX-512 and one without, single probabilities moved by up to 0.013 and
# the calibration error by 2 %, but no score.
_ALONE = 0.02
_NETWORK = {"auroc": 1e-3, "f1": 1e-3, "probabilities": _ALONE, "calibration": 0.05}


def cases() -> Iterator[Case]:
    """One case for each campaign, each family of graphs, and environments."""
    from benchmarks.causal_laboratories import laboratories
    from benchmarks.causal_problems import problems

    for kind, source in (
        ("campaign", problems(2)),
        ("laboratory", laboratories(2, new=True)),
    ):
        for problem in source:
            yield Case(
                f"{kind} {problem.name}",
                lambda p=problem: _run_campaign(p),
                machine=_CELLS,
            )
    for mechanisms, noise in itertools.product(_MECHANISMS, _NOISES):
        yield Case(
            f"graphs {mechanisms} {noise}",
            lambda m=mechanisms, n=noise: _find_edges(m, n),
            quick=(mechanisms, noise) == ("mlp", "laplace"),
            tolerance=_NETWORK,
        )
    yield Case("exact posterior", _find_parents, quick=True, tolerance=1e-6)
    yield Case("environments", _query_environments, quick=True, tolerance=1e-9)


def _run_campaign(problem: Any) -> dict[str, Cell]:
    from benchmarks.causal_optimise import run_campaign

    with warnings.catch_warnings(), threadpoolctl.threadpool_limits(1):
        warnings.simplefilter("ignore")
        found = run_campaign(problem, 0)
    return {
        "experiments": len(found["regret"]),
        "regret": _round(found["regret"][-1]),
        "mean regret": _round(np.mean(found["regret"])),
        "spent": found["spent"][-1],
        "stated": _round(found["stated"][-1]),
        "inside": _round(np.mean(found["inside"])),
        "stops": int(np.sum(found["stop"])),
        "planned": [_round(each) for each in found["planned"]],
    }


def _round(number: Any) -> float:
    return round(float(number), 6)


def _find_edges(mechanisms: str, noise: str) -> dict[str, Cell]:
    """Scores of the shipped surrogate, and its probabilities for the first graph."""
    from benchmarks.causal_structure import auroc, calibration_error, f1

    graphs, d = 200, 10
    batch = causal.generate_batch(
        graphs, d=d, rows=128, observed=64, family=mechanisms, noise=noise, seed=7
    )
    truth = batch.adjacency.astype(float)
    off = ~np.eye(d, dtype=bool)
    surrogate = causal.load_default_surrogate()
    rows = batch.values, batch.intervened.astype(np.float32)
    edges = surrogate.predict(*rows, np.ones_like(rows[0])).edges
    names = tuple(f"x{i}" for i in range(d))
    samples = causal.Samples(names, batch.values[0], batch.intervened[0])
    alone = surrogate.edge_probabilities(samples)
    rated = [b for b in range(graphs) if 0 < truth[b].sum() < off.sum()]
    chosen = [causal.select_graph(e) for e in edges]
    return {
        "edges": int(truth.sum()),
        "auroc": _round(np.mean([auroc(edges[b][off], truth[b][off]) for b in rated])),
        "f1": _round(np.mean([f1(c, t) for c, t in zip(chosen, truth, strict=True)])),
        "calibration": _round(calibration_error(edges[:, off], truth[:, off])),
        "probabilities": [_round(p) for p in edges[0][off]],
        "same alone": bool(np.abs(alone - edges[0])[off].max() < _ALONE),
        "graph": [int(e) for e in np.flatnonzero(chosen[0])],
    }


def _find_parents() -> dict[str, Cell]:
    """Sets of parents by the exact posterior of linear models, five variables."""
    from benchmarks.causal_exact import ExactLinearPosterior

    batch = causal.generate_batch(4, d=5, rows=128, observed=64, seed=11)
    names = tuple(f"x{i}" for i in range(5))
    cells: dict[str, Cell] = {}
    for b in range(4):
        samples = causal.Samples(names, batch.values[b], batch.intervened[b])
        found = ExactLinearPosterior().posterior(samples, names[b])
        likely = np.argsort(-found.probs, kind="stable")[:4]
        sets = [" ".join(sorted(found.parent_sets[i])) for i in likely]
        cells[f"parents of {names[b]}"] = sets
        cells[f"probabilities of {names[b]}"] = [_round(found.probs[i]) for i in likely]
    return cells


def _query_environments() -> dict[str, Cell]:
    """True means under interventions, and rows that were drawn."""
    cells: dict[str, Cell] = {}
    for name in ("toy", "complete", "psa", "epidemiology"):
        environment = causal.load_environment(name)
        rows = environment.sample(20, seed=0)
        cells[f"{name} target"] = environment.target
        cells[f"{name} variables"] = list(rows.variables)
        mean = {v: float(rows[v].mean()) for v in rows.variables}
        cells[f"{name} means"] = [float(f"{m:.9g}") for m in mean.values()]
        for variable in environment.ranges:
            low, high = environment.ranges[variable]
            do = causal.intervene(**{variable: (low + 3 * high) / 4})
            cells[f"{name} {variable}"] = float(f"{environment.expected(do):.9g}")
    return cells
