"""A file: opened, read tensor by tensor, closed, damaged."""

import jax
import numpy as np
import pytest

import forked
from frugax import SizeBudget, compress
from frugax.compress.codecs import Form, step_below
from frugax.compress.search import Work
from frugax.errors import CorruptFileError, OutputError
from refusals import refuses
from saved_tree import SIX, TREE


def test_the_tree_keeps_its_structure(saved):
    path, _ = saved
    with compress.open(path) as file:
        back = file.tree()
    assert jax.tree.structure(back) == jax.tree.structure(TREE)
    for x, y in zip(jax.tree.leaves(TREE), jax.tree.leaves(back), strict=True):
        assert isinstance(y, np.ndarray)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    np.testing.assert_array_equal(back["b"], TREE["b"])


def test_an_open_file_is_a_mapping(saved):
    path, report = saved
    with compress.open(path) as file:
        assert file.names == ("a[0]", "b", "c.d", "c.e") == tuple(file)
        assert file.nbytes == report.file_bytes
        assert file.record("a[0]").codec == "trellis"
        assert file["c.d"] == 1.5
        with pytest.raises(KeyError):
            file["nothing"]
        kept = file["b"]
    np.testing.assert_array_equal(kept, TREE["b"])  # the file is closed by now
    kept[0] = 0  # and the array is the caller's own


def test_only_the_requested_tensor_is_decoded(saved):
    path, _ = saved
    with compress.open(path) as file:
        place = 64 + file.record("a[0]").chunks[0].offset
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    # Not by `open` or `with`: the runtime type checker decodes an item of a mapping.
    file = compress.CompressedFile(bytes(data), place="x")
    assert file["c.d"] == 1.5
    with refuses(CorruptFileError, "'a[0]'"):
        file["a[0]"]


def test_tensors_decoded_together_equal_those_decoded_alone():
    # Lanes that end at other steps, rows of other sizes, numbers far out, raw bits.
    rng = np.random.default_rng(1)
    shapes = [(40, 30), (3, 700), (1, 2500), (65, 64), (2, 4100), (1200, 1)]
    tree = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    tree[0][::2] *= 30
    tree[3][5, 5] = 40
    steps = [step_below(0.001 if i == 4 else 0.3) for i in range(len(tree))]
    draft = Work.read(tree, None, None, None).draft(
        lambda source: steps[int(source.name[1:-1])], form=lambda _: Form()
    )
    with draft.open() as file:
        together = dict(file.decode_all())
        for name in file:
            assert together[name].tobytes() == file[name].tobytes(), name
            for at, part in file.parts(name):
                rest = together[name].reshape(-1)[at : at + part.size]
                assert part.tobytes() == rest.tobytes()


def test_opening_names_the_file_that_is_damaged(saved):
    path, _ = saved
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)
    with refuses(CorruptFileError, "w.fxz"):
        compress.verify(path)
    path.write_bytes(b"")
    with refuses(CorruptFileError):
        compress.open(path)
    with pytest.raises(FileNotFoundError):
        compress.open(path.with_name("none.fxz"))


def test_a_file_that_shrinks_is_refused_and_does_not_end_the_process(tmp_path):
    code = """
import os, sys
import numpy as np
from frugax import SizeBudget, compress, errors
fxz, other = sys.argv[1:]
rng = np.random.default_rng(0)
weights = {name: rng.integers(0, 256, 9999).astype("u1") for name in "abc"}
compress.save(fxz, weights, SizeBudget(max_abs=0))
compress.export_safetensors(fxz, other)
file, mapped = compress.open(fxz), compress.load_weights(other)
pieces = file.pieces()
next(pieces)
for path in (fxz, other):
    os.truncate(path, 3000)
for read in (
    lambda: file["c"],
    lambda: next(pieces),
    file.check,
    file.tree,
    lambda: compress.compress(mapped, SizeBudget(max_abs=0)),
    lambda: compress.arrays.release(mapped["b"]),
):
    try:
        read()
    except errors.CorruptFileError as e:
        print(e)
"""
    paths = [str(tmp_path / "w.fxz"), str(tmp_path / "w.safetensors")]
    said = forked.python(code, *paths).stdout.splitlines()
    assert len(said) == 6
    for line, path in zip(said, [paths[0]] * 4 + [paths[1]] * 2, strict=True):
        assert line.startswith(f"{path}: ")
        assert "the file changed while it was read: it had" in line


