"""Six small nets of different kinds, trained here in minutes, and their tasks.

The default error weights of `frugax.compress` were chosen on the first three; the other
three report. Their data are scikit-learn's digits, letters drawn by Pillow, the source
of Python's standard library, and functions.
"""

import dataclasses
import itertools
import math
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.harness import DOWNLOADS

FOLDER = DOWNLOADS / "tasks"
CHOSEN_ON = ("classifier", "embedding", "language")
REPORTED = ("autoencoder", "recogniser", "regression")
Weights = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """A net and its data.

    Attributes:
        init: the weights before training.
        apply: from weights and inputs to outputs.
        loss: from outputs and targets to one number.
        score: from outputs and targets to the figure that its user looks at.
        train: inputs and targets.
        test: others.
        steps: how long to train.
    """

    init: Weights
    apply: Callable[[Weights, Any], Any]
    loss: Callable[[Any, Any], Any]
    score: Callable[[Any, Any], float]
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    steps: int = 1000

    def trained(self) -> Weights:
        """Train with Adam, 64 examples a step."""
        x, y = map(jnp.asarray, self.train)
        optimiser = optax.adam(optax.cosine_decay_schedule(3e-3, self.steps))

        @jax.jit
        def run(weights: Weights) -> Weights:
            def step(carry: Any, key: Any) -> Any:
                weights, state = carry
                at = jax.random.randint(key, (64,), 0, len(x))
                loss = lambda w: self.loss(self.apply(w, x[at]), y[at])
                updates, state = optimiser.update(jax.grad(loss)(weights), state)
                return (optax.apply_updates(weights, updates), state), None

            keys = jax.random.split(jax.random.key(1), self.steps)
            start = weights, optimiser.init(weights)
            return jax.lax.scan(step, start, keys)[0][0]

        return jax.device_get(run(self.init))


def dense(rng: np.random.Generator, name: str, *shape: int) -> Weights:
    scale = math.sqrt(2 / math.prod(shape[:-1]))
    return {
        f"{name}.w": (rng.normal(size=shape) * scale).astype(np.float32),
        f"{name}.b": np.zeros(shape[-1], np.float32),
    }


def linear(w: Weights, name: str, x: Any) -> Any:
    return x @ w[f"{name}.w"] + w[f"{name}.b"]


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def accuracy(logits: Any, labels: Any) -> float:
    return float((np.asarray(logits).argmax(-1) == labels).mean())


def squared(outputs: Any, targets: Any) -> Any:
    return jnp.mean((outputs - targets) ** 2)


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order].astype(np.int32)
    return (x[:1300], y[:1300]), (x[1300:], y[1300:])


def text() -> np.ndarray:
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[:120]
    return np.frombuffer(b"".join(f.read_bytes() for f in files), np.uint8) & 127


def classifier(rng: np.random.Generator) -> Task:
    init = (
        dense(rng, "a", 64, 256) | dense(rng, "b", 256, 256) | dense(rng, "c", 256, 10)
    )

    def apply(w: Weights, x: Any) -> Any:
        x = jax.nn.relu(linear(w, "a", x))
        return linear(w, "c", jax.nn.relu(linear(w, "b", x)))

    return Task(init, apply, cross_entropy, accuracy, *digits())


def autoencoder(rng: np.random.Generator) -> Task:
    sizes = [64, 256, 128, 12, 128, 256, 64]
    init: Weights = {}
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        init |= dense(rng, f"l{i}", a, b)

    def apply(w: Weights, x: Any) -> Any:
        for i in range(5):
            x = jax.nn.gelu(linear(w, f"l{i}", x))
        return jax.nn.sigmoid(linear(w, "l5", x))

    (x, _), (t, _) = digits()
    score = lambda out, y: float(np.mean((np.asarray(out) - y) ** 2))
    return Task(init, apply, squared, score, (x, x), (t, t))


