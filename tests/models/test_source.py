"""The source of a compiled model: readable, and the very program that runs."""

import ast
from typing import Any

import jax
import numpy as np
import pytest

import frugax as ml
from frugax.models import (
    LSTM,
    MLP,
    BatchNorm,
    Conv2D,
    Dropout,
    IOKey,
    Linear,
    Model,
    Relu,
    Sequential,
    TransformerBlock,
    TransformerLM,
    op,
    weight_of,
)

ROWS = 3


def language_model():
    block = TransformerBlock(8, heads=2, dropout=0.1)
    return TransformerLM(20, block, depth=4, length=5), {"input": ("batch", 5)}


def images():
    net = Sequential([Conv2D(4, 3), BatchNorm(), Relu(), op("flatten", start=1)])
    return net, {"input": ("batch", 6, 6, 2)}


def many_ways():
    x = IOKey("class", shape=("batch", 4))  # a word of Python's own
    hidden = Linear(4, name="for")(x)
    tied = Linear(4, bias=False)(hidden, weight=weight_of(hidden))
    table = op("cos")(op("arange", stop=4)() * 0.5)
    noise = op("random_normal", shape=(4,))()
    clipped = op("where")(x > 0.0, hidden, float("-inf"))
    return Model.create(
        y=tied + table + noise,
        best=clipped.max(-1),
        part=hidden[:, None, 1:3],
        data=op("concat", axis=-1)(x, hidden, tied),
        zeros=op("zeros", shape=(300_000,))() + x.sum(),
    ), {}


def nested_loops():
    inner = Sequential([Linear(4), op("tanh")])
    y = IOKey("x", shape=("batch", 4))
    for _ in range(3):
        y = Sequential([inner] * 3)(y)
    return Model.create(y=y * np.array([1, 2, 3, 4], "float32")), {}


MODELS = {
    "mlp": lambda: (MLP(4, [8, 8], 2), {}),
    "language model": language_model,
    "images": images,
    "recurrent": lambda: (LSTM(6), {"input": ("batch", 5, 3)}),
    "random": lambda: (Dropout(0.5), {"input": ("batch", 5)}),
    "many ways": many_ways,
    "loops in loops": nested_loops,
}


def backend_of(library):
    if library == "torch":
        pytest.importorskip("torch")
        return ml.TorchBackend(jit=False)
    return ml.JaxBackend()


def made(kind, library):
    """A compiled model, parameters, data, and its source as a function."""
    model, shapes = MODELS[kind]()
    backend = backend_of(library)
    compiled = ml.compile(model, backend, shapes=shapes, scan_from=3)
    rng = np.random.default_rng(0)
    data: dict[str, Any] = dict(compiled.initial_state())
    for key, about in compiled.graph.inputs.items():
        spec = compiled.graph.specs[key]
        shape = [d if isinstance(d, int) else ROWS for d in spec.shape]
        if about.dtype == "key":
            data[key] = backend.get_random_key()
        elif about.dtype == "int32":
            data[key] = backend.array(rng.integers(0, 20, shape), dtype="int32")
        else:
            data[key] = backend.array(rng.normal(size=shape))
    scope = {}
    exec(compile(compiled.source, "source", "exec"), scope)

    def run(params, data):
        constants = [compiled.constants] if compiled.constants else []
        return scope["model"](params, data, backend, *constants)

    return compiled, compiled.randomize_params(0), data, run


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_the_program_that_jax_traces(kind):
    compiled, params, data, run = made(kind, "jax")
    want = jax.make_jaxpr(compiled.pure)(params, data)
    assert str(jax.make_jaxpr(run)(params, data)) == str(want)


@pytest.mark.parametrize("kind", MODELS)
def test_it_gives_the_same_on_torch(kind):
    compiled, params, data, run = made(kind, "torch")
    want, got = compiled.pure(params, data), run(params, data)
    assert list(got) == list(want)
    for key in want:
        np.testing.assert_array_equal(got[key].detach(), want[key].detach())


def test_it_reads_like_this():
    model = Model()
    model |= Linear(8, name="encoder")(input=IOKey("x", ("batch", 4)), output="hidden")
    model += Relu()
    model += Linear(2, name="decoder")(output="y")
    text = ml.compile(model, ml.JaxBackend()).source
    body = text.split("\n\n\n")[1]
    assert body == (
        "def model(params, data, backend):\n"
        '    x = data["x"]  # float32[batch, 4]\n'
        '    encoder = backend.linear(x, params["encoder.weight"], '
        'params["encoder.bias"])  # float32[batch, 8]\n'
        "    relu_0 = backend.relu(encoder)  # float32[batch, 8]\n"
        '    y = backend.linear(relu_0, params["decoder.weight"], '
        'params["decoder.bias"])  # float32[batch, 2]\n'
        '    return {"y": y}\n'
    )


def test_a_loop_is_a_loop():
    compiled = made("language model", "jax")[0]
    text = compiled.source
    assert text.count("backend.attention(") == 1
    assert text.count("backend.xp.scan(") == 1
    assert "def block_step(" in text
    assert 'params["block_*.mlp.up.weight"],  # float32[4, 32, 8]' in text


@pytest.mark.parametrize("kind", MODELS)
def test_every_name_is_given_once(kind):
    tree = ast.parse(made(kind, "jax")[0].source)
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
    stored = [
        n.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id != "_"
    ]
    assert len(stored) == len(set(stored))
    assert set(names) - set(stored) <= {"params", "data", "backend", "constants"} | {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)
    } | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)} | {"float", "_"}


def test_own_operations_are_in_it():
    backend = ml.JaxBackend()

    @backend.register_op("twice")
    def twice(value, scale=2.0):
        return value * scale

    model = Model.create(y=op("twice")(IOKey("x", shape=(3,))))
    compiled = ml.compile(model, backend)
    assert "y = backend.twice(x)  # float32[3]" in compiled.source
