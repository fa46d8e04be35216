"""Saving, opening, verifying; what goes in and what comes out."""

import collections
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import forked
from frugax import SizeBudget, compress
from frugax.budget import Plan, Report
from frugax.errors import CorruptFileError, OutputError, UnsupportedFileError

RNG = np.random.default_rng(0)
TREE = {
    "a": [RNG.normal(size=(64, 48)).astype(np.float32), (None,)],
    "b": RNG.integers(0, 256, (32, 8)).astype(np.uint8),
    "c": {"d": np.float32(1.5), "e": np.zeros((0, 2), np.float16)},
}
SIX = SizeBudget(ratio=4)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "deep" / "w.fxz"
    return path, compress.save(path, TREE, SIX)


def test_the_tree_comes_back_in_its_own_structure(saved):
    path, _ = saved
    with compress.open(path) as file:
        back = file.tree()
    assert jax.tree.structure(back) == jax.tree.structure(TREE)
    for x, y in zip(jax.tree.leaves(TREE), jax.tree.leaves(back), strict=True):
        assert isinstance(y, np.ndarray)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    np.testing.assert_array_equal(back["b"], TREE["b"])


def test_an_open_file_is_a_mapping_decoded_on_demand(saved, monkeypatch):
    path, report = saved
    with compress.open(path) as file:
        assert file.names == ("a[0]", "b", "c.d", "c.e") == tuple(file)
        assert file.nbytes == report.file_bytes
        assert file.record("a[0]").codec == "trellis"
        asked = []
        whole = compress._file.decode_tensor
        monkeypatch.setattr(
            compress._file,
            "decode_tensor",
            lambda *a, **k: asked.append(a[2].name) or whole(*a, **k),
        )
        assert file["c.d"] == 1.5
        assert asked == ["c.d"]
        with pytest.raises(KeyError):
            file["nothing"]
        kept = file["b"]
    np.testing.assert_array_equal(kept, TREE["b"])  # the file is closed by now
    kept[0] = 0  # and the array is the caller's own


def test_opening_names_the_file_that_is_damaged(saved):
    path, _ = saved
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"w\.fxz: tensor 'c\.d|w\.fxz: the"):
        compress.verify(path)
    path.write_bytes(b"")
    with pytest.raises(CorruptFileError, match="is empty"):
        compress.open(path)
    with pytest.raises(FileNotFoundError):
        compress.open(path.with_name("none.fxz"))


def test_closing_never_hides_what_is_wrong(saved):
    path, _ = saved
    data = bytearray(path.read_bytes())
    with compress.open(path) as file:
        chunk = file.record("b").chunks[0]
        data[file.header.data_start + chunk.offset] ^= 1
    path.write_bytes(data)
    # Not the check of the whole: damage is met while a view of a chunk is in use.
    with (
        pytest.raises(CorruptFileError, match=r"w\.fxz: tensor 'b'"),
        compress.open(path) as file,
    ):
        file.tree()
    with pytest.raises(CorruptFileError, match=r"w\.fxz: tensor 'b'"):
        compress.export_safetensors(path, path.with_name("w.safetensors"))
    assert not path.with_name("w.safetensors").exists()


def test_a_view_outlives_the_file_it_came_from(saved):
    path, _ = saved
    with compress.open(path) as file:
        rows = file["b"][::2]
        block = file._file[:8]  # what an exception's frames may hold
    np.testing.assert_array_equal(rows, TREE["b"][::2])
    assert bytes(block) == path.read_bytes()[:8]


@pytest.mark.parametrize("link", [False, True])
def test_exporting_over_the_file_itself_is_refused(saved, link):
    path, _ = saved
    before, to = path.read_bytes(), path
    if link:
        to = path.with_name("same.safetensors")
        to.symlink_to(path)
    with pytest.raises(ValueError, match=rf"w\.fxz and .*{to.name} are one file"):
        compress.export_safetensors(path, to)
    assert path.read_bytes() == before