def embedding(rng: np.random.Generator) -> Task:
    # Words predict their neighbours; the score is the share of the nearest that stay,
    # in both tables.
    words = np.array(
        [w for w in bytes(text()).decode("ascii").split() if w.isidentifier()]
    )
    names, ids = np.unique(words, return_inverse=True)
    frequent = np.argsort(-np.bincount(ids))[:1500]
    rank = np.full(len(names), -1)
    rank[frequent] = np.arange(1500)
    ids = rank[ids]
    ids = ids[ids >= 0].astype(np.int32)
    pairs = np.concatenate([np.stack([ids[:-k], ids[k:]], 1) for k in (1, 2, 3)])
    table = rng.normal(size=(1500, 96)).astype(np.float32) * 0.1
    init = {"table": table, "out": table[::-1].copy()}
    every = np.arange(1500, dtype=np.int32)
    apply = lambda w, x: w["table"][x] @ w["out"].T

    def score(_: Any, __: Any) -> float:
        raise NotImplementedError  # `judge` looks at the tables alone

    x, y = pairs[:, 0], pairs[:, 1]
    return Task(init, apply, cross_entropy, score, (x, y), (every, every), 4000)


def _shared(a: np.ndarray, b: np.ndarray) -> float:
    return len({*a.tolist()} & {*b.tolist()}) / len(a)


def neighbours(unit: np.ndarray) -> np.ndarray:
    """The ten nearest rows of each row of a table of unit rows."""
    near = unit @ unit.T
    np.fill_diagonal(near, -2)
    return np.argsort(-near, axis=1)[:, :10]


def language(rng: np.random.Generator) -> Task:
    width, length = 96, 64
    init: Weights = {
        "embed": (rng.normal(size=(128, width)) * 0.3).astype(np.float32),
        "place": (rng.normal(size=(length, width)) * 0.1).astype(np.float32),
    }
    for i in range(2):
        init |= dense(rng, f"{i}.qkv", width, 3 * width)
        init |= dense(rng, f"{i}.o", width, width) | dense(rng, f"{i}.up", width, 384)
        init |= dense(rng, f"{i}.down", 384, width)
        init |= {f"{i}.n{k}": np.ones(width, np.float32) for k in "ab"}
    init |= dense(rng, "head", width, 128)
    mask = np.tril(np.ones((length, length), bool))

    def normed(x: Any, gain: Any) -> Any:
        return x * gain / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)

    def apply(w: Weights, x: Any) -> Any:
        x = w["embed"][x] + w["place"]
        for i in range(2):
            q, k, v = jnp.split(linear(w, f"{i}.qkv", normed(x, w[f"{i}.na"])), 3, -1)
            q, k, v = (
                a.reshape(*a.shape[:-1], 4, -1).swapaxes(-2, -3) for a in (q, k, v)
            )
            scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
            mixed = jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ v
            mixed = mixed.swapaxes(-2, -3).reshape(x.shape)
            x = x + linear(w, f"{i}.o", mixed)
            up = jax.nn.gelu(linear(w, f"{i}.up", normed(x, w[f"{i}.nb"])))
            x = x + linear(w, f"{i}.down", up)
        return linear(w, "head", x)

    data = text().astype(np.int32)
    rows = data[: len(data) // 65 * 65].reshape(-1, 65)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    bits = lambda out, y: float(cross_entropy(out, y)) / math.log(2)
    x, y = rows[:, :-1], rows[:, 1:]
    return Task(
        init,
        apply,
        cross_entropy,
        bits,
        (x[:-400], y[:-400]),
        (x[-400:], y[-400:]),
        250,
    )


def letters(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Lines of ten letters, 12 x 80 pixels with noise, and which letters they are."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default()
    images = np.zeros((count, 12, 80), np.float32)
    labels = rng.integers(0, 26, (count, 10)).astype(np.int32)
    for image, row in zip(images, labels, strict=True):
        canvas = Image.new("L", (80, 12))
        draw = ImageDraw.Draw(canvas)
        for i, letter in enumerate(row):
            place = (8 * i + int(rng.integers(0, 3)), int(rng.integers(-1, 2)))
            draw.text(place, chr(97 + letter), fill=255, font=font)
        image[:] = np.asarray(canvas) / 255
    return images + rng.normal(size=images.shape).astype(np.float32) * 0.35, labels


def recogniser(rng: np.random.Generator) -> Task:
    init = dense(rng, "look", 12 * 16, 192) | dense(rng, "mix", 192, 192)
    for name in ("forth", "back"):
        init |= dense(rng, f"{name}.in", 192, 96) | dense(rng, f"{name}.own", 96, 96)
    init |= dense(rng, "out", 192, 26)

    def sweep(w: Weights, name: str, x: Any) -> Any:
        def step(h: Any, now: Any) -> Any:
            h = jnp.tanh(now + 0.3 * linear(w, f"{name}.own", h))
            return h, h

        seen = linear(w, f"{name}.in", x).swapaxes(0, 1)
        return jax.lax.scan(step, jnp.zeros(seen.shape[1:]), seen)[1].swapaxes(0, 1)

    def apply(w: Weights, x: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), (0, 0), (4, 4)))
        windows = [
            padded[:, :, 8 * i : 8 * i + 16].reshape(len(x), -1) for i in range(10)
        ]
        x = jax.nn.relu(linear(w, "look", jnp.stack(windows, 1)))
        x = jax.nn.relu(linear(w, "mix", x))
        both = [sweep(w, "forth", x), sweep(w, "back", x[:, ::-1])[:, ::-1]]
        return linear(w, "out", jnp.concatenate(both, -1))

    data = np.random.default_rng(3)
    return Task(
        init, apply, cross_entropy, accuracy, letters(3000, data), letters(500, data)
    )


