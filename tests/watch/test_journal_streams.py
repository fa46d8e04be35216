"""A journal holds several streams, of numbers and of arrays."""

import math
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from frugax import watch
from frugax.errors import CorruptFileError
from frugax.watch.journal.blocks import (
    MARK,
    EncodedColumn,
    decode_block,
    encode_records,
)
from frugax.watch.journal.framing import decode_header
from refusals import refuses


@pytest.fixture(autouse=True)
def blocks_close_by_size(monkeypatch):
    """On a busy machine a second passes between any two records."""
    age = "frugax.watch.journal._journal._MAX_BLOCK_AGE_S"
    monkeypatch.setattr(age, math.inf)


def frames(n, shape=(5, 4), dtype=np.int8, seed=0):
    return np.random.default_rng(seed).integers(0, 10, (n, *shape)).astype(dtype)


def heads(path):
    """The heads of all blocks, in order."""
    data = path.read_bytes()
    header, at = decode_header(data)
    found = []
    while at < len(data):
        block = decode_block(data[at:], 0, salt=header["salt"])
        found.append(block.head)
        at += block.end
    return found


@pytest.mark.parametrize(
    "dtype",
    [
        *(bool, np.int8, ">i4", np.uint64, np.float16, np.float32, np.float64),
        *(np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2),
    ],
)
def test_arrays_come_back_bit_for_bit(tmp_path, dtype):
    given = frames(200).astype(np.int16).astype(dtype)
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        for step in range(100):
            journal.write(step, {"grid": given[step], "n": step}, stream="one")
        journal.write_many(
            range(100, 200), {"grid": given[100:], "n": np.arange(100)}, stream="one"
        )
    one = watch.read(tmp_path / "a", strict=True).streams["one"]
    assert list(one.steps) == list(range(200))
    assert list(one["n"]) == [*range(100), *range(100)]
    assert one["grid"].dtype == np.dtype(dtype).newbyteorder("<")
    np.testing.assert_array_equal(one["grid"], given)
    for step in (0, 63, 64, 199):
        np.testing.assert_array_equal(one.value_at("grid", step), given[step])
    with refuses(KeyError, "grid"):
        one.value_at("grid", 200)


def test_nan_and_the_sign_of_zero_survive_the_xor(tmp_path):
    rng = np.random.default_rng(0)
    given = np.cumsum(rng.normal(size=(64, 1000)), axis=0).astype(np.float32)
    given[5, :3] = [np.nan, -0.0, np.inf]
    given.view(np.uint32)[6, 0] = 0x7FC12345  # a NaN with something in it
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        journal.write_many(range(64), {"x": given}, stream="s")
    (columns,) = [h["columns"] for h in heads(tmp_path / "a") if h["kind"] == "records"]
    assert columns[0][4] == "xor"  # or this test shows nothing
    back = watch.read(tmp_path / "a").streams["s"]["x"]
    np.testing.assert_array_equal(back.view(np.uint32), given.view(np.uint32))


def test_values_may_change_after_they_are_written(tmp_path):
    grid, many = frames(1)[0].copy(), frames(10).copy()
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        journal.write(0, {"g": grid}, stream="one")
        journal.write_many(range(10), {"g": many}, stream="many")
        grid[:] = 99
        many[:] = 99
    back = watch.read(tmp_path / "a").streams
    assert back["one"]["g"].max() < 10
    assert back["many"]["g"].max() < 10