def test_the_report_is_what_decoding_the_file_gives(saved):
    path, report = saved
    with compress.open(path) as file:
        x = TREE["a"][0].astype(np.float64)
        gap = file["a[0]"] - x
    tensor = report.tensors[0]
    np.testing.assert_allclose(
        tensor.rel_error, np.linalg.norm(gap) / np.linalg.norm(x), rtol=1e-12
    )
    assert tensor.max_abs == report.max_abs == np.abs(gap).max()
    bits = 8 * tensor.bytes / x.size
    bound = (x**2).mean() * 2 ** (-2 * bits)
    gap_db = 10 * np.log10((gap**2).mean() / bound)
    np.testing.assert_allclose(tensor.bound_gap_db, gap_db)
    # 1.53 dB is the floor of any uniform grid at high rate; the table of symbols and
    # the lanes of a tensor this small cost the rest.
    assert 1.5 < gap_db < 3
    assert report.ratio >= 4
    for word in ("a[0]", "trellis", f"{gap_db:.2f} dB from the bound", "kept"):
        assert word in str(report)
    assert '"verdict": "kept"' in report.to_json()
    assert isinstance(report, Report)


def test_verify_measures_against_the_original(saved):
    path, report = saved
    plain = compress.verify(path)
    assert plain.ok
    assert not plain.compared
    assert plain.file_bytes == report.file_bytes
    compared = compress.verify(path, TREE)
    assert compared.ok
    assert compared.compared
    assert compared.tensors[0].max_abs == report.max_abs
    assert compared.tensors[0].stated_max_abs >= report.max_abs
    assert "stated error" in str(compared)


def test_what_was_not_compared_is_not_called_true(saved):
    path, _ = saved
    *rows, said = str(compress.verify(path)).splitlines()
    assert all(row.endswith("not compared") for row in rows[-4:])
    assert said == (
        "Every checksum of 4 tensors is right; the stated errors were not compared "
        "with an original."
    )
    *rows, said = str(compress.verify(path, TREE)).splitlines()
    assert all(row.endswith("yes") for row in rows[-4:])
    assert said == (
        "Every checksum of 4 tensors is right; compared with the original, every "
        "stated error is true."
    )
    other = {**TREE, "b": TREE["b"] + np.uint8(1)}
    said = str(compress.verify(path, other)).splitlines()[-1]
    assert said.endswith("compared with the original, 1 stated error is NOT true.")


def test_verify_sees_another_original(saved):
    path, _ = saved
    other = {**TREE, "b": TREE["b"] + np.uint8(1)}
    assert not compress.verify(path, other).ok
    assert "NO" in str(compress.verify(path, other))
    shifted = {**TREE, "a": [TREE["a"][0] + np.float32(1), (None,)]}
    assert not compress.verify(path, shifted).ok
    with pytest.raises(ValueError, match=r"'b' is .*uint8.* in the file"):
        compress.verify(path, {**TREE, "b": np.zeros(3)})


@pytest.mark.parametrize(
    ("max_abs", "rel_error", "true"),
    [(1.0, 0.5, True), (1.1, 0.5, False), (1.0, 0.6, False), (None, None, True)],
)
def test_a_stated_error_is_true_if_neither_found_error_is_above_it(
    max_abs, rel_error, true
):
    check = compress.TensorCheck(
        name="w",
        codec="quantised",
        bytes=1,
        stated_max_abs=1.0,
        stated_rel_error=0.5,
        max_abs=max_abs,
        rel_error=rel_error,
    )
    assert check.true is true


def test_plans_are_data_and_carry_themselves_out():
    plan = compress.plan(TREE, SIX)
    assert isinstance(plan, Plan)
    again = compress.CompressPlan.from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    data = compress.compress(TREE, SIX, plan=again)
    assert len(data) == plan.file_bytes == plan.predicted
    assert data == compress.compress(TREE, SIX)
    for word in ("a[0]", "trellis", "budget: 4x smaller"):
        assert word in str(plan)


def test_a_report_predicts_what_was_known_before(tmp_path):
    plan = compress.plan(TREE, SIX)
    trained = {**TREE, "a": [TREE["a"][0] * np.float32(0.9), (None,)]}
    spend = compress.save(tmp_path / "w.fxz", trained, SIX, plan=plan).spends[0]
    assert spend.predicted == plan.file_bytes != spend.measured
    assert spend.source.endswith("predicted by the plan")
    spend = compress.save(tmp_path / "w.fxz", trained, SIX).spends[0]
    assert spend.predicted == spend.measured
    assert spend.source.endswith("predicted by coding these very weights")


