"""Graphs that are found and campaigns that are run, beside other methods.

    uv pip install --target PEERS gies==0.0.3 causal-learn==0.1.4.8 lingam==1.13.0 \
        dagma==1.1.1 botorch
    pip download --no-deps -d WHEELS pgmpy==1.1.2 cdt==0.6.0
    python -m benchmarks.causal --peers PEERS --wheels WHEELS
    python -m benchmarks.causal campaigns --cases campaign --count 2

`graphs`: fresh graphs of Erdős-Rényi and scale-free kind, 0.7 to 2.5 edges a node, 64
rows observed and 64 in which one variable was set. GIES and the surrogate see all rows.
CPU is of this process, per graph; `rff` was in no training data. `exact`: total
variation from the exact linear posterior. `sachs`, `networks`: the protein data, and
networks of 44 and 46 variables. `discrete`: variables of a few values on networks with
known graphs, 500 rows observed and 10 in which each variable was set; of eight settings
DAGMA has the best.

`campaigns`, `laboratories`: mean regret on problems with a known truth. All methods
have the same observations, experiments and prices; `--cases` names methods, and the
others keep their results. `data`: milliseconds of training data. `train` trains the
surrogate that ships with the package, and writes it to `--save`.
"""

import argparse
import functools
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.causal_exact import ExactLinearPosterior
from benchmarks.causal_laboratories import laboratories
from benchmarks.causal_networks import load_network, load_sachs
from benchmarks.causal_optimise import RIVALS, run as run_method
from benchmarks.causal_problems import problems
from benchmarks.causal_structure import (
    as_counts,
    auroc,
    calibration_error,
    dagma,
    discrete_posterior,
    distance,
    f1,
    ges,
    gies,
    gies_edges,
    lingam,
    lingam_edges,
    pc,
    pc_edges,
    run_within,
    surrogate,
)
from benchmarks.harness import (
    Figures,
    Part,
    Row,
    choose,
    cpu_seconds,
    figures_table,
    is_chosen,
    mean_interval,
    run,
    say,
)

from frugax import causal
from frugax.budget import table
from frugax.causal import save_surrogate, train_surrogate

CELLS = {
    f"{family}-{noise}-{d}": (family, noise, d)
    for d in (5, 10)
    for family, noise in (
        ("linear", "gaussian"),
        ("linear", "laplace"),
        ("mlp", "gaussian"),
        ("rff", "gaussian"),
    )
}
# The rivals of the table of results; GP-UCB alone is not the best.
BEST_RIVALS = ("gp-ucb, shared", "cbo, true graph", "mcbo, true graph", "botorch")


def find_peers(given: argparse.Namespace) -> None:
    if given.peers:
        # Last, so that these packages replace none of ours.
        sys.path.append(str(given.peers))


def is_here(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) for module in modules)


# --- graphs -------------------------------------------------------------------------


def rate(edges: np.ndarray, truth: np.ndarray) -> Figures:
    """AUROC, F1 and distance of one matrix of probabilities."""
    off = ~np.eye(len(truth), dtype=bool)
    graph = causal.select_graph(edges)
    scores = {"auroc": auroc(edges[off], truth[off]), "f1": f1(graph, truth)}
    return scores | {"shd": distance(graph, truth), "edges": int(graph.sum())}


def measure_graphs(given: argparse.Namespace) -> Figures:
    """Every method on the same data sets, one kind of models after the other."""
    find_peers(given)
    names = choose(CELLS, given, 1)
    graphs = 4 if given.quick else given.graphs
    return {name: measure_cell(*CELLS[name], graphs) for name in names}