def test_closing_does_not_hide_an_error(saved):
    path, _ = saved
    data = bytearray(path.read_bytes())
    with compress.open(path) as file:
        chunk = file.record("b").chunks[0]
        data[64 + chunk.offset] ^= 1
    path.write_bytes(data)
    # Not the check of the whole: damage is met while a view of a chunk is in use.
    with (
        refuses(CorruptFileError, "w.fxz", "'b'"),
        compress.open(path) as file,
    ):
        file.tree()
    with refuses(CorruptFileError, "w.fxz", "'b'"):
        compress.export_safetensors(path, path.with_name("w.safetensors"))
    assert not path.with_name("w.safetensors").exists()


def test_a_view_outlives_the_file_it_came_from(saved):
    path, _ = saved
    with compress.open(path) as file:
        rows = file["b"][::2]
        block = file._file[:8]  # an exception's frames may hold such a view
    np.testing.assert_array_equal(rows, TREE["b"][::2])
    assert bytes(block) == path.read_bytes()[:8]


def test_a_failed_write_leaves_no_file(tmp_path):
    (tmp_path / "w.fxz").mkdir()
    with pytest.raises(OutputError):
        compress.save(tmp_path / "w.fxz", TREE, SIX)
    assert [p.name for p in tmp_path.iterdir()] == ["w.fxz"]


def test_weights_are_never_saved_over_the_file_they_are_read_from(tmp_path):
    exact = SizeBudget(max_abs=0)
    compress.save(tmp_path / "w.fxz", {"w": np.arange(9.0)}, exact)
    path = tmp_path / "w.safetensors"
    compress.export_safetensors(tmp_path / "w.fxz", path)
    before = path.read_bytes()
    with refuses(ValueError, "w.safetensors"):
        compress.save(path, compress.load_weights(path), exact)
    assert path.read_bytes() == before
    compress.save(tmp_path / "w.fxz", compress.load_weights(path), exact)  # replaced


def test_reading_a_closed_file_or_unknown_tensor_is_an_error(saved):
    path, _ = saved
    with compress.open(path) as file:
        with refuses(KeyError, "c.f", "w.fxz"):
            file["c.f"]
        with refuses(KeyError, "nope", "'a[0]'"):
            file.record("nope")
        assert "nope" not in file
        assert file.get("nope") is None
    for read in (lambda: file["b"], file.tree, file.check, lambda: file.integers("b")):
        with refuses(ValueError, "w.fxz"):
            read()


FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")


def test_small_floats_that_torch_saved_are_read_and_written(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    tensors = {
        n: torch.tensor([1, 2, 0.5]).to(getattr(torch, f"float8_{n}")) for n in FLOAT8
    }
    save_file(tensors, tmp_path / "w.safetensors")
    weights = compress.load_weights(tmp_path / "w.safetensors")
    for array in weights.values():
        assert array.astype(np.float32).tolist() == [1, 2, 0.5]
    compress.save(tmp_path / "w.fxz", weights, SizeBudget(rel_error=0.0))
    compress.export_safetensors(tmp_path / "w.fxz", tmp_path / "again.safetensors")
    again = load_file(tmp_path / "again.safetensors")
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert again[name].float().tolist() == [1, 2, 0.5]


def test_a_packed_4_bit_tensor_is_read_with_a_byte_for_each_number(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    packed = torch.tensor([[0x21, 0x43], [0x65, 0x87]], dtype=torch.uint8)
    tensors = {"w": packed.view(torch.float4_e2m1fn_x2)}
    save_file(tensors, tmp_path / "w.safetensors")
    w = compress.load_weights(tmp_path / "w.safetensors")["w"]
    assert w.dtype.name == "float4_e2m1fn"
    assert w.astype(np.float32).tolist() == [[0.5, 1, 1.5, 2], [3, 4, 6, 0]]