def test_a_plan_for_something_else_is_refused():
    plan = compress.plan(TREE, SIX)
    with pytest.raises(ValueError, match="not for 5x smaller"):
        compress.compress(TREE, SizeBudget(ratio=5), plan=plan)
    with pytest.raises(ValueError, match="other weights"):
        compress.compress({**TREE, "b": np.zeros(3)}, SIX, plan=plan)
    wider = {**TREE, "a": [TREE["a"][0] * np.float32(1000), (None,)]}
    with pytest.raises(ValueError, match="other values"):
        compress.compress(wider, SIX, plan=plan)


def test_the_input_is_never_changed():
    w = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    before = w.tobytes()
    w.flags.writeable = False
    for view in (w, w.T, w[::2, ::-1]):
        back = compress.decompress(compress.compress({"w": view}, SizeBudget(ratio=6)))
        assert back["w"].shape == view.shape
        exact = compress.compress({"w": view}, SizeBudget(max_abs=0))
        np.testing.assert_array_equal(compress.decompress(exact)["w"], view)
    assert w.tobytes() == before


@pytest.mark.parametrize(
    "tree",
    [np.ones((3, 4)), [], {}, {"a": None}, np.float64(2), (np.zeros((2, 0)),)],
    ids=repr,
)
def test_unusual_trees_come_back(tree):
    back = compress.decompress(compress.compress(tree, SizeBudget(max_abs=0)))
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(x, y)


def test_weights_that_are_not_finite_are_kept_exactly():
    w = np.ones((64, 64), np.float32)
    w[3, 5], w[0, 0] = np.nan, -np.inf
    tree = {"w": w, "v": RNG.normal(size=(64, 64))}
    plan = compress.plan(tree, SizeBudget(ratio=8))
    back = compress.decompress(compress.compress(tree, SizeBudget(ratio=8)))
    assert {t.name: t.codec for t in plan.tensors}["w"] == "lossless"
    assert back["w"].tobytes() == w.tobytes()


def test_what_is_no_weight_is_named():
    for bad, said in (
        ({"a": 1.5}, r"leaf 'a' must be an array, got a float: 1\.5.*np\.asarray"),
        ({"a": True}, "leaf 'a' must be an array, got a bool: True"),
        ({"a": "text"}, "leaf 'a' must be an array, got a str: 'text'.*Take it out"),
        ({"a": np.array(["x"])}, "leaf 'a' has dtype <U1"),
        (max, r"\(the array\) must be an array, got a builtin"),
        (jax.random.key(0), r"\(the array\) has dtype key<fry>.*random\.key_data"),
        ({"k": jax.random.key(0)}, r"leaf 'k' has dtype key<fry>.*random\.key_data"),
        ({"s": jax.ShapeDtypeStruct((2,), "f4")}, "leaf 's' .*ShapeDtypeStruct.*no va"),
    ):
        with pytest.raises(TypeError, match=said):
            compress.compress(bad, SizeBudget(ratio=2))


def test_a_tree_without_end_is_refused_with_the_way_to_it():
    within: dict[str, Any] = {"w": np.ones(2)}
    within["self"] = within
    deep: Any = np.ones(2)
    for _ in range(5000):
        deep = [deep]
    for tree, way in ((within, r"self\.self"), ({"a": deep}, r"a\[0\]\[0\]")):
        with pytest.raises(ValueError, match=rf"'{way}.*hold itself"):
            compress.plan(tree, SIX)


def test_jax_trees_and_bfloat16_come_back():
    tree = {"w": jax.random.normal(jax.random.key(0), (128, 64), jnp.bfloat16)}
    back = compress.decompress(compress.compress(tree, SizeBudget(ratio=3)))
    assert back["w"].dtype == ml_dtypes.bfloat16
    exact = compress.decompress(compress.compress(tree, SizeBudget(max_abs=0)))
    np.testing.assert_array_equal(exact["w"], np.asarray(tree["w"]))


