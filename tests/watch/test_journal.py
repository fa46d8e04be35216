"""A journal returns the written records, or reports the missing ones."""

import errno
import struct
import tracemalloc
import zlib
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import zstandard
from hypothesis import given, settings, strategies as st

from frugax import watch
from frugax.errors import (
    CorruptFileError,
    OutputError,
    UnsupportedFileError,
)
from frugax.watch.journal.blocks import MARK
from frugax.watch.journal.framing import MAGIC, encode_frame, encode_header
from refusals import refuses

numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.booleans(),
)
records = st.lists(
    st.dictionaries(st.sampled_from(["loss", "grad norm", "é", "n"]), numbers),
    max_size=200,
)


def written(path, n=200, *, close=True):
    journal = watch.Journal.create(path, {"seed": 1})
    for step in range(n):
        journal.write(step, {"loss": 1 / (step + 1), "n": step})
    if close:
        journal.close()
    return journal


@settings(max_examples=60, deadline=None)
@given(records, st.integers(0, 20))
def test_every_record_comes_back(tmp_path_factory, given, gap):
    path = tmp_path_factory.mktemp("journal") / "a"
    with watch.Journal.create(path, {"é": [1, None]}) as journal:
        for i, record in enumerate(given):
            journal.write(i * (gap + 1), record)
    back = watch.read(path, strict=True)
    assert back.meta == {"é": [1, None]}
    assert not back.lost
    assert len(back) == len(given)
    assert list(back.steps) == [i * (gap + 1) for i in range(len(given))]
    for name in back.names:
        had = [(i * (gap + 1), r[name]) for i, r in enumerate(given) if name in r]
        assert list(back.steps_with(name)) == [step for step, _ in had]
        values = np.array([v for _, v in had])
        # Whole numbers beside fractions become float64, as in NumPy.
        np.testing.assert_array_equal(back[name], values.astype(back[name].dtype))
    assert set(back.names) == {name for record in given for name in record}


def test_numbers_keep_their_exact_value(tmp_path):
    values = {
        np.int64: (3, True, np.uint8(3)),
        np.float64: (0.1,),
        np.float32: (np.float32(0.1), np.float16(0.1), ml_dtypes.bfloat16(0.1)),
    }
    given: list[tuple[Any, Any]] = [
        (value, dtype) for dtype, some in values.items() for value in some
    ]
    given.append((jnp.float32(0.1), np.float32))
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        journal.write(0, {str(i): value for i, (value, _) in enumerate(given)})
    back = watch.read(tmp_path / "a")
    for i, (value, dtype) in enumerate(given):
        assert back[str(i)].dtype == dtype
        assert float(back[str(i)][0]) == float(value)


