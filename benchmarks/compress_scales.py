r"""Steps for rows and for groups of neighbours beside one step, in the same bytes.

    python -m benchmarks.compress_scales                # tables alone
    python -m benchmarks.compress_scales --nets g2p,magika,notes
    python -m benchmarks.compress_scales --nets dense   # tall dense layers

Each rule gives runs of numbers a step that follows their size to a power, with its
exponents in the file: `rows 1` for rows, `groups of 64 0.5` for 64 neighbours in a row,
where rows are a multiple of that. `groups of 64 0` has one step, and frequency tables
for groups: side information for the entropy coder alone. `default` is the library's own
choice. Files are real ones of the trellis codec; the library writes no groups, so its
cutting of rows is replaced here.

Tables: the power of its size that a row is among the nearest of others by, the mean of
1 - cosine of a row, and the share of its ten nearest neighbours that stay, by angles
and by dot products. Nets (those of `compress_unseen`, all tensors but small ones by the
rule): the change of the outputs in dB below their size, and the score; means of 6, 8
and 10 times smaller. The rule of the default was chosen on the tables of `CHOSEN_ON`
and on the first two dense nets; the others report.
"""

import argparse
import math
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from benchmarks import compress_tasks, compress_unseen
from benchmarks.compress_tasks import neighbours
from benchmarks.real_weights import install, models

from frugax import SizeBudget, compress
from frugax.compress.codecs import trellis
from frugax.compress.search import ErrorMeasure, near_power, scale_rows_by

RULES = (
    *("one step", "rows 0.5", "rows 0.75", "rows 1", "groups of 64 0"),
    *("groups of 64 0.5", "groups of 64 1", "default"),
)
CHOSEN_ON = ("wordllama", "trained here, out", "trained here, table", "PPMI")
_of_rows, _choose = trellis.LaneLayout.of_rows, ErrorMeasure.choose


