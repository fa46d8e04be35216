import collections
import dataclasses
import json
from typing import Any, NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from frugax import trees
from refusals import refuses


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Plain:
    w: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Registered:
    w: Any
    size: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Keyless:
    def __init__(self, *parts):
        self.parts = parts

    def tree_flatten(self):
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


plain_trees = st.recursive(
    st.integers() | st.none(),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.tuples(inside, inside),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inside, max_size=3),
    ),
    max_leaves=8,
)


def test_names_are_the_way_to_the_leaf():
    tree = {
        "blocks": [{"w": 1, "b": 2}, None, (3,)],
        "pair": Pair(4, [5]),
        "plain": Plain(w=6, b=7),
        "registered": Registered(w=8, size=3),
        "keyless": Keyless(9, 10),
    }
    assert trees.named_leaves(tree) == [
        ("blocks[0].b", 2),
        ("blocks[0].w", 1),
        ("blocks[2][0]", 3),
        ("keyless[0]", 9),
        ("keyless[1]", 10),
        ("pair.left", 4),
        ("pair.right[0]", 5),
        ("plain.w", 6),
        ("plain.b", 7),
        ("registered.w", 8),
    ]
    assert trees.named_leaves(7) == [("", 7)]


@given(plain_trees)
def test_the_order_equals_that_of_jax(tree):
    assert [leaf for _, leaf in trees.named_leaves(tree)] == jax.tree.leaves(tree)


def test_special_dicts_keep_the_order_that_jax_gives_them():
    ordered = collections.OrderedDict([("z", 1), ("a", 2)])
    default = collections.defaultdict(int, {"z": 1, "a": 2})
    for tree in (ordered, default):
        assert [v for _, v in trees.named_leaves(tree)] == jax.tree.leaves(tree)
        arrays, static = trees.partition(tree)
        again = trees.combine(arrays, static)
        assert again == tree
        assert type(again) is type(tree)


def test_equinox_modules_are_named_by_their_fields():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 3, 4, depth=1, key=jax.random.key(0))
    names = [n for n, leaf in trees.named_leaves(model) if trees.is_array(leaf)]
    assert names == [
        *("layers[0].weight", "layers[0].bias", "layers[1].weight", "layers[1].bias")
    ]
    arrays, static = trees.partition(model)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(arrays))
    x = jnp.ones(2)
    whole = jax.jit(lambda a: trees.combine(a, static)(x))(arrays)
    # jit may fuse and so round differently: three layers of sums below 8 terms.
    np.testing.assert_allclose(whole, model(x), rtol=1e-5)


def test_flax_modules_open():
    nnx = pytest.importorskip("flax.nnx")
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    leaves = trees.named_leaves(state)
    assert [leaf.shape for _, leaf in leaves] == [(3,), (2, 3)]
    assert [n.split(".")[0] for n, _ in leaves] == ["bias", "kernel"]


@pytest.mark.parametrize(
    "tree", [{"a": {"b": 1}, "a.b": 2}, {"a": [1], "a[0]": 2}, {"a": {1: 1}, "a.1": 0}]
)
def test_two_leaves_of_one_name_are_refused(tree):
    with refuses(ValueError, "leaves"):
        trees.named_leaves(tree)


@pytest.mark.parametrize("function", [trees.named_leaves, trees.describe, trees.nbytes])
def test_a_tree_that_contains_itself_is_refused(function):
    tree: dict[str, Any] = {"a": [1]}
    tree["a"].append(tree)
    with refuses(ValueError, "itself"):
        function(tree)


def test_a_tree_may_be_a_hundred_levels_deep_and_survives_json():
    tree: Any = 1
    for _ in range(100):
        tree = [tree]
    structure = json.loads(json.dumps(trees.describe(tree)))
    assert trees.rebuild(structure, [1]) == tree
    with refuses(ValueError, 100):
        trees.describe([tree])


def test_keys_that_do_not_sort_are_refused():
    with refuses(TypeError, "'a'"):
        trees.named_leaves({1: 0, "a": 0})


@given(plain_trees)
def test_structures_survive_json(tree):
    structure = json.loads(json.dumps(trees.describe(tree)))
    leaves = [leaf for _, leaf in trees.named_leaves(tree)]
    again = trees.rebuild(structure, leaves)
    assert again == tree
    assert jax.tree.structure(again) == jax.tree.structure(tree)


def test_other_containers_become_a_flat_dict_and_say_so():
    structure = trees.describe({"z": Pair(1, [2]), "a": 3})
    assert structure["from"].endswith("Pair")
    assert trees.rebuild(structure, [3, 1, 2]) == {"a": 3, "z.left": 1, "z.right[0]": 2}
    by_number = trees.describe({1: 5})
    assert trees.rebuild(by_number, [5]) == {"1": 5}


def test_a_subclass_of_a_dict_is_a_leaf_as_in_jax():
    leaf = type("Mine", (dict,), {})(a=1)
    assert trees.named_leaves([leaf]) == [("[0]", leaf)]
    assert trees.rebuild(trees.describe([leaf]), [leaf]) == [leaf]


@pytest.mark.parametrize("wrong", [7, {"set": []}, {"list": 3}, "x", {"flat": [1]}])
def test_an_invalid_structure_is_refused(wrong):
    with refuses(ValueError, "structure"):
        trees.rebuild(wrong, [])


def test_a_wrong_number_of_leaves_is_refused():
    with refuses(ValueError, "leaves"):
        trees.rebuild({"list": ["*", "*"]}, [1])
    with refuses(ValueError, 1):
        trees.rebuild({"list": ["*"]}, [1, 2])


def test_bytes_count_arrays_only_and_read_no_values():
    tree = {
        "w": np.zeros((3, 4), np.float32),
        "s": jax.ShapeDtypeStruct((10,), jnp.bfloat16),
        "f": max,
        "n": 3,
    }
    assert trees.nbytes(tree) == 48 + 20
    assert trees.nbytes({}) == 0


@given(plain_trees)
def test_halves_make_the_whole_again(tree):
    halves = trees.partition(tree, select=lambda leaf: bool(leaf % 2))
    assert trees.combine(*halves) == tree


def test_partition_keeps_its_input_and_fills_gaps_with_none():
    tree = {"w": np.ones(2), "act": max, "lr": 0.1, "inner": [np.zeros(1), "relu"]}
    arrays, static = trees.partition(tree)
    assert arrays["act"] is None
    assert arrays["w"] is tree["w"]
    assert static["inner"] == [None, "relu"]
    assert static["lr"] == 0.1


def test_halves_of_different_trees_are_refused():
    with refuses(ValueError, "halves"):
        trees.combine({"a": 1}, {"b": 2})


def test_random_keys_become_numbers_and_come_back():
    key = jax.random.key(3, impl="rbg")
    data = trees.key_to_data(key)
    assert trees.is_random_key(key)
    assert not trees.is_random_key(data)
    shape = jax.eval_shape(lambda: key)
    assert trees.key_to_data(shape).shape == data.shape
    for like in (key, shape):
        back = trees.data_to_key(np.asarray(data), like)
        assert back.dtype == key.dtype
        assert np.array_equal(trees.key_to_data(back), data)
    assert trees.key_to_data(1.5) == trees.data_to_key(1.5, 0.0) == 1.5
