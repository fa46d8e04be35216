"""Models survive JSON; what is wrong in it is refused with its place."""

import copy
import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings, strategies as st

from frugax.errors import UnsupportedFileError
from frugax.models import graph, layers
from frugax.models.graph import (
    Composite,
    IOKey,
    LoopNode,
    Model,
    flatten,
    op,
    weight_of,
)
from frugax.models.layers import (
    Embedding,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    Relu,
    Residual,
    Sequential,
    TransformerBlock,
)
from frugax.models.serialization import layer_from_dict, layer_to_dict
from refusals import refuses


def through_json(model: graph.Layer) -> Any:
    return layer_from_dict(
        json.loads(json.dumps(layer_to_dict(model), allow_nan=False))
    )


def content(flat: graph.ModelGraph) -> Any:
    """All that a flat program holds, to compare with `==`."""

    def value(v):
        return (v.dtype, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else repr(v)

    def step(n):
        common = (type(n).__name__, n.path, dict(n.inputs), n.outputs)
        if isinstance(n, LoopNode):
            return (*common, n.names, n.carry, content(n.body))
        return (*common, repr(n.layer), n.op, repr(n.attrs))

    return (
        {k: (i.name, i.known_shape, i.dtype) for k, i in flat.inputs.items()},
        {k: value(v) for k, v in flat.constants.items()},
        [step(n) for n in flat.nodes],
        list(flat.outputs.items()),
    )


def assert_same(model):
    again = through_json(model)
    for training, scan_from in ((True, None), (False, None), (True, 2)):
        flat, other = (
            flatten(m, inference=not training, scan_from=scan_from)
            for m in (model, again)
        )
        assert content(other) == content(flat)
    assert layer_to_dict(again) == layer_to_dict(model)


BLOCK = TransformerBlock(4, heads=2)
NEEDED = {
    "block": BLOCK,
    "layer": Linear(4),
    "layers": (Linear(4), layers.Dropout(0.5), Relu(name="end")),
    "channels": 4,
    "scale": 0.1,
    "depth": 2,
}


def an_example(cls):
    values: dict[str, Any] = {
        f.name: NEEDED.get(f.name, 2)
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING
    }
    if cls in (layers.ConvNet, layers.UNet):
        values["channels"] = (4, 8)
    if cls in (layers.Bidirectional, layers.RecurrentStack):
        values["layer"] = layers.GRU(4)
    if cls is layers.TransformerLM:
        values["length"] = 16
    return cls(**values)


@pytest.mark.parametrize("name", layers.__all__)
def test_every_layer_survives(name):
    layer = an_example(getattr(layers, name))
    again = through_json(layer)
    assert again == layer
    assert type(again) is type(layer)
    assert_same(layer)


ZERO = graph.Fill(0)


@dataclasses.dataclass(frozen=True)
class Twice(Composite):
    """A user's own layer, with other layers as its settings."""

    part: graph.Layer
    parts: tuple[graph.Layer, ...] = ()
    start: graph.Init = ZERO
    factor: float | None = None

    def build(self, input: graph.Connection) -> graph.Connection:
        x = input
        for part in (self.part, self.part, *self.parts):
            made = part(x)
            x = made if isinstance(made, graph.LayerOutput) else made[0]
        return x * (1.0 if self.factor is None else self.factor)


def any_layer(data, depth):
    """A random layer, with others in it down to `depth`.

    Built in the test and not in a strategy: beartype looks at sequences at random.
    """
    pick = data.draw(st.integers(0, 9 if depth else 4))
    match pick:
        case 0:
            return Linear(data.draw(st.integers(1, 9)), bias=data.draw(st.booleans()))
        case 1:
            return LayerNorm()
        case 2:
            return op("clip", min=data.draw(st.floats()), max=math.inf)
        case 3:
            return MultiHeadAttention(4, 2)
        case 4:
            return op("sum", axis=-1, keepdims=True)
        case 5:
            return Residual(any_layer(data, depth - 1))
        case 6:
            count = data.draw(st.integers(1, 3))
            return Sequential([any_layer(data, depth - 1) for _ in range(count)])
        case 7:
            parts = (any_layer(data, depth - 1), any_layer(data, depth - 1))
            return Twice(parts[0], parts[data.draw(st.integers(0, 2)) :])
    return any_model(data, depth)


def any_model(data, depth):
    """Layers wired at random: one after another, by name, as functions, exposed."""
    model = Model(name=data.draw(st.none() | st.text("abc_-", min_size=1, max_size=3)))
    results: list[graph.Connection] = [
        IOKey("input", shape=("batch", None, 4)),
        IOKey("other", dtype="int32"),
    ]
    for i in range(data.draw(st.integers(1, 4))):
        layer = any_layer(data, depth - 1)
        source = results[data.draw(st.integers(0, len(results) - 1))]
        match data.draw(st.integers(0, 4)):
            case 0:
                model += layer
            case 1:
                port = layer.required[0] if layer.required else layer.inputs[0]
                model |= layer(**{port: "input", layer.outputs[0]: f"y{i}"})
            case 2:
                made = layer(source)
                results.append(made if isinstance(made, graph.LayerOutput) else made[0])
                model |= results[-1]
            case 3:
                dtype = data.draw(st.sampled_from(["f4", "i8", "f2"]))
                values = [np.arange(3, dtype=dtype), 2, True, math.nan, 1.5]
                value = values[data.draw(st.integers(0, 4))]
                results.append(op("add")(source, value))
                model |= results[-1]
            case 4:
                model += layer
                model |= op("identity")(
                    input="input", output=IOKey(f"z{i}", expose=True)
                )
    return model


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_random_models_survive(data):
    try:
        model = any_layer(data, 3)
        flatten(model)
    except ValueError:  # names that clash, a result that goes nowhere
        reject()
    assert_same(model)


def test_a_graph_wired_by_hand_survives():
    tokens = IOKey("tokens", shape=("batch", 16), dtype="int32")
    vectors = Embedding(100, 8, name="embedding")(tokens)
    tied = Linear(100, bias=False)(vectors, weight=weight_of(vectors))
    model = Model.create(logits=tied, vectors=vectors[..., ::2, None])
    outer = Model()
    outer |= model(tokens="text", logits="logits")
    outer |= op("where")(True, outer["logits"], -math.inf)
    assert_same(outer)


class Named(Model):
    """A user's own kind of model: its class is not kept, its keys are."""


def test_keys_of_a_derived_model_stay():
    model = Model(Linear(3), Named(Linear(4)), Named(Linear(4)))
    assert_same(model)
    assert through_json(model).calls[1][0] == "named_0"
    with refuses(TypeError, "layers[0]", "Named"):
        layer_to_dict(Sequential([Named(Linear(2))]))


def test_a_model_used_twice_stays_one_model():
    block = Model(Linear(4), Relu())
    model = Model(*[block] * 12)
    assert len(layer_to_dict(model)["layer"]["calls"][5]["layer"]) == 2
    assert_same(model)
    again = through_json(model)
    assert again.calls[0][1].layer is again.calls[11][1].layer
    plain = layer_to_dict(model)
    for number in (0, 2, -1, "1"):  # 0 is the outer one, which is not complete
        at(plain, 5)["layer"]["model"] = number
        with refuses(ValueError, number):
            layer_from_dict(plain)


def test_a_model_read_again_can_be_extended():
    model = through_json(Model(Linear(3)))
    model += Relu()
    assert [n.path for n in flatten(model).nodes] == ["linear_0", "relu_0"]


WIRED = Model()
WIRED |= MultiHeadAttention(4, heads=2)(input="x", output="y")
WIRED |= Linear(3)(input="y", output="z")


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        (
            lambda p: p["layer"].update(kind="os.system"),
            ValueError,
            "layer",
        ),
        (
            lambda p: p["layer"].update(kind="Primitive"),
            ValueError,
            "layer",
        ),
        (lambda p: p["layer"].update(kind=["Model"]), ValueError, "layer"),
        (lambda p: p["layer"].pop("calls"), ValueError, "calls"),
        (lambda p: p["layer"].update(extra=1), ValueError, "extra"),
        (
            lambda p: at(p, 0)["layer"].update(heads="2"),
            ValueError,
            "'2'",
        ),
        (
            lambda p: at(p, 0)["layer"].update(heads=True),
            ValueError,
            "layer",
        ),
        (
            lambda p: at(p, 0)["layer"].update(heads=3),
            ValueError,
            "layer",
        ),
        (
            lambda p: at(p, 0)["layer"].update(haeds=3),
            ValueError,
            "layer",
        ),
        (
            lambda p: at(p, 1)["layer"].pop("dimension"),
            ValueError,
            "dimension",
        ),
        (
            lambda p: at(p, 1)["layer"].update(init="best"),
            ValueError,
            "layer",
        ),
        (
            lambda p: at(p, 1)["wires"].update(query={"key": "x"}),
            ValueError,
            "wires",
        ),
        (
            lambda p: at(p, 1)["wires"].pop("input"),
            ValueError,
            "input",
        ),
        (
            lambda p: at(p, 1)["wires"].update(input={"call": 7, "port": "output"}),
            ValueError,
            "wires",
        ),
        (
            lambda p: at(p, 1)["wires"].update(input={"call": 0, "port": "out"}),
            ValueError,
            "wires",
        ),
        (
            lambda p: at(p, 1)["names"].update(output={"key": "y"}),
            ValueError,
            "'y'",
        ),
        (
            lambda p: at(p, 1)["names"].update(output={"key": 3}),
            ValueError,
            "names",
        ),
        (
            lambda p: p["layer"]["named"].update(y={"call": 1, "port": "output"}),
            ValueError,
            "named",
        ),
        (lambda p: p["layer"].update(exposed=["q"]), ValueError, "'q'"),
        (lambda p: p["layer"].update(calls={}), ValueError, "calls"),
        (lambda p: p["layer"].update(name=3), ValueError, 3),
        (
            lambda p: at(p, 1)["wires"].update(
                input={"array": "AAAA", "dtype": "float32", "shape": [1]}
            ),
            ValueError,
            "float32",
        ),
        (
            lambda p: at(p, 1)["wires"].update(
                input={"array": "AAAA", "dtype": "O", "shape": [1]}
            ),
            ValueError,
            "wires",
        ),
        (lambda p: p.update(version=True), ValueError, "version"),
        (lambda p: p.update(version=2), UnsupportedFileError, "version"),
        (
            lambda p: p.update(format="mithril"),
            ValueError,
            "format",
        ),
    ],
)
def test_an_error_names_the_value_and_its_place(change, error, named):
    plain = copy.deepcopy(layer_to_dict(WIRED))
    layer_from_dict(plain)
    change(plain)
    with refuses(error, named):
        layer_from_dict(plain)


