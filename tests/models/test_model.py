"""Describing a model: every way to wire it, its names, and refused wirings."""

import dataclasses

import jax
import numpy as np

from frugax.errors import ShapeError
from frugax.models import (
    Composite,
    Embedding,
    IOKey,
    Linear,
    Model,
    Relu,
    Sequential,
    op,
    weight_of,
)
from frugax.models.graph import LAYERS, Constant, LayerOutput, Normal
from refusals import refuses

from .model_cases import X, compiled, evaluate, x


def test_three_ways_to_say_the_same():
    by_name = Model()
    by_name |= Linear(4, name="a")(input="x", output="hidden")
    by_name |= Relu()(input="hidden", output="active")
    by_name |= Linear(2, name="b")(input="active", output="y")
    in_turn = Model()
    in_turn |= Linear(4, name="a")(input="x")
    in_turn += Relu()
    in_turn += Linear(2, name="b")(output="y")
    functional = Model.create(y=Linear(2, name="b")(Relu()(Linear(4, name="a")(x()))))
    made = [
        evaluate(m, shapes={"x": ("batch", 3)}) for m in (by_name, in_turn, functional)
    ]
    assert all(list(m) == ["y"] for m in made)
    np.testing.assert_array_equal(made[0]["y"], made[1]["y"])
    np.testing.assert_array_equal(made[0]["y"], made[2]["y"])


def test_inputs_wired_to_later_results_by_name():
    model = Model()
    model |= op("multiply")(left="later", right=2.0, output="y")
    model |= op("add")(left="x", right=1.0, output="later")
    np.testing.assert_allclose(evaluate(model, shapes={"x": (2, 3)})["y"], 2 * (X + 1))
    assert model.inputs == ("x",)


def test_a_layer_used_twice_has_two_sets_of_weights():
    layer = Linear(3)
    made = compiled(Model.create(y=layer(layer(x()))))
    assert set(made.param_keys) == {
        f"linear_{i}.{name}" for i in (0, 1) for name in ("weight", "bias")
    }


def test_one_connection_in_two_models():
    hidden = Linear(3)(x())
    calls = {id(hidden.call): dict(hidden.call.wires)}
    first = Model.create(y=hidden * 2)
    second = Model.create(y=hidden + 1, hidden=hidden)
    assert dict(hidden.call.wires) == calls[id(hidden.call)]
    a, b = evaluate(first), evaluate(second)
    np.testing.assert_allclose(a["y"], 2 * b["hidden"], rtol=1e-6)
    assert compiled(first).output_keys == ("y",)


def test_open_ports_become_inputs_when_the_layer_is_called():
    result = op("subtract")(x((2, 3)))
    assert list(result.call.wires) == ["left", "right"]
    made = evaluate(
        Model.create(y=result), {"x": X, "right": X}, shapes={"right": (2, 3)}
    )
    np.testing.assert_allclose(made["y"], 0 * X)


def test_keys_name_shape_dtype_and_expose():
    model = Model()
    tokens = IOKey("tokens", shape=["batch", 4], dtype=np.int32)
    model |= Embedding(10, 3)(input=tokens, output=IOKey("vectors", expose=True))
    model += Linear(2)(output="y")
    made = compiled(model)
    assert made.shapes["tokens"] == (made.shapes["y"][0], 4)
    assert set(made.output_keys) == {"vectors", "y"}
    hidden = model["vectors"]
    assert isinstance(hidden, LayerOutput)
    assert isinstance(model["tokens"], IOKey)
    named = Model.create(y=(x() + 1).named("between") * 2)
    assert set(evaluate(named)) == {"y", "between"}


def test_two_keys_of_one_name_complete_each_other():
    y = IOKey("x", dtype="int32")
    made = compiled(Model.create(y=x() + IOKey("x"), z=y * 2))
    assert made.graph.specs["x"].dtype == np.int32
    clash = Model.create(y=x() + IOKey("x", shape=("batch", 4)))
    with refuses(ValueError, "'x'"):
        compiled(clash)


def test_inputs_and_constants_as_outputs():
    made = evaluate(
        Model.create(same=x(), two=Constant(np.array([1, 2], "float32")), y=x() + 1)
    )
    np.testing.assert_array_equal(made["same"], X)
    np.testing.assert_array_equal(made["two"], [1, 2])


def test_one_result_under_two_names():
    y = x() + 1
    made = evaluate(Model.create(a=y, b=y))
    np.testing.assert_array_equal(made["a"], made["b"])


