"""Memory while a model of 1 GB is written without loss, tensor by tensor.

A `.safetensors` file of normal weights (four of 160 MB, the rest of 12 MB) is mapped
and saved with `SizeBudget(max_abs=0)` in a process of its own, which then says by how
much its peak of resident memory rose over what it was after the imports (Linux only).
Resident memory counts the pages of mapped files. Writes
`benchmarks/results/compress_streaming.json`:

    python -m benchmarks.compress_streaming
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from benchmarks.machine import made_with

from frugax import SizeBudget, compress
from frugax.files import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compress_streaming.json"
SHAPES = {"large": (4, (10_000, 4_000)), "small": (30, (1_500, 2_000))}
MARGIN_BYTES = 200_000_000


def write_model(path: Path) -> int:
    """A `.safetensors` file, written piece by piece; its bytes of weights."""
    header, at = {}, 0
    for kind, (count, shape) in SHAPES.items():
        for i in range(count):
            end = at + 4 * shape[0] * shape[1]
            header[f"{kind}{i}"] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": [at, end],
            }
            at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for left in range(at, 0, -(4 << 20)):
            noise = rng.standard_normal(min(left, 4 << 20) // 4, np.float32)
            file.write(noise.tobytes())
    return at


def resident_bytes(which: str) -> int:
    """`VmRSS`, now, or `VmHWM`, the most since this process began or was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(x.split()[1]) for x in lines if x.startswith(which))


def stream(source: Path, target: Path) -> tuple[int, float, int]:
    """Save the model: how far memory rose, seconds, and the file's bytes."""
    # The codec's own libraries, before counting.
    compress.decompress(compress.compress(np.ones((64, 64)), SizeBudget(max_abs=0)))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before, start = resident_bytes("VmRSS"), time.perf_counter()
    report = compress.save(target, compress.load_weights(source), SizeBudget(max_abs=0))
    took_s = time.perf_counter() - start
    return resident_bytes("VmHWM") - before, took_s, report.file_bytes


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "m.safetensors"), Path(folder, "m.fxz")
        model_bytes = write_model(source)
        # A fresh process: this one's peak is that of making the model.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            rise, took_s, file_bytes = pool.submit(stream, source, target).result()
        compress.verify(target)
    largest = 4 * max(a * b for _, (a, b) in SHAPES.values())
    bar = 1.3 * largest + MARGIN_BYTES
    found = {
        "model_bytes": model_bytes,
        "file_bytes": file_bytes,
        "largest_tensor_bytes": largest,
        "peak_rise_bytes": rise,
        "bar_bytes": bar,
        "kept": rise <= bar,
        "seconds": took_s,
    }
    print(json.dumps(found, indent=2))
    made = {"made_with": made_with()}
    write_whole(RESULTS, json.dumps(made | found, indent=2))


if __name__ == "__main__":
    main()
