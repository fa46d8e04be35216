"""Who causes whom: the shipped surrogate beside GIES and others, on the same data.

    uv pip install --target PEERS gies==0.0.3 causal-learn==0.1.4.8 lingam==1.13.0
    pip download --no-deps -d WHEELS pgmpy==1.1.2 cdt==0.6.0
    python -m benchmarks.causal_structure --graphs 200 --peers PEERS --wheels WHEELS

Fresh graphs of Erdős-Rényi and scale-free kind, 0.7 to 2.5 edges a node, 64 rows
observed and 64 in which one variable was set. GIES and the surrogate see all rows; PC
and DirectLiNGAM cannot use experiments and see the observed rows. CPU is of this
process, per graph. `rff` was in no training data. An edge that GIES leaves undirected
counts as one half for the AUROC, and as right for F1 if there is an edge at all.
"""

import argparse
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import made_with

from frugax import causal

CELLS = [
    (family, noise, d)
    for d in (5, 10)
    for family, noise in (
        ("linear", "gaussian"),
        ("linear", "laplace"),
        ("mlp", "gaussian"),
        ("rff", "gaussian"),
    )
]
_RESULT = Path(__file__).parent / "results" / "causal_structure.json"
_PAIRS = 400  # bootstrap draws


def auroc(p: np.ndarray, truth: np.ndarray) -> float:
    """Chance that an edge gets more probability than a non-edge; ties are halves."""
    yes, no = p[truth > 0], p[truth == 0]
    above = (yes[:, None] > no).mean() + 0.5 * (yes[:, None] == no).mean()
    return float(above)


def f1(edges: np.ndarray, truth: np.ndarray) -> float:
    """F1 of directed edges; both may be counts between 0 and 1."""
    total = edges.sum() + truth.sum()
    return float(2 * (edges * truth).sum() / total) if total else 1.0


