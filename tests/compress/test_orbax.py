"""Checkpoints of Orbax, as programs with flax write them."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import forked
from frugax import SizeBudget, compress
from frugax.errors import CorruptFileError, UnsupportedFileError
from refusals import refuses, warns

TREE = {
    "params": {
        "dense": {"kernel": np.arange(48.0, dtype="f4").reshape(8, 6)},
        "layers": [jnp.ones(3, jnp.bfloat16), np.zeros((2, 2), "f4")],
    },
    "step": np.int32(7),
    "none": None,
}
NAMES = ["params.dense.kernel", "params.layers[0]", "params.layers[1]", "step"]


def save(folder, tree=TREE, **options):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
        checkpointer.save(folder, tree)


@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_a_checkpoint_is_read_under_the_names_of_its_tree(tmp_path, use_ocdbt):
    save(tmp_path / "saved", use_ocdbt=use_ocdbt)
    weights = compress.load_weights(tmp_path / "saved")
    assert sorted(weights) == NAMES
    assert weights["params.layers[0]"].dtype.name == "bfloat16"
    assert (weights["params.dense.kernel"] == TREE["params"]["dense"]["kernel"]).all()
    assert compress.load_metadata(tmp_path / "saved") == {}
    path = tmp_path / "w.fxz"
    compress.save(path, weights, SizeBudget(max_abs=0))
    back = compress.load(path, like=TREE | {"step": np.int32(0)})
    assert jax.tree.structure(back) == jax.tree.structure(TREE)


def test_arrays_of_several_devices_are_put_together(tmp_path):
    nnx = pytest.importorskip("flax.nnx")
    code = """
import sys
import jax, numpy as np, orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("rows",))
state = nnx.state(nnx.Linear(8, 6, rngs=nnx.Rngs(0)))
rows = lambda x: jax.device_put(
    np.arange(x.size, dtype="f4").reshape(x.shape),
    NamedSharding(mesh, PartitionSpec("rows" if x.ndim > 1 else None)),
)
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(sys.argv[1], jax.tree.map(rows, state))
"""
    folder = tmp_path / "saved"
    forked.python(code, folder)
    weights = compress.load_weights(folder)
    assert weights["kernel.value"].tolist() == np.arange(48.0).reshape(8, 6).tolist()
    state = nnx.state(nnx.Linear(8, 6, rngs=nnx.Rngs(0)))
    back = compress.load(folder, like=state)
    assert back["bias"][...].tolist() == list(range(6))


@pytest.mark.parametrize("item", ["default", None])
def test_of_several_steps_the_newest_is_read_and_the_others_named(tmp_path, item):
    for step in (2, 10):
        save(tmp_path / f"{step}" / (item or ""), {"w": np.full(3, step, "f4")})
    (tmp_path / "11.orbax-checkpoint-tmp-5").mkdir()
    with warns(UserWarning, tmp_path / "10", 2):
        weights = compress.load_weights(tmp_path)
    assert weights["w"].tolist() == [10] * 3
    assert compress.load_weights(tmp_path / "2")["w"].tolist() == [2] * 3
    with refuses(UnsupportedFileError, "11.orbax-checkpoint-tmp-5"):
        compress.load_weights(tmp_path / "11.orbax-checkpoint-tmp-5")


def test_of_several_items_one_must_be_named(tmp_path):
    for item in ("params", "opt_state"):
        save(tmp_path / "5" / item, {"w": np.ones(3)})
    with refuses(UnsupportedFileError, "params", "opt_state"):
        compress.load_weights(tmp_path)
    assert compress.load_weights(tmp_path / "5" / "params")["w"].size == 3


def test_a_damaged_checkpoint_is_named(tmp_path):
    save(tmp_path / "saved")
    (tmp_path / "saved" / "manifest.ocdbt").write_bytes(b"no")
    with refuses(CorruptFileError, tmp_path / "saved"):
        compress.load_weights(tmp_path / "saved")
