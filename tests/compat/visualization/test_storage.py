"""CompressedStorage returns the saved data, or an error with the reason."""

import enum
import json
import pickle
import tracemalloc
import zlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from frugax.compat.visualization import CompressedStorage
from frugax.errors import (
    CorruptFileError,
    FrugaxError,
    OutputError,
    UnsupportedFileError,
)
from frugax.watch.journal import framing, packing

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(max_size=20),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.integers() | st.booleans() | st.text(), inner, max_size=3),
    ),
    max_leaves=12,
)


def same(a, b):
    """Equal, and of the same types all the way down; a NaN equals itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return [*map(repr, a)] == [*map(repr, b)] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return repr(a) == repr(b)


@settings(max_examples=100, deadline=None)
@given(nested)
def test_any_nesting_comes_back(tmp_path_factory, data):
    storage = CompressedStorage(tmp_path_factory.mktemp("s"))
    storage.save(data, "one")
    assert same(storage.load("one"), data)


DTYPES = [bool, np.int8, np.uint16, np.int64, np.float16, np.float32, np.complex128]


@pytest.mark.parametrize("level", [0, 1, 6, 22])
def test_arrays_come_back_bit_for_bit(tmp_path, level):
    rng = np.random.default_rng(0)
    data = {
        str(np.dtype(dtype)): [
            rng.integers(0, 9, shape).astype(dtype)
            for shape in [(), (0, 3), (7,), (3, 4), (3, 4)]
        ]
        for dtype in [*DTYPES, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
    }
    data |= {"scalar": np.float32(0.1), "large": rng.random(1_500_000), "n": (1, None)}
    storage = CompressedStorage(tmp_path, compression_level=level)
    storage.save(data, "one")
    back = storage.load("one")
    assert same(back, data)
    back["large"][0] = 2.0  # its own, to be written to
    assert CompressedStorage(tmp_path).load("one")["large"][0] != 2.0


def test_arrays_of_other_kinds_are_taken_by_value(tmp_path):
    storage = CompressedStorage(tmp_path)
    given = np.arange(6, dtype=">i4").reshape(2, 3)
    storage.save([jnp.ones(3, jnp.bfloat16), given.T, given[::-1]], "one")
    ones, turned, mirrored = storage.load("one")
    assert type(ones) is np.ndarray
    assert ones.dtype == jnp.bfloat16
    np.testing.assert_array_equal(turned, given.T)
    np.testing.assert_array_equal(mirrored, given[::-1])


def test_equal_grids_pack_the_same_at_any_position(tmp_path):
    rng = np.random.default_rng(0)
    grids = np.repeat(rng.integers(0, 10, (1, 30, 30)), 100, axis=0)
    for i in range(1, 100):
        grids[i:, *rng.integers(30, size=2)] = rng.integers(10)
    storage = CompressedStorage(tmp_path)
    listed = storage.save({"episode_grids": [*grids]}, "list")
    by_step = {f"step {i}": {"grid": g, "reward": 0.5} for i, g in enumerate(grids)}
    named = storage.save(by_step, "by step")
    for path in (listed, named):
        assert grids.nbytes / path.stat().st_size > 50
    assert storage.get_size_mb("list") == listed.stat().st_size / 2**20


class Colour(enum.IntEnum):
    RED = 1


def test_a_value_that_cannot_be_stored_is_named_with_its_place(tmp_path):
    storage = CompressedStorage(tmp_path)
    loop = []
    loop.append(loop)
    for wrong, error, match in [
        ({"a": [1, {2}]}, TypeError, r"data\['a'\]\[1\] is a set"),
        ({"a": print}, TypeError, r"data\['a'\] is a builtin"),
        ([Colour.RED], TypeError, r"data\[0\] is a Colour"),
        ([np.array(["a"])], TypeError, r"data\[0\] is an array of <U1"),
        ([np.array([None])], TypeError, r"data\[0\] is an array of object"),
        ([np.ma.masked_array([1])], TypeError, "MaskedArray"),
        ([jax.random.key(0)], TypeError, "key_data"),
        ([2**20_000], ValueError, r"data\[0\].*14000 bits"),
        (loop, ValueError, "over 100 deep, or the data holds itself"),
    ]:
        with pytest.raises(error, match=match):
            storage.save(wrong, "one")
    with pytest.raises(TypeError, match="being traced"):
        jax.jit(lambda x: storage.save(x, "one"))(jnp.ones(3))
    assert storage.list_files() == []


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../escape", "/etc/passwd", "a/b", "a\\b", ".hidden", "a\0b"),
        *("a\n", "c:evil", "\ud800", "a" * 201, "\N{SNOWMAN}" * 70),
    ],
)
def test_names_that_escape_are_refused_by_every_method(tmp_path, name):
    storage = CompressedStorage(tmp_path / "in")
    for call in (storage.load, storage.exists, storage.delete, storage.get_size_mb):
        with pytest.raises(ValueError, match="plain file name"):
            call(name)
    with pytest.raises(ValueError, match="plain file name"):
        storage.save(1, name)
    assert list(tmp_path.iterdir()) == []


def test_files_are_found_listed_and_removed(tmp_path):
    storage = CompressedStorage(tmp_path / "new")
    assert storage.list_files() == []
    for name in ("b", "a b", "é", "x.fxstore"):
        storage.save(name, name)
    (tmp_path / "new" / "other.txt").write_text("not ours")
    (tmp_path / "new" / "folder.fxstore").mkdir()
    assert storage.list_files() == ["a b", "b", "x.fxstore", "é"]
    assert storage.exists("é")
    assert storage.load("a b") == "a b"
    assert storage.delete("b")
    assert not storage.delete("b")
    assert not storage.exists("b")
    for call in (storage.load, storage.get_size_mb):
        with pytest.raises(FileNotFoundError, match="'b'"):
            call("b")


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    storage = CompressedStorage(tmp_path)
    storage.save([1, 2, 3], "one")

    def failing(*args, **named):
        yield b"half"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("frugax.compat.visualization._storage.encode", failing)
    with pytest.raises(OutputError, match="No space left"):
        storage.save([4], "one")
    monkeypatch.undo()
    assert storage.load("one") == [1, 2, 3]
    assert [p.name for p in tmp_path.iterdir()] == ["one.fxstore"]


def forged(tree, *, level=0, raw=None, tree_bytes=None):
    """A file with sound checksums that says anything."""
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    meta = {"level": level, "tree_bytes": tree_bytes or len(text)}
    header = b"FXSTORE\n" + framing.encode_frame({"format": 1, "meta": meta})
    crc = zlib.crc32(header)
    head = framing.encode_frame(
        {"raw": raw or len(text), "packed": len(text)}, salt=crc
    )
    crc = zlib.crc32(text, zlib.crc32(head, crc))
    end = framing.encode_frame({"end": True}, salt=crc)
    return header + head + text + crc.to_bytes(4, "little") + end


def test_foreign_and_forged_files_are_clear_errors_and_take_no_memory(tmp_path):
    storage = CompressedStorage(tmp_path)
    path = storage.save(1, "one")
    path.write_bytes(forged([1, {"tuple": []}]))
    assert storage.load("one") == [1, ()]  # the forger knows his trade
    huge = {"array": ["f8", [2**20, 2**9]]}
    bomb = packing.compress(bytes(2**28))
    deep = b"[" * 5000 + b"]" * 5000
    for data, error, match in [
        (b"", CorruptFileError, "not a file of stored data"),
        (pickle.dumps([1]), CorruptFileError, "not a file of stored data"),
        (forged(huge), ValueError, "4,294,967,"),
        (forged([huge] * 10), ValueError, "at most 2,147,483,648 are allowed"),
        (forged({"array": ["f8", [2**50] * 3]}), ValueError, "raise most_bytes"),
        (forged({"array": ["O", [1]]}), CorruptFileError, "unknown"),
        (forged({"array": ["f8", [-1]]}), CorruptFileError, "unknown"),
        (forged({"call": "exec"}), CorruptFileError, "unknown"),
        (forged({"map": {}, "dict": []}), CorruptFileError, "unknown"),
        (forged({"dict": [[[1], 2]]}), CorruptFileError, "wrong keys"),
        (forged({"dict": [[1, 2, 3]]}), CorruptFileError, "unknown"),
        (forged({"array": ["f8", [1]]}), CorruptFileError, "at byte"),
        (forged(b"{"), CorruptFileError, "not JSON"),
        (forged(b"1" * 5000), CorruptFileError, "not JSON"),
        (forged(deep), CorruptFileError, "JSON|deep"),
        (forged([[[]]] * 1, tree_bytes=2**40), ValueError, "raise most_bytes"),
        (forged(bomb, level=3, raw=1, tree_bytes=1), CorruptFileError, "268435456"),
        (forged(bomb, level=3, raw=2**28), CorruptFileError, "too long"),
    ]:
        path.write_bytes(data)
        tracemalloc.start()
        with pytest.raises(error, match=match):
            storage.load("one")
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 2**23, data[:80]
    newer = framing.encode_frame({"format": 2, "meta": {}})
    path.write_bytes(b"FXSTORE\n" + newer)
    with pytest.raises(UnsupportedFileError, match="format 2"):
        storage.load("one")


def test_parts_of_two_files_do_not_make_one(tmp_path):
    storage = CompressedStorage(tmp_path)
    one, two = (
        storage.save(np.random.default_rng(seed).random(2**20), f"{seed}")
        for seed in (1, 2)
    )
    a, b = one.read_bytes(), two.read_bytes()
    assert len(a) != len(b) or a[:40] == b[:40]
    cut = len(a) // 2
    one.write_bytes(a[:cut] + b[cut:])
    with pytest.raises(CorruptFileError):
        storage.load("1")


def test_data_over_the_limit_are_refused(tmp_path):
    storage = CompressedStorage(tmp_path, most_bytes=1000)
    with pytest.raises(ValueError, match=r"1,0.. bytes; at most 1,000"):
        storage.save(np.zeros(1000, np.uint8), "one")
    CompressedStorage(tmp_path).save(np.zeros(2000, np.uint8), "one")
    with pytest.raises(ValueError, match="raise most_bytes if you trust it"):
        storage.load("one")
    for level in (-1, 23):
        with pytest.raises(ValueError, match="compression_level"):
            CompressedStorage(tmp_path, level)


def test_every_flipped_bit_is_an_error(tmp_path):
    storage = CompressedStorage(tmp_path)
    data = {"a": np.arange(30), "b": ["text", 1.5]}
    path = storage.save(data, "one")
    sound = path.read_bytes()
    for at in range(len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with pytest.raises(FrugaxError):
            storage.load("one")
    for at in range(len(sound)):
        path.write_bytes(sound[:at])
        with pytest.raises(FrugaxError):
            storage.load("one")
    path.write_bytes(sound + b"x")
    with pytest.raises(FrugaxError):
        storage.load("one")