def at(plain, i):
    return plain["layer"]["calls"][i]


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"axes": 0}, "axes"),
        ({"name": "x"}, "'name'"),
        ({"axis": {"kind": "Relu"}}, "{'kind': 'Relu'}"),
        ({"axis": {"float": "1e3"}}, "{'float': '1e3'}"),
    ],
)
def test_attributes_of_ops_are_checked(attributes, named):
    plain = layer_to_dict(Model(op("softmax", axis=-1)))
    at(plain, 0)["layer"]["attributes"] = attributes
    with refuses((TypeError, ValueError), named):
        layer_from_dict(plain)


def test_names_are_looked_up_and_never_imported(monkeypatch):
    import builtins

    def refuse(name, *_args, **_kwargs):
        raise AssertionError(f"import of {name}")

    plain = layer_to_dict(Model(Linear(2)))
    at(plain, 0)["layer"]["kind"] = "antigravity"
    monkeypatch.setattr(builtins, "__import__", refuse)
    with refuses(ValueError, "antigravity"):
        layer_from_dict(plain)


def test_depth_and_size_are_bounded():
    model: graph.Layer = Linear(2)
    for _ in range(20):
        model = Model(model)
    assert_same(model)
    for _ in range(30):
        model = Model(model)
    with refuses(ValueError, 128):
        layer_to_dict(model)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    plain = layer_to_dict(Linear(2))
    plain["layer"]["dimension"] = deep
    with refuses(ValueError, 128):
        layer_from_dict(plain)
    plain["layer"]["dimension"] = [0] * 5_000_001
    with refuses(ValueError, "5,000,000"):
        layer_from_dict(plain)


def test_a_value_that_would_be_lost_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Holds(graph.Primitive):
        value: Any = None
        op = "relu"

    class Bare(Relu):
        def __init__(self, slope):
            super().__init__()
            object.__setattr__(self, "slope", slope)

    with refuses(TypeError, "ones"):
        layer_to_dict(Holds(np.ones))
    with refuses(TypeError, "Bare.slope"):
        layer_to_dict(Bare(0.1))
    cls = type("Linear", (Linear,), {"__module__": "elsewhere"})
    with refuses(TypeError, "Linear"):
        layer_to_dict(cls(3))
    elsewhere = Linear(3)(IOKey("x"))
    model = Model()
    model |= Linear(3)(input="x", weight=weight_of(elsewhere))
    with refuses(ValueError):
        layer_to_dict(model)