def measure_cell(family: str, noise: str, d: int, graphs: int) -> Figures:
    how: dict[str, Any] = {"family": family, "noise": noise, "seed": 7}
    made = causal.generate_batch(graphs, d=d, rows=128, observed=64, **how)
    truth, off = made.adjacency.astype(float), ~np.eye(d, dtype=bool)
    model = causal.load_default_surrogate()
    rows = (made.values, made.intervened.astype(np.float32))
    started = time.process_time()
    edges = model.predict(*rows, np.ones_like(rows[0])).edges
    cpu = (time.process_time() - started) / graphs
    rated = [b for b in range(graphs) if 0 < truth[b].sum() < off.sum()]
    ours = np.array(
        [f1(causal.select_graph(edges[b]), truth[b]) for b in range(graphs)]
    )
    aurocs = [auroc(edges[b][off], truth[b][off]) for b in rated]
    result: Figures = {
        "edges": float(truth.sum((1, 2)).mean()),
        "surrogate": {
            "auroc": float(np.mean(aurocs)),
            "f1": float(ours.mean()),
            "ece": calibration_error(edges[:, off], truth[:, off]),
            "cpu_ms": 1e3 * cpu,
        },
    }
    say(f"{family}-{noise}-{d}: {result['surrogate']}")
    peers: dict[str, tuple[str, Callable[..., np.ndarray], int]] = {
        "gies": ("gies", gies_edges, graphs),
        "pc": ("causallearn", pc_edges, min(25, graphs)),
        "lingam": ("lingam", lingam_edges, min(25, graphs)),
    }
    for name, (module, find, count) in peers.items():
        if not is_here(module):
            continue
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [find(made.values[b], made.intervened[b]) for b in range(count)]
        cpu = (time.process_time() - started) / count
        pairs = [as_counts(found[b], truth[b]) for b in range(count)]
        theirs = np.array([f1(pairs[b][1], truth[b]) for b in range(count)])
        some = [b for b in rated if b < count]
        aurocs = [auroc(pairs[b][0][off], truth[b][off]) for b in some]
        result[name] = {
            "graphs": count,
            "auroc": float(np.mean(aurocs)),
            "f1": float(theirs.mean()),
            "cpu_ms": 1e3 * cpu,
            "f1_behind": mean_interval(ours[:count] - theirs),
        }
    return result


def graph_rows(found: Figures) -> Iterator[Row]:
    """F1 of directed edges beside GIES."""
    for cell, f in found.items():
        if "gies" in f:
            theirs, (low, high) = f["gies"]["f1"], f["gies"]["f1_behind"]
            yield Row(
                task=f"edges of random graphs, {cell}",
                quantity="F1, more is better",
                ours=f["surrogate"]["f1"],
                peer="GIES",
                theirs=theirs,
                ahead_by=f["surrogate"]["f1"] / theirs,
                low=1 + low / theirs,
                high=1 + high / theirs,
            )


def show_graphs(found: Figures) -> str:
    """A line for each cell and method."""
    return figures_table(
        {
            f"{cell}, {method}": figures
            for cell, f in found.items()
            for method, figures in f.items()
            if method != "edges"
        }
    )


def measure_exact(given: argparse.Namespace) -> Figures:
    """Total variation from the exact linear-Gaussian posterior, a target a graph."""
    found: Figures = {}
    model, graphs = causal.load_default_surrogate(), 2 if given.quick else 30
    for d in (5,) if given.quick else (5, 10):
        made = causal.generate_batch(graphs, d=d, rows=128, observed=64, seed=11)
        names, exact = tuple(f"x{i}" for i in range(d)), ExactLinearPosterior()
        far = []
        for b in range(graphs):
            samples = causal.Samples(names, made.values[b], made.intervened[b])
            true = exact.posterior(samples, names[b % d])
            ours = model.posterior(samples, names[b % d])
            sets = {*ours.parent_sets, *true.parent_sets}
            # Total variation: half of the L1 distance.
            far.append(0.5 * sum(abs(ours.prob(s) - true.prob(s)) for s in sets))
        figures = {"median": float(np.median(far)), "mean": float(np.mean(far))}
        found[f"{d} variables"] = figures | {"graphs": graphs}
    return found


