"""Inputs, outputs, and inputs that are refused by name."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import SizeBudget, compress
from refusals import refuses, warns
from saved_tree import RNG, SIX


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
    tree: dict[str, Any] = {"w": w, "v": RNG.normal(size=(64, 64))}
    tree["c"] = np.array([1, np.nan + 1j], np.complex64)
    with warns(UserWarning, "'w'", 2, "'c'", 1):
        plan = compress.plan(tree, SizeBudget(ratio=8))
    with warns(UserWarning, "'w'"):
        back = compress.decompress(compress.compress(tree, SizeBudget(ratio=8)))
    assert {t.name: t.codec for t in plan.tensors}["w"] == "lossless"
    assert back["w"].tobytes() == w.tobytes()


class Holder:
    def __repr__(self):
        return "one\n  two"


def test_a_leaf_that_is_not_a_weight_is_named():
    for bad, named in (
        ({"a": 1.5}, "'a'"),
        ({"a": True}, "'a'"),
        ({"a": "text"}, "'a'"),
        ({"a": np.array(["x"])}, "'a'"),
        ({"a": Holder()}, "'a'"),
        (max, "(the array)"),
        (jax.random.key(0), "random.key_data"),
        ({"k": jax.random.key(0)}, "'k'"),
        ({"s": jax.ShapeDtypeStruct((2,), "f4")}, "'s'"),
    ):
        with refuses(TypeError, named):
            compress.compress(bad, SizeBudget(ratio=2))


def test_a_leaf_without_values_is_named():
    gone = jnp.ones(2)
    gone.delete()
    for bad, named in (
        (
            "m.safetensors",
            "m.safetensors",
        ),
        (
            {"w": gone},
            "'w'",
        ),
    ):
        with refuses(TypeError, named):
            compress.plan(bad, SIX)

    def traced(w):
        compress.plan({"w": w}, SIX)

    with refuses(TypeError, "'w'"):
        jax.make_jaxpr(traced)(jnp.ones(2))


def test_a_tree_without_end_is_refused_with_the_way_to_it():
    within: dict[str, Any] = {"w": np.ones(2)}
    within["self"] = within
    deep: Any = np.ones(2)
    for _ in range(5000):
        deep = [deep]
    for tree, way in ((within, "self.self"), ({"a": deep}, "a[0][0]")):
        with refuses(ValueError, way):
            compress.plan(tree, SIX)


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


def test_a_mask_is_not_lost_silently():
    masked = np.ma.masked_array(np.ones(3), mask=[True, False, False])
    with refuses(TypeError, "'w'"):
        compress.compress({"w": masked}, SizeBudget(ratio=1))


def test_torch_modules_inside_a_tree_are_opened():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(3, 2)
    tree = {"net": net, "more": (np.ones(3), [net]), "plain": [np.ones(2)]}
    back = compress.decompress(compress.compress(tree, SizeBudget(max_abs=0)))
    for state in (back["net"], back["more"][1][0]):
        assert (state["weight"] == net.weight.detach().numpy()).all()
    assert compress.sensitivity_of(lambda w: w["net.bias"], tree)["net.weight"] == 0
    Pair = collections.namedtuple("Pair", "net")
    with refuses(TypeError, "'net'", "leaf.state_dict"):
        compress.compress(Pair(net), SizeBudget(max_abs=0))


def test_torch_tensors_without_dense_values_are_named():
    torch = pytest.importorskip("torch")
    w = torch.ones(3, 3)
    for bad, said in (
        (w.to("meta"), "meta"),
        (w.to_sparse(), "tensor.to_dense"),
        (
            torch.nn.UninitializedParameter(),
            "parameter",
        ),
        (torch.empty(2, dtype=torch.bits8), "dtype"),
    ):
        with refuses(TypeError, "a.w", said):
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
    with refuses(ValueError, "'a.\\ud800'"):
        compress.plan(tree, SIX)


def test_answers_in_a_list_are_refused():
    weights = {"w": np.ones((2, 2))}
    with refuses(TypeError, "answer"):
        compress.sensitivity_of(lambda _: [1], weights)
    assert compress.sensitivity_of(lambda w: float(w["w"].sum()), weights)["w"] > 0