def test_torch_modules_and_state_dicts_come_back():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    net = net.to(torch.bfloat16)
    for given in (net, net.state_dict(), dict(net.state_dict())):
        back = compress.decompress(compress.compress(given, SizeBudget(max_abs=0)))
        assert sorted(back) == sorted(net.state_dict())
        for name, tensor in net.state_dict().items():
            got = back[name]
            assert str(got.dtype) == str(tensor.dtype).removeprefix("torch.")
            assert (got.astype(np.float64) == tensor.to(torch.float64).numpy()).all()


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "w.fxz").mkdir()
    with pytest.raises(OutputError):
        compress.save(tmp_path / "w.fxz", TREE, SIX)
    assert [p.name for p in tmp_path.iterdir()] == ["w.fxz"]


def test_weights_of_other_tools_are_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    torch = pytest.importorskip("torch")
    w = torch.randn(4, 6)
    tensors = {"w": w, "half": w.to(torch.bfloat16), "n": torch.arange(3)}
    safetensors.save_file(tensors, tmp_path / "m.safetensors")
    found = compress.load_weights(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(found["w"], w.numpy())
    assert found["half"].dtype == ml_dtypes.bfloat16
    assert (found["half"].astype(np.float32) == tensors["half"].float().numpy()).all()
    np.savez(tmp_path / "m.npz", w=np.eye(2))
    np.testing.assert_array_equal(
        compress.load_weights(tmp_path / "m.npz")["w"], np.eye(2)
    )
    compress.save(tmp_path / "m.fxz", found, SizeBudget(max_abs=0))
    again = compress.load_weights(tmp_path / "m.fxz")
    assert {k: v.tobytes() for k, v in again.items()} == {
        k: v.tobytes() for k, v in found.items()
    }


def test_damaged_and_foreign_weights_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    head = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    page = b"<!DOCTYPE html><title>404</title>"
    for body in (b"", page, len(head).to_bytes(8, "little") + head + b"short"):
        path.write_bytes(body)
        said = rf"m\.safetensors: .* no \.safetensors file.*\({len(body)} bytes\): down"
        with pytest.raises(CorruptFileError, match=said):
            compress.load_weights(path)
    head = b'{"w":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]}}'
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"1234")
    with pytest.raises(UnsupportedFileError, match="F8_E8M0"):
        compress.load_weights(path)
    np.savez(tmp_path / "p.npz", np.array([{}], dtype=object))
    with pytest.raises(UnsupportedFileError, match=r"p\.npz"):
        compress.load_weights(tmp_path / "p.npz")
    (tmp_path / "m.npz").write_bytes(b"no zip")
    with pytest.raises((CorruptFileError, UnsupportedFileError), match=r"m\.npz"):
        compress.load_weights(tmp_path / "m.npz")
    with pytest.raises(UnsupportedFileError, match=r"a \.pt file"):
        compress.load_weights(tmp_path / "m.pt")


def test_containers_that_a_file_cannot_carry_come_back_flat():
    pair = collections.namedtuple("pair", "x y")
    tree = pair(np.eye(2), [np.ones(3)])
    back = compress.decompress(compress.compress(tree, SizeBudget(max_abs=0)))
    assert list(back) == ["x", "y[0]"]
    np.testing.assert_array_equal(back["x"], np.eye(2))