def test_a_value_that_is_not_a_number_is_refused_by_name(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        for wrong in (np.zeros(2), np.array("text"), np.array(1j)):
            with refuses(TypeError, "loss"):
                journal.write(0, {"loss": wrong})
        with refuses(ValueError, "loss"):
            journal.write(0, {"loss": np.uint64(2**63)})
        for name in ("", "a" * 101, "\ud800"):
            with refuses(ValueError, "name"):
                journal.write(0, {name: 1.0})
        journal.write(5, {})
        for step in (5, 2**63):
            with refuses(ValueError, "step", step):
                journal.write(step, {})
    assert list(watch.read(tmp_path / "a").steps) == [5]


def test_a_lost_rewind_mark_does_not_bring_back_void_records(tmp_path):
    path = tmp_path / "a"
    journal = written(path, close=False)
    journal.flush()
    start = path.stat().st_size
    journal.rewind(70)
    end = path.stat().st_size
    journal.write(71, {"n": -1})
    journal.close()
    data = bytearray(path.read_bytes())
    data[start + 20] ^= 1
    path.write_bytes(data)
    back = watch.read(path)
    assert [(x.offset, x.size_bytes) for x in back.lost] == [(start, end - start)]
    assert list(back.steps) == list(range(72))
    assert back["n"][-1] == -1


def test_an_unfinished_end_is_cut_off_and_stays_declared(tmp_path):
    path = tmp_path / "a"
    died = written(path, close=False)
    died.flush()
    died._file.close()  # as the system does for a process that died
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    with watch.Journal.append_to(path) as journal:
        assert journal.last_step == 191
        assert journal.meta == {"seed": 1}
        (lost,) = journal.lost
        assert lost.records is None
        assert lost.size_bytes > 0
        journal.write(192, {"n": 192})
    back = watch.read(path)
    assert list(back.steps) == list(range(193))
    assert [x.size_bytes for x in back.lost] == [lost.size_bytes]


def test_an_open_journal_can_be_read_but_not_strictly(tmp_path):
    journal = written(tmp_path / "a", 100, close=False)
    assert len(watch.read(tmp_path / "a")) == 64
    assert not watch.read(tmp_path / "a").closed
    with refuses(CorruptFileError, "strict"):
        watch.read(tmp_path / "a", strict=True)
    journal.close()


def test_a_journal_is_never_overwritten(tmp_path):
    written(tmp_path / "a")
    with refuses(OutputError, "Journal"):
        watch.Journal.create(tmp_path / "a", {})
    assert len(watch.read(tmp_path / "a", strict=True)) == 200
    with refuses(OutputError):
        watch.Journal.create(tmp_path / "a" / "b", {})


def test_other_files_and_newer_formats_are_distinguished(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\x80\x04\x95 not a journal")
    with refuses(CorruptFileError):
        watch.read(path)
    path.write_bytes(MAGIC + encode_frame({"format": 2, "meta": {}}))
    with refuses(UnsupportedFileError, 2):
        watch.Journal.append_to(path)


def block_claiming(head, body=b""):
    crc = struct.pack("<I", zlib.crc32(body)) if body else b""
    return MARK + encode_frame(head) + crc + body


def test_sizes_are_checked_before_anything_is_allocated(tmp_path):
    path = tmp_path / "a"
    bomb = zstandard.compress(bytes(2**28))
    start = {"kind": "records", "first": 0, "steps": [0, 1], "packs": [len(bomb)]}
    wrong = [
        (start | {"n": 64, "columns": [["x", "f8", 64]]}, bomb),
        (start | {"n": 2**40, "columns": []}, bomb),
        (start | {"n": 1, "columns": [["x", "f8", 2**50]]}, bomb),
        (start | {"n": 1, "columns": [["x", "O", 1]]}, bomb),
        (start | {"n": 1, "columns": [["x", "f8", 1]] * 2}, bomb),
        (start | {"n": 1, "columns": 3}, bomb),
        (start | {"n": 1, "columns": [], "packs": [2**60]}, bomb),
        ({"kind": "rewind", "first": 0, "step": 1e400}, b""),
        ({"kind": "dropped", "first": 0, "bytes": -1}, b""),
        ({"kind": "else", "first": 0}, b""),
    ]
    header = encode_header({})
    for head, tail in wrong:
        path.write_bytes(header + block_claiming(head, tail))
        tracemalloc.start()
        back = watch.read(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (len(back), len(back.lost)) == (0, 1), head
        assert peak_bytes < 2**22, head  # the bomb would take 2**28
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    deep = packer.compress(b"[" * 100_000) + packer.flush()
    frame = struct.pack("<II", len(deep), zlib.crc32(deep)) + deep
    path.write_bytes(header + MARK + frame)
    assert len(watch.read(path).lost) == 1


def test_nothing_can_be_written_to_a_closed_journal(tmp_path):
    journal = watch.Journal.create(tmp_path / "a", {})
    journal.write(1, {"x": 1.0})
    assert not journal.closed
    journal.close()
    journal.close()
    assert journal.closed
    for late in (
        lambda: journal.write(2, {"x": 2.0}),
        lambda: journal.rewind(0),
        journal.flush,
    ):
        with refuses(ValueError, "closed"):
            late()
    assert list(watch.read(tmp_path / "a", strict=True).steps) == [1]


def test_a_second_writer_is_refused_until_the_first_one_closes(tmp_path):
    path = tmp_path / "a"
    with watch.Journal.create(path, {}) as journal:
        journal.write(1, {"x": 1.0})
        with refuses(OutputError):
            watch.Journal.append_to(path)
        assert len(watch.read(path)) == 0  # readers are not kept out
    with watch.Journal.append_to(path) as again:
        again.write(2, {"x": 2.0})
        with refuses(OutputError):
            watch.Journal.append_to(path)
    assert watch.read(path, strict=True)["x"].tolist() == [1.0, 2.0]


def test_a_journal_is_written_without_file_locks_too(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        journal.write(1, {"x": 1.0})
    assert len(watch.read(tmp_path / "a", strict=True)) == 1
