"""Weights in folders, and weights that come back into a tree of the caller's."""

import collections
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import frugax
from frugax import SizeBudget, compress
from refusals import refuses, warns

EXACT = SizeBudget(max_abs=0)
INDEX = "model.safetensors.index.json"
State = collections.namedtuple("State", "mean count")


@pytest.fixture
def folder(tmp_path):
    """Two shards with their index, as Hugging Face writes them."""
    rng = np.random.default_rng(0)
    where: dict[str, str] = {}
    for shard in ("a.safetensors", "b.safetensors"):
        weights = {f"{shard[0]}.{i}": rng.normal(size=(9, i + 1)) for i in range(2)}
        save_file(weights, tmp_path / shard, metadata={"format": "pt"})
        where |= dict.fromkeys(weights, shard)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("indexed", [True, False])
def test_a_folder_is_all_of_its_shards(folder, indexed):
    if not indexed:
        (folder / INDEX).unlink()
    weights = compress.load_weights(folder)
    assert sorted(weights) == ["a.0", "a.1", "b.0", "b.1"]
    assert weights["b.1"].shape == (9, 2)
    assert compress.load_metadata(folder) == {"format": "pt"}


def test_what_the_index_does_not_name_is_left_out_and_named(folder):
    save_file({"old": np.ones(3)}, folder / "old.safetensors")
    stale = load_file(folder / "b.safetensors") | {
        "a.0": np.ones(3),
        "gone": np.ones(2),
    }
    save_file(stale, folder / "b.safetensors")
    with warns(UserWarning, "old.safetensors", "a.0", "gone", "b.safetensors"):
        weights = compress.load_weights(folder)
    assert sorted(weights) == ["a.0", "a.1", "b.0", "b.1"]
    assert weights["a.0"].shape == (9, 1)  # where the index says


@pytest.mark.parametrize(
    "name",
    [
        *("diffusion_pytorch_model.fp16.safetensors.index.json", "x.index.json"),
        "model.safetensors.index.fp16.json",
    ],
)
def test_every_index_of_a_folder_is_read(folder, name):
    (folder / INDEX).rename(folder / name)
    (folder / "b.safetensors").unlink()
    with refuses(frugax.CorruptFileError, "b.safetensors"):
        compress.load_weights(folder)


@pytest.mark.parametrize("indexed", [True, False])
def test_indices_of_other_files_are_passed_over(folder, indexed):
    if not indexed:
        (folder / INDEX).unlink()
    for name, ending in (
        ("pytorch_model.bin", "bin"),
        ("tf_model.h5", "h5"),
        ("flax_model.msgpack", "msgpack"),
    ):
        other = {"weight_map": {"a.0": f"model-00001-of-00002.{ending}"}}
        (folder / f"{name}.index.json").write_text(json.dumps(other))
        with refuses(frugax.UnsupportedFileError, name):  # named, it is not passed over
            compress.load_weights(folder / f"{name}.index.json")
    (folder / "pages.index.json").write_text("[]")
    (folder / "._a.safetensors").write_bytes(b"of macOS")
    assert len(compress.load_weights(folder)) == 4


def test_the_index_of_a_variant_gives_way_to_that_of_the_model(folder):
    save_file(load_file(folder / "a.safetensors"), folder / "c.safetensors")
    whole = dict.fromkeys(load_file(folder / "c.safetensors"), "c.safetensors")
    variant = folder / "model.safetensors.index.fp16.json"
    variant.write_text(json.dumps({"weight_map": whole}))
    with pytest.warns(UserWarning, match=r"c\.safetensors"):
        assert len(compress.load_weights(folder)) == 4
    with pytest.warns(UserWarning, match="left out"):
        assert compress.load_weights(variant).keys() == whole.keys()


