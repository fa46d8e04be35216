"""The file: damage is always noticed, and nothing in it is believed unchecked."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from forged_files import header_of, rewritten
from frugax import SizeBudget, compress, trees
from frugax.compress import CompressedFile
from frugax.errors import CorruptFileError, UnsupportedFileError
from refusals import refuses

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:these tensors have NaN"),
]

DAMAGE = (CorruptFileError, UnsupportedFileError)
# Written by `GOLDEN.write_bytes(compress.compress(golden_weights(), BUDGET))`, and
# never again once a version has been released.
BUDGET = SizeBudget(rel_error=0.02)
GOLDEN = Path(__file__).with_name("golden.fxz")
GOLDEN_SHA256 = "fb7127c49f8fa72b62f873c6235facb4ffc1a8d58c24a533f113b128dab5567f"


def golden_weights():
    """Every codec and every coder, from arithmetic that rounds alike everywhere."""
    n = np.arange(4096)
    # The bits of SplitMix64, under exponents of eight kinds.
    noise = n.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        noise = (noise ^ noise >> np.uint64(shift)) * np.uint64(factor)
    bits = (noise >> np.uint64(32)).astype(np.uint32)
    bits = (bits & 0x80FFFFFF) | (bits & bits << 1 & 0x03000000) | 0x3C000000
    bits[0] = 0x7F800000  # exact, as one is infinite
    noise = bits.astype("<u4").view(np.float32)
    # Sums of hashed bits: near enough to a bell curve, exact in float32.
    bits = (n[:, None] * 2654435761 + np.arange(12) * 40503) % 4294967296 >> 16
    bell = ((bits % 4096).sum(axis=1) - 24570).astype(np.float32) / 8192
    return {
        "noise": noise,
        "layers": [
            {"w": bell.reshape(64, 64), "b": np.linspace(0, 1, 16, dtype=np.float16)},
            {"w": bell[::-1].reshape(32, 128).astype(np.float64) / 8},
        ],
        "special": np.array([np.nan, -0.0, np.inf, -np.inf, 1e-45], np.float32),
        "counts": (n * 2654435761 % 251).astype(np.int32),
        "mask": n % 3 == 0,
        "signs": np.tile(bell[:256], 8) * np.where(n[:2048] % 7 < 3, -1, 1),
        "nothing": np.zeros((0, 3), np.float32),
        "step": np.int64(12),
        "absent": (None, np.uint8(3)),
    }


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(0)
    tree = {
        "w": rng.normal(size=(16, 24)).astype(np.float32),
        "b": rng.normal(size=9).astype(np.float32),
        "n": rng.integers(0, 255, 64).astype(np.uint8),
    }
    return tree, compress.compress(tree, SizeBudget(rel_error=0.05))


def test_a_golden_file_still_reads_the_same():
    tree = golden_weights()
    back = compress.decompress(GOLDEN.read_bytes())
    assert back["absent"] == (None, 3)
    with compress.open(GOLDEN) as file:
        codecs = {r.name: r.codec for r in file.header.tensors}
        assert {"lossless", "stored", "trellis"} <= set(codecs.values())
        for (name, want), (_, got) in zip(
            trees.named_leaves(tree), trees.named_leaves(back), strict=True
        ):
            assert got.dtype == want.dtype
            record = file.record(name)
            if codecs[name] == "trellis":
                # Which whole numbers is the encoder's choice; that they are whole, and
                # how far they may be, is not.
                assert record.step is not None
                levels = np.rint(got / record.step.size)
                assert (levels * record.step.size).astype(got.dtype).tobytes() == (
                    got.tobytes()
                )
                assert np.abs(got - want).max() <= record.max_abs
                continue
            if codecs[name] == "uniform":
                # The definition, written out: level times step in the working float.
                work = np.float64 if want.dtype == np.float64 else np.float32
                step = record.step
                assert step is not None
                size = work(step.size)
                levels = np.rint(want.astype(work) / size).astype(np.int64)
                want = levels.astype(work) * size
            assert got.tobytes() == want.tobytes(), name


def test_a_golden_files_bytes_are_its_own():
    # A changed file would let a changed format pass the test above.
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest() == GOLDEN_SHA256


def test_damage_between_chunks_and_in_the_footer_is_noticed(tmp_path):
    data = GOLDEN.read_bytes()
    header, end = header_of(data)
    inside = {
        64 + offset + i
        for tensor in header["tensors"]
        for offset, length, _ in tensor["chunks"]
        for i in range(length)
    }
    between = [at for at in range(64, end) if at not in inside]
    assert len(between) > 60
    footer = range(len(data) - 64, len(data))
    for at in (*range(64), *between, *footer):
        wrong = bytearray(data)
        wrong[at] ^= 128
        with pytest.raises(DAMAGE):
            compress.decompress(bytes(wrong))
        if at not in between:
            with pytest.raises(DAMAGE):
                CompressedFile(bytes(wrong), place="x")
        if at in (0, between[0], between[-1], footer[-1]):
            (tmp_path / "w.fxz").write_bytes(wrong)
            with pytest.raises(DAMAGE):
                compress.export_npz(tmp_path / "w.fxz", tmp_path / "w.npz")


@pytest.mark.parametrize("of", [pytest.param(1, marks=pytest.mark.thorough), 5])
def test_every_single_damaged_byte_is_noticed(small, of):
    tree, data = small
    right = {name: compress.decompress(data)[name].tobytes() for name in tree}
    rng = np.random.default_rng(1)
    places = [*range(len(data)), *rng.integers(0, len(data), 1300)]
    assert len(places) > 2000
    for at in places[::of]:
        wrong = bytearray(data)
        wrong[at] ^= int(rng.integers(1, 256))
        with pytest.raises(DAMAGE):
            compress.decompress(bytes(wrong))
        if at % 2:
            continue
        # Opened lazily the whole is not summed: each tensor is right or refused.
        try:
            with CompressedFile(bytes(wrong), place="x") as file:
                found = {name: file[name].tobytes() for name in file}
        except DAMAGE:
            continue
        assert found == right, at


def test_every_truncation_and_any_surplus_is_noticed(small):
    _, data = small
    for end in range(len(data)):
        with pytest.raises(DAMAGE):
            CompressedFile(data[:end], place="x")
    with refuses(CorruptFileError):
        CompressedFile(data + b"\0", place="x")


def tensor(**changes):
    def change(header):
        record = next(t for t in header["tensors"] if t["name"] == "w")
        for key, value in changes.items():
            record[key] = value(record[key]) if callable(value) else value

    return change


def many_numbers(header):
    # 256 MiB from 16 bytes, and nothing else wrong.
    tensor(shape=[1 << 26], chunks=[[i, 1, 0] for i in range(16)])(header)
    header["tensors"] = [t for t in header["tensors"] if t["name"] == "w"]


FORGED = {
    "codec": (tensor(codec="magic"), UnsupportedFileError, "magic"),
    "dtype": (tensor(dtype="object"), UnsupportedFileError, "object"),
    "shape": (tensor(shape=[16, 25]), CorruptFileError, "'w'"),
    "negative": (tensor(shape=[-16, -24]), CorruptFileError, "'w'"),
    "fraction": (tensor(shape=[16.0, 24]), CorruptFileError, "'w'"),
    "bomb": (tensor(shape=[1 << 22, 1]), CorruptFileError, "'w'"),
    "huge": (lambda h: many_numbers(h), CorruptFileError, 1 << 28),
    "chunks": (tensor(chunks=[]), CorruptFileError, "'w'"),
    "outside": (
        tensor(chunks=lambda c: [[c[0][0], 1 << 40, 0]]),
        CorruptFileError,
        "'w'",
    ),
    "overlap": (
        lambda h: tensor(chunks=h["tensors"][0]["chunks"])(h),
        CorruptFileError,
        "chunks",
    ),
    "step": (tensor(step=[3, 0]), CorruptFileError, "'w'"),
    "other step": (tensor(step=[1024, -10]), CorruptFileError, "'w'"),
    "no step": (tensor(step=None), CorruptFileError, "'w'"),
    "error": (tensor(rel_error="0"), CorruptFileError, "rel_error"),
    "name": (tensor(name="b"), CorruptFileError, "twice"),
    "no keys": (lambda h: h["tensors"][0].clear(), CorruptFileError, "keys"),
    "no tensors": (lambda h: h.pop("tensors"), CorruptFileError, "tensors"),
    "metadata": (
        lambda h: h.update(metadata={"a": 1}),
        CorruptFileError,
        "'a'",
    ),
    "structure": (
        lambda h: h.update(structure={"dict": {"w": "*"}}),
        CorruptFileError,
        "leaves",
    ),
    "class": (
        lambda h: h.update(structure={"os.system": ["true"]}),
        CorruptFileError,
        "os.system",
    ),
    "twice": (lambda h: b'{"tensors": [], "tensors": []}', CorruptFileError, "key"),
    "nan": (lambda h: b'{"tensors": NaN}', CorruptFileError, "NaN"),
    "deep": (lambda h: b"[" * 100_000, CorruptFileError, "JSON"),
    "text": (lambda h: b"\xff", CorruptFileError, "JSON"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_header_is_refused_before_decoding(small, name):
    change, error, named = FORGED[name]
    forged = rewritten(small[1], change)
    with refuses(error, named):
        compress.decompress(forged)


def test_the_forger_of_these_tests_can_write_a_sound_file(small):
    same = rewritten(small[1], lambda header: None)
    np.testing.assert_array_equal(
        compress.decompress(same)["w"], compress.decompress(small[1])["w"]
    )


def test_a_newer_version_and_another_kind_of_file_are_refused_by_name(small):
    newer = bytearray(small[1])
    newer[8] = 3
    with refuses(UnsupportedFileError, 3):
        compress.decompress(bytes(newer))
    with refuses(UnsupportedFileError):
        compress.decompress(b"PK\x03\x04 and so on")


def test_a_file_is_padded_to_1_4096_of_its_content():
    # Over the 64 MiB that any file may hold.
    tree = {"w": np.zeros((65 << 20,), np.uint8)}
    data = compress.compress(tree, SizeBudget(ratio=1000))
    assert len(data) >= trees.nbytes(tree) // 4096
    assert not compress.decompress(data)["w"].any()


def test_bytes_are_the_same_for_the_same_weights(small):
    tree, data = small
    turned = dict(reversed(tree.items()))
    assert compress.compress(turned, SizeBudget(rel_error=0.05)) == data