def measure_sachs(given: argparse.Namespace) -> Figures:
    """The protein data, with the empty and a random graph in the same table."""
    samples, truth = load_sachs(given.wheels)
    off, rng = ~np.eye(len(truth), dtype=bool), np.random.default_rng(0)
    values = np.log(samples.values + 1)
    logs = causal.Samples(samples.variables, values, samples.intervened)
    random = (rng.random(truth.shape) < truth.sum() / off.sum()).astype(float)
    model = causal.load_default_surrogate()
    candidates = {
        "surrogate": model.edge_probabilities(samples),
        "surrogate, logarithms": model.edge_probabilities(logs),
        "empty graph": np.zeros(truth.shape),
        "random graph": random * off,
    }
    return {name: rate(p, truth) for name, p in candidates.items()}


def measure_networks(given: argparse.Namespace) -> Figures:
    """Networks of 44 and 46 variables, about as many rows observed as with one set."""
    find_peers(given)
    found: Figures = {}
    for name in choose(("ecoli70", "magic-niab"), given, 1):
        scm = causal.standardize(load_network(given.wheels, name)[0])
        samples = causal.sample(scm, 500, seed=0)
        for i, variable in enumerate(scm.variables):
            do = causal.intervene(**{variable: 2.0 if i % 2 else -2.0})
            samples = samples.concat(causal.sample(scm, 10, seed=i, intervention=do))
        methods = {"surrogate": surrogate} | ({"gies": gies} if is_here("gies") else {})
        truth = scm.adjacency.astype(float)
        for method, find in methods.items():
            found[f"{name}, {method}"] = judge_method(
                method, find, samples, truth, given
            )
    return found