def test_a_folder_that_is_not_there_is_not_of_another_kind(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        compress.load_weights(tmp_path / "absent")


def test_of_two_indices_that_disagree_one_must_be_named(folder):
    index = json.loads((folder / INDEX).read_text())
    save_file(load_file(folder / "a.safetensors"), folder / "c.safetensors")
    index["weight_map"] |= {"a.0": "c.safetensors", "a.1": "c.safetensors"}
    other = folder / "model.fp16.safetensors.index.json"
    other.write_text(json.dumps(index))
    with refuses(frugax.UnsupportedFileError, INDEX, other.name, "a.0"):
        compress.load_weights(folder)
    with warns(UserWarning, "a.safetensors"):
        assert len(compress.load_weights(other)) == 4


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (["model-00001-of-00002"], "model-00002-of-00002.safetensors"),
        (["net-00002-of-00003.fp16"], "net-00001-of-00003.fp16.safetensors"),
        (["part_0_of_3", "part_2_of_3"], "part_1_of_3.safetensors"),
        (["a-1-of-2", "a-2-of-2", "b-1-of-2"], "b-2-of-2.safetensors"),
        (["a-1-of-2", "a-2-of-2", "a-2-of-3"], "a-1-of-3.safetensors"),
    ],
)
def test_half_a_checkpoint_is_refused(tmp_path, there, missing):
    for i, name in enumerate(there):
        save_file({f"w{i}": np.ones(3)}, tmp_path / f"{name}.safetensors")
    with refuses(frugax.CorruptFileError, missing):
        compress.load_weights(tmp_path)


def test_a_numbered_series_that_is_whole_is_read(tmp_path):
    for name in ("a-00000-of-00002", "a-00001-of-00002", "b-1-of-1", "c-of-7"):
        save_file({name: np.ones(3)}, tmp_path / f"{name}.safetensors")
    assert len(compress.load_weights(tmp_path)) == 4


def test_one_file_of_several_is_read_with_a_warning(tmp_path):
    path = tmp_path / "model-00001-of-00003.safetensors"
    save_file({"w": np.ones(3)}, path)
    with warns(UserWarning, path, 3):
        assert len(compress.load_weights(path)) == 1


@pytest.mark.parametrize(
    ("shards", "match"),
    [
        ({"w": "c.safetensors"}, "c.safetensors"),
        ({"w": "../a.safetensors"}, "model.safetensors.index.json"),
        ({"w": 3}, "model.safetensors.index.json"),
    ],
)
def test_an_index_that_names_no_file_of_the_folder_is_damaged(folder, shards, match):
    (folder / INDEX).write_text(json.dumps({"weight_map": shards}))
    with refuses(frugax.CorruptFileError, match):
        compress.load_weights(folder)


def test_a_tensor_that_the_index_names_and_no_shard_has_is_an_error(folder):
    # As where one shard is of an older download: its weights would be missing unsaid.
    save_file({"b.0": np.ones((9, 1))}, folder / "b.safetensors")
    with refuses(frugax.CorruptFileError, "b.safetensors", "b.1"):
        compress.load_weights(folder)


def test_a_tensor_in_two_shards_is_refused(folder):
    (folder / INDEX).unlink()
    save_file({"a.0": np.ones(3)}, folder / "z.safetensors")
    with refuses(frugax.UnsupportedFileError, "a.0"):
        compress.load_weights(folder)


@pytest.mark.parametrize(
    ("model", "other"),
    [
        ("model", "consolidated"),
        ("model", "adapter_model"),
        ("diffusion_pytorch_model", "diffusion_pytorch_model.fp16"),
    ],
)
def test_of_two_models_in_a_folder_one_is_read_and_the_other_named(
    tmp_path, model, other
):
    save_file({"w": np.ones(3)}, tmp_path / f"{model}.safetensors")
    save_file({"w": np.zeros(3), "x": np.zeros(3)}, tmp_path / f"{other}.safetensors")
    with warns(UserWarning, f"{model}.safetensors", f"{other}.safetensors"):
        weights = compress.load_weights(tmp_path)
    assert {name: array.sum() for name, array in weights.items()} == {"w": 3}


def test_weights_of_folders_within_are_named(tmp_path):
    # As sentence-transformers and trainings have them.
    for folder in ("", "2_Dense", "checkpoint-500"):
        (tmp_path / folder).mkdir(exist_ok=True)
        save_file({"w": np.ones(3)}, tmp_path / folder / "model.safetensors")
    with warns(UserWarning, "2_Dense/", "checkpoint-500/"):
        assert len(compress.load_weights(tmp_path)) == 1


def test_an_adapter_beside_a_pickled_model_is_not_the_model(tmp_path):
    (tmp_path / "pytorch_model-00001-of-00001.bin").write_bytes(b"PK")
    (tmp_path / "training_args.bin").write_bytes(b"PK")
    save_file({"w": np.ones(3)}, tmp_path / "adapter_model.safetensors")
    with refuses(frugax.UnsupportedFileError, "pytorch_model-00001-of-00001.bin"):
        compress.load_weights(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "model.safetensors")
    with warns(UserWarning, "pytorch_model-00001-of-00001.bin") as caught:
        assert len(compress.load_weights(tmp_path)) == 1
    assert "training_args" not in str(caught[0].message)


