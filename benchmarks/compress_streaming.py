"""Memory while a model of 1 GB is written tensor by tensor, exactly and lossily.

A `.safetensors` file of normal weights (four of 160 MB, the rest of 12 MB) is mapped
and saved within each budget in its own process, which then prints the rise of its peak
resident memory above that after the imports (Linux only). Resident
memory counts the pages of mapped files. Writes
`benchmarks/results/compress_streaming.json`:

    python -m benchmarks.compress_streaming
    python -m benchmarks.compress_streaming --only "8x smaller"
    python -m benchmarks.compress_streaming --only "8x smaller" --times 4 [--numpy]

`--times 4` has four times as many tensors: a billion weights, 4 GB. Numba is used where
it is installed, and not with `--numpy`.

Drafts of a file are kept in the folder for temporary files. It must be on a disk: the
memory of a memory file system is not counted here.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from benchmarks.machine import made_with

from frugax import SizeBudget, compress
from frugax.fileio import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compress_streaming.json"
SHAPES = {"large": (4, (10_000, 4_000)), "small": (30, (1_500, 2_000))}
MARGIN_BYTES = 200_000_000
BUDGETS = (SizeBudget(max_abs=0), SizeBudget("8x"), SizeBudget(rel_error=0.02))


def write_model(path: Path, times: int) -> int:
    """A `.safetensors` file, written piece by piece; its bytes of weights."""
    header, at = {}, 0
    for kind, (count, shape) in SHAPES.items():
        for i in range(times * count):
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


def stream(
    source: Path, target: Path, budget: SizeBudget, lane: str
) -> dict[str, float | int]:
    """Save the model; return the rise of memory, the time and the file's size."""
    if lane == "NumPy alone":
        sys.modules["numba"] = None  # type: ignore[assignment]  # an ImportError
    # The codec's own libraries, before counting.
    noise = np.random.default_rng(0).normal(size=(64, 64))
    compress.decompress(compress.compress(noise, budget))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before, start = resident_bytes("VmRSS"), time.perf_counter()
    report = compress.save(target, compress.load_weights(source), budget)
    return {
        "file_bytes": report.file_bytes,
        "rel_error": report.rel_error,
        "peak_rise_bytes": resident_bytes("VmHWM") - before,
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time(),
        "with_numba": bool(sys.modules.get("numba")),
    }


def main() -> None:
    """Measure every budget, or one, and keep the stored results of the others."""
    parser = argparse.ArgumentParser(
        description="Memory while a model is written tensor by tensor."
    )
    parser.add_argument("--only", choices=list(map(str, BUDGETS)))
    parser.add_argument("--times", type=int, default=1, help="as many tensors")
    parser.add_argument("--numpy", action="store_true", help="without Numba")
    asked = parser.parse_args()
    largest = 4 * max(a * b for _, (a, b) in SHAPES.values())
    bar = 1.3 * largest + MARGIN_BYTES
    rows = {}
    if RESULTS.is_file() and (asked.only or asked.times > 1):
        rows = json.loads(RESULTS.read_text()).get("budgets", {})
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "m.safetensors"), Path(folder, "m.fxz")
        model_bytes = write_model(source, asked.times)
        for budget in BUDGETS:
            if asked.only not in (None, str(budget)):
                continue
            # A fresh process: this one's peak is that of making the model.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                lane = "NumPy alone" if asked.numpy else "any"
                work = pool.submit(stream, source, target, budget, lane)
                found = work.result()
            name = str(budget)
            if asked.times > 1:
                used = "Numba" if found["with_numba"] else "NumPy alone"
                name += f", {model_bytes // 4_000_000:,} million, {used}"
            kept = found["peak_rise_bytes"] <= bar
            rows[name] = found | {"model_bytes": model_bytes, "kept": kept}
            print(f"{name}: {json.dumps(rows[name])}", flush=True)
    found = {
        "largest_tensor_bytes": largest,
        "bar_bytes": bar,
        "budgets": rows,
    }
    write_whole(RESULTS, json.dumps({"made_with": made_with()} | found, indent=2))


if __name__ == "__main__":
    main()
