"""Wrong models: each error names the layer, what it was given, and what would do."""

import numpy as np
import pytest

import frugax as ml
from frugax import models
from frugax.errors import CorruptFileError, ShapeError
from frugax.models import (
    LSTM,
    MLP,
    MSE,
    Conv2D,
    Embedding,
    GroupNorm,
    IOKey,
    Linear,
    MaxPool2D,
    Model,
    MultiHeadAttention,
    Residual,
    op,
    weight_of,
)
from refusals import refuses

X = IOKey("input", shape=(2, 3))


def two_layers():
    model = Model()
    model |= Linear(64, name="encoder")(input="input", output="hidden")
    model |= Linear(10, name="decoder")(input="hidden", output="output")
    return model


def compile(model, shape=(2, 3), **options):
    return ml.compile(model, ml.JaxBackend(), shapes={"input": shape}, **options)


def run(*, data=None, without=(), **arrays):
    compiled = compile(two_layers())
    params = {**compiled.randomize_params(0), **arrays}
    kept = {k: v for k, v in params.items() if k not in without}
    return compiled.evaluate(kept, {"input": ones(2, 3)} if data is None else data)


def ones(*shape):
    return np.ones(shape, np.float32)


def wired(*wirings):
    model = Model()
    for name, reads, gives in wirings:
        model |= Linear(3, name=name)(input=reads, output=gives)
    return compile(model)


def loaded(folder, change=lambda data: data, **arrays):
    compiled = compile(two_layers())
    path = folder / "model.safetensors"
    compiled.save(path, {**compiled.randomize_params(0), **arrays})
    path.write_bytes(change(path.read_bytes()))
    return models.load(path, ml.JaxBackend())


def a(size=4):
    return Linear(size, name="a")(X)


def b(size=5):
    return Linear(size, name="b")(X)


def log_of_minus_one():
    model = Model(op("log", name="logs"), Linear(3))
    backend = ml.JaxBackend(debug=True)
    compiled = ml.compile(model, backend, shapes={"input": (2, 3)})
    compiled.evaluate(compiled.randomize_params(0), {"input": -ones(2, 3)})


