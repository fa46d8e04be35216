"""The loops for Numba give the bits that NumPy gives, compiled or as plain Python."""

import collections
import functools
import sys

import ml_dtypes
import numpy as np
import pytest

from frugax import SizeBudget, compress
from frugax.compress.codecs import RowScaling, step_below, trellis
from frugax.compress.codecs.trellis import _compiled
from frugax.errors import CorruptFileError
from refusals import refuses

PLAIN = _compiled.Kernels(
    _compiled.find_paths, _compiled.push_lanes, _compiled.pop_lanes
)


def numba_kernels():
    pytest.importorskip("numba")
    return _compiled._compile()


@pytest.fixture(params=["plain", "numba"])
def kernels(request, monkeypatch):
    """Use the loops for every call from now on."""
    chosen = PLAIN if request.param == "plain" else numba_kernels()

    def use():
        load = lambda **_: chosen
        for module in ("_quantise", "_encode", "_decode"):
            monkeypatch.setattr(
                f"frugax.compress.codecs.trellis.{module}.load_kernels", load
            )

    return use


def test_loops_go_to_numba_without_a_type_checker_around_them(monkeypatch):
    # The tests' own import hook checks types, and Numba cannot compile its wrappers.
    given = []

    class Numba:
        @staticmethod
        def njit(**_):
            return given.append

    monkeypatch.setitem(sys.modules, "numba", Numba)
    _compiled._compile.__wrapped__()
    assert [loop.__name__ for loop in given] == [
        "find_paths",
        "push_lanes",
        "pop_lanes",
    ]
    assert not any(hasattr(loop, "__wrapped__") for loop in given)


@pytest.fixture
def compiled(monkeypatch):
    """How often loops were compiled, by a stand-in; they pay from 1,000 numbers on."""
    compiled = []
    load = functools.lru_cache(lambda: compiled.append(PLAIN) or PLAIN)
    monkeypatch.setattr(_compiled, "_compile", load)
    monkeypatch.setattr(_compiled, "_SO_FAR", collections.Counter())
    for least in ("_MIN_ENCODED", "_MIN_DECODED"):
        monkeypatch.setattr(_compiled, least, 1000)
    return compiled


@pytest.mark.parametrize("work", ["encode", "decode"])
def test_loops_are_compiled_once_work_so_far_would_have_paid_for_it(compiled, work):
    assert [_compiled.load_kernels(**{work: 300}) for _ in range(3)] == [None] * 3
    assert not compiled
    assert _compiled.load_kernels(**{work: 300}) is PLAIN
    assert _compiled.load_kernels(**{work: 1}) is PLAIN
    assert compiled == [PLAIN]


def inputs(rng):
    """Blocks with one class and many, coarse and fine steps, far-out numbers."""
    for shape, size, dtype in (
        ((40, 30), 0.4, "f4"),
        ((1, 700), 3.0, "f4"),
        ((7, 130), 1e-3, "f4"),
        ((9, 70), 1e-7, "f4"),
        ((5, 100), 0.3, "f8"),
        ((20, 64), 0.5, ml_dtypes.bfloat16),
    ):
        values = rng.normal(size=shape) * np.exp(rng.normal(size=(shape[0], 1)))
        values.flat[3] = 4000 * size
        values = values.astype(dtype).reshape(-1)
        step = step_below(size)
        assert step is not None
        lanes = trellis.LaneLayout.of_rows(values.size, shape[1])
        rms = float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
        for scaling in (None, RowScaling(0.5, rms)):
            exponents = None if scaling is None else scaling.exponents(values, lanes)
            classes = trellis.classify_runs(values, lanes, exponents)
            yield trellis.TrellisInput(values, step, lanes, classes, exponents)


def test_integers_and_bytes_are_the_same(kernels):
    parts = [*inputs(np.random.default_rng(0))]
    # Every lane of a block has another class here, which is rare in small blocks.
    many = np.arange(parts[0].lanes.runs, dtype=np.uint8) % 5
    parts.append(
        trellis.TrellisInput(parts[0].values, parts[0].step, parts[0].lanes, many)
    )
    # Lanes of four rows, where the errors of some rows move others.
    lanes = trellis.LaneLayout(parts[0].lanes.size, 120, 60)
    feedback, _ = trellis.Feedback.factor(np.eye(40) + 1, row=30, run=60, lane=120)
    classes = np.arange(lanes.runs, dtype=np.uint8) % 5
    parts.append(
        trellis.TrellisInput(
            parts[0].values, parts[0].step, lanes, classes, feedback=feedback
        )
    )
    expected = trellis.quantise(parts)
    fitting = [levels for levels in expected if levels is not None]
    assert len(fitting) >= 11
    blocks = trellis.encode(fitting)
    kernels()
    for ours, theirs in zip(trellis.quantise(parts), expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            np.testing.assert_array_equal(ours.levels, theirs.levels)
            assert ours.tables.packed == theirs.tables.packed
    assert trellis.encode(fitting) == blocks
    for levels, block in zip(fitting, blocks, strict=True):
        scaled = levels.exponents is not None
        parsed = trellis.parse(memoryview(block), levels.lanes.size, scaled=scaled)
        np.testing.assert_array_equal(
            trellis.decode_integers(parsed, np.float64), levels.flat
        )


def test_a_damaged_stream_is_noticed(kernels):
    (part, *_) = inputs(np.random.default_rng(0))
    (levels,) = trellis.quantise([part])
    assert levels is not None
    (block,) = trellis.encode([levels])
    kernels()
    for cut in (1, 8, 40):
        broken = bytearray(block)
        broken[-cut] ^= 0x55
        parsed = trellis.parse(memoryview(broken), part.lanes.size)
        with refuses(CorruptFileError):
            trellis.decode_integers(parsed, np.float32)


def test_a_file_is_the_same(kernels):
    rng = np.random.default_rng(1)
    tree = {
        "w": rng.normal(size=(60, 40)).astype("f4"),
        "v": (rng.normal(size=(30, 64)) * np.exp(rng.normal(size=(30, 1)))),
        "b": rng.normal(size=40).astype("f4"),
    }
    before = compress.compress(tree, SizeBudget("6x"))
    kernels()
    assert compress.compress(tree, SizeBudget("6x")) == before
    np.testing.assert_array_equal(
        compress.decompress(before)["w"], compress.decompress(bytes(before))["w"]
    )
