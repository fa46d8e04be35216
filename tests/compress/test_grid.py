"""Integers times a step: chosen, coded to the bit, decoded alike everywhere."""

import itertools

import numpy as np
import pytest

from frugax.compress import gap_to_bound_db
from frugax.compress.codecs import Form, grid, step_below, to_values
from frugax.errors import CorruptFileError
from refusals import refuses

TRELLIS, UNIFORM = Form(), Form(trellis=False)


def coded(values, size, row=64, form=TRELLIS):
    step = step_below(size)
    assert step is not None
    lanes, flat = grid.LaneLayout.of_rows(values.size, row), values.reshape(-1)
    classes = grid.classify_runs(flat, lanes)
    (found,) = grid.quantise(
        [grid.GridInput(flat, step, lanes, classes, trellis=form.trellis)]
    )
    assert found is not None
    return found, step


def integers(block, dtype, size, form=TRELLIS):
    parsed = grid.parse(memoryview(block), size, form)
    return grid.decode_integers(
        parsed, np.float64 if np.dtype(dtype).itemsize == 8 else np.float32
    )


def decode(block, step, dtype, size, form=TRELLIS):
    return to_values(integers(block, dtype, size, form), step, np.dtype(dtype))


def path(scaled, rates=None):
    classes = np.zeros(scaled.shape, np.uint8)
    return grid.viterbi([grid.PathProblem(scaled, rates, classes)])[0]


def encode(found):
    return grid.encode([found])[0]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def walk(bits):
    """The levels modulo 4 that the docs' automaton allows after these branch bits."""
    state = (0, 0, 0)  # b[t-3], b[t-2], b[t-1]
    for b in bits:
        yield 2 * (b ^ state[1] ^ state[0]) + state[2]
        state = (*state[1:], b)


def test_a_path_continues_from_the_end_state_of_another():
    x = normal(40, 5, seed=2) * 3
    first = path(x[:17])
    bits = np.zeros((3, 5), int)
    for level in first:  # q[t] = b[t] ^ b[t-2] ^ b[t-3]
        bits = np.concatenate([bits, [(level >> 1 & 1) ^ bits[-2] ^ bits[-3]]])
        assert ((level & 1) == bits[-2]).all()
    starts = (bits[-3:] << [[2], [1], [0]]).sum(axis=0).astype(np.uint8)
    classes = np.zeros((23, 5), np.uint8)
    (second,) = grid.viterbi([grid.PathProblem(x[17:], None, classes, starts)])
    for lane in range(5):
        every = np.concatenate([first, second])[:, lane]
        state, branches = [0, 0, 0], []
        for level in every:
            branches.append((level >> 1 & 1) ^ state[-2] ^ state[-3])
            state.append(branches[-1])
        assert [*walk(branches)] == (every & 3).tolist()


@pytest.mark.parametrize(
    ("row", "run", "lane"), [(70, 70, 70), (20, 80, 160), (90, 45, 45)]
)
def test_only_the_last_errors_count_with_feedback(row, run, lane):
    # e^T H e, which the errors of weights cost, is q^T D q for those of moved targets.
    rng = np.random.default_rng(0)
    count = 24
    mixed = rng.normal(size=(count, count))
    gram = mixed @ mixed.T + np.eye(count)
    feedback, diagonal = grid.Feedback.factor(gram, row=row, run=run, lane=lane)
    every = np.concatenate([stage.rows for stage in feedback.stages])
    assert sorted(every) == [*range(count)]
    for stage in feedback.stages:
        later = np.setdiff1d(every, [*stage.before, *stage.rows])
        # The errors of a stage count by what is left of H once later rows make up for
        # them: the inverse of a block of the inverse, were all before it exact.
        done = [*stage.before, *stage.rows]
        kept = gram[np.ix_(done, done)] - gram[np.ix_(done, later)] @ np.linalg.solve(
            gram[np.ix_(later, later)], gram[np.ix_(later, done)]
        )
        own = kept[len(stage.before) :, len(stage.before) :]
        np.testing.assert_allclose(np.diag(own), diagonal[stage.rows])
        if len(stage.before):
            best = np.linalg.solve(own, kept[len(stage.before) :, : len(stage.before)])
            np.testing.assert_allclose(best, stage.matrix, atol=1e-5)
    assert np.log(diagonal).sum() >= np.linalg.slogdet(gram)[1] - 1e-9


