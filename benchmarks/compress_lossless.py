"""Weights without loss: bytes and speed beside ZipNN and blosc2.

Four published models (`benchmarks/real_weights.py`), in float32 and rounded to
bfloat16. frugax's length is that of the whole file, header and digests and all; the
peers get all weights as one buffer (blosc2 the best of three orders of the tensors),
and their lengths are those of bare blobs. ZipNN
writes over its input, so it is given copies. blosc2 shuffles bytes and uses zstd at
level 1. Everything on one thread; every result is compared with the weights.

Speeds are bytes of weights over the processor's time (not the clock's: the machine is
shared). The table has the median ratio of pairs timed one after the other, beside that
of frugax with itself. "decode" is the codec alone, as ZipNN checks
nothing; "checked" is `frugax.compress.decompress`, which compares the SHA-256 of the
file (`verify` sums exact tensors as well).
Writes `benchmarks/results/compress_lossless.json`:

    python -m benchmarks.compress_lossless
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from benchmarks.machine import made_with
from benchmarks.real_weights import install, models

from frugax import SizeBudget, compress
from frugax.budget import table
from frugax.compress.codecs import BLOCK, lossless  # the codec alone
from frugax.fileio import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compress_lossless.json"
PEERS = ("zipnn==0.5.4", "blosc2", "numexpr", "ndindex", "msgpack", "py-cpuinfo")
ROUNDS = 7


def seconds(work: Callable[[], Any]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


class Ours:
    """The codec alone, chunk by chunk as in a file."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self.parts = [
            flat[i : i + BLOCK]
            for flat in (array.reshape(-1) for array in tensors.values())
            for i in range(0, len(flat), BLOCK)
        ]
        self.blocks = [lossless.encode(part) for part in self.parts]

    def encode(self) -> None:
        for part in self.parts:
            lossless.encode(part)

    def decode(self) -> None:
        for part, block in zip(self.parts, self.blocks, strict=True):
            lossless.decode(memoryview(block), part.dtype, len(part))


class Zipnn:
    """ZipNN 0.5.4, on copies of its inputs, since it may overwrite them."""

    def __init__(self, raw: bytes, dtype: str) -> None:
        import zipnn  # pyright: ignore[reportMissingImports]

        self.codec = zipnn.ZipNN(bytearray_dtype=dtype, threads=1)
        self.raw = raw
        given = bytearray(raw)
        self.blob = bytes(self.codec.compress(given))
        self.spoils_input = bytes(given) != raw
        assert bytes(self.codec.decompress(bytearray(self.blob))) == raw

    def encode_s(self) -> float:
        copy = bytearray(self.raw)
        return seconds(lambda: self.codec.compress(copy))

    def decode_s(self) -> float:
        copy = bytearray(self.blob)
        return seconds(lambda: self.codec.decompress(copy))


def blosc2_bytes(raw: bytes, itemsize: int) -> int:
    """Length with byte shuffling and zstd at level 1."""
    import blosc2  # pyright: ignore[reportMissingImports]

    blob = blosc2.compress2(
        raw,
        codec=blosc2.Codec.ZSTD,
        clevel=1,
        typesize=itemsize,
        filters=[blosc2.Filter.SHUFFLE],
        nthreads=1,
    )
    assert blosc2.decompress2(blob) == raw
    return len(blob)


def measure(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Ratios of bytes, and of speeds, for one model in one dtype."""
    raw = b"".join(array.tobytes() for array in tensors.values())
    dtype = next(iter(tensors.values())).dtype
    file = compress.compress(dict(tensors), SizeBudget(max_abs=0))
    for name, array in compress.decompress(file).items():
        assert array.tobytes() == tensors[name].tobytes(), name
    assert raw == b"".join(array.tobytes() for array in tensors.values())
    ours, zipnn = Ours(tensors), Zipnn(raw, dtype.name)
    ratios: dict[str, list[float]] = {}
    speeds: dict[str, list[float]] = {}
    repeat = max(1, (8 << 20) // len(raw))  # small models are over too soon
    for _ in range(ROUNDS):
        took = {
            "decode": seconds(lambda: [ours.decode() for _ in range(repeat)]),
            "zipnn decode": sum(zipnn.decode_s() for _ in range(repeat)),
            "decode again": seconds(lambda: [ours.decode() for _ in range(repeat)]),
            "checked": seconds(
                lambda: [compress.decompress(file) for _ in range(repeat)]
            ),
            "encode": seconds(lambda: [ours.encode() for _ in range(repeat)]),
            "zipnn encode": sum(zipnn.encode_s() for _ in range(repeat)),
        }
        for name, one, other in (
            ("decode", "zipnn decode", "decode"),
            ("control", "decode", "decode again"),
            ("checked", "zipnn decode", "checked"),
            ("encode", "zipnn encode", "encode"),
        ):
            ratios.setdefault(name, []).append(took[one] / took[other])
        for name, time_s in took.items():
            speeds.setdefault(name, []).append(repeat * len(raw) / time_s / 1e6)
    # Which tensors share one of its blocks matters: the best of three orders.
    names = list(tensors)
    blosc2 = min(
        blosc2_bytes(b"".join(tensors[n].tobytes() for n in order), dtype.itemsize)
        for order in (names, sorted(names), names[::-1])
    )
    best_peer = min(len(zipnn.blob), blosc2)
    return {
        "bytes": len(raw),
        "ratio": len(raw) / len(file),
        "zipnn_ratio": len(raw) / len(zipnn.blob),
        "blosc2_ratio": len(raw) / blosc2,
        "over_zipnn": len(zipnn.blob) / len(file),
        "over_best_peer": best_peer / len(file),
        "zipnn_spoils_its_input": zipnn.spoils_input,
        "speed_over_zipnn": {k: statistics.median(v) for k, v in ratios.items()},
        "mb_per_s": {k: statistics.median(v) for k, v in speeds.items()},
    }


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    sys.path.append(str(install(*PEERS)))
    found: dict[str, Any] = {}
    rows: list[list[str]] = []
    for model, weights in models().items():
        for dtype in (np.float32, ml_dtypes.bfloat16):
            case = {name: array.astype(dtype) for name, array in weights.items()}
            name = f"{model} {np.dtype(dtype).name}"
            m = found[name] = measure(case)
            speed = m["speed_over_zipnn"]
            rows.append(
                [name]
                + [f"{m[key]:.3f}" for key in ("ratio", "zipnn_ratio", "blosc2_ratio")]
                + [f"{m['mb_per_s']['decode']:.0f}"]
                + [f"{speed[k]:.2f}" for k in ("decode", "checked", "encode")]
                + [f"{speed['control']:.2f}"]
            )
            print(*rows[-1], flush=True)
    heads = ["weights", "frugax", "ZipNN", "blosc2", "MB/s", "decode / ZipNN"]
    print(table([*heads, "checked / ZipNN", "encode / ZipNN", "A/A"], rows))
    wanted = [package.partition("==")[0] for package in PEERS[:2]]
    peers = {
        d.name: d.version
        for d in distributions(path=[str(install())])
        if d.name in wanted
    }
    made = made_with() | {"peers": peers}
    write_whole(RESULTS, json.dumps({"made_with": made, "cases": found}, indent=2))


if __name__ == "__main__":
    main()
