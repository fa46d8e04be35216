"""Who causes whom among variables of a few values, on networks with known graphs.

    uv pip install --target PEERS gies==0.0.3 causal-learn==0.1.4.8 dagma==1.1.1 \\
        lingam==1.13.0
    pip download --no-deps -d WHEELS pgmpy==1.1.2
    python -m benchmarks.causal_discrete --peers PEERS --wheels WHEELS --seeds 2

Every method sees 500 observed rows; GIES, the surrogate and `DiscretePosterior` also
see 10 rows in which each variable was set to its states by turns, which the others
cannot use. PC tests with G squared at alpha .05, GES has the BDeu score. GIES has its
Gaussian score, on the numbers of the states, as its package has no other. DAGMA and
DirectLiNGAM see these numbers in observed rows; DAGMA has a penalty of .02, and both
keep weights from .1: of eight settings, which also scaled the columns, the best for
DAGMA on asia, child and alarm. F1 counts directed edges, and an undirected edge as
right if there is an edge at all. CPU is of this process; a method that does not end
within the limit is listed as such.
"""

import argparse
import contextlib
import io
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.causal_structure import (
    as_counts,
    auroc,
    distance,
    f1,
    gies_edges,
    interval,
    lingam_edges,
)
from benchmarks.machine import made_with

from frugax import causal
from frugax.budget import table
from frugax.causal.posterior import DiscretePosterior

OBSERVED, EACH = 500, 10
_LEAST_WEIGHT = 0.1  # of an edge, in the linear models
Method = Callable[[causal.Samples], np.ndarray]


def take_samples(scm: causal.SCM, seed: int) -> causal.Samples:
    """Draw rows in which nothing was set, and rows in which each variable was."""
    samples = causal.sample(scm, OBSERVED, seed=seed)
    for i, variable in enumerate(scm.variables):
        states = len(scm.states(variable))
        for state in range(states):
            rows = EACH // states + (state < EACH % states)
            if rows:
                do = causal.intervene(**{variable: float(state)})
                part = causal.sample(
                    scm,
                    rows,
                    seed=100_000 * (seed + 1) + 100 * i + state,
                    intervention=do,
                )
                samples = samples.concat(part)
    return samples


def pc(samples: causal.Samples) -> np.ndarray:
    from causallearn.search.ConstraintBased.PC import pc as search

    graph = search(
        _observed(samples), alpha=0.05, indep_test="gsq", show_progress=False
    )
    return _from_marks(graph.G.graph)


def ges(samples: causal.Samples) -> np.ndarray:
    from causallearn.search.ScoreBased.GES import ges as search

    found = search(_observed(samples), score_func="local_score_BDeu")
    return _from_marks(found["G"].graph)


def gies(samples: causal.Samples) -> np.ndarray:
    return gies_edges(samples.values, samples.intervened)


def dagma(samples: causal.Samples) -> np.ndarray:
    from dagma.linear import DagmaLinear

    rows = _observed(samples).astype(float)
    # It draws a progress bar, whatever its arguments.
    with contextlib.redirect_stderr(io.StringIO()):
        weights = DagmaLinear(loss_type="l2").fit(
            rows, lambda1=0.02, w_threshold=_LEAST_WEIGHT
        )
    return (weights != 0).astype(float)


def lingam(samples: causal.Samples) -> np.ndarray:
    sizes = lingam_edges(samples.values, samples.intervened)
    return (sizes >= _LEAST_WEIGHT).astype(float)


def _observed(samples: causal.Samples) -> np.ndarray:
    return samples.values[~samples.intervened.any(1)].astype(int)


def _from_marks(graph: np.ndarray) -> np.ndarray:
    """Convert the end marks of causal-learn; 1 both ways for an undirected edge."""
    directed = (graph == -1) & (graph.T == 1)
    undirected = (graph == -1) & (graph.T == -1)
    return (directed | undirected).astype(float)


def discrete_posterior(samples: causal.Samples) -> np.ndarray:
    return DiscretePosterior().edges(samples)


def surrogate(samples: causal.Samples) -> np.ndarray:
    return causal.load_default_surrogate().edge_probabilities(samples)


NETWORKS = ["asia", "child", "insurance", "alarm", "hailfinder", "win95pts"]
OURS: dict[str, Method] = {"discrete": discrete_posterior, "surrogate": surrogate}
RIVALS: dict[str, Method] = {
    "ges": ges,
    "pc": pc,
    "gies": gies,
    "dagma": dagma,
    "lingam": lingam,
}


def run_within(
    method: Method, samples: causal.Samples, cpu_s: float
) -> tuple[np.ndarray | None, float]:
    """Run a method until it ends or the CPU-seconds are over."""

    def over(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, over)
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        edges: np.ndarray | None = method(samples)
    except TimeoutError:
        edges = None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return edges, time.process_time() - start


def score(name: str, edges: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    off = ~np.eye(len(truth), dtype=bool)
    if name in OURS:
        half, graph = edges, causal.select_graph(edges)
    else:
        half, graph = as_counts(edges, truth)
    return {
        "auroc": auroc(half[off], truth[off]),
        "f1": f1(graph, truth),
        "shd": float(distance(graph, truth)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--cpu-minutes", type=float, default=3.0)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--methods", nargs="*", default=[*OURS, *RIVALS])
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    if asked.peers:
        sys.path.append(str(asked.peers))
    wheel = next(asked.wheels.glob("pgmpy-*.whl"))
    methods = {m: (OURS | RIVALS)[m] for m in asked.methods}
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    lines: list[list[str]] = []
    for network in asked.networks:
        scm = causal.load_network(network, source=wheel)
        truth = scm.adjacency.astype(float)
        each = found[network] = {m: [] for m in methods}
        for seed in range(asked.seeds):
            samples = take_samples(scm, seed)
            for name, method in methods.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    edges, cpu = run_within(method, samples, 60 * asked.cpu_minutes)
                result = {"cpu_s": cpu, "ended": float(edges is not None)}
                if edges is not None:
                    result |= score(name, edges, truth)
                each[name].append(result)
                print(network, seed, name, each[name][-1:], f"{cpu:.1f}", flush=True)
        line = [network, str(len(truth)), f"{truth.sum():.0f}"]
        for name in methods:
            if not all(r["ended"] for r in each[name]):
                line.append(f"not within {60 * asked.cpu_minutes:g} CPU-s")
                continue
            mean = {
                k: np.mean([r[k] for r in each[name]]) for k in ("f1", "shd", "cpu_s")
            }
            line.append("{f1:.2f}, {shd:.1f}, {cpu_s:.1f}".format(**mean))
        lines.append(line)
        if asked.to:
            text = json.dumps({"made with": made_with(), **found}, indent=1)
            asked.to.write_text(text + "\n")
    print(table(["F1, SHD, CPU-s", "variables", "edges", *methods], lines))
    for name in methods.keys() - OURS.keys():
        pairs = [
            (a["f1"], b["f1"], b["cpu_s"] / a["cpu_s"])
            for each in found.values()
            if "discrete" in each
            for a, b in zip(each["discrete"], each[name], strict=True)
            if b["ended"]
        ]
        if pairs:
            ours, theirs, times = np.array(pairs).T
            low, high = interval(ours - theirs)
            print(
                f"F1 of discrete less {name}: {low:+.3f} to {high:+.3f} (95 %) on "
                f"{len(pairs)} tables; CPU of {name} {times.min():.2g} to "
                f"{times.max():.2g} times that of discrete"
            )


if __name__ == "__main__":
    main()