def judge_method(
    name: str,
    find: Callable[[causal.Samples], np.ndarray],
    samples: causal.Samples,
    truth: np.ndarray,
    given: argparse.Namespace,
) -> Figures:
    """One method within its processor time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edges, cpu = run_within(find, samples, 60 * given.cpu_minutes)
    figures: Figures = {"cpu_s": cpu, "ended": edges is not None}
    if edges is None:
        return figures
    if name in ("discrete", "surrogate"):
        return figures | rate(edges, truth)
    off = ~np.eye(len(truth), dtype=bool)
    half, graph = as_counts(edges, truth)
    scores = {"auroc": auroc(half[off], truth[off]), "f1": f1(graph, truth)}
    return figures | scores | {"shd": distance(graph, truth)}


DISCRETE = ("asia", "child", "insurance", "alarm", "hailfinder", "win95pts")


def measure_discrete(given: argparse.Namespace) -> Figures:
    """Every method on networks of discrete variables, two tables each."""
    find_peers(given)
    methods: dict[str, tuple[str, Any]] = {
        "discrete": ("frugax", discrete_posterior),
        "surrogate": ("frugax", surrogate),
        "ges": ("causallearn", ges),
        "pc": ("causallearn", pc),
        "gies": ("gies", gies),
        "dagma": ("dagma", dagma),
        "lingam": ("lingam", lingam),
    }
    found: Figures = {}
    for name in choose(DISCRETE, given, 1):
        scm, states = load_network(given.wheels, name)
        truth = scm.adjacency.astype(float)
        for seed in range(1 if given.quick else 2):
            samples = set_each_state(scm, states, seed)
            for method, (module, find) in methods.items():
                if is_here(module):
                    key = f"{name} {seed}, {method}"
                    found[key] = judge_method(method, find, samples, truth, given)
                    say(f"{key}: {found[key]}")
    return found


def set_each_state(
    scm: causal.SCM, states: Mapping[str, int], seed: int
) -> causal.Samples:
    """500 observed rows, and 10 in which each variable has its states by turns."""
    samples = causal.sample(scm, 500, seed=seed)
    for i, variable in enumerate(scm.variables):
        count = states[variable]
        for state in range(count):
            rows = 10 // count + (state < 10 % count)
            if rows:
                do = causal.intervene(**{variable: float(state)})
                at = 100_000 * (seed + 1) + 100 * i + state
                part = causal.sample(scm, rows, seed=at, intervention=do)
                samples = samples.concat(part)
    return samples


# --- campaigns ----------------------------------------------------------------------


def measure_campaigns(source: Any, given: argparse.Namespace) -> Figures:
    """Run each method on each problem; what is not asked for is kept."""
    find_peers(given)
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    part = "campaigns" if source is problems else "laboratories"
    found: Figures = dict(kept.get(part, {}).get("found", {})) if given.cases else {}
    methods = choose(("campaign", *RIVALS), given, 0) or ["campaign", "random"]
    if not is_here("botorch") and not given.cases:
        methods = [m for m in methods if m != "botorch"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for problem in source(1 if given.quick else given.count):
            if given.families and problem.family not in given.families:
                continue
            if given.quick and problem.family not in ("threshold", "sieve"):
                continue
            for method in methods:
                result = run_method(method, problem, given.seed)
                found.setdefault(method, {})[problem.name] = result
                say(f"{problem.name}, {method}: regret {result['regret'][-1]:.3f}")
    return found


def campaign_rows(found: Figures) -> Iterator[Row]:
    """Regret at the end of campaigns, over the problems that every method solved."""
    others = ("random", "observations only")  # not methods
    runs = {name: f for name, f in found.items() if name not in others}
    solved = sorted(set.intersection(*(set(f) for f in runs.values())))
    regret = {
        name: np.array([f[problem]["regret"][-1] for problem in solved])
        for name, f in runs.items()
    }
    ours = regret.pop("campaign", None)
    if ours is None or not regret or not solved:
        return
    unmeasured = tuple(name for name in BEST_RIVALS if name not in runs)
    families = {problem.rsplit(" ", 1)[0] for problem in solved}
    # Families differ in difficulty by far more than the methods do, so problems are
    # drawn again, with each method's regret on the same ones.
    drawn = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
    for peer in sorted(regret, key=lambda name: float(regret[name].mean())):
        ratios = regret[peer][drawn].mean(1) / np.maximum(ours[drawn].mean(1), 1e-12)
        low, high = np.quantile(ratios, [0.025, 0.975])
        yield Row(
            task=f"campaigns on {len(solved)} problems of {len(families)} families",
            quantity="mean regret",
            ours=float(ours.mean()),
            peer=peer,
            theirs=float(regret[peer].mean()),
            ahead_by=float(regret[peer].mean() / max(ours.mean(), 1e-12)),
            low=float(low),
            high=float(high),
            cases=len(solved),
            unmeasured=unmeasured,
        )
        if unmeasured:
            return  # the others are no better, and the best is not known


def show_campaigns(found: Figures) -> str:
    """Mean regret by family, and the campaign's claims beside the truth."""
    methods = list(found)
    families = list(dict.fromkeys(n.rsplit(" ", 1)[0] for n in found[methods[0]]))

    def mean(method: str, family: str) -> str:
        each = [
            r["regret"][-1]
            for name, r in found[method].items()
            if name.rsplit(" ", 1)[0] == family
        ]
        return f"{np.mean(each):.3f}" if each else "-"

    rows = [[f, *(mean(m, f) for m in methods)] for f in families]
    last = lambda m, key: [r[key] for r in found[m].values()]
    every = (np.mean([x[-1] for x in last(m, "regret")]) for m in methods)
    rows.append(["all", *(f"{x:.3f}" for x in every)])
    rows.append(["CPU-s", *(f"{np.mean(last(m, 'cpu_s')):.1f}" for m in methods)])
    text = table(["mean regret", *methods], rows)
    if "campaign" not in found:
        return text
    runs = list(found["campaign"].values())
    inside = np.concatenate([r["inside"] for r in runs])
    stated = np.concatenate([r["stated"] for r in runs])
    good = np.concatenate([r["regret"] for r in runs]) <= 0.05
    planned, final = np.array([r["planned"] for r in runs]), last("campaign", "regret")
    ends = np.array([x[-1] for x in final])
    held = ((planned[:, 0] <= ends + 1e-9) & (ends <= planned[:, 2])).mean()
    return (
        f"{text}\n90 % intervals: {inside.mean():.2f} of {len(inside)} held the true "
        f"mean. A recommendation was stated as good with {stated.mean():.2f} and was "
        f"so in {good.mean():.2f}. Regret forecast before the first experiment: "
        f"{planned[:, 1].mean():.3f}, {ends.mean():.3f} was; {held:.2f} of its 90 % "
        "intervals held it."
    )


