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
        r"layer 'decoder' \(Linear.*'decoder.weight' must have shape \(10, 64\), got "
        r"\(10, 63\).*input float32\[2, 64\]",
    ),
    (
        "a bias of another shape",
        lambda _: run(**{"encoder.bias": ones(63)}),
        ShapeError,
        r"layer 'encoder'.*must have shape \(64,\), got \(63,\)",
    ),
    (
        "data of another length",
        lambda _: run(data={"input": ones(2, 4)}),
        ShapeError,
        r"the input 'input' must have shape \(2, 3\), got \(2, 4\)",
    ),
    (
        "another length than the layer says",
        lambda _: compile(MLP(input_size=5, hidden_sizes=[4], output_size=2)),
        ShapeError,
        r"layer 'linear_0'.*float32\[2, 3\]: the last axis must have length 5",
    ),
    (
        "no axis at all",
        lambda _: compile(Model(Linear(4, name="first")), ()),
        ShapeError,
        r"layer 'first'.*float32\[\]: it needs at least one axis",
    ),
    (
        "a free length where a weight needs one",
        lambda _: compile(Model(Linear(4, name="first")), ("batch", "features")),
        ShapeError,
        r"layer 'first'.*float32\[batch, features\].*is free: state its length",
    ),
    (
        "an image without channels",
        lambda _: compile(Model(Conv2D(4, name="edges")), (2, 8, 8)),
        ShapeError,
        r"layer 'edges'.*float32\[2, 8, 8\].*needs \(batch, height, width, channels\)",
    ),
    (
        "groups that do not divide the channels",
        lambda _: compile(Model(Conv2D(4, groups=2, name="edges")), (2, 8, 8, 3)),
        ShapeError,
        r"layer 'edges'.*float32\[2, 8, 8, 3\].*groups=2 must divide its 3 channels",
    ),
    (
        "a window larger than the image",
        lambda _: compile(Model(MaxPool2D(9, name="pool")), (2, 8, 8, 3)),
        ShapeError,
        r"layer 'pool'.*float32\[2, 8, 8, 3\].*a window of 9 does not fit",
    ),
    (
        "a sum of unequal lengths",
        lambda _: compile(Model.create(output=a() + b())),
        ShapeError,
        r"'add_0'.*left float32\[2, 4\], right float32\[2, 5\]: dimension -1 is 4 and",
    ),
    (
        "a product of unequal lengths",
        lambda _: compile(Model.create(output=a() @ b())),
        ShapeError,
        r"'matmul_0'.*\[2, 4\].*\[2, 5\]: left's last dimension is 4 and right's",
    ),
    (
        "joined with unequal lengths",
        lambda _: compile(
            Model.create(output=op("concat", axis=1)(a(), op("transpose")(X)))
        ),
        ShapeError,
        r"'concat_0'.*\[2, 4\].*\[3, 2\].*dimension 0 is 2 and 3; all but dimension 1",
    ),
    (
        "a shape of another size",
        lambda _: compile(Model.create(output=X.reshape((4, 4)))),
        ShapeError,
        r"'reshape_0'.*float32\[2, 3\] with shape=\(4, 4\): cannot reshape",
    ),
    (
        "a short cut around a change of shape",
        lambda _: compile(Model(Residual(Linear(4), name="skip"))),
        ShapeError,
        r"'skip.add_0'.*left float32\[2, 3\], right float32\[2, 4\]",
    ),
    (
        "heads that do not divide",
        lambda _: MultiHeadAttention(10, heads=3),
        ValueError,
        r"MultiHeadAttention.heads=3 does not divide dimension=10.*1, 2, 5, 10",
    ),
    (
        "groups of a norm that do not divide",
        lambda _: compile(Model(GroupNorm(2, name="norm")), (2, 4, 4, 3)),
        ShapeError,
        r"layer 'norm'.*float32\[2, 4, 4, 3\].*groups=2 must divide its 3 channels",
    ),
    (
        "words that are no integers",
        lambda _: (lambda c: c.evaluate(c.randomize_params(0), {"input": ones(2, 3)}))(
            compile(Model(Embedding(5, 4, name="words")))
        ),
        ShapeError,
        r"layer 'words'.*float32\[2, 3\].*indices must be integers below 5",
    ),
    (
        "a sequence without time",
        lambda _: compile(Model(LSTM(4, name="memory"))),
        ShapeError,
        r"layer 'memory'.*float32\[2, 3\].*needs \(batch, time, features\)",
    ),
    (
        "a loss of unequal shapes",
        lambda _: ml.compile(
            Model(MSE(name="error")),
            ml.JaxBackend(),
            shapes={"input": (2, 3), "target": (2, 1)},
        ),
        ShapeError,
        r"layer 'error'.*\[2, 3\], target float32\[2, 1\].*does not broadcast",
    ),
    (
        "a length with some zeros too many",
        lambda _: compile(Model(Linear(10**13, name="wide"))),
        ShapeError,
        r"layer 'wide'.*shape \(10000000000000, 3\) would hold 3.0e\+13 numbers",
    ),
    (
        "a missing parameter",
        lambda _: run(without=["decoder.weight"]),
        ValueError,
        r"params lacks 'decoder.weight', which layer 'decoder' \(Linear",
    ),
    (
        "a misspelt parameter",
        lambda _: run(**{"decoder.wieght": ones(1)}),
        ValueError,
        r"params has 'decoder.wieght', which no layer reads; it takes: decoder.bias",
    ),
    (
        "missing data",
        lambda _: run(data={}),
        ValueError,
        r"data lacks 'input', which layer 'encoder'",
    ),
    (
        "misspelt data",
        lambda _: run(data={"inpt": ones(2, 3)}),
        ValueError,
        r"data lacks 'input', which layer 'encoder'.*; 'inpt' is given, which no layer",
    ),
    (
        "data that nobody reads",
        lambda _: run(data={"input": ones(2, 3), "inputs": ones(2, 3)}),
        ValueError,
        r"data has 'inputs', which no layer reads; it takes: input",
    ),
    (
        "a shape that is not said",
        lambda _: ml.compile(two_layers(), ml.JaxBackend()),
        ValueError,
        r"shape of 'input', which layer 'encoder'.*is not known: state it.*shapes=",
    ),
    (
        "a shape of what is no input",
        lambda _: ml.compile(two_layers(), ml.JaxBackend(), shapes={"inputs": (2, 3)}),
        ValueError,
        r"shapes: there is no input 'inputs'; there are: input",
    ),
    (
        "a circle",
        lambda _: wired(("a", "from_b", "from_a"), ("b", "from_a", "from_b")),
        ValueError,
        r"layers feed each other in a circle: a -> b -> a",
    ),
    (
        "two layers of one name",
        lambda _: wired(("a", "input", "h"), ("a", "h", "output")),
        ValueError,
        r"two layers are called 'a'",
    ),
    (
        "two results of one name",
        lambda _: wired(("a", "input", "h"), ("b", "input", "h")),
        ValueError,
        r"two results are called 'h': those of 'a' \(Linear\) and of 'b' \(Linear\)",
    ),
    (
        "an op that is not there",
        lambda _: compile(Model(op("gelou", name="act"))),
        ValueError,
        r"layer 'act'.*no op 'gelou'. Did you mean 'gelu'",
    ),
    (
        "an attribute that is not there",
        lambda _: op("gelu", aproximate=True),
        ValueError,
        r"op 'gelu' has no attribute 'aproximate'; it has: approximate",
    ),
    (
        "a port that is not there",
        lambda _: Linear(3, name="a")(inputs="x"),
        ValueError,
        r"'a' \(Linear\) has no port 'inputs'; it takes input",
    ),
    (
        "a model without layers",
        lambda _: compile(Model()),
        ValueError,
        r"the model has no layers; add one",
    ),
    (
        "a weight of a layer that is not in the model",
        lambda _: compile(
            Model.create(output=Linear(4, name="tied")(X, weight=weight_of(b())))
        ),
        ValueError,
        r"layer 'tied' shares a weight of 'b' \(Linear\), which is not part",
    ),
    (
        "a device that is not there",
        lambda _: ml.JaxBackend(device="gpu:3"),
        ValueError,
        r"no 'gpu' device here; it has: cpu:0",
    ),
    (
        "more devices than there are",
        lambda _: ml.JaxBackend(device_mesh=(64,)),
        ValueError,
        r"device_mesh \(64,\) needs 64 devices, and \d+ exist",
    ),
    (
        "a length that cannot be split",
        lambda _: ml.JaxBackend(device_mesh=(2,)).ones(3, 4, tensor_split=(0,)),
        ValueError,
        r"dimension 0 of shape \(3, 4\) cannot be split into 2",
    ),
    (
        "a dtype that is no float",
        lambda _: ml.JaxBackend(dtype="int32"),
        ValueError,
        r"dtype must be one of float16, bfloat16, float32, float64, got int32",
    ),
    (
        "weights that are NaN in a file",
        lambda f: loaded(f, **{"encoder.weight": np.full((64, 3), np.nan, "f4")}),
        ValueError,
        r"model.safetensors has numbers that are NaN.*192 of 192 in 'encoder.weight'",
    ),
    (
        "a file that was cut off",
        lambda f: loaded(f, lambda data: data[:-40]),
        CorruptFileError,
        r"model.safetensors.*cut off \([\d,]+ bytes\)",
    ),
    (
        "a file of something else",
        lambda f: loaded(f, lambda data: b"x" * 200),
        CorruptFileError,
        r"model.safetensors.*not a .safetensors file",
    ),
    (
        "a number that is none",
        lambda _: log_of_minus_one(),
        FloatingPointError,
        r"layer 'logs' \(op log\) is the first that gives NaN",
    ),
]


# `save` warns of what `load` refuses.
@pytest.mark.filterwarnings("ignore:.*holds NaN or infinity:UserWarning")
@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [case[1:] for case in WRONG],
    ids=[case[0].replace(" ", "-") for case in WRONG],
)
def test_each_error_names_the_place_the_problem_and_the_remedy(
    wrong, error, words, tmp_path
):
    with pytest.raises(error, match=words) as caught:
        wrong(tmp_path)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


def test_there_are_thirty_of_them():
    assert len({case[0] for case in WRONG}) == len(WRONG) >= 30