def test_no_path_is_better():
    x = normal(9, 3, seed=1) * 3
    best = path(x)
    for lane in range(x.shape[1]):
        least = min(
            sum(
                min(abs(v - n) for n in range(-40, 40) if n % 4 == c) ** 2
                for v, c in zip(x[:, lane].astype(float), walk(bits), strict=True)
            )
            for bits in itertools.product((0, 1), repeat=len(x))
        )
        found = ((x[:, lane].astype(float) - best[:, lane]) ** 2).sum()
        assert found == pytest.approx(least, rel=1e-5)


def test_numbers_of_a_path_follow_its_bits():
    bits = np.random.default_rng(0).integers(0, 2, (200, 1)).astype(np.uint8)
    assert grid.residues(bits)[:, 0].tolist() == list(walk(bits[:, 0].tolist()))


def test_rates_are_weighed_against_error():
    x = normal(256, 8) * 2
    dear = np.abs(np.arange(-20, 21)).astype(np.float32)[None]
    free, priced = (path(x, rates=r) for r in (np.zeros_like(dear), dear))
    np.testing.assert_array_equal(free, path(x))
    assert np.abs(priced).sum() < np.abs(free).sum()


@pytest.mark.parametrize("form", [TRELLIS, UNIFORM], ids=str)
@pytest.mark.parametrize("size", [2.0, 0.3, 0.004, 1e-4])
@pytest.mark.parametrize("shape", [(1,), (33, 7), (40, 130), (3, 5000)], ids=str)
def test_numbers_come_back(shape, size, form):
    w = normal(*shape)
    w.flat[:: max(1, w.size // 3)] *= 40  # far out
    found, step = coded(w, size, row=shape[-1], form=form)
    block = memoryview(encode(found))
    np.testing.assert_array_equal(integers(block, "f4", w.size, form), found.flat)
    values = decode(block, step, w.dtype, w.size, form)
    np.testing.assert_array_equal(values, to_values(found.flat, step, w.dtype))
    # Half a step is the error of a uniform grid; beyond a step is never best.
    most = (2 if form.trellis else 0.5) * step.size
    assert np.abs(values - w.reshape(-1)).max() <= most * (1 + 1e-6) + 3e-6


@pytest.mark.parametrize("low", [0, -(2**51), 2**52 - 40])
@pytest.mark.parametrize("wide", [0, 5, 2**20, 2**40])
def test_a_uniform_grid_holds_integers_up_to_2_to_the_52(low, wide):
    rng = np.random.default_rng(0)
    numbers = low + rng.integers(-wide, wide + 1, 500).clip(-(2**51), 30)
    found, _ = coded(numbers.astype(float), 1.0, form=UNIFORM)
    block = encode(found)
    np.testing.assert_array_equal(integers(block, "f8", 500, UNIFORM), numbers)
    assert len(block) < 500 * (max(np.log2(2 * wide + 1), 27) + 1) / 8 + 100


@pytest.mark.parametrize("deviation", [1.2, 9.5, 40, 3e4])
@pytest.mark.parametrize("size", [300, 20_000])
def test_a_uniform_grid_is_close_to_its_entropy(deviation, size):
    rng = np.random.default_rng(0)
    numbers = np.rint(rng.normal(size=size) * deviation)
    found, _ = coded(numbers, 1.0, row=2048, form=UNIFORM)
    length = len(encode(found))
    entropy = size * np.log2(2 * np.pi * np.e * (deviation**2 + 1 / 12)) / 16
    # The table: a byte for each symbol, and some symbols are raw in part.
    assert entropy * 0.98 < length < 1.01 * entropy + 7 * deviation**0.4 + 40
    estimate = grid.estimate_uniform_bytes(found.flat, 2048)
    assert abs(estimate - length) < 0.02 * length
    numbers[7] = 10.0**6
    with_outlier, _ = coded(numbers, 1.0, row=2048, form=UNIFORM)
    assert len(encode(with_outlier)) < 1.03 * length + 60


@pytest.mark.parametrize("size", [1.2, 0.18])
def test_normal_weights_are_near_the_bound(size):
    w = normal(128, 512)
    found, step = coded(w, size, row=512)
    block = encode(found)
    gap = to_values(found.flat, step, w.dtype) - w.reshape(-1)
    error = float(np.linalg.norm(gap) / np.linalg.norm(w))
    from_bound = gap_to_bound_db(rel_error=error, stored_bytes=len(block), size=w.size)
    # 0.45 dB is the trellis; the rest, more at one bit, is tables and states.
    assert from_bound < 1.0


def test_rows_of_other_sizes_have_tables_of_their_own():
    w = normal(256, 256) * np.repeat([[1.0], [0.05]], 128, axis=0).astype(np.float32)
    mixed, _ = coded(w, 0.1, row=256)
    assert 2 <= len(mixed.tables.halves) <= 4  # two sizes, and their edges
    parts = [len(encode(coded(p, 0.1, 256)[0])) for p in np.split(w, 2)]
    assert len(encode(mixed)) < sum(parts) + 200


def test_the_path_is_the_same_for_equal_costs():
    half = np.full((64, 4), 0.5, np.float32)  # always between two numbers
    first = path(half)
    np.testing.assert_array_equal(first, path(half.copy()))
    assert (first == first[:, :1]).all()


@pytest.mark.parametrize("form", [TRELLIS, UNIFORM], ids=str)
def test_damage_never_crashes(form):
    w = normal(10, 40)
    w[3, 7] = 300  # far out
    found, step = coded(w, 0.2, row=40, form=form)
    good = encode(found)
    rng = np.random.default_rng(0)
    noticed = 0
    for _ in range(50):
        block = bytearray(good)
        block[rng.integers(len(block))] ^= int(rng.integers(1, 256))
        if rng.random() < 0.2:
            block = block[: rng.integers(len(block))]
        try:
            back = decode(block, step, "f4", 400, form)
        except CorruptFileError:
            noticed += 1
            continue
        assert back.shape == (400,)
    assert noticed > 25  # the rest is left to the file's checksums


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_outliers_up_to_2_to_the_30_are_listed(dtype):
    w = normal(30, 64).astype(dtype)
    w[3, 5], w[7, :2] = -1e9 + 70, (2.0**24 + 1, 3e7)
    found, step = coded(w, 1.0)
    block = memoryview(encode(found))
    values = decode(block, step, w.dtype, w.size)
    np.testing.assert_array_equal(values, to_values(found.flat, step, w.dtype))
    gap = np.abs(values - w.reshape(-1))
    assert gap.max() <= 2 * step.size + (64 if dtype == "f4" else 0)
    assert gap[np.abs(w.reshape(-1)) < 10].max() <= 2 * step.size
    full = np.full(128, 4e7, dtype)  # nothing else
    found_full, _ = coded(full, 1.0)
    block = memoryview(encode(found_full))
    back = decode(block, step, full.dtype, full.size)
    np.testing.assert_array_equal(back, to_values(found_full.flat, step, full.dtype))
    (beyond,) = grid.quantise(
        [grid.GridInput(4 * w.reshape(-1), step, found.lanes, found.classes)],
    )
    assert beyond is None


def test_a_block_whose_end_state_asks_for_missing_words_is_refused():
    found, step = coded(np.zeros((1, 64), np.float32), 0.2)
    block = bytearray(encode(found))
    assert block[-4:] != (1 << 16).to_bytes(4, "little")  # no words: the state ends it
    block[-4:] = (1 << 16).to_bytes(4, "little")
    with refuses(CorruptFileError):
        decode(block, step, "f4", 64)


def test_a_uniform_grid_of_the_same_error_is_longer():
    w = normal(64, 512)
    found, _ = coded(w, 0.2, row=512)
    uniform, _ = coded(w, 0.2 / 0.566, row=512, form=UNIFORM)
    saved = len(encode(uniform)) - len(encode(found))
    assert saved * 8 / w.size > 0.12  # of the 0.17 bits that 1 dB is