@pytest.mark.parametrize("missing", [("jax", "jaxlib"), ("jax", "jaxlib", "torch")])
def test_it_works_without_the_libraries(missing, tmp_path):
    code = f"""
import sys
for name in {missing!r}:
    sys.modules[name] = None
import numpy as np
import frugax
w = np.random.default_rng(0).normal(size=(128, 128)).astype("float32")
budget = frugax.SizeBudget("6x")
report = frugax.compress.save({str(tmp_path / "w.fxz")!r}, {{"w": w}}, budget)
assert report.verdict == "kept", report
with frugax.compress.open({str(tmp_path / "w.fxz")!r}) as file:
    gap = file["w"] - w
assert np.linalg.norm(gap) < 0.1 * np.linalg.norm(w)
assert not [m for m in ("jax", "torch", "ml_dtypes") if sys.modules.get(m)]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_mask_is_not_lost_silently():
    masked = np.ma.masked_array(np.ones(3), mask=[True, False, False])
    with pytest.raises(TypeError, match=r"leaf 'w' is a masked array"):
        compress.compress({"w": masked}, SizeBudget(ratio=1))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"w": np.ones(2, ml_dtypes.bfloat16)}, "'w' has dtype bfloat16.*safetensors"),
        ({"w.npy": np.ones(2)}, r"cannot hold the name 'w\.npy': rename"),
        ({"a\0b": np.ones(2)}, "cannot hold the name"),
    ],
)
def test_what_an_npz_file_cannot_hold_is_refused(tree, said, tmp_path):
    compress.save(tmp_path / "m.fxz", tree, SizeBudget(max_abs=0))
    with pytest.raises(UnsupportedFileError, match=said):
        compress.export_npz(tmp_path / "m.fxz", tmp_path / "m.npz")
    assert not (tmp_path / "m.npz").exists()


def test_every_other_name_comes_back_from_an_npz_file(tmp_path):
    tree = {"file": np.ones(2), "a/../b": np.eye(2), "": np.arange(3)}
    compress.save(tmp_path / "m.fxz", tree, SizeBudget(max_abs=0))
    compress.export_npz(tmp_path / "m.fxz", tmp_path / "m.npz")
    found = compress.load_weights(tmp_path / "m.npz")
    assert {n: a.tolist() for n, a in found.items()} == {
        n: a.tolist() for n, a in tree.items()
    }


def test_torch_tensors_without_dense_values_are_named():
    torch = pytest.importorskip("torch")
    w = torch.ones(3, 3)
    for bad, said in (
        (w.to("meta"), "on the meta device, so it has no values"),
        (w.to_sparse(), r"of the layout sparse_coo: store tensor\.to_dense"),
        (
            torch.nn.UninitializedParameter(),
            "a parameter without a shape yet: run the module",
        ),
        (torch.empty(2, dtype=torch.bits8), "has dtype bits8, which"),
    ):
        with pytest.raises(TypeError, match=f"leaf 'a.w' (is )?{said}"):
            compress.compress({"a": {"w": bad}}, SizeBudget(max_abs=0))


def test_torch_views_of_other_signs_are_stored_as_they_read():
    torch = pytest.importorskip("torch")
    z = torch.tensor([1 + 2j, 3 - 4j])
    tree = {"c": z.conj(), "n": z.conj().imag}
    assert tree["c"].is_conj()
    assert tree["n"].is_neg()
    back = compress.decompress(compress.compress(tree, SizeBudget(max_abs=0)))
    np.testing.assert_array_equal(back["c"], np.conj(z.numpy()))
    np.testing.assert_array_equal(back["n"], -z.numpy().imag)


def test_a_name_that_cannot_be_written_is_refused_before_any_work():
    tree = {"a": {"\ud800": np.ones(2)}}
    with pytest.raises(ValueError, match=r"leaf 'a\.\\ud800'.*rename the key"):
        compress.plan(tree, SIX)


def test_reading_at_the_wrong_time_or_place_says_so(saved):
    path, _ = saved
    with compress.open(path) as file:
        with pytest.raises(
            KeyError, match=r"w\.fxz has no tensor 'c\.f'; it has 'c\.[de]'"
        ):
            file["c.f"]
        with pytest.raises(
            KeyError, match=r"no tensor 'nope'; it has 'a\[0\]', 'b', 'c.d', "
        ):
            file.record("nope")
        assert "nope" not in file
        assert file.get("nope") is None
    for read in (lambda: file["b"], file.tree, file.check, lambda: file.integers("b")):
        with pytest.raises(
            ValueError, match=r"w\.fxz: the file is closed: read inside"
        ):
            read()


def test_a_path_is_no_bytes_where_no_type_checker_runs():
    code = "from frugax.compress import decompress; decompress({})"
    for given in ("'c.fxz'", "None"):
        said = forked.python(code.format(given)).stderr.splitlines()[-1]
        assert said.startswith(
            f"TypeError: decompress needs the bytes of a file, got {given}"
        )
        assert "frugax.compress.open(path)" in said


def test_answers_in_a_list_are_refused():
    weights = {"w": np.ones((2, 2))}
    with pytest.raises(TypeError, match="answer must give one array, got a list"):
        compress.sensitivity_of(lambda _: [1], weights)
    assert compress.sensitivity_of(lambda w: float(w["w"].sum()), weights)["w"] > 0
