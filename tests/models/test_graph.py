"""The flat program: its places, shapes and weights, its errors and its summary."""

import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.errors import ShapeError
from frugax.models import (
    MLP,
    Dropout,
    Embedding,
    IOKey,
    Linear,
    Model,
    Relu,
    Sequential,
    TransformerBlock,
    TransformerEncoder,
    TransformerLM,
    op,
    weight_of,
)
from frugax.models.graph import hash_key
from refusals import refuses

BACKEND = ml.JaxBackend()


def compiled(model, **how):
    return ml.compile(model, BACKEND, **how)


def test_hash_keys_distinguish_equal_numbers_of_different_types():
    values = [1, 1.0, True, 0.0, -0.0, "1", (1,), (1.0,), None, float("nan")]
    marks = [hash_key(v) for v in values]
    assert len(set(marks)) == len(values)
    assert hash_key(float("nan")) == hash_key(float("nan"))
    assert hash_key(np.arange(3)) == hash_key(np.arange(3)) != hash_key(np.arange(3.0))
    assert hash_key((Linear(3, name="a"),)) != hash_key((Linear(3, name="b"),))
    assert Linear(3, name="a").structural_key() == Linear(3, name="b").structural_key()
    assert hash_key({}) != hash_key({})


# --- errors -------------------------------------------------------------------------


def tied_to_another_shape():
    tokens = IOKey("tokens", shape=(2, 5), dtype="int32")
    vectors = Embedding(10, 4, name="table")(tokens)
    return Model.create(y=Linear(9, bias=False)(vectors, weight=weight_of(vectors))), {}


ERRORS = [
    (
        lambda: (Model(Linear(3, name="a", input_size=5)), {"input": (2, 4)}),
        "'a'",
    ),
    (
        lambda: (Model.create(y=IOKey("a", (2, 3)) + IOKey("b", (4, 3))), {}),
        "float32[4, 3]",
    ),
    (
        lambda: (
            Model.create(y=op("concat")(IOKey("a", (2, 3)), IOKey("b", (2, 4)))),
            {},
        ),
        "concat_0",
    ),
    (
        lambda: (Model(op("reshape", shape=(5,), name="r")), {"input": (2, 3)}),
        "shape=(5,)",
    ),
    (tied_to_another_shape, "table.weight"),
    (
        lambda: (
            Sequential([Sequential([Linear(3)], name="b")]),
            {"input": ("n", "m")},
        ),
        "b.linear_0",
    ),
    (
        lambda: (
            TransformerEncoder(TransformerBlock(6, heads=2), 9),
            {"input": ("n", 5, 7)},
        ),
        "block_*",
    ),
]


@pytest.mark.parametrize(("make", "named"), ERRORS)
def test_a_shape_error_names_the_layer_and_its_inputs(make, named):
    model, shapes = make()
    with refuses(ShapeError, named) as caught:
        compiled(model, shapes=shapes)
    assert "\n" not in str(caught.value)


def test_an_error_in_a_user_operation_names_it():
    @BACKEND.register_op("broken")
    def broken(value):
        raise RuntimeError("no luck\nat all")

    with refuses(ShapeError, "broken"):
        compiled(Model.create(y=op("broken")(IOKey("x", (2,)))))
    del BACKEND.custom_ops["broken"]


def test_an_exception_in_a_user_op_is_raised_unchanged():
    @BACKEND.register_op("buggy")
    def buggy(x):
        return x + {}["absent"]

    with refuses(KeyError, "absent") as caught:
        compiled(Model.create(y=op("buggy")(IOKey("x", shape=(2, 3)))))
    note = caught.value.__notes__[0]
    assert "(op buggy)" in note
    assert "float32[2, 3]" in note