# A name, how it is wrong, the error's class, and what it must say.
WRONG = [
    (
        "a weight of another shape",
        lambda _: run(**{"decoder.weight": ones(10, 63)}),
        ShapeError,
        "'decoder.weight'",
    ),
    (
        "a bias of another shape",
        lambda _: run(**{"encoder.bias": ones(63)}),
        ShapeError,
        "encoder",
    ),
    (
        "data of another length",
        lambda _: run(data={"input": ones(2, 4)}),
        ShapeError,
        "'input'",
    ),
    (
        "another length than the layer says",
        lambda _: compile(MLP(input_size=5, hidden_sizes=[4], output_size=2)),
        ShapeError,
        "'input'",
    ),
    (
        "no axis at all",
        lambda _: compile(Model(Linear(4, name="first")), ()),
        ShapeError,
        "float32[]",
    ),
    (
        "a free length where a weight needs one",
        lambda _: compile(Model(Linear(4, name="first")), ("batch", "features")),
        ShapeError,
        "[batch, features]",
    ),
    (
        "an image without channels",
        lambda _: compile(Model(Conv2D(4, name="edges")), (2, 8, 8)),
        ShapeError,
        "(batch, height, width, channels)",
    ),
    (
        "groups that do not divide the channels",
        lambda _: compile(Model(Conv2D(4, groups=2, name="edges")), (2, 8, 8, 3)),
        ShapeError,
        2,
    ),
    (
        "a window larger than the image",
        lambda _: compile(Model(MaxPool2D(9, name="pool")), (2, 8, 8, 3)),
        ShapeError,
        "[2, 8, 8, 3]",
    ),
    (
        "a sum of unequal lengths",
        lambda _: compile(Model.create(output=a() + b())),
        ShapeError,
        "[2, 4]",
    ),
    (
        "a product of unequal lengths",
        lambda _: compile(Model.create(output=a() @ b())),
        ShapeError,
        "matmul_0",
    ),
    (
        "joined with unequal lengths",
        lambda _: compile(
            Model.create(output=op("concat", axis=1)(a(), op("transpose")(X)))
        ),
        ShapeError,
        1,
    ),
    (
        "a shape of another size",
        lambda _: compile(Model.create(output=X.reshape((4, 4)))),
        ShapeError,
        "reshape_0",
    ),
    (
        "a short cut around a change of shape",
        lambda _: compile(Model(Residual(Linear(4), name="skip"))),
        ShapeError,
        "skip.add_0",
    ),
    (
        "heads that do not divide",
        lambda _: MultiHeadAttention(10, heads=3),
        ValueError,
        "MultiHeadAttention.heads",
    ),
    (
        "groups of a norm that do not divide",
        lambda _: compile(Model(GroupNorm(2, name="norm")), (2, 4, 4, 3)),
        ShapeError,
        2,
    ),
    (
        "words that are no integers",
        lambda _: (lambda c: c.evaluate(c.randomize_params(0), {"input": ones(2, 3)}))(
            compile(Model(Embedding(5, 4, name="words")))
        ),
        ShapeError,
        "[2, 3]",
    ),
    (
        "a sequence without time",
        lambda _: compile(Model(LSTM(4, name="memory"))),
        ShapeError,
        "(batch, time, features)",
    ),
    (
        "a loss of unequal shapes",
        lambda _: ml.compile(
            Model(MSE(name="error")),
            ml.JaxBackend(),
            shapes={"input": (2, 3), "target": (2, 1)},
        ),
        ShapeError,
        "[2, 3]",
    ),
    (
        "a length with some zeros too many",
        lambda _: compile(Model(Linear(10**13, name="wide"))),
        ShapeError,
        "(10000000000000, 3)",
    ),
    (
        "a missing parameter",
        lambda _: run(without=["decoder.weight"]),
        ValueError,
        "decoder.weight",
    ),
    (
        "a misspelt parameter",
        lambda _: run(**{"decoder.wieght": ones(1)}),
        ValueError,
        "decoder.wieght",
    ),
    (
        "missing data",
        lambda _: run(data={}),
        ValueError,
        "encoder",
    ),
    (
        "misspelt data",
        lambda _: run(data={"inpt": ones(2, 3)}),
        ValueError,
        "encoder",
    ),
    (
        "data that nobody reads",
        lambda _: run(data={"input": ones(2, 3), "inputs": ones(2, 3)}),
        ValueError,
        "inputs",
    ),
    (
        "a shape that is not said",
        lambda _: ml.compile(two_layers(), ml.JaxBackend()),
        ValueError,
        "encoder",
    ),
    (
        "a shape of what is no input",
        lambda _: ml.compile(two_layers(), ml.JaxBackend(), shapes={"inputs": (2, 3)}),
        ValueError,
        "inputs",
    ),
    (
        "a circle",
        lambda _: wired(("a", "from_b", "from_a"), ("b", "from_a", "from_b")),
        ValueError,
        "a -> b -> a",
    ),
    (
        "two layers of one name",
        lambda _: wired(("a", "input", "h"), ("a", "h", "output")),
        ValueError,
        "'a'",
    ),
    (
        "two results of one name",
        lambda _: wired(("a", "input", "h"), ("b", "input", "h")),
        ValueError,
        "'h'",
    ),
    (
        "an op that is not there",
        lambda _: compile(Model(op("gelou", name="act"))),
        ValueError,
        "gelou",
    ),
    (
        "an attribute that is not there",
        lambda _: op("gelu", aproximate=True),
        ValueError,
        "'gelu'",
    ),
    (
        "a port that is not there",
        lambda _: Linear(3, name="a")(inputs="x"),
        ValueError,
        "inputs",
    ),
    (
        "a model without layers",
        lambda _: compile(Model()),
        ValueError,
        "layers",
    ),
    (
        "a weight of a layer that is not in the model",
        lambda _: compile(
            Model.create(output=Linear(4, name="tied")(X, weight=weight_of(b())))
        ),
        ValueError,
        "tied",
    ),
    (
        "a device that is not there",
        lambda _: ml.JaxBackend(device="gpu:3"),
        ValueError,
        "gpu",
    ),
    (
        "more devices than there are",
        lambda _: ml.JaxBackend(device_mesh=(64,)),
        ValueError,
        "device_mesh",
    ),
    (
        "a length that cannot be split",
        lambda _: ml.JaxBackend(device_mesh=(2,)).ones(3, 4, tensor_split=(0,)),
        ValueError,
        "(3, 4)",
    ),
    (
        "a dtype that is no float",
        lambda _: ml.JaxBackend(dtype="int32"),
        ValueError,
        "dtype",
    ),
    (
        "weights that are NaN in a file",
        lambda f: loaded(f, **{"encoder.weight": np.full((64, 3), np.nan, "f4")}),
        ValueError,
        "model.safetensors",
    ),
    (
        "a file that was cut off",
        lambda f: loaded(f, lambda data: data[:-40]),
        CorruptFileError,
        "model.safetensors",
    ),
    (
        "a file of something else",
        lambda f: loaded(f, lambda data: b"x" * 200),
        CorruptFileError,
        "model.safetensors",
    ),
    (
        "a number that is none",
        lambda _: log_of_minus_one(),
        FloatingPointError,
        "(op log)",
    ),
]


# `save` warns of what `load` refuses.
@pytest.mark.filterwarnings("ignore:.*holds NaN or infinity:UserWarning")
@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [case[1:] for case in WRONG],
    ids=[case[0].replace(" ", "-") for case in WRONG],
)
def test_each_error_names_the_place_the_problem_and_the_remedy(
    wrong, error, named, tmp_path
):
    with refuses(error, named) as caught:
        wrong(tmp_path)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


def test_there_are_thirty_of_them():
    assert len({case[0] for case in WRONG}) == len(WRONG) >= 30
