"""Weights that stay packed until a jitted program unpacks them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import InfeasibleBudgetError, SizeBudget, compress
from frugax.compress import PackedArray
from frugax.targets import Target, installed_compilers
from refusals import refuses, warns


def normal(*shape, dtype="f4", seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def layers(dtype):
    return {
        "w": [jnp.asarray(normal(256, 256, seed=i) / 16, dtype) for i in range(3)],
        "b": jnp.zeros((1, 256), dtype),
    }


def apply_layers(params, x):
    for w in params["w"]:
        x = x + jnp.tanh(x @ w + params["b"])
    return x


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_a_packed_layer_gives_the_bits_of_the_decoded_one(dtype, rows):
    packed = compress.pack(layers(dtype), SizeBudget("4.4bpw"))
    assert packed.verdict == "kept"
    dense = compress.unpack(packed.tree)
    x = jnp.asarray(normal(rows, 256), dtype)
    ours, theirs = (
        jax.jit(apply_layers)(packed.tree, x),
        jax.jit(apply_layers)(dense, x),
    )
    assert ours.dtype == dtype
    assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_the_arguments_of_the_compiled_step_are_packed(name):
    gpu = next(c for c in installed_compilers() if c.platform == "gpu")
    if name == "h100" and gpu.problem:
        pytest.skip(gpu.problem)
    target = Target(name)
    params = layers(jnp.bfloat16)
    packed = compress.pack(params, SizeBudget("4.4bpw")).tree
    x = jax.ShapeDtypeStruct((8, 256), jnp.bfloat16)

    def count(tree):
        shapes = jax.eval_shape(lambda: tree)
        compiled = target.compile(jax.jit(apply_layers), shapes, x)
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.argument_size_in_bytes - 8 * 256 * 2

    assert count(packed) <= 0.3 * count(params)


def test_a_packed_weight_replaces_the_dense_one():
    w = normal(48, 130)
    packed = compress.pack({"w": w}, SizeBudget("6bpw")).tree["w"]
    dense = packed.unpack()
    assert (packed.shape, packed.ndim, packed.size) == ((48, 130), 2, 48 * 130)
    assert packed.dtype == np.float32
    x, y = normal(3, 48), normal(130, 2)
    rows = jnp.array([[3, 47], [-1, 3]])
    for of in (
        lambda w: jnp.asarray(x) @ w,
        lambda w: x @ w,
        lambda w: w @ y,
        lambda w: jnp.einsum("bi,io->bo", x, w),
        lambda w: jnp.asarray(y).T @ w.T,
        lambda w: w[rows],
        lambda w: w[7],
        lambda w: w[2:5, ::2],
        lambda w: jnp.take(w, rows, axis=0),
        lambda w: w.astype(jnp.bfloat16),
        lambda w: w.reshape(-1, 2),
        lambda w: jax.vmap(lambda one: one @ w)(x),
        lambda w: jax.grad(lambda x: (x @ w).sum())(x),
    ):
        ours, theirs = jax.jit(of)(packed), jax.jit(of)(dense)
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("scale", ["rows", "columns"])
def test_rows_of_tables_are_unpacked_alone(scale):
    sizes = np.exp(normal(70, 1, seed=1)) if scale == "rows" else np.exp(normal(1, 64))
    table = compress.pack({"t": normal(70, 64) * sizes}, SizeBudget("4.6bpw")).tree["t"]
    assert isinstance(table, PackedArray)
    assert np.array_equal(table[jnp.arange(70)], table.unpack())
    # The compiled look-up never holds the whole table.
    compiled = jax.jit(lambda t, i: t[i]).lower(table, jnp.array([3])).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < 70 * 64 * 4


def test_stacked_layers_are_scanned_over():
    stacked = {"w": normal(4, 64, 65), "b": normal(4, 1, 65)}
    packed = compress.pack(stacked, SizeBudget("5.5bpw")).tree
    assert isinstance(packed["w"], PackedArray)

    def scan(params, x):
        step = lambda x, p: ((x @ p["w"] + p["b"])[:, :64], None)
        return jax.lax.scan(step, x, params)[0]

    x, dense = normal(3, 64), compress.unpack(packed)
    assert np.array_equal(jax.jit(scan)(packed, x), jax.jit(scan)(dense, x))


def test_sizes_and_errors_are_measured():
    tree = {"w": normal(128, 100), "v": normal(96, 64) * 10, "b": normal(100)}
    for budget in ("20bpw", "6.3bpw"):
        packed = compress.pack(tree, SizeBudget(budget))
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(packed.tree))
        assert held == packed.bytes
        spend = packed.receipt.spends[0]
        assert spend.measured == held <= spend.limit
        decoded = compress.unpack(packed.tree)
        lost = sum(float(np.sum((decoded[k] - tree[k]) ** 2.0)) for k in tree)
        whole = sum(float(np.sum(tree[k] ** 2.0)) for k in tree)
        assert packed.rel_error == pytest.approx((lost / whole) ** 0.5, rel=1e-5)
        assert "relative error" in str(packed)
    # More bytes where errors are larger.
    codecs = {tensor.name: tensor.codec for tensor in packed.tensors}
    assert codecs["v"].startswith("8 bits")
    assert codecs["w"].startswith("4 bits")


def test_an_error_is_met_in_few_bytes():
    tree = {"w": normal(256, 256), "v": normal(256, 64) * np.exp(normal(256, 1))}
    for limit in (0.15, 0.05, 0.004, 0.0):
        packed = compress.pack(tree, SizeBudget(rel_error=limit))
        assert packed.verdict == "kept"
        assert packed.rel_error <= limit
    assert all(tensor.codec == "dense" for tensor in packed.tensors)
    both = SizeBudget(rel_error=0.01, bits_per_weight=4.5)
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.pack(tree, both)
    needed = int(caught.value.needed)
    again = compress.pack(tree, SizeBudget(rel_error=0.01, bytes=needed))
    assert again.bytes == needed


def test_the_least_size_is_a_whole_number_of_bits():
    tree = {"w": normal(128, 128), "b": normal(128)}
    with refuses(InfeasibleBudgetError, 4) as caught:
        compress.pack(tree, SizeBudget("3bpw"))
    needed = int(caught.value.needed)
    assert compress.pack(tree, SizeBudget(bytes=needed)).bytes == needed
    with pytest.raises(InfeasibleBudgetError):
        compress.pack(tree, SizeBudget(bytes=needed - 1))


def test_sensitivity_moves_bits():
    tree = {"a": normal(128, 128), "b": normal(128, 128, seed=1)}
    packed = compress.pack(tree, SizeBudget("6.3bpw"), sensitivity={"a": 100.0})
    errors = {tensor.name: tensor.rel_error for tensor in packed.tensors}
    assert errors["a"] < 0.1 * errors["b"]
    with refuses(ValueError, "'c'"):
        compress.pack(tree, SizeBudget("6bpw"), sensitivity={"c": 1.0})
    with refuses(ValueError, "limits"):
        compress.pack(tree, SizeBudget(max_abs=0.1))


def test_weights_that_cannot_be_packed_stay_dense():
    tree = {
        "nan": np.full((128, 64), np.nan, "f4"),
        "huge": normal(128, 64, dtype="f8") * 1e200,
        "tiny": normal(128, 64, dtype="f4") * np.float32(1e-38),
        "zero": np.zeros((128, 64), "f4"),
        "n": np.arange(9000).reshape(90, 100),
        "name": "a net",
        "none": None,
    }
    with warns(UserWarning, "'nan'"):
        packed = compress.pack(tree, SizeBudget("200bpw")).tree
    assert all(packed[name] is tree[name] for name in tree)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (np.zeros(5000, "f4"), "axes"),
        (np.arange(9000).reshape(90, 100), "int64"),
        (np.full((128, 64), 1e38, "f4"), "1e+38"),
    ],
)
def test_a_refusal_names_the_tensor_that_stays_dense_and_why(bad, reason):
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.pack({"w": normal(64, 64), "bad": bad}, SizeBudget("4.1bpw"))
    assert "'bad'" in caught.value.hint
    assert reason in caught.value.hint


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_very_small_and_large_numbers_keep_their_digits(scale):
    tensor = normal(64, 64) * np.float32(scale)
    packed = compress.pack({"w": tensor}, SizeBudget("4.6bpw"))
    assert packed.tensors[0].codec.startswith("4 bits")
    assert packed.rel_error < 0.1


def test_numpy_takes_a_packed_matrix_for_its_numbers():
    packed = compress.pack({"w": normal(128, 128)}, SizeBudget("4x")).tree["w"]
    dense = np.asarray(compress.unpack(packed))
    assert np.array_equal(packed, dense)
    assert np.asarray(packed, np.float16).dtype == np.float16
