"""One table: GGUF, NF4, HQQ and GPTQ beside frugax in the bytes of each, on six nets.

Every cell is the peer, frugax by default and frugax calibrated on 64 training inputs,
in files no longer than the peer's codes, scales and float32 vectors. Then exact coding:
how many times smaller by frugax, ZipNN and zstd. The nets and the measures are
those of `benchmarks.compress_tasks`, which trains them; GPTQ has the same 64 inputs.
The results are merged into `benchmarks/results/compress_table.json`, net by net.

    python -m benchmarks.compress_tasks --train
    python -m benchmarks.compress_table

HQQ and ZipNN come from their packages, in a folder of their own; "-" marks a missing
one.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import zstandard
from benchmarks import compress_tasks
from benchmarks.compress_rivals import gptq, hqq, nf4, round_groups
from benchmarks.compress_tasks import Task, Weights, judge, tasks
from benchmarks.machine import made_with
from benchmarks.real_weights import install

from frugax import SizeBudget, compress
from frugax.compress.codecs.groups import Grouping, decode_groups, quantise_groups
from frugax.fileio import write_whole

RESULTS = Path(__file__).parent / "results" / "compress_table.json"
PEERS = ("GGUF Q4_0", "NF4", "HQQ 4", "GPTQ 4", "GPTQ 3")
RULES = ("peer", "default", "calibrated")
Quantiser = Callable[[np.ndarray], tuple[np.ndarray, float]]
_CALIBRATED_ON = 64


def q4_0(w: np.ndarray) -> tuple[np.ndarray, float]:
    """GGUF's Q4_0, as `frugax export` writes it: decoded values, bytes."""
    grouping = Grouping(4, 32)
    integers, steps = quantise_groups(w, grouping, np.dtype(np.float16))
    decoded = decode_groups(integers, steps, grouping, w.dtype)
    return decoded, w.size / 2 + steps.nbytes


def in_groups(quantise: Quantiser, w: np.ndarray) -> tuple[np.ndarray, float]:
    """Quantise a matrix in groups of 64 inputs, zeros at the end of the last one."""
    flat = np.pad(w.T.reshape(-1), (0, -w.size % 64)).reshape(-1, 64)
    decoded, count = quantise(flat)
    return decoded.reshape(-1)[: w.size].reshape(w.T.shape).T, count


def by_pairs(quantise: Quantiser, groups: np.ndarray) -> tuple[np.ndarray, float]:
    """Give HQQ's package an even number of groups, and count those that there were."""
    even = np.pad(groups, ((0, len(groups) % 2), (0, 0)))
    decoded, count = quantise(even)
    return decoded[: len(groups)], count * len(groups) / len(even)


def input_grams(task: Task, weights: Weights) -> dict[str, np.ndarray]:
    """Second moments of the inputs of every linear layer."""
    grams: dict[str, np.ndarray] = {}
    linear = compress_tasks.linear

    def note(w: Weights, name: str, x: Any) -> Any:
        rows = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
        grams[f"{name}.w"] = grams.get(f"{name}.w", 0) + rows.T @ rows
        return linear(w, name, x)

    compress_tasks.linear = note
    try:
        with jax.disable_jit():
            task.apply(weights, jnp.asarray(task.train[0][:_CALIBRATED_ON]))
    finally:
        compress_tasks.linear = linear
    return grams


def by_peer(
    quantise: Callable[[str, np.ndarray], tuple[np.ndarray, float]], weights: Weights
) -> tuple[Weights, float]:
    """Quantise all matrices; other tensors count unchanged."""
    decoded, total = dict(weights), 0.0
    for name, w in weights.items():
        if w.ndim == 2:
            decoded[name], count = quantise(name, w)
        else:
            count = w.nbytes
        total += count
    return decoded, total