# --- training data, and the surrogate -----------------------------------------------


def measure_data(given: argparse.Namespace) -> Figures:
    """Processor time of data sets of 128 rows and 10 variables, made 64 at a time."""
    rng, found = np.random.default_rng(0), {}
    rounds, sets = (2, 4) if given.quick else (15, 64)
    for family in ("linear", "mlp", "rff", "mixed"):
        if not is_chosen(family, given):
            continue
        how: dict[str, Any] = {"d": 10, "rows": 128, "family": family, "seed": rng}
        scm = causal.generate_scm("erdos_renyi", 10, family=family, seed=0)
        works = {
            "generate_batch": functools.partial(causal.generate_batch, sets, **how),
            "sample": functools.partial(causal.sample, scm, 128, seed=0),
        }
        for name, work in works.items():
            work()  # the first call is not counted
            each = [1e3 * cpu_seconds(work) for _ in range(rounds)]
            each = np.array(each) / (sets if name == "generate_batch" else 1)
            figures = {
                "median_ms": float(np.median(each)),
                "least_ms": float(each.min()),
            }
            found[f"{name}, {family}"] = figures
    return found


def train(given: argparse.Namespace) -> Figures:
    """Train the surrogate; 3,000 steps or 20 minutes of processor time."""

    def tell(index: int, metrics: dict[str, Any]) -> None:
        if index % 100 == 0:
            sets, edges = float(metrics["sets"]), float(metrics["edges"])
            say(f"{index:6d} sets {sets:.3f}  edges {edges:.3f}")

    trained = train_surrogate(
        seed=1,
        steps=2 if given.quick else 3000,
        cpu_seconds=60 * 20.0,
        prefetch=2,
        progress=tell,
    )
    if given.save:
        save_surrogate(given.save, trained.surrogate)
    return {
        "surrogate": {
            "steps": trained.steps,
            "data sets": trained.graphs,
            "cpu_s": trained.cpu_seconds,
            "temperature": trained.surrogate.temperature,
            "compiles": trained.receipt.spends[0].measured,
        }
    }


PARTS = {
    "graphs": Part(
        measure=measure_graphs, rows=graph_rows, show=show_graphs, minutes=(60, 0)
    ),
    "campaigns": Part(
        measure=functools.partial(measure_campaigns, problems),
        rows=campaign_rows,
        show=show_campaigns,
        short=("--count", "1", "--families", "classic", "threshold"),
        minutes=(120, 5),
    ),
    "laboratories": Part(
        measure=functools.partial(measure_campaigns, laboratories), show=show_campaigns
    ),
    "exact": Part(measure=measure_exact),
    "sachs": Part(measure=measure_sachs),
    "networks": Part(measure=measure_networks),
    "discrete": Part(measure=measure_discrete),
    "data": Part(measure=measure_data),
    "train": Part(measure=train),
}


def add_options(ask: argparse.ArgumentParser) -> None:
    ask.add_argument("--peers", type=Path, help="a folder that holds peers")
    ask.add_argument("--wheels", type=Path, help="a folder with wheels of data")
    ask.add_argument("--graphs", type=int, default=200)
    ask.add_argument("--cpu-minutes", type=float, default=15.0, help="of one method")
    ask.add_argument("--count", type=int, default=2, help="problems of each family")
    ask.add_argument("--families", nargs="*", help="of problems")
    ask.add_argument("--seed", type=int, default=0, help="of answers and methods")
    ask.add_argument("--save", type=Path, help="where the surrogate is written")


if __name__ == "__main__":
    run("causal", PARTS, about=__doc__, options=add_options)