def test_links_of_a_cache_are_followed(tmp_path):
    (tmp_path / "blobs").mkdir()
    save_file({"w": np.ones(3)}, tmp_path / "blobs" / "5f0b")
    link = tmp_path / "snapshots" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to("../blobs/5f0b")
    assert len(compress.load_weights(link.parent)) == 1
    (tmp_path / "blobs" / "5f0b").unlink()  # as after an interrupted download
    with refuses(frugax.CorruptFileError, link):
        compress.load_weights(link.parent)


@pytest.mark.parametrize("within", ["unet", "snapshots/5f0b", "a/b/c"])
def test_a_folder_of_models_names_them(tmp_path, within):
    (tmp_path / within).mkdir(parents=True)
    save_file({"w": np.ones(3)}, tmp_path / within / "model.safetensors")
    with refuses(frugax.UnsupportedFileError, within):
        compress.load_weights(tmp_path)


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".pth", ".ckpt"])
def test_a_pickle_is_refused_with_the_way_out(tmp_path, suffix):
    file = tmp_path / f"model{suffix}"
    file.write_bytes(b"PK")
    for place in (file, tmp_path):
        with refuses(frugax.UnsupportedFileError, "model.safetensors"):
            compress.load_weights(place)


def test_weights_go_back_to_a_folder_of_shards(folder, tmp_path, monkeypatch):
    file, out = tmp_path / "w.fxz", tmp_path / "out"
    weights = compress.load_weights(folder)
    compress.save(file, weights, EXACT)
    monkeypatch.setattr("frugax.compress._export._SHARD_BYTES", 250)
    compress.export_safetensors(file, out)
    assert len(list(out.glob("*-of-00002.safetensors"))) == 2
    index = json.loads((out / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(w.nbytes for w in weights.values())
    for name, shard in index["weight_map"].items():
        assert np.array_equal(load_file(out / shard)[name], weights[name])
    assert compress.load_weights(out).keys() == weights.keys()


@pytest.mark.parametrize("at", [0, 2, 3])
def test_a_folder_of_shards_that_is_interrupted_is_not_there(
    folder, tmp_path, monkeypatch, at
):
    file, out = tmp_path / "w.fxz", tmp_path / "out"
    compress.save(file, compress.load_weights(folder), EXACT)
    monkeypatch.setattr("frugax.compress._export._SHARD_BYTES", 250)
    before, shares = sorted(tmp_path.iterdir()), []

    def stop(share, _):
        shares.append(share)
        if len(shares) > at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress.export_safetensors(file, out, progress=stop)
    assert sorted(tmp_path.iterdir()) == before
    assert shares == sorted(shares)
    assert shares[-1] < 1


def test_weights_come_back_into_the_tree_of_the_caller(tmp_path):
    state = {
        "inner": State(jnp.arange(6.0).reshape(2, 3), np.int32(4)),
        "last": [jnp.ones(3, jnp.bfloat16)],
    }
    compress.save(tmp_path / "s.fxz", state, EXACT)
    back = compress.load(tmp_path / "s.fxz", like=state)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert isinstance(back["inner"].mean, jax.Array)
    assert not isinstance(back["inner"].count, jax.Array)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, state))
    stands_for = jax.eval_shape(lambda: {"w": jnp.zeros((2, 3))})
    compress.save(tmp_path / "w.fxz", {"w": state["inner"].mean}, EXACT)
    loaded = compress.load(tmp_path / "w.fxz", like=stands_for)
    assert isinstance(loaded["w"], jax.Array)
    plain = compress.load(tmp_path / "w.fxz")
    assert isinstance(plain["w"], np.ndarray)


def test_leaves_that_are_not_arrays_stay(tmp_path):
    tree = {"w": np.ones(3), "act": max, "rate": 0.1}
    compress.save(tmp_path / "w.fxz", {"w": np.zeros(3)}, EXACT)
    back = compress.load(tmp_path / "w.fxz", like=tree)
    assert back["act"] is max
    assert back["rate"] == 0.1
    assert not back["w"].any()
    assert tree["w"].all()


