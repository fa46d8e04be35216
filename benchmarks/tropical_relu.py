"""Digits, a 64-256-10 ReLU net of three seeds: hidden units merged, or pruned.

Part `zonotope` of `benchmarks/tropical.py`. The net is scikit-learn's, trained on 70 %
of the digits and tested on the rest; pixels are in [0, 1]. Magnitude pruning keeps the
units of the largest |u| |v|.
"""

import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from frugax.budget import table
from frugax.compress import reduce_relu

Layers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
SEEDS, SIZES, POINTS = 3, (128, 64, 32, 16), 100_000


def trained(seed: int, epochs: int = 40) -> tuple[Layers, Any]:
    """A net, and its data: training inputs, test inputs and test labels."""
    x, y = load_digits(return_X_y=True)
    x, tested, y, labels = train_test_split(
        x / 16, y, test_size=0.3, random_state=seed, stratify=y
    )
    net = MLPClassifier(
        (256,), max_iter=epochs, random_state=seed, learning_rate_init=3e-3
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the epochs are fixed
        net.fit(x, y)
    (w1, w2), (b1, b2) = net.coefs_, net.intercepts_
    return (w1, b1, w2, b2), (x, tested, labels)


def logits(layers: Layers, x: np.ndarray) -> np.ndarray:
    w1, b1, w2, b2 = layers
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def pruned(layers: Layers, hidden: int) -> Layers:
    w1, b1, w2, b2 = layers
    size = np.hypot(np.linalg.norm(w1, axis=0), b1) * np.linalg.norm(w2, axis=1)
    keep = np.argsort(-size)[:hidden]
    return w1[:, keep], b1[keep], w2[keep], b2


def accuracies() -> dict[str, Any]:
    """Mean test accuracy by hidden units; changes of outputs beside their bounds."""
    found: dict[str, Any] = {f"{h}": {} for h in (256, *SIZES)}
    note = lambda h, name, value: found[f"{h}"].setdefault(name, []).append(value)
    for seed in range(SEEDS):
        net, (x, tested, labels) = trained(seed)
        score = lambda layers, x=tested, y=labels: float(
            (logits(layers, x).argmax(1) == y).mean()
        )
        note(256, "whole", score(net))
        # Some points are corners, where bounds are nearest to being reached.
        points = np.random.default_rng(seed).random((POINTS, 64))
        points[::2] = points[::2].round()
        for hidden in SIZES:
            free = reduce_relu(net, hidden=hidden, box=(0, 1))
            fitted = reduce_relu(net, hidden=hidden, box=(0, 1), data=x)
            note(hidden, "pruned", score(pruned(net, hidden)))
            for name, small in (("merged", free), ("merged and refitted", fitted)):
                note(hidden, name, score(small.layers))
                change = np.abs(logits(small.layers, points) - logits(net, points))
                note(hidden, f"{name}: violations", int((change > small.bound).sum()))
                share = float((change.max(axis=0) / small.bound).max())
                note(hidden, f"{name}: change / bound", share)
    for by_name in found.values():
        for name, values in by_name.items():
            mean = sum if name.endswith("violations") else np.mean
            by_name[name] = {"each": values, "mean": float(mean(values))}
    return found


def shown(found: dict[str, Any]) -> str:
    names = ["whole", "pruned", "merged", "merged and refitted"]
    names += [f"{n}: {what}" for n in names[2:] for what in ("violations",)]
    names += [f"{n}: change / bound" for n in names[2:4]]
    rows = [
        [hidden, *(f"{by[n]['mean']:.3f}" if n in by else "" for n in names)]
        for hidden, by in found.items()
    ]
    return table(["hidden", *names], rows)
