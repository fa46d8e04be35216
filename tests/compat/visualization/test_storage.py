"""CompressedStorage returns the saved data, or an error with the reason."""

import collections
import contextlib
import enum
import json
import pickle
import tracemalloc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from frugax.compat.visualization import CompressedStorage
from frugax.errors import (
    CorruptFileError,
    FrugaxError,
    OutputError,
    UnsupportedFileError,
)
from refusals import refuses

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("ab\n\N{SNOWMAN}", max_size=3), inner, max_size=3),
    ),
    max_leaves=12,
)


def same(a, b):
    """Equal, and of the same types all the way down; a NaN equals itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
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


@pytest.mark.parametrize("compression", [True, False])
def test_arrays_come_back_bit_for_bit(tmp_path, compression):
    rng = np.random.default_rng(0)
    data = {
        str(np.dtype(dtype)): [
            rng.integers(0, 9, shape).astype(dtype)
            for shape in [(), (0, 3), (7,), (3, 4), (3, 4)]
        ]
        for dtype in [*DTYPES, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
    }
    data |= {"scalar": np.float32(0.1), "large": rng.random(1_500_000), "n": (1, None)}
    storage = CompressedStorage(tmp_path, compression=compression)
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
    for path in (listed, storage.save(by_step, "by step")):
        assert grids.nbytes / path.stat().st_size > 500


class Colour(enum.IntEnum):
    RED = 1


def test_a_value_that_cannot_be_stored_is_named_with_its_place(tmp_path):
    storage = CompressedStorage(tmp_path)
    loop = []
    loop.append(loop)
    for wrong, error, named in [
        ({"a": [1, {2}]}, TypeError, ["a[1]", "set"]),
        ({"a": print}, TypeError, ["a"]),
        (b"a", TypeError, ["bytes"]),
        ([Colour.RED], TypeError, ["[0]", "Colour"]),
        ([np.array(["a"])], TypeError, ["[0]", "<U1"]),
        ([np.array([None])], TypeError, ["[0]", "object"]),
        ([np.ma.masked_array([1])], TypeError, ["[0]", "MaskedArray"]),
        ({"a": [{1: 2}]}, TypeError, ["builtins.dict"]),
        ([collections.OrderedDict(a=1)], TypeError, ["collections.OrderedDict"]),
        ([2**20_000], ValueError, []),
        (loop, ValueError, [100]),
    ]:
        with refuses(error, *named):
            storage.save(wrong, "one")
    with pytest.raises(TypeError):  # JAX tells what to do with a key
        storage.save(jax.random.key(0), "one")
    with pytest.raises(TypeError):  # and with a value that is being traced
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
    save = lambda name: storage.save(1, name)
    for call in (save, storage.load, storage.exists):
        with refuses(ValueError, 200):
            call(name)
    assert list(tmp_path.iterdir()) == []


def test_files_are_found_and_listed(tmp_path):
    storage = CompressedStorage(tmp_path / "new")
    assert storage.list_files() == []
    for name in ("b", "a b", "é", "x.fxstore"):
        storage.save(name, name)
    (tmp_path / "new" / "other.txt").write_text("not ours")
    (tmp_path / "new" / "folder.fxstore").mkdir()
    assert storage.list_files() == ["a b", "b", "x.fxstore", "é"]
    assert storage.exists("é")
    assert storage.load("a b") == "a b"
    assert not storage.exists("c")
    with refuses(FileNotFoundError, "'c'"):
        storage.load("c")


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    storage = CompressedStorage(tmp_path)
    storage.save([1, 2, 3], "one")

    def failing(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", failing)
    monkeypatch.setattr("pathlib.Path.replace", failing)
    with refuses(OutputError, "one.fxstore"):
        storage.save([4], "one")
    monkeypatch.undo()
    assert storage.load("one") == [1, 2, 3]
    assert [p.name for p in tmp_path.iterdir()] == ["one.fxstore"]


def forged(structure, leaves=(), body=b"", version=1):
    """A file with a sound checksum that says anything."""
    meta = {"format": version, "structure": structure, "leaves": leaves}
    content = json.dumps(meta).encode() + b"\n" + body
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


def test_a_forged_file_of_right_data_is_read(tmp_path):
    storage = CompressedStorage(tmp_path)
    path = storage.save(1, "one")
    structure = {"list": ["*", {"tuple": ["*"]}]}
    path.write_bytes(forged(structure, [1, {"array": ["u1", [2]]}], b"ab"))
    one, (array,) = storage.load("one")
    assert (one, array.tolist()) == (1, [97, 98])


def deep(levels):
    found = []
    for _ in range(levels):
        found = {"list": [found]}
    return found


# A frame that says that it unpacks to 4 GiB: a magic number, a descriptor of a size in
# eight bytes and of no window, and the size.
HUGE = b"\x28\xb5\x2f\xfd\xe0" + (2**32).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptFileError),
        (pickle.dumps([1]), CorruptFileError),
        (HUGE, CorruptFileError),
        (zstandard.ZstdCompressor().compress(b"[1]"), CorruptFileError),
        (forged("*", [{"array": ["f8", [2**20, 2**9]]}]), CorruptFileError),
        (forged("*", [{"array": ["f8", [2**50] * 3]}]), CorruptFileError),
        (forged("*", [{"array": ["f8", [1] * 200]}], bytes(8)), CorruptFileError),
        (forged("*", [{"array": ["O", [1]]}], bytes(8)), CorruptFileError),
        (forged("*", [{"array": [["f8"], [1]]}], bytes(8)), CorruptFileError),
        (forged("*", [{"array": ["f8", ["1"]]}], bytes(8)), CorruptFileError),
        (forged("*", [{"array": ["b1", [1]]}], b"\2"), CorruptFileError),
        (forged("*", [{"scalar": ["u1", []]}], b"ab"), CorruptFileError),
        (forged("*", [{"call": "exec"}]), CorruptFileError),
        (forged("*", []), CorruptFileError),
        (forged({"call": "exec"}, [1]), CorruptFileError),
        (forged(deep(400)), CorruptFileError),
        (forged("*", [1], version=2), UnsupportedFileError),
    ],
    ids=lambda value: None,
)
def test_foreign_and_forged_files_are_errors_and_take_no_memory(tmp_path, data, error):
    storage = CompressedStorage(tmp_path)
    path = storage.save(1, "one")
    path.write_bytes(data)
    tracemalloc.start()
    with refuses(error, path):
        storage.load("one")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**23


def test_parts_of_two_files_do_not_make_one(tmp_path):
    storage = CompressedStorage(tmp_path)
    one, two = (
        storage.save(np.random.default_rng(seed).random(2**16), f"{seed}")
        for seed in (1, 2)
    )
    a, b = one.read_bytes(), two.read_bytes()
    cut = len(a) // 2
    one.write_bytes(a[:cut] + b[cut:])
    with refuses(CorruptFileError, one):
        storage.load("1")


def test_data_over_the_limits_are_refused(tmp_path, monkeypatch):
    storage = CompressedStorage(tmp_path)
    storage.save(np.zeros(2000, np.uint8), "one")
    module = "frugax.compat.visualization._stored_data"
    monkeypatch.setattr(f"{module}._MOST_BYTES", 1000)
    with refuses(ValueError, "1,000"):
        storage.save([np.zeros(1001, np.uint8)], "two")
    with refuses(CorruptFileError, tmp_path / "one.fxstore"):
        storage.load("one")
    assert storage.list_files() == ["one"]


def test_every_flipped_bit_and_every_cut_is_an_error(tmp_path):
    storage = CompressedStorage(tmp_path)
    data = {"a": np.arange(30), "b": ["text", 1.5]}
    path = storage.save(data, "one")
    sound = path.read_bytes()
    for at in range(len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        # Of the fifth byte zstd ignores a bit; the data are right all the same.
        with contextlib.suppress(FrugaxError):
            assert same(storage.load("one"), data)
            assert at == 4
    for at in range(len(sound)):
        path.write_bytes(sound[:at])
        with pytest.raises(FrugaxError):
            storage.load("one")
    path.write_bytes(sound + b"x")
    with pytest.raises(FrugaxError):
        storage.load("one")