def peers(task: Task, weights: Weights) -> dict[str, Any]:
    """Each peer, from name and matrix to decoded values and bytes; None if missing."""
    grams = input_grams(task, weights)

    def grouped(quantise: Quantiser) -> Any:
        return lambda _, w: in_groups(quantise, w)

    def by_gptq(bits: int, name: str, w: np.ndarray) -> tuple[np.ndarray, float]:
        gram = grams.get(name)
        if (
            gram is None or len(gram) % 64
        ):  # no linear layer, or an odd number of inputs
            return in_groups(round_groups(bits, 64), w)
        decoded, count = gptq(w.T, gram, bits, 64)
        return np.ascontiguousarray(decoded.T), count

    try:
        by_hqq = grouped(functools.partial(by_pairs, hqq(4)))
    except ImportError:
        by_hqq = None
    return {
        "GGUF Q4_0": grouped(q4_0),
        "NF4": grouped(nf4),
        "HQQ 4": by_hqq,
        "GPTQ 4": functools.partial(by_gptq, 4),
        "GPTQ 3": functools.partial(by_gptq, 3),
    }


def exact_bytes(weights: Weights) -> dict[str, int]:
    """Bytes of the weights, and of their exact files; zstd at level 19."""
    whole = b"".join(np.ascontiguousarray(w).tobytes() for w in weights.values())
    sizes = {
        "weights": len(whole),
        "frugax": len(compress.compress(weights, SizeBudget(max_abs=0))),
        "zstd": len(zstandard.ZstdCompressor(level=19).compress(whole)),
    }
    try:
        import zipnn  # pyright: ignore[reportMissingImports]
    except ImportError:
        return sizes
    codec = zipnn.ZipNN(bytearray_dtype="float32", threads=1)
    return sizes | {"zipnn": len(codec.compress(bytearray(whole)))}


def measure(net: str, task: Task, weights: Weights) -> dict[str, Any]:
    """Every cell of one net: decibels of the change of outputs, and the score."""
    batch = [jnp.asarray(task.train[0][:_CALIBRATED_ON])]
    rules = {"default": "default", "calibrated": None}
    calibration = compress.calibrate(task.apply, weights, batch)
    cells: dict[str, Any] = {}
    for name, quantise in peers(task, weights).items():
        if quantise is None:
            continue
        decoded, total = by_peer(quantise, weights)
        cells[name] = {"bytes": total, "peer": judge(net, task, weights, decoded)}
        for rule, sensitivity in rules.items():
            data = compress.compress(
                weights,
                SizeBudget(bytes=int(total)),
                sensitivity=sensitivity or calibration,
            )
            back = compress.decompress(data)
            cells[name][rule] = judge(net, task, weights, back)
    return {
        "date": made_with()["date"],
        "before": judge(net, task, weights, weights)[1],
        "cells": cells,
        "exact": exact_bytes(weights),
    }


def rows_of(net: str, found: dict[str, Any]) -> str:
    """The two rows of a net in the table of docs/compress.md."""

    def cell(peer: str, part: int, form: str) -> str:
        if peer not in found["cells"]:
            return "-"
        return ", ".join(format(found["cells"][peer][r][part], form) for r in RULES)

    exact = found["exact"]
    ratios = [
        f"{exact['weights'] / exact[name]:.3f}" if name in exact else "-"
        for name in ("frugax", "zipnn", "zstd")
    ]
    first = [net, "outputs, dB", *(cell(p, 0, ".1f") for p in PEERS), ", ".join(ratios)]
    second = ["", f"score; {found['before']:.4g} before"]
    second += [cell(peer, 1, ".4g") for peer in PEERS]
    return f"| {' | '.join(first)} |\n| {' | '.join([*second, ''])} |"


def main() -> None:
    """Measure net by net, print the table of all that are kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nets", help="their names, with commas; by default all six")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    sys.path.append(
        str(install("hqq", "termcolor", "tqdm", "huggingface-hub", "zipnn"))
    )
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    for net, task, weights in tasks():
        if given.nets and net not in given.nets.split(","):
            continue
        record[net] = measure(net, task, weights)
        write_whole(given.out, json.dumps(record, indent=1) + "\n")
    head = ["net", "", *PEERS, "exact: frugax, ZipNN, zstd"]
    print(f"| {' | '.join(head)} |\n|---|---|{'--:|' * (len(PEERS) + 1)}")
    for net, found in record.items():
        print(rows_of(net, found))


if __name__ == "__main__":
    main()