def test_an_output_may_have_an_inputs_name():
    np.testing.assert_allclose(evaluate(Model.create(x=x() + 1))["x"], X + 1)


def test_constants_are_copied():
    mine = np.array([1, 2, 3], "float32")
    model = Model.create(y=x() + mine)
    mine[:] = 0
    np.testing.assert_allclose(evaluate(model)["y"], X + np.array([1, 2, 3], "float32"))


def test_the_result_of_the_last_layer_is_an_output():
    model = Model()
    model |= Linear(3, name="a")(input="x", output="side")
    model |= Linear(4, name="b")(input="x")
    assert model.outputs == ("side", "output")


def test_several_results_and_optional_ports():
    @dataclasses.dataclass(frozen=True)
    class Both(Composite):
        def build(self, input, other=None):
            y = input if other is None else input + other
            return {"double": y * 2, "half": y / 2}

    double, half = Both()(x())
    made = evaluate(Model.create(a=double, b=half))
    np.testing.assert_allclose(made["a"], 2 * X)
    double, half = Both()(x(), other=double)
    made = evaluate(Model.create(a=double, b=half))
    np.testing.assert_allclose(made["b"], 1.5 * X)
    double, half = Both()(x(), other=None)
    np.testing.assert_allclose(evaluate(Model.create(y=half))["y"], X / 2)
    assert set(evaluate(Both(), {"input": X}, shapes={"input": (2, 3)})) == {
        "double",
        "half",
    }
    model = Model()
    model |= Both()(input="x", double="large")
    model |= op("negative")(input="large", output="y")
    assert set(evaluate(model, shapes={"x": (2, 3)})) == {"y"}
    LAYERS.pop("Both")


def test_models_in_models():
    inner = Model(Linear(3, name="a"), Relu(), name="inner")
    outer = Model()
    outer |= inner(input="x", output="h")
    outer += Model(Linear(2, name="b"))(output="y")
    made = compiled(outer, shapes={"x": ("batch", 3)})
    assert set(made.param_keys) == {
        "inner.a.weight",
        "inner.a.bias",
        "model_0.b.weight",
        "model_0.b.bias",
    }


def test_equal_layers_with_other_names_inside_are_not_mixed_up():
    one = Sequential([Linear(3, name="a")])
    other = Sequential([Linear(3, name="b")])
    keys = compiled(Model.create(y=other(one(x())))).param_keys
    assert {"sequential_0.a.weight", "sequential_1.b.weight"} <= keys


def test_equal_numbers_of_other_types_are_not_mixed_up():
    @dataclasses.dataclass(frozen=True)
    class Filled(Composite):
        value: float

        def build(self, input):
            return (
                op("full", shape=(2,), value=self.value)() * input.cast("int32").max()
            )

    made = compiled(Model.create(a=Filled(1)(x()), b=Filled(1.0)(x())))
    specs = made.graph.specs
    dtypes = [specs[made.graph.outputs[k]].dtype.name for k in "ab"]
    assert dtypes == ["int32", "float32"]
    LAYERS.pop("Filled")


TOKENS = IOKey("tokens", shape=("batch", 5), dtype="int32")


def test_ties_by_connection_and_by_name_are_the_same():
    vectors = Embedding(10, 4, name="table")(TOKENS)
    head = Linear(10, bias=False, name="head")
    functional = Model.create(y=head(vectors, weight=weight_of(vectors)))
    by_name = Model()
    by_name |= Embedding(10, 4, name="table")(input=TOKENS, output="vectors")
    by_name |= head(input="vectors", weight="table.weight", output="y")
    data = {"tokens": np.arange(10, dtype="int32").reshape(2, 5)}
    a, b = evaluate(functional, data), evaluate(by_name, data)
    np.testing.assert_array_equal(a["y"], b["y"])
    assert compiled(by_name).param_keys == {"table.weight"}


def test_ties_across_nested_models():
    encoder = Model(name="encoder")
    encoder |= Embedding(10, 4, name="table")(input="tokens", output="vectors")
    model = Model()
    model |= encoder(tokens=TOKENS, vectors="vectors")
    head = Linear(10, bias=False)
    model |= head(input="vectors", weight="encoder.table.weight", output="y")
    assert compiled(model).param_keys == {"encoder.table.weight"}

    @dataclasses.dataclass(frozen=True)
    class Head(Composite):
        def build(self, input, table):
            return Linear(10, bias=False)(input, weight=table)

    vectors = Embedding(10, 4, name="table")(TOKENS)
    model = Model.create(y=Head()(vectors, weight_of(vectors)))
    assert compiled(model).param_keys == {"table.weight"}
    LAYERS.pop("Head")


