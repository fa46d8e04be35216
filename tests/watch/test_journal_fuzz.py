"""Damaged files: a clear error or a declared loss; never wrong data, code or a hang."""

import json
import multiprocessing
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from frugax import watch
from frugax.compat.visualization import CompressedStorage
from frugax.errors import CorruptFileError, FrugaxError
from frugax.watch.journal import Appended, Follower, LostRange
from frugax.watch.journal.blocks import MARK

# Far more than ten thousand reads take; a read that reaches it hangs.
GUARD_S = 1800


def damaged(rng, data):
    """One to three accidents: flips, cuts, holes, strays, doubles, swaps."""
    for _ in range(int(rng.integers(1, 4))):
        at, length = int(rng.integers(len(data))), int(rng.integers(1, 200))
        piece = data[at : at + length]
        match rng.integers(7):
            case 0:
                flipped = bytes([data[at] ^ (1 << int(rng.integers(8)))])
                data = data[:at] + flipped + data[at + 1 :]
            case 1:
                data = data[: max(at, 1)]
            case 2:
                data = data[:at] + data[at + length :]
            case 3:
                data = data[:at] + rng.bytes(length) + data[at:]
            case 4:
                data = data[:at] + bytes(len(piece)) + data[at + length :]
            case 5:
                data = data[:at] + piece + data[at:]
            case _:  # whole blocks in another order
                parts = data.split(MARK)
                rng.shuffle(parts[1:])
                i, j = rng.integers(len(parts), size=2)
                parts[i], parts[j] = parts[j], parts[i]
                data = MARK.join(parts)
    return data or b"\0"


def fuzz(folder, files, result):
    """Read damaged files in another process, so that a hang or a crash is seen."""
    # Code that a file makes Python run goes through one of these.
    forbidden = {
        "exec",
        "compile",
        "os.system",
        "subprocess.Popen",
        "pickle.find_class",
    }
    begun = False

    def hook(event, args):
        if begun and event in forbidden:
            raise SystemExit(f"{event} while a damaged file was read")

    sys.addaudithook(hook)
    rng = np.random.default_rng(0)
    path = Path(folder) / "journal"
    grids = rng.integers(0, 9, (200, 5, 5)).astype(np.int8)
    walk = np.cumsum(rng.normal(size=(200, 16)), 0).astype(np.float32)
    loss = rng.normal(size=200)
    with watch.Journal.create(path, {"seed": 1}) as journal:
        for step in range(0, 200, 20):
            journal.write_many(range(step, step + 20), {"x": loss[step : step + 20]})
            here = slice(step, step + 20)
            columns = {"g": grids[here], "w": walk[here]}
            journal.write_many(range(step, step + 20), columns, stream="grid")
            if step == 100:
                journal.flush()
    storage = CompressedStorage(folder)
    stored = {"grids": [*grids[:20]], "text": ["é"] * 9, "walk": walk}
    store_path = storage.save(stored, "one")
    sound, sound_store = path.read_bytes(), store_path.read_bytes()
    read_all(path, grids, walk, loss)  # lazy imports happen now
    storage.load("one")
    counts = {"refused": 0, "declared": 0, "stored": 0}
    begun = True
    for _ in range(files):
        data = damaged(rng, sound)
        path.write_bytes(data)
        try:
            lost, closed = read_all(path, grids, walk, loss)
        except FrugaxError:
            counts["refused"] += 1
        else:
            assert data == sound or lost or not closed
            counts["declared"] += 1
            if data != sound:
                with pytest.raises(CorruptFileError):
                    watch.read(path, strict=True)
        data = damaged(rng, sound_store)
        store_path.write_bytes(data)
        try:
            back = storage.load("one")
        except FrugaxError:
            counts["stored"] += 1
        else:
            for name in stored:  # zstd ignores one bit of its header
                np.testing.assert_array_equal(back[name], stored[name])
    Path(result).write_text(json.dumps(counts))


def read_all(path, grids, walk, loss):
    """Read and follow; all returned records must be written ones."""
    back = watch.read(path)
    if "x" in back:
        np.testing.assert_array_equal(back["x"], loss[back.steps_with("x")])
    if "grid" in back.streams and len(back.streams["grid"]):
        one = back.streams["grid"]
        np.testing.assert_array_equal(one["g"], grids[one.steps])
        np.testing.assert_array_equal(one["w"], walk[one.steps])
    follower = Follower(path)
    while changes := follower.poll(500):
        for change in changes:
            if isinstance(change, Appended) and change.stream == "grid":
                values = change.columns["g"].values
                np.testing.assert_array_equal(values, grids[change.steps])
    # An unclosed file is a loss only to readers that do not wait for more.
    declared = [
        x
        for x in back.lost
        if x.offset + x.size_bytes <= follower.offset and x.offset < path.stat().st_size
    ]
    assert len(follower.lost) >= len(declared)
    assert all(isinstance(x, LostRange) for x in follower.lost)
    return back.lost, back.closed


@pytest.mark.parametrize(
    "files", [300, pytest.param(10_000, marks=pytest.mark.thorough)]
)
def test_damaged_files_never_give_wrong_data(tmp_path, files):
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        result = tmp_path / "result"
        process = context.Process(target=fuzz, args=(folder, files, result))
        process.start()
        process.join(GUARD_S)
        hung = process.is_alive()
        if hung:
            process.kill()
            process.join()
    assert not hung
    assert process.exitcode == 0
    counts = json.loads(result.read_text())
    assert counts["refused"] + counts["declared"] == files
    assert counts["declared"] > files / 2
    assert counts["stored"] > files * 0.9