def use(rule: str) -> None:
    """Let the library compress by a rule from now on."""
    trellis.LaneLayout.of_rows, ErrorMeasure.choose = _of_rows, _choose
    if rule == "default":
        return
    words = rule.split()
    group = int(words[2]) if words[0] == "groups" else 0
    power = 0.0 if rule == "one step" else float(words[-1])

    def of_rows(size: int, row: int) -> trellis.LaneLayout:
        if not group or row % group or row == group:
            return _of_rows(size, row)
        together = min(trellis.MAX_ROW_LANE // group, -(-size // group))
        return trellis.LaneLayout(size, group * together, group)

    def choose(sources: Sequence[Any], _: Any, **__: Any) -> ErrorMeasure:
        def scaled(source: Any) -> Any:
            takes = source.quantisable and source.can_scale and not source.small
            if not (power and takes):
                return source
            return scale_rows_by(source, power)

        weights = _choose(sources, "default").weights
        return ErrorMeasure(tuple(map(scaled, sources)), weights)

    trellis.LaneLayout.of_rows = of_rows
    ErrorMeasure.choose = choose  # pyright: ignore[reportAttributeAccessIssue]


def tables() -> Iterator[tuple[str, np.ndarray]]:
    """Tables, float32: of packages, trained by `compress_tasks`, and of counts."""
    folder = install(*compress_unseen._PACKAGES)
    (table,) = compress_unseen.wordllama(folder).weights.values()
    yield "wordllama", table.astype(np.float32)
    yield from (
        (f"trained here, {name}", table)
        for name, table in np.load(compress_tasks.FOLDER / "embedding.npz").items()
    )
    yield "PPMI", ppmi_vectors()
    (path,) = install("ja-ginza").glob("ja_ginza/*/vocab/vectors")
    yield "ja_ginza", np.load(path, allow_pickle=False)
    minilm = models()["minilm"]
    yield "MiniLM words", minilm["embeddings.word_embeddings.weight"]
    yield from lsa_vectors()


def ppmi_vectors() -> np.ndarray:
    """3,000 words of Python's source from counts of pairs (Levy & Goldberg 2014)."""
    words = bytes(compress_tasks.text()).decode("ascii").split()
    names, ids = np.unique([w for w in words if w.isidentifier()], return_inverse=True)
    rank = np.full(len(names), -1)
    rank[np.argsort(-np.bincount(ids), kind="stable")[:3000]] = np.arange(3000)
    ids = rank[ids][rank[ids] >= 0]
    counts = np.zeros((3000, 3000), np.float32)
    for apart in (1, 2, 3, 4):
        np.add.at(counts, (ids[:-apart], ids[apart:]), 1)
    counts += counts.T
    sums = counts.sum(axis=1, keepdims=True)
    lift = counts.sum() * counts / np.maximum(sums * sums.T, 1)
    u, s, _ = np.linalg.svd(np.log(np.maximum(lift, 1)))
    return (u[:, :128] * np.sqrt(s[:128])).astype(np.float32)


def lsa_vectors() -> Iterator[tuple[str, np.ndarray]]:
    """12,000 paragraphs of Python's source and their 4,000 terms, 96 numbers each."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))[:4000]
    text = "\n\n".join(f.read_text("utf8", "ignore") for f in files)
    paragraphs = [p for p in text.split("\n\n") if 200 < len(p) < 2000][:12000]
    options: Any = {"max_features": 4000, "sublinear_tf": True, "norm": None}
    count = TfidfVectorizer(**options)
    svd: Any = TruncatedSVD(96, random_state=0)
    vectors = svd.fit_transform(count.fit_transform(paragraphs))
    yield "LSA paragraphs", vectors.astype("f4")
    yield "LSA terms", svd.components_.T.astype("f4")


def dense_nets() -> Iterator[tuple[str, compress_tasks.Task]]:
    """Classifiers whose first dense layer has 16 to 64 inputs for each output."""
    task, dense = compress_tasks.Task, compress_tasks.dense
    linear = compress_tasks.linear
    rng = np.random.default_rng(0)

    def large(x: np.ndarray) -> np.ndarray:
        x = np.kron(x.reshape(-1, 8, 8), np.ones((1, 4, 4))).reshape(len(x), -1)
        return x.astype(np.float32)

    def noisy(x: np.ndarray) -> np.ndarray:
        return large(x) + rng.normal(scale=0.1, size=(len(x), 1024)).astype(np.float32)

    def mlp(w: Any, x: Any) -> Any:
        return linear(w, "b", jax.nn.relu(linear(w, "a", x)))

    def convolution(w: Any, x: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        x = x.reshape(-1, 32, 32, 1)
        x = jax.lax.conv_general_dilated(
            *(x, w["c.w"], (1, 1), "SAME"), dimension_numbers=names
        )
        x = jax.nn.relu(x + w["c.b"]).reshape(-1, 16, 2, 16, 2, 8)
        return mlp(w, x.max(axis=(2, 4)).reshape(-1, 2048))

    (x, y), (x_test, y_test) = compress_tasks.digits()
    loss, score = compress_tasks.cross_entropy, compress_tasks.accuracy
    layers = dense(rng, "a", 1024, 64) | dense(rng, "b", 64, 10)
    sets = [((f(x), y), (f(x_test), y_test)) for f in (large, noisy)]
    yield "pixels", task(layers, mlp, loss, score, *sets[0])
    kernel = dense(rng, "c", 5, 5, 1, 8)
    flat = kernel | dense(rng, "a", 2048, 32) | dense(rng, "b", 32, 10)
    yield "convolution", task(flat, convolution, loss, score, *sets[1], 400)
    yield "noisy pixels", task(layers, mlp, loss, score, *sets[1])
    words = bytes(compress_tasks.text()).decode("ascii").split()
    _, ids = np.unique([w for w in words if w.isidentifier()], return_inverse=True)
    often = np.argsort(-np.bincount(ids), kind="stable")[:2000]
    ids = np.searchsorted(np.sort(often), ids[np.isin(ids, often)])
    bags = np.zeros((len(ids) // 40, 2000), np.float32)
    np.add.at(bags, (np.arange(len(bags) * 40) // 40, ids[: len(bags) * 40]), 1)
    labels = np.arange(len(bags)) * 20 // len(bags)  # which part of the source
    order = rng.permutation(len(bags))
    bags, labels, most = bags[order], labels[order], len(bags) * 4 // 5
    layers = dense(rng, "a", 2000, 32) | dense(rng, "b", 32, 20)
    pair = (bags[:most], labels[:most]), (bags[most:], labels[most:])
    yield "bags of words", task(layers, mlp, loss, score, *pair)


def judge(table: np.ndarray, bits: float) -> str:
    """1 - cosine of rows, and the neighbours that stay, of at most 2,000 rows."""

    def unit(rows: np.ndarray) -> np.ndarray:
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        return rows / np.maximum(lengths, 1e-9)

    data = compress.compress({"w": table}, SizeBudget(bits_per_weight=bits))
    decoded = compress.decompress(data)["w"]
    a, b = unit(table), unit(decoded)
    at = np.linspace(0, len(a) - 1, min(len(a), 2000)).astype(np.intp)

    def share_kept(before: np.ndarray, after: np.ndarray) -> float:
        pairs = zip(neighbours(before[at]), neighbours(after[at]), strict=True)
        return float(
            np.mean([len({*x.tolist()} & {*y.tolist()}) / 10 for x, y in pairs])
        )

    cosine = 1 - (a * b).sum(1).mean()
    return f"{cosine:.5f}, {share_kept(a, b):.3f}, {share_kept(table, decoded):.3f}"


def print_dense(rules: Sequence[str]) -> None:
    """Print a row for each of the dense nets."""
    for name, task in dense_nets():
        weights = task.trained()
        row = [f"{name}, {near_power(np.asarray(weights['a.w'])):.2f}"]
        for rule in rules:
            use(rule)
            found = [
                compress_tasks.judge(
                    *(name, task, weights),
                    compress.decompress(
                        compress.compress(weights, SizeBudget(ratio=ratio))
                    ),
                )
                for ratio in (6, 7, 8, 9, 10)
            ]
            row.append("{:.2f}, {:.3f}".format(*np.mean(found, axis=0)))
        print("| " + " | ".join(row) + " |", flush=True)


def main() -> None:
    """Print a row for each table, or for each net that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nets", help="of compress_unseen, in place of tables")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--bits", default="3", help="of tables")
    options = parser.parse_args()
    rules = options.rules.split(",")
    print("|  | " + " | ".join(rules) + " |\n|---|" + "--:|" * len(rules))
    if options.nets is None:
        for name, table in tables():
            for bits in map(float, options.bits.split(",")):
                row = [f"{name}, {bits:g} bits, {near_power(table):.2f}"]
                for rule in rules:
                    use(rule)
                    row.append(judge(table, bits))
                print("| " + " | ".join(row) + " |", flush=True)
        return
    if options.nets == "dense":
        print_dense(rules)
        return
    folder = install(*compress_unseen._PACKAGES)
    sys.path.append(str(folder))
    for name in options.nets.split(","):
        net = getattr(compress_unseen, name)(folder)
        before, row = net.run(net.weights), [name]
        for rule in rules:
            use(rule)
            found: list[tuple[float, float]] = []
            for ratio in (6, 8, 10):
                data = compress.compress(net.weights, SizeBudget(ratio=ratio))
                decoded = compress.decompress(data)
                found.append(compress_unseen.judge(net, decoded, before))
            decibels, score = np.mean(found, axis=0)
            assert math.isfinite(decibels)
            row.append(f"{decibels:.2f}, {score:.3f}")
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
