"""What parents do to a child in training problems, for many models at once.

Each takes a generator, the parents' values [batch, n, parents], zero for what is no
parent, and the edges [batch, parents]; it gives a signal [batch, n].
"""

import numpy as np


def _weights(rng, shape):
    return (rng.uniform(0.3, 2, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


def _linear(rng, x, edges):
    return (x @ (_weights(rng, edges.shape) * edges)[..., None])[..., 0]


def _mlp(rng, x, edges):
    b, _, d = x.shape
    hidden = 10
    w = rng.standard_normal((b, d, hidden), np.float32) * rng.uniform(0.7, 2, (b, 1, 1))
    bias = rng.standard_normal((b, 1, hidden), np.float32)
    out = rng.standard_normal((b, hidden, 1), np.float32)
    return (np.tanh(x @ w.astype(np.float32) + bias) @ out)[..., 0]


def _rff(rng, x, edges):
    b, _, d = x.shape
    features = 100
    length = rng.uniform(1, 2, (b, 1, 1))
    w = rng.standard_normal((b, d, features)) / length
    phase = rng.uniform(0, 2 * np.pi, (b, 1, features))
    out = rng.standard_normal((b, features, 1), np.float32)
    return (np.cos(x @ w.astype(np.float32) + phase.astype(np.float32)) @ out)[..., 0]


def _additive(rng, x, edges, functions):
    """A sum of one-dimensional functions, each parent with one of its own."""
    b, _, d = x.shape
    slope = rng.uniform(0.6, 2, (b, 1, d)).astype(np.float32)
    offset = rng.uniform(-1, 1, (b, 1, d)).astype(np.float32)
    inside = slope * x + offset
    which = rng.integers(len(functions), size=(b, 1, d))
    y = np.zeros_like(x)
    for code, f in enumerate(functions):
        y = np.where(which == code, f(inside), y)
    return (y @ (_weights(rng, edges.shape) * edges)[..., None])[..., 0]


def _sigmoid(rng, x, edges):
    return _additive(
        rng,
        x,
        edges,
        (
            np.tanh,
            np.abs,
            lambda z: np.exp(-(z**2)),
            lambda z: np.clip(z, 0, None),
            lambda z: np.clip(z, -1.5, 1.5) ** 2,
        ),
    )


def _wave(rng, x, edges):
    return _additive(
        rng,
        x,
        edges,
        (
            lambda z: np.sin(1.5 * z),
            lambda z: np.clip(z, -3, 3) ** 2 * 0.5,
            lambda z: z / (1 + z * z),
        ),
    )


def _product(rng, x, edges):
    """Parents act together: a tanh of one mixture times another, and a third alone."""
    b, _, d = x.shape
    w = rng.standard_normal((b, d, 3), np.float32)
    h = x @ w
    return np.tanh(h[..., 0]) * np.sin(h[..., 1] + 0.7) + np.tanh(h[..., 2])


# Each by the name of its family.
MECHANISMS = {
    "linear": _linear,
    "mlp": _mlp,
    "rff": _rff,
    "sigmoid": _sigmoid,
    "wave": _wave,
    "product": _product,
}