def calibration_error(p: np.ndarray, truth: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: mean distance of stated and observed rates."""
    place = np.minimum((p * bins).astype(int), bins - 1)
    error = 0.0
    for b in range(bins):
        mine = place == b
        if mine.any():
            error += abs(p[mine].mean() - truth[mine].mean()) * mine.mean()
    return error


def interval(differences: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of paired differences."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(differences), (_PAIRS, len(differences)))
    low, high = np.quantile(differences[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)


def gies_edges(values: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """GIES with its BIC; 1 for a directed edge, 1 both ways for an undirected one."""
    import gies

    data, targets = [values[~changed.any(1)].astype(float)], [[]]
    for i in range(values.shape[1]):
        if changed[:, i].any():
            data.append(values[changed[:, i]].astype(float))
            targets.append([i])
    return gies.fit_bic(data, targets)[0]


def gies_within(
    values: np.ndarray, changed: np.ndarray, cpu_s: float
) -> tuple[np.ndarray, float, bool]:
    """GIES until it ends or the CPU-seconds are over: edges, seconds, whether it ended.

    If it was stopped the edges are those of its last finished step.
    """
    import gies.main

    last = np.zeros((values.shape[1],) * 2)

    def remembered(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(graph: np.ndarray, *more: Any) -> Any:
            nonlocal last
            last = graph
            return step(graph, *more)

        return run

    for name in ("forward_step", "backward_step", "turning_step"):
        setattr(gies.main, name, remembered(getattr(gies.main, name)))

    def over(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, over)
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        last, ended = gies_edges(values, changed), True
    except TimeoutError:
        ended = False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return last, time.process_time() - start, ended


def pc_edges(values: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """PC of causal-learn at alpha .05, on the observed rows."""
    from causallearn.search.ConstraintBased.PC import pc

    seen = values[~changed.any(1)].astype(float)
    graph = pc(seen, alpha=0.05, show_progress=False).G.graph
    tail_here, arrow_there = graph == -1, graph.T == 1
    undirected = (graph == -1) & (graph.T == -1)
    return ((tail_here & arrow_there) | undirected).astype(float)


def lingam_edges(values: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """DirectLiNGAM: sizes of effects, on the observed rows."""
    import lingam

    model = lingam.DirectLiNGAM()
    model.fit(values[~changed.any(1)].astype(float))
    return np.abs(model.adjacency_matrix_).T


def as_counts(edges: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For the AUROC and for F1, undirected edges turned in the peer's favour."""
    undirected = (edges > 0) & (edges.T > 0)
    either = (truth + truth.T) > 0
    generous = np.where(undirected, np.where(either, truth, 0.5), edges > 0)
    return np.where(undirected, 0.5, edges), generous.astype(float)


def peers() -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Those that are installed."""
    found: dict[str, Any] = {}
    for name, module, run in (
        ("gies", "gies", gies_edges),
        ("pc", "causallearn", pc_edges),
        ("lingam", "lingam", lingam_edges),
    ):
        try:
            __import__(module)
            found[name] = run
        except ImportError:
            print(f"{name} is not installed and left out")
    return found


def cell(family: str, noise: str, d: int, graphs: int, few: int) -> dict[str, Any]:
    """One kind of models: every method on the same data sets."""
    made = causal.generate_batch(
        graphs, d=d, rows=128, observed=64, family=family, noise=noise, seed=7
    )
    truth = made.adjacency.astype(float)
    off = ~np.eye(d, dtype=bool)
    rows = (made.values, made.intervened.astype(np.float32))
    surrogate = causal.load_default_surrogate()
    start = time.process_time()
    edges = surrogate.predict(*rows, np.ones_like(rows[0])).edges
    cpu = (time.process_time() - start) / graphs
    start = time.process_time()
    names = tuple(f"x{i}" for i in range(d))
    for b in range(20):
        surrogate.edge_probabilities(
            causal.Samples(names, made.values[b], made.intervened[b])
        )
    single = (time.process_time() - start) / 20
    rated = [b for b in range(graphs) if 0 < truth[b].sum() < off.sum()]
    ours = [f1(causal.select_graph(edges[b]), truth[b]) for b in range(graphs)]
    result: dict[str, Any] = {
        "family": family,
        "noise": noise,
        "d": d,
        "edges": float(truth.sum((1, 2)).mean()),
        "surrogate": {
            "auroc": float(
                np.mean([auroc(edges[b][off], truth[b][off]) for b in rated])
            ),
            "f1": float(np.mean(ours)),
            "ece": calibration_error(edges[:, off], truth[:, off]),
            "cpu_ms": 1e3 * cpu,
            "cpu_ms_alone": 1e3 * single,
        },
    }
    for name, run in peers().items():
        count = graphs if name == "gies" else min(few, graphs)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [run(made.values[b], made.intervened[b]) for b in range(count)]
        cpu = (time.process_time() - start) / count
        pairs = [as_counts(found[b], truth[b]) for b in range(count)]
        theirs = np.array([f1(pairs[b][1], truth[b]) for b in range(count)])
        some = [b for b in rated if b < count]
        result[name] = {
            "graphs": count,
            "auroc": float(
                np.mean([auroc(pairs[b][0][off], truth[b][off]) for b in some])
            ),
            "f1": float(theirs.mean()),
            "cpu_ms": 1e3 * cpu,
            "f1_behind": interval(np.array(ours[:count]) - theirs),
        }
    return result


def sachs(wheels: Path) -> dict[str, Any]:
    """The protein data, with the empty and a random graph in the same table."""
    samples, truth = causal.load_sachs(next(wheels.glob("cdt-*.whl")))
    off = ~np.eye(len(truth), dtype=bool)
    rng = np.random.default_rng(0)
    logs = causal.Samples(
        samples.variables, np.log(samples.values + 1), samples.intervened
    )
    random = (rng.random(truth.shape) < truth.sum() / off.sum()).astype(float)
    candidates = {
        "surrogate": causal.load_default_surrogate().edge_probabilities(samples),
        "surrogate, logarithms": causal.load_default_surrogate().edge_probabilities(
            logs
        ),
        "empty graph": np.zeros(truth.shape),
        "random graph": random * off,
    }
    return {
        name: {
            "auroc": auroc(p[off], truth[off]),
            "f1": f1(causal.select_graph(p), truth),
            "edges": int(causal.select_graph(p).sum()),
            "shd": int((causal.select_graph(p) != truth).sum()),
        }
        for name, p in candidates.items()
    }


def networks(wheels: Path, names: Sequence[str], gies_cpu_s: float) -> dict[str, Any]:
    """Networks of 44 and 46 variables, about as many rows observed as with one set."""
    found = {}
    for name in names:
        scm = causal.standardize(
            causal.load_network(name, source=next(wheels.glob("pgmpy-*.whl")))
        )
        samples = causal.sample(scm, 500, seed=0)
        for i, variable in enumerate(scm.variables):
            do = causal.intervene(**{variable: 2.0 if i % 2 else -2.0})
            samples = samples.concat(causal.sample(scm, 10, seed=i, intervention=do))
        truth = scm.adjacency.astype(float)
        off = ~np.eye(len(truth), dtype=bool)
        start = time.process_time()
        p = causal.load_default_surrogate().edge_probabilities(samples)
        cpu = time.process_time() - start
        found[name] = {
            "d": len(truth),
            "surrogate": {
                "auroc": auroc(p[off], truth[off]),
                "f1": f1(causal.select_graph(p), truth),
                "shd": distance(causal.select_graph(p), truth),
                "cpu_s": cpu,
            },
        }
        if "gies" in peers() and gies_cpu_s:
            edges, cpu, ended = gies_within(
                samples.values, samples.intervened, gies_cpu_s
            )
            half, generous = as_counts(edges, truth)
            found[name]["gies"] = {
                "auroc": auroc(half[off], truth[off]),
                "f1": f1(generous, truth),
                "shd": distance(generous, truth),
                "edges": int(((edges + edges.T) > 0).sum() // 2),
                "cpu_s": cpu,
                "ended": ended,
            }
    return found


def distance(edges: np.ndarray, truth: np.ndarray) -> int:
    """Pairs of variables whose edge is missing, too many or the wrong way round."""
    wrong = (edges > 0) != (truth > 0)
    return int((wrong | wrong.T).sum() // 2)


def against_exact(d: int, graphs: int) -> dict[str, float]:
    """Total variation from the exact linear-Gaussian posterior, a target a graph."""
    from frugax.causal.posterior import ExactLinearPosterior

    made = causal.generate_batch(graphs, d=d, rows=128, observed=64, seed=11)
    names = tuple(f"x{i}" for i in range(d))
    exact, ours = ExactLinearPosterior(), causal.load_default_surrogate()
    far = []
    for b in range(graphs):
        samples = causal.Samples(names, made.values[b], made.intervened[b])
        target = names[b % d]
        true = exact.posterior(samples, target)
        far.append(ours.posterior(samples, target).total_variation(true))
    return {
        "median": float(np.median(far)),
        "mean": float(np.mean(far)),
        "graphs": graphs,
    }


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--few", type=int, default=50, help="graphs for PC and LiNGAM")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--networks", nargs="*", default=["ecoli70", "magic-niab"])
    parser.add_argument("--gies-cpu-minutes", type=float, default=15.0)
    parser.add_argument("--only", nargs="*", help="cells, such as rff-gaussian-10")
    given = parser.parse_args()
    if given.peers:
        sys.path.append(str(given.peers))
    for family, noise, d in CELLS:
        name = f"{family}-{noise}-{d}"
        if given.only is not None and name not in given.only:
            continue
        row = cell(family, noise, d, given.graphs, given.few)
        said = "  ".join(
            f"{who} {m['auroc']:.3f}/{m['f1']:.3f} {m['cpu_ms']:.2f} ms"
            for who, m in row.items()
            if isinstance(m, dict)
        )
        print(f"{name}  {said}  ECE {row['surrogate']['ece']:.3f}", flush=True)
        keep("cells", {name: row})
    if given.exact:
        keep("exact", {str(d): against_exact(d, 30) for d in (5, 10)})
    if given.wheels:
        if given.only is None:
            keep("sachs", sachs(given.wheels))
        seconds = 60 * given.gies_cpu_minutes
        for name in given.networks:
            keep("networks", networks(given.wheels, [name], seconds))


def keep(part: str, found: dict[str, Any]) -> None:
    """Add to the file of results; a run of some cells keeps the others."""
    print(json.dumps({part: found}), flush=True)
    old = json.loads(_RESULT.read_text()) if _RESULT.exists() else {}
    old["made_with"] = made_with()
    old[part] = old.get(part, {}) | found
    _RESULT.write_text(json.dumps(old, indent=1) + "\n")


if __name__ == "__main__":
    main()
