"""Lossy files beside quantisers that others use, and budgets beside files.

    python -m benchmarks.compress_lossy
    python -m benchmarks.compress_lossy --parts lossy,budgets-silero

lossy: all-MiniLM-L6-v2. NF4, int8 and HQQ each quantise all matrices, and vectors stay
float32 and are counted. Ours is the length of the whole file. The error of embeddings
is the mean of 1 - cosine over 180 fixed sentences, against the float32 weights. The
bound is the least error of any code at as many bits for independent Gaussian rows
(reverse water-filling, one variance for each row of each tensor).

nncodec: the same measures for NNCodec 2.1.3, which is compiled when it is installed
(some CPU-minutes of C++).

budgets-MODEL: each budget on each model; bytes of the file over the budget, or measured
over allowed error, and the plan's gap to the bound on allocation.

speed: weights coded and decoded in a second of processor time (the machine is shared),
whole models and tensors alone.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.compress_quality import Weights, bound_db, embedder, snr_db
from benchmarks.compress_rivals import hqq, int8, nf4, nncodec
from benchmarks.parts import Part, run_parts
from benchmarks.real_weights import install, models

from frugax import SizeBudget, compress
from frugax.budget import table

PEERS = ("hqq", "termcolor", "tokenizers", "tqdm", "huggingface-hub")
MODELS = ("minilm", "crepe", "resemblyzer", "silero")


class Judge:
    """MiniLM and its sentences: how good decoded weights are."""

    def __init__(self) -> None:
        self.weights, self.embed = models()["minilm"], embedder()
        self.right = self.embed(self.weights)

    def row(self, back: Weights, nbytes: float) -> dict[str, float]:
        """Error and bytes of a method, from its decoded values and its file."""
        count = sum(w.size for w in self.weights.values())
        cosine = (self.right * self.embed(back)).sum(axis=1)
        snr = snr_db(self.weights, back)
        return {
            "bytes": nbytes,
            "bits_per_weight": 8 * nbytes / count,
            "snr_db": snr,
            "rel_error": 10 ** (-snr / 20),
            "cosine_error": float(np.mean(1 - cosine.astype(np.float64))),
            "from_bound_db": bound_db(self.weights, nbytes) - snr,
        }

    def ours(self, budget: SizeBudget) -> dict[str, float]:
        """Error and bytes of the whole file for a budget."""
        data = compress.compress(self.weights, budget)
        return self.row(compress.decompress(data), len(data))


def lossy() -> dict[str, Any]:
    """Quantisers of matrices on MiniLM."""
    judge = Judge()

    def by_tensor(
        quantise: Callable[..., tuple[np.ndarray, float]],
    ) -> dict[str, float]:
        back, total = {}, 0.0
        for name, w in judge.weights.items():
            matrix = w.ndim == 2 and w.dtype.kind == "f"
            back[name], nbytes = quantise(w) if matrix else (w, float(w.nbytes))
            total += nbytes
        return judge.row(back, total)

    found = {"nf4 g64": by_tensor(nf4), "int8 per channel": by_tensor(int8)}
    found |= {f"hqq {b} bit g64": by_tensor(hqq(b)) for b in (8, 4, 3)}
    for name, peer in [*found.items()]:
        if "3 bit" not in name:
            found[f"ours at the bytes of {name}"] = judge.ours(
                SizeBudget(bytes=int(peer["bytes"]))
            )
        found[f"ours at the error of {name}"] = judge.ours(
            SizeBudget(rel_error=peer["rel_error"])
        )
        print(f"beside {name}: done", file=sys.stderr, flush=True)
    return found


def nncodec_beside() -> dict[str, Any]:
    """NNCodec on MiniLM at about 4 and 6 bits, and ours in its bytes."""
    judge, found = Judge(), {}
    folder = install("nncodec==2.1.3")
    for qp in (-30, -40):
        row = judge.row(*nncodec(judge.weights, folder, qp))
        found[f"nncodec qp {qp}"] = row
        found[f"ours in the bytes of qp {qp}"] = judge.ours(
            SizeBudget(bytes=int(row["bytes"]))
        )
    return found


def lossy_table(found: dict[str, dict[str, float]]) -> str:
    """The table of methods."""
    rows = [
        [
            name,
            f"{row['bytes']:,.0f}",
            f"{row['bits_per_weight']:.2f}",
            f"{row['snr_db']:.2f}",
            f"{row['cosine_error']:.5f}",
            f"{row['from_bound_db']:.2f}",
        ]
        for name, row in found.items()
    ]
    return table(["method", "bytes", "bits", "SNR, dB", "cosine", "bound, dB"], rows)


def budgets(name: str) -> dict[str, Any]:
    """Each budget on one model: how much of it was used."""
    weights = models()[name]
    original = sum(w.nbytes for w in weights.values())
    rows: dict[str, Any] = {}
    for limits in [
        *({"ratio": r} for r in (2, 3, 4, 6, 8, 10, 12)),
        *({"rel_error": e} for e in (1e-3, 1e-2, 0.05, 0.1)),
    ]:
        budget, begin = SizeBudget(**limits), time.process_time()
        plan = compress.plan(weights, budget)
        used = (
            plan.file_bytes / (original / limits["ratio"])
            if "ratio" in limits
            else plan.rel_error / limits["rel_error"]
        )
        rows[str(budget)] = {
            "used": used,
            "file_bytes": plan.file_bytes,
            "rel_error": plan.rel_error,
            "gap": plan.allocation_gap,
            "cpu_seconds": time.process_time() - begin,
        }
        print(f"{name}, {budget}: {used:.4f}", file=sys.stderr, flush=True)
    return rows


def budgets_table(found: dict[str, dict[str, Any]]) -> str:
    """How much of each budget was used."""
    rows = [
        [
            budget,
            f"{row['used']:.4f}",
            f"{row['file_bytes']:,}",
            f"{row['rel_error']:.4g}",
            f"{100 * (row['gap'] or 0):.2f}%",
            f"{row['cpu_seconds']:.1f}",
        ]
        for budget, row in found.items()
    ]
    return table(["budget", "used", "bytes", "error", "gap", "CPU s"], rows)


def speed() -> dict[str, float]:
    """Millions of weights a second of processor time, the best in 3 s or of five.

    A model is all its tensors that the trellis codes in a file 7.5 times smaller,
    together; "decompress" is its whole file, with every check. A
    tensor alone is one of normal numbers.
    """
    # The codec alone: `compress` also searches, hashes and decodes its result.
    from frugax.compress.codecs import (
        Step,
        compute_type,
        encode_trellis,
        scale_levels,
        split_for_trellis,
        step_below,
        trellis,
    )

    found: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any], count: int) -> Any:
        spent: list[float] = []
        made = None
        while len(spent) < 5 or sum(spent) < 3:
            begin = time.process_time()
            made = work()
            spent.append(time.process_time() - begin)
        found[name] = count / 1e6 / min(spent)
        print(name, f"{found[name]:.3g}", file=sys.stderr, flush=True)
        return made

    def codec(name: str, tensors: list[tuple[np.ndarray, Step]]) -> None:
        def encode() -> list[Any]:
            parts = (part for w, step in tensors for part in split_for_trellis(w, step))
            return [*encode_trellis(parts)]

        count = sum(w.size for w, _ in tensors)
        blocks = timed(f"{name} encode", encode, count)
        steps = [
            part.step for w, step in tensors for part in split_for_trellis(w, step)
        ]

        def decode() -> None:
            parsed = [trellis.parse(memoryview(b), v.size) for b, v in blocks]
            out = [np.empty(v.size, compute_type(v.dtype)) for _, v in blocks]
            for group in trellis.group_blocks(parsed):
                filled = trellis.decode_blocks(
                    [parsed[i] for i in group], [out[i] for i in group]
                )
                for i, _ in zip(group, filled, strict=True):
                    scale_levels(out[i], steps[i], blocks[i][1].dtype)

        timed(f"{name} decode", decode, count)

    for name, weights in models().items():
        data = compress.compress(weights, SizeBudget(ratio=7.5))
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "m.fxz"
            path.write_bytes(data)
            with compress.open(path) as file:
                records = [file.record(n) for n in file]
        codec(
            name,
            [
                (weights[r.name], r.step)
                for r in records
                if r.codec == "trellis" and r.step is not None
            ],
        )
        count = sum(w.size for w in weights.values())
        timed(f"{name} decompress", lambda data=data: compress.decompress(data), count)
    rng = np.random.default_rng(0)
    for shape in ((384, 384), (1536, 384), (8000, 512)):
        step = step_below(0.16)
        assert step is not None
        w = rng.normal(size=shape).astype(np.float32)
        codec("x".join(map(str, shape)), [(w, step)])
    return found


def speed_table(found: dict[str, float]) -> str:
    """Millions of weights a second."""
    rows = [[name, f"{value:.3g}"] for name, value in found.items()]
    return table(["what", "million weights a second"], rows)


PARTS: dict[str, Part] = {
    "lossy": (lambda _: lossy(), lossy_table),
    "nncodec": (lambda _: nncodec_beside(), lossy_table),
    **{
        f"budgets-{name}": (lambda _, name=name: budgets(name), budgets_table)
        for name in MODELS
    },
    "speed": (lambda _: speed(), speed_table),
}


def main() -> None:
    """Run the requested parts and add them to the stored results."""
    sys.path.append(str(install(*PEERS)))
    ask = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    run_parts("benchmarks.compress_lossy", PARTS, ask)


if __name__ == "__main__":
    main()