def test_own_operations_take_their_tensors_by_place():
    @BACKEND.register_op("weighted")
    def weighted(input, scale, shift=None):
        return input * scale if shift is None else input * scale + shift

    x, y = IOKey("x", (2,)), IOKey("y", (2,))
    model = Model.create(
        two=op("weighted")(x, y),
        three=op("weighted")(x, y, x),
        turned=op("weighted")(input2=x, input=y),
    )
    made = compiled(model, jit=False)
    data = {"x": jnp.asarray([1.0, 2]), "y": jnp.asarray([3.0, 5])}
    outputs = made.evaluate({}, data)
    np.testing.assert_allclose(outputs["two"], [3, 10])
    np.testing.assert_allclose(outputs["three"], [4, 12])
    np.testing.assert_allclose(outputs["turned"], [3, 10])
    del BACKEND.custom_ops["weighted"]


# --- the summary --------------------------------------------------------------------


def rows(text):
    """The cells of a summary's lines, by the layer in front."""
    return {line.split()[0]: line for line in text.splitlines()[2:]}


def test_summary_shows_shapes_weights_bytes_and_flops(capsys):
    model = Model(Linear(64, name="a"), Relu(), Linear(10, name="b"))
    made = compiled(model, shapes={"input": (32, 128)}, verbose=True)
    text = capsys.readouterr().out.rstrip("\n")
    assert text == made.summary()
    found = rows(text)
    assert "Linear  float32[32, 64]" in found["a"]
    assert "weight (64, 128), bias (64)" in found["a"]
    assert f"{64 * 128 + 64:,}" in found["a"]
    assert f"{2 * 32 * 64 * 128 + 32 * 64:,}" in found["a"]
    assert found["relu_0"].split()[-1] == f"{32 * 64:,}"
    total = 2 * 32 * (64 * 128 + 64 * 10) + 32 * (64 + 64 + 10)
    parameters = 64 * 128 + 64 + 640 + 10
    assert found["total"].split()[-1] == f"{total:,}"
    assert f"{parameters:,}" in found["total"]
    assert ml.budget.format_bytes(4 * parameters) in found["total"]


def test_summary_counts_free_dimensions_as_one():
    made = compiled(MLP(4, [8], 2), shapes={"input": ("batch", 4)})
    one = compiled(MLP(4, [8], 2), shapes={"input": (1, 4)})
    assert "each free dimension counted as 1" in made.summary()
    free, fixed = rows(made.summary()), rows(one.summary())
    assert free["total"].split()[-1] == fixed["total"].split()[-1]
    assert "float32[batch, 8]" in free["linear_0"]


def test_summary_folds_loops_and_names_shared_weights():
    block = TransformerBlock(8, heads=2, dropout=0.1)
    lm = TransformerLM(20, block, depth=9, length=6)
    shapes = {"input": (2, 6)}
    made = compiled(lm, shapes=shapes)
    plain = compiled(lm, shapes=shapes, scan_from=None)
    found, all_rows = rows(made.summary()), rows(plain.summary())
    assert "x9  TransformerBlock  float32[2, 6, 8]" in found["block_*"]
    assert "tokens.weight shared" in found["head"]
    assert len([line for line in all_rows if line.startswith("block_")]) > 50
    # Both have the same weights and, but for the keys they draw from, costs.
    for at in (-1, -2, -4):
        assert found["total"].split()[at] == all_rows["total"].split()[at]


def test_summary_marks_unknown_figures():
    @BACKEND.register_op("mine")
    def mine(value):
        return value * 2

    made = compiled(Model.create(y=op("mine")(IOKey("x", (2,))) + 1.0))
    found = rows(made.summary())
    assert found["mine_0"].split()[-1] == "?"
    assert found["total"].split()[-1] == "?"
    del BACKEND.custom_ops["mine"]


def test_summary_is_the_same_on_torch():
    pytest.importorskip("torch")
    model, shapes = (
        Sequential([Linear(8), Dropout(0.5), Relu()]),
        {"input": ("batch", 4)},
    )
    one = compiled(model, shapes=shapes).summary()
    other = ml.compile(model, ml.TorchBackend(jit=False), shapes=shapes).summary()
    ours, theirs = rows(one), rows(other)
    assert ours["total"].split()[1:] == theirs["total"].split()[1:]
