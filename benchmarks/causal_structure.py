"""How well a graph was found, and other methods that find graphs.

PC and DirectLiNGAM cannot use experiments and see the observed rows. An edge that a
method leaves undirected counts as one half for the AUROC, and as right for F1 if there
is an edge at all.
"""

import contextlib
import io
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from frugax import causal
from frugax.causal.posterior import DiscretePosterior

LEAST_WEIGHT = 0.1  # of an edge, in the linear models
Method = Callable[[causal.Samples], np.ndarray]


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


def distance(edges: np.ndarray, truth: np.ndarray) -> int:
    """Pairs of variables whose edge is missing, too many or the wrong way round."""
    wrong = (edges > 0) != (truth > 0)
    return int((wrong | wrong.T).sum() // 2)


# --- continuous variables: values, and which were set ---------------------------------


def gies_edges(values: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """GIES with its BIC; 1 for a directed edge, 1 both ways for an undirected one."""
    import gies

    data, targets = [values[~changed.any(1)].astype(float)], [[]]
    for i in range(values.shape[1]):
        if changed[:, i].any():
            data.append(values[changed[:, i]].astype(float))
            targets.append([i])
    return gies.fit_bic(data, targets)[0]


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


# --- variables of a few values --------------------------------------------------------


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
            rows, lambda1=0.02, w_threshold=LEAST_WEIGHT
        )
    return (weights != 0).astype(float)


def lingam(samples: causal.Samples) -> np.ndarray:
    sizes = lingam_edges(samples.values, samples.intervened)
    return (sizes >= LEAST_WEIGHT).astype(float)


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