def test_streams_do_not_mix(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        for step in range(150):
            journal.write(step, {"loss": step / 2})
            if step % 10 == 0:
                journal.write(step, {"grid": frames(1, seed=step)[0]}, "grid")
            if step % 50 == 0:
                journal.write(step // 50, {"reward": float(step)}, stream="episode")
        assert journal.last_step_of("grid") == 140
        assert journal.last_step_of("episode") == 2
        assert journal.last_step_of("other") is None
    back = watch.read(tmp_path / "a", strict=True)
    assert list(back.steps) == list(range(150))
    assert set(back.streams) == {"grid", "episode"}
    assert list(back.streams["grid"].steps) == list(range(0, 150, 10))
    assert list(back.streams["episode"]["reward"]) == [0, 50, 100]
    chosen = watch.read(tmp_path / "a", strict=True, streams=["episode"])
    assert (len(chosen), set(chosen.streams)) == (0, {"episode"})


def test_a_rewind_covers_all_streams_each_at_its_own_step(tmp_path):
    path = tmp_path / "a"
    with watch.Journal.create(path, {}) as journal:
        for step in range(200):
            journal.write(step, {"loss": step})
            journal.write(step, {"grid": np.full((2, 2), step)}, stream="grid")
            if step % 10 == 0:
                journal.write(step // 10, {"reward": step}, stream="episode")
        journal.rewind(99, others={"episode": 9})
        assert journal.last_step_of("grid") == 99
        assert journal.last_step_of("episode") == 9
        journal.write(100, {"grid": np.full((2, 2), -1)}, stream="grid")
        journal.write(10, {"reward": -1}, stream="episode")
    back = watch.read(path, strict=True)
    assert list(back.steps) == list(range(100))
    assert list(back.streams["grid"]["grid"][:, 0, 0]) == [*range(100), -1]
    assert list(back.streams["episode"].steps) == list(range(11))
    with watch.Journal.append_to(path) as journal:
        assert journal.last_step == 99
        assert journal.last_step_of("grid") == 100
        assert journal.last_step_of("episode") == 10
        journal.rewind(50)
    back = watch.read(path, strict=True)
    assert len(back) == len(back.streams["grid"]) == 51
    assert len(back.streams["episode"]) == 11  # none is above 50


def test_appending_keeps_the_dtype_and_shape_of_arrays(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        journal.write(0, {"grid": frames(1)[0]}, stream="grid")
    with watch.Journal.append_to(tmp_path / "a") as journal:
        for wrong in (np.zeros((2, 2), np.int8), np.zeros((5, 4)), 3.0):
            with refuses(ValueError, "grid", "[5, 4]"):
                journal.write(1, {"grid": wrong}, stream="grid")
        journal.write(1, {"grid": jnp.ones((5, 4), jnp.int8)}, stream="grid")
    assert watch.read(tmp_path / "a").streams["grid"]["grid"].shape == (2, 5, 4)


def test_a_record_that_does_not_fit_is_refused_whole(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        many = journal.write_many
        for error, match, call in [
            (TypeError, "'g'", lambda: many([0], {"g": frames(1)})),
            (TypeError, "'g'", lambda: many([0], {"g": [[None]]}, "s")),
            (TypeError, "'g'", lambda: many([0], {"g": ["a"]}, "s")),
            (TypeError, "'g'", lambda: journal.write(0, {"g": [["a"]]}, "s")),
            (TypeError, "float64", lambda: many([0.5], {"g": [1]}, "s")),
            (ValueError, 3, lambda: many([1, 3, 3], {})),
            (ValueError, "'g'", lambda: many([1, 2], {"g": [1]}, "s")),
            (ValueError, "(1, 2)", lambda: many([[1, 2]], {}, "s")),
            (ValueError, "'g'", lambda: many([0], {"g": [2**63]}, "s")),
            (ValueError, "stream", lambda: many([0], {}, "a" * 101)),
            (
                ValueError,
                "'g'",
                lambda: journal.write(
                    0, {"g": np.broadcast_to(np.int8(0), 2**30 + 1)}, "s"
                ),
            ),
        ]:
            with refuses(error, match):
                call()
        journal.write_many([5], {"n": [1]}, "s")
        with refuses(ValueError, 5):
            journal.write_many([5, 6], {"n": [1, 2]}, "s")
        for i in range(998):
            journal.write(0, {}, f"stream {i}")
        with refuses(ValueError, "one more"):
            journal.write(0, {}, "one more")
    assert list(watch.read(tmp_path / "a", strict=True).streams["s"].steps) == [5]


def test_blocks_of_large_frames_stay_below_four_mebibytes(tmp_path):
    shape = (1024, 1024)
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        for step in range(6):
            journal.write(step, {"x": np.full(shape, step, np.uint8)}, stream="1 MiB")
            journal.write(step, {"x": np.full((6, *shape), 1, np.uint8)}, stream="6")
        journal.write_many(range(9), {"x": np.zeros((9, *shape), np.uint8)}, stream="m")
    counts = {}
    for head in heads(tmp_path / "a"):
        if head["kind"] == "records":
            counts.setdefault(head["stream"], []).append(head["n"])
    assert counts == {"1 MiB": [4, 2], "6": [1] * 6, "m": [4, 4, 1]}
    back = watch.read(tmp_path / "a", strict=True).streams["1 MiB"]["x"]
    assert list(back[:, 7, 7]) == list(range(6))


def test_empty_arrays_and_uneven_steps(tmp_path):
    steps = [-(2**63), -5, 0, 1, 2**63 - 1]
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        for step in steps:
            journal.write(step, {"x": np.zeros((0, 3)), "y": 1}, stream="s")
        journal.write_many([], {"x": np.zeros((0, 0, 3))}, stream="s")
    back = watch.read(tmp_path / "a", strict=True).streams["s"]
    assert list(back.steps) == steps
    assert back["x"].shape == (5, 0, 3)


def test_a_lost_block_is_counted_for_its_stream(tmp_path):
    path = tmp_path / "a"
    with watch.Journal.create(path, {}) as journal:
        journal.write_many(range(192), {"grid": frames(192)}, stream="grid")
        journal.write_many(range(192), {"loss": np.arange(192.0)})
    data = bytearray(path.read_bytes())
    second = data.find(MARK, data.find(MARK) + 1)
    data[second + 50] ^= 4
    path.write_bytes(data)
    back = watch.read(path)
    assert (back.missing, back.streams["grid"].missing) == (0, 64)
    assert [(lost.offset, lost.records) for lost in back.lost] == [(second, 64)]
    assert (len(back), back.closed) == (192, True)
    with refuses(CorruptFileError, second):
        watch.read(path, strict=True)
    np.testing.assert_array_equal(
        back.streams["grid"]["grid"], frames(192)[[*range(64), *range(128, 192)]]
    )


def test_a_journal_inside_a_journal_is_not_mistaken_for_blocks(tmp_path):
    with watch.Journal.create(tmp_path / "in", {}) as journal:
        journal.write_many(range(64), {"x": np.random.default_rng(0).random(64)})
    inside = np.frombuffer((tmp_path / "in").read_bytes(), np.uint8)
    path = tmp_path / "a"
    with watch.Journal.create(path, {}) as journal:
        journal.write(0, {"file": inside}, stream="files")
    data = bytearray(path.read_bytes())
    assert data.count(MARK) > 2  # it lies there in the open
    data[data.find(MARK) + 14] ^= 1
    path.write_bytes(data)
    back = watch.read(path)
    assert (len(back), len(back.lost)) == (0, 1)


def test_forged_arrays_are_an_error_when_they_are_read(tmp_path):
    path = tmp_path / "a"
    with watch.Journal.create(path, {}) as journal:
        salt = decode_header(path.read_bytes())[0]["salt"]
        journal.write(0, {}, stream="s")
    written = EncodedColumn("i1", None, None, (30, 30), "plain", b"no zstd")
    head = {"stream": "s", "first": 1, "before": 1}
    forged = encode_records(head, np.array([1]), {"g": written}, salt=salt)
    path.write_bytes(path.read_bytes() + forged)
    with refuses(CorruptFileError):
        watch.read(path).streams["s"]["g"]
    too_big = EncodedColumn("f4", None, None, (2**29, 2), "plain", b"")
    forged = encode_records(head, np.array([1]), {"g": too_big}, salt=salt)
    path.write_bytes(path.read_bytes() + forged)
    assert "claims" in watch.read(path).lost[-1].reason


DIE = """
import sys
import numpy as np
from frugax.watch import Journal
journal = Journal.create(sys.argv[1], {})
grids = np.arange(200_000, dtype=np.int16).repeat(9).reshape(-1, 3, 3)
print("ready", flush=True)
for step in range(0, 200_000, 10):
    for i in range(step, step + 10):
        journal.write(i, {"loss": i / 2})
        print(i, flush=True)
    some = grids[step : step + 10]
    journal.write_many(range(step, step + 10), {"grid": some}, "grid")
    print("grid", step + 9, flush=True)
"""


def killed_at_some_moment(path, rng):
    """The last record of each stream that the process had handed over, when killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", DIE, path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline()]
    deadline = time.monotonic() + float(rng.uniform(0, 0.2))
    while time.monotonic() < deadline:
        said.append(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    whole = [line.split() for line in said if line.endswith("\n")]
    given = {"": -1, "grid": -1}
    for line in whole[1:]:
        given["grid" if line[0] == "grid" else ""] = int(line[-1])
    return given


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(s, marks=pytest.mark.thorough) for s in range(3, 50))],
)
def test_kill_9_at_any_moment_loses_at_most_the_open_blocks(tmp_path, seed):
    path = tmp_path / "a"
    given = killed_at_some_moment(path, np.random.default_rng(seed))
    back = watch.read(path)
    assert not back.closed  # which declares it
    grids = back.streams.get("grid")
    for stream, records in {"": back, "grid": grids}.items():
        n = 0 if records is None else len(records)
        # At most the open block, and the record that was being written or said.
        assert given[stream] + 1 - 64 <= n <= given[stream] + 12
        if records is not None:
            assert list(records.steps) == list(range(n))
    np.testing.assert_array_equal(back["loss"] if len(back) else [], back.steps / 2)
    if grids is not None:
        np.testing.assert_array_equal(grids["grid"][:, 2, 2], grids.steps)
    # At most one block was cut off in the middle, and then it stays declared.
    assert len(back.lost) <= 1
    with watch.Journal.append_to(path) as journal:
        journal.write(10**6, {"loss": 0.0})
    again = watch.read(path)
    assert len(again) == len(back) + 1
    assert len(again.lost) == len(back.lost)