def test_a_whole_equinox_module_goes_to_a_file_and_back(tmp_path):
    eqx = pytest.importorskip("equinox")
    layers = [
        eqx.nn.MLP(8, 8, 40, 2, key=jax.random.key(0)),  # its activation is a leaf
        eqx.nn.Dropout(0.25),  # its rate, a number, too
        eqx.nn.BatchNorm(8, "batch", mode="batch"),  # and a text
    ]
    net = eqx.nn.Sequential(layers)
    report = compress.save(tmp_path / "w.fxz", net, SizeBudget(max_abs=1e-3))
    assert report.verdict == "kept"
    assert compress.verify(tmp_path / "w.fxz", against=net).ok
    fresh = eqx.tree_at(lambda n: n.layers[1].p, net, 0.5)
    back = compress.load(tmp_path / "w.fxz", like=fresh)
    assert jax.tree.structure(back) == jax.tree.structure(net)
    assert type(back.layers[1].p) is float
    assert back.layers[1].p == 0.25
    x = jnp.linspace(-1, 1, 8)
    np.testing.assert_allclose(back.layers[0](x), net.layers[0](x), atol=0.05)
    with compress.open(tmp_path / "w.fxz") as file:
        assert set(file.tree()) == set(file)
    # The arrays alone fit as well: what the file lacks stays.
    arrays, _ = eqx.partition(net, eqx.is_array)
    compress.save(tmp_path / "a.fxz", arrays, EXACT)
    assert compress.load(tmp_path / "a.fxz", like=fresh).layers[1].p == 0.5


def test_the_state_of_an_nnx_module_keeps_its_random_keys(tmp_path):
    nnx = pytest.importorskip("flax.nnx")
    make = lambda seed: nnx.Dropout(0.5, rngs=nnx.Rngs(seed))
    graph, state = nnx.split(make(3))
    compress.save(tmp_path / "w.fxz", state, EXACT)
    for like in (nnx.state(make(4)), nnx.state(nnx.eval_shape(lambda: make(4)))):
        net = nnx.merge(graph, compress.load(tmp_path / "w.fxz", like=like))
        assert np.array_equal(net(jnp.ones(40)), make(3)(jnp.ones(40)))


@pytest.mark.parametrize(
    "like",
    [{"w": np.ones(4)}, {"w": np.ones(3, "f4")}, {"v": np.ones(3)}, {}, {"w": set()}],
)
def test_a_tree_of_other_arrays_is_refused(tmp_path, like):
    compress.save(tmp_path / "w.fxz", {"w": np.zeros(3)}, EXACT)
    with refuses(ValueError, "like"):
        compress.load(tmp_path / "w.fxz", like=like)


def test_a_torch_state_comes_back_as_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    compress.save(tmp_path / "w.fxz", net, EXACT)
    back = compress.load(tmp_path / "w.fxz", like=net)
    assert all(torch.equal(back[name], w) for name, w in net.state_dict().items())


def scaled_rows(rows, columns, dtype="f4"):
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.normal(size=(rows, 1)))
    return (rng.normal(size=(rows, columns)) * sizes).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(((200, 256), dtype) for dtype in ("f4", "f2", "f8")),
        *((shape, "f4") for shape in ((4, 5000), (1000, 7), (60, 30))),
    ],
)
def test_integers_times_steps_are_the_tensor(tmp_path, shape, dtype):
    tensor = scaled_rows(shape[0], shape[1], dtype)
    budget = SizeBudget("4.5bpw")
    compress.save(tmp_path / "w.fxz", tensor, budget, sensitivity="rows")
    with compress.open(tmp_path / "w.fxz") as file:
        coded = file.integers("")
        assert coded is not None
        integers, steps = coded
        fits = np.abs(integers.astype(int)).max() <= 127
        assert integers.dtype == (np.int8 if fits else np.int16)
        assert integers.shape == shape
        with np.errstate(over="ignore"):
            product = (integers.astype(steps.dtype) * steps).astype(dtype)
        assert product.tobytes() == file[""].tobytes()


def test_jax_arrays_of_four_bits_come_back(tmp_path):
    numbers = np.random.default_rng(0).integers(-8, 8, (64, 64))
    tree = {"q": jnp.asarray(numbers, jnp.int4), "s": jnp.ones((64, 2), jnp.bfloat16)}
    path = tmp_path / "q.fxz"
    report = compress.save(path, tree, EXACT)
    assert report.file_bytes < 64 * 64 / 2 + 500  # half a byte each
    found = compress.load(path, like=tree)
    assert found["q"].dtype == jnp.int4
    np.testing.assert_array_equal(np.asarray(found["q"], "i4"), numbers)
