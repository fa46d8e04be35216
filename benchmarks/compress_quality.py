"""How good weights still are: their own error, their sentences, the bound.

Reference:
    Cover & Thomas 2006, Elements of Information Theory, sec. 10.3.3 (the bound).
"""

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Weights = Mapping[str, np.ndarray]


def sentences() -> list[str]:
    """180 sentences: 12 people, 5 acts, 3 places."""
    who = (
        "A child|The teacher|My neighbour|An old sailor|The engineer|A nurse|Two dogs|"
        "The orchestra|A tired student|The minister|Her brother|A young painter"
    )
    act = (
        "is waiting for the train|repaired a broken clock|sings a quiet song|"
        "argues about the price of bread|has written a long letter"
    )
    where = "in the rain|near the old harbour|at the end of the day"
    return [
        f"{a} {b} {c}."
        for a in who.split("|")
        for b in act.split("|")
        for c in where.split("|")
    ]


def embedder() -> Callable[[Weights], np.ndarray]:
    """From weights to the sentences' vectors, by JAX."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import minilm  # pyright: ignore[reportMissingImports]

    import frugax as fx

    backend = fx.JaxBackend()
    compiled = fx.models.compile(minilm.SentenceEncoder(), backend, inference=True)
    data = {k: backend.array(v) for k, v in minilm.tokenize(sentences()).items()}

    def embed(weights: Weights) -> np.ndarray:
        params, _ = fx.models.load_state_dict(
            compiled, weights, minilm.NAMES, cast=True
        )
        return np.asarray(compiled.evaluate(params, data)["output"])

    return embed


def bound_db(weights: Weights, nbytes: float) -> float:
    """The rate-distortion bound of Gaussian rows in dB, at a number of bytes."""
    rows = [
        w.reshape(len(w), -1) if w.ndim > 1 else w.reshape(1, -1)
        for w in weights.values()
        if w.dtype.kind == "f"
    ]
    variance = np.concatenate(
        [np.mean(r.astype(np.float64) ** 2, axis=1) for r in rows]
    )
    count = np.concatenate([np.full(len(r), r.shape[1]) for r in rows])
    used = variance > 0
    variance, count = variance[used], count[used]
    low = level = variance.min() * 1e-12
    high = variance.max()
    for _ in range(200):
        level = math.sqrt(low * high)
        bits = (count * np.maximum(0, np.log2(variance / level) / 2)).sum()
        low, high = (level, high) if bits > 8 * nbytes else (low, level)
    energy = (count * variance).sum()
    return float(10 * np.log10(energy / (count * np.minimum(level, variance)).sum()))


def snr_db(weights: Weights, back: Weights) -> float:
    """Signal over error of all float weights, in dB."""
    floats = [k for k, w in weights.items() if w.dtype.kind == "f"]
    gap = sum(
        float(((back[k].astype(np.float64) - weights[k]) ** 2).sum()) for k in floats
    )
    energy = sum(float((weights[k].astype(np.float64) ** 2).sum()) for k in floats)
    return 10 * math.log10(energy / gap)
