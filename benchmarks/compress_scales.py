r"""Steps for rows and for groups of neighbours beside one step, in the same bytes.

    python -m benchmarks.compress_scales                # embedding tables alone
    python -m benchmarks.compress_scales --nets g2p,magika,notes

Each rule gives runs of numbers a step that follows their size to a power, with its
exponents in the file: `rows 1` for rows, `groups of 64 0.5` for 64 neighbours in a row,
where rows are a multiple of that. `groups of 64 0` has one step, and frequency tables
for groups: side information for the entropy coder alone. Files are real ones of the
trellis codec; the library writes no groups, so its cutting of rows is replaced here.

Tables: the mean of 1 - cosine of a row, and the share of its ten nearest neighbours
that stay. Nets (those of `compress_unseen`, all tensors but small ones by the rule):
the change of the outputs in dB below their size, and the score; means of 6, 8 and 10
times smaller. The power of tables was chosen on wordllama and the two tables of
`compress_tasks`; those of MiniLM report.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from benchmarks import compress_tasks, compress_unseen
from benchmarks.compress_tasks import neighbours
from benchmarks.real_weights import install, models

from frugax import SizeBudget, compress
from frugax.compress.codecs import RowScaling, trellis
from frugax.compress.search import ErrorMeasure

RULES = (
    *("one step", "rows 0.5", "rows 1", "groups of 64 0"),
    *("groups of 64 0.5", "groups of 64 1", "groups of 32 1"),
)
_of_rows, _choose = trellis.LaneLayout.of_rows, ErrorMeasure.choose


def use(rule: str) -> None:
    """Let the library compress by a rule from now on."""
    words = rule.split()
    group = int(words[2]) if words[0] == "groups" else 0
    power = 0.0 if rule == "one step" else float(words[-1])

    def of_rows(size: int, row: int) -> trellis.LaneLayout:
        if not group or row % group or row == group:
            return _of_rows(size, row)
        together = min(trellis.MAX_ROW_LANE // group, -(-size // group))
        return trellis.LaneLayout(size, group * together, group)

    def choose(sources: Sequence[Any], _: Any) -> ErrorMeasure:
        def scaled(source: Any) -> Any:
            takes = source.quantisable and source.can_scale and not source.small
            if not (power and takes):
                return source
            scaling = RowScaling(power, source.rms)
            return dataclasses.replace(source, scaling=scaling)

        weights = _choose(sources, "default").weights
        return ErrorMeasure(tuple(map(scaled, sources)), weights)

    trellis.LaneLayout.of_rows = of_rows
    ErrorMeasure.choose = choose  # pyright: ignore[reportAttributeAccessIssue]


def tables() -> Iterator[tuple[str, np.ndarray]]:
    """The embedding tables, float32."""
    minilm = models()["minilm"]
    yield "MiniLM words", minilm["embeddings.word_embeddings.weight"]
    yield "MiniLM places", minilm["embeddings.position_embeddings.weight"]
    folder = install(*compress_unseen._PACKAGES)
    (table,) = compress_unseen.wordllama(folder).weights.values()
    yield "wordllama", table.astype(np.float32)
    if (path := compress_tasks.FOLDER / "embedding.npz").exists():
        yield from ((f"trained here, {k}", w) for k, w in np.load(path).items())


def judge(table: np.ndarray, bits: float) -> str:
    """1 - cosine of rows, and the neighbours that stay, of at most 2,000 rows."""

    def unit(rows: np.ndarray) -> np.ndarray:
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        return rows / np.maximum(lengths, 1e-9)

    data = compress.compress({"w": table}, SizeBudget(bits_per_weight=bits))
    a, b = unit(table), unit(compress.decompress(data)["w"])
    at = np.linspace(0, len(a) - 1, min(len(a), 2000)).astype(np.intp)
    pairs = zip(neighbours(a[at]).tolist(), neighbours(b[at]).tolist(), strict=True)
    kept = np.mean([len({*x} & {*y}) / 10 for x, y in pairs])
    return f"{1 - (a * b).sum(1).mean():.5f}, {kept:.4f}"


def main() -> None:
    """Print a row for each table, or for each net that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nets", help="of compress_unseen, in place of tables")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--bits", default="3,4.25", help="of tables")
    options = parser.parse_args()
    rules = options.rules.split(",")
    print("|  | " + " | ".join(rules) + " |\n|---|" + "--:|" * len(rules))
    if options.nets is None:
        for name, table in tables():
            for bits in map(float, options.bits.split(",")):
                row = [f"{name}, {bits:g} bits"]
                for rule in rules:
                    use(rule)
                    row.append(judge(table, bits))
                print("| " + " | ".join(row) + " |", flush=True)
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
