"""Millions of weights a second of processor time in `compress` and `decompress`.

Four tensors of 1024 x 1024 normal float32 numbers (or as `--side` and `--tensors` say),
eight times smaller: search, coding, and the check of the decoded file. Numba is used
where it is installed; `--numpy` does without it. The first call, which may compile, is
left out; the best of three is shown.

    python -m benchmarks.compress_speed [--numpy] [--side 4096 --tensors 1]
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from frugax import SizeBudget, compress


def best(work: Callable[[], Any], rounds: int) -> float:
    """The least processor time of a call, in seconds."""
    spent: list[float] = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        spent.append(time.process_time() - begin)
    return min(spent)


def main() -> None:
    """Print both speeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--numpy", action="store_true", help="without Numba")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", type=int, default=1024, help="rows and columns")
    parser.add_argument("--tensors", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.numpy:
        sys.modules["numba"] = None  # type: ignore[assignment]  # an ImportError
    rng = np.random.default_rng(0)
    shape = arguments.side, arguments.side
    tree = {
        f"w{i}": rng.normal(size=shape).astype(np.float32)
        for i in range(arguments.tensors)
    }
    data = compress.compress(tree, SizeBudget("8x"))
    millions = sum(w.size for w in tree.values()) / 1e6
    for name, work in (
        ("compress", lambda: compress.compress(tree, SizeBudget("8x"))),
        ("decompress", lambda: compress.decompress(data)),
    ):
        print(f"{name}: {millions / best(work, arguments.rounds):.3g}", flush=True)
    lane = "Numba" if sys.modules.get("numba") else "NumPy alone"
    print(f"{len(data):,} bytes, {lane}")


if __name__ == "__main__":
    main()