def regression(rng: np.random.Generator) -> Task:
    init = (
        dense(rng, "a", 8, 192) | dense(rng, "b", 192, 192) | dense(rng, "c", 192, 192)
    )
    init |= dense(rng, "d", 192, 1)

    def apply(w: Weights, x: Any) -> Any:
        for name in "abc":
            x = jnp.tanh(linear(w, name, x))
        return linear(w, "d", x)

    def made(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.random.default_rng(seed).uniform(-1, 1, (count, 8)) * [
            5,
            1,
            1,
            1,
            1,
            1,
            1,
            0.2,
        ]
        y = (
            np.sin(x[:, :1] * x[:, 1:2])
            + x[:, 2:3] ** 2
            - np.abs(x[:, 3:4] + x[:, 4:5])
        )
        return x.astype(np.float32), y.astype(np.float32)

    score = lambda out, y: float(np.mean((np.asarray(out) - y) ** 2))
    return Task(init, apply, squared, score, made(20000, 4), made(2000, 5), 3000)


def tasks(names: Sequence[str] = ()) -> Iterator[tuple[str, Task, Weights]]:
    """Nets with their trained weights, which are trained the first time and kept."""
    for name in names or (*CHOSEN_ON, *REPORTED):
        task = globals()[name](np.random.default_rng(0))
        path = FOLDER / f"{name}.npz"
        if not path.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            np.savez(path, **task.trained())
        yield name, task, dict(np.load(path))


def judge(
    name: str, task: Task, before: Weights, after: Weights
) -> tuple[float, float]:
    """The change of the outputs in dB below their size, and the task's own score."""
    outputs = jax.jit(task.apply)
    x, y = task.test
    if name == "embedding":
        a, b = (
            np.stack([t / np.linalg.norm(t, axis=1, keepdims=True) for t in w.values()])
            for w in (before, after)
        )
        pairs = zip(map(neighbours, a), map(neighbours, b), strict=True)
        score = float(
            np.mean(
                [[_shared(p, q) for p, q in zip(m, n, strict=True)] for m, n in pairs]
            )
        )
    else:
        a, b = (np.asarray(outputs(w, x), np.float64) for w in (before, after))
        score = task.score(b, y)
        if a.shape[-1] > 1:  # logits are equal up to a constant
            a, b = (out - out.mean(-1, keepdims=True) for out in (a, b))
    error = ((a - b) ** 2).sum() / (a**2).sum()
    return 10 * math.log10(max(error, 1e-30)), score