def test_the_owner_of_a_shared_weight_may_come_later():
    hidden = Linear(3, name="a")(x())
    penalty = (op("identity")(weight_of(hidden)) ** 2).sum()
    made = evaluate(Model.create(penalty=penalty, y=hidden))
    assert made["penalty"].shape == ()
    model = Model()
    model |= Linear(3, bias=False, name="b")(input="x", weight="a.weight", output="h")
    model |= Linear(3, bias=False, name="a", init="he")(input="h", output="y")
    made = compiled(model, shapes={"x": (2, 3)})
    assert made.weights["a.weight"].init == Normal((2 / 3) ** 0.5)  # the owner's


def test_constant_keys_fix_inputs_and_weights():
    model = Model.create(y=Linear(2, bias=False, name="a")(x()) + IOKey("shift"))
    weight = np.ones((2, 3))
    fixed = {"shift": 3.0, "a.weight": weight}
    made = evaluate(model, constant_keys=fixed)
    np.testing.assert_allclose(made["y"], X @ weight.T + 3, rtol=1e-6)
    with refuses(ValueError, "'b'", "constant_keys"):
        compiled(model, constant_keys={**fixed, "b": 1.0})
    with refuses(ShapeError, "a.weight", "(2, 3)"):
        compiled(model, constant_keys={**fixed, "a.weight": np.ones((3, 2))})
    with refuses(ValueError, "'x'", "(2, 4)"):
        compiled(model, constant_keys={**fixed, "x": np.ones((2, 4))})


def test_data_and_trainable_keys():
    model = Model.create(y=Linear(2, name="a")(x((2, 3))))
    made = compiled(model, data_keys=["a.bias"], trainable_keys=["x"])
    assert made.param_keys == {"a.weight", "x"}
    assert made.data_keys == {"a.bias"}
    params = made.randomize_params(0)
    assert params["x"].shape == (2, 3)
    data = {"a.bias": jax.numpy.zeros(2)}
    _, grads = made.evaluate(params, data, {"y": jax.numpy.ones((2, 2))})
    assert set(grads) == {"a.weight", "x"}
    with refuses(ValueError, "bias", "data_keys"):
        compiled(model, data_keys=["bias"])
    with refuses(ValueError, "'x'", "trainable_keys"):
        compiled(Model.create(y=Linear(2)(x())), trainable_keys=["x"])


def test_discarded_outputs_take_their_layers_along():
    model = Model.create(y=Linear(2, name="a")(x()), z=Linear(2, name="b")(IOKey("w")))
    made = compiled(model, discard_keys=["z"])  # so w needs no shape
    assert made.param_keys == {"a.weight", "a.bias"}
    with refuses(ValueError, "'v'", "discard_keys"):
        compiled(model, discard_keys=["v"])
    with refuses(ValueError, "discard_keys"):
        compiled(model, discard_keys=["y", "z"])


def test_a_model_shows_its_layers():
    y = x()
    for _ in range(3):
        y = Relu()(Linear(3, bias=False)(y))
    inner = Model(Sequential([Linear(2), Relu()]), Relu(), Relu(), name="inner")
    model = Model.create(y=inner(y) + 1.0, same=IOKey("x"))
    text = repr(model)
    assert text.splitlines()[0] == "Model(x -> y, same)"
    assert "  linear_0: Linear(dimension=3, bias=False) of x" in text
    assert "    relu_0 ... relu_1 (2 times): Relu() of sequential_0" in text
    assert "    sequential_0: Sequential(layers=[Linear(dimension=2), Relu()])" in text
    assert "add_0: op('add') of inner, 1.0" in text
    assert repr(Model()) == "Model() without layers"


def test_deep_models_do_not_reach_pythons_stack():
    y = x()
    for _ in range(3000):
        y = y + 1.0
    model = Model.create(y=y)
    assert len(model.calls) == 3000
    backwards = Model()
    for i in range(3000):
        backwards |= op("add")(left=f"v{i + 1}", right=1.0, output=f"v{i}")
    backwards |= op("add")(left="x", right=1.0, output="v3000")
    assert len(compiled(backwards, shapes={"x": (1,)}).graph.nodes) == 3001
