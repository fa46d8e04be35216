"""What is left out, merged and computed beforehand; counted in steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.models import (
    BatchNorm,
    Dropout,
    IOKey,
    Linear,
    Model,
    Relu,
    Sequential,
    _passes as passes,
    op,
    weight_of,
)
from frugax.models.graph import LoopNode, ModelGraph, OpNode, Spec

BACKENDS = ["jax", "torch"]
X = np.arange(6, dtype="float32").reshape(2, 3)


def x():
    return IOKey("x", shape=(2, 3))


def backend_of(name):
    if name == "torch":
        pytest.importorskip("torch")
        return ml.TorchBackend(jit=False)
    return ml.JaxBackend()


def steps(compiled):
    """The ops that are left, in the order of running."""
    return [node.op for node in compiled.graph.walk() if isinstance(node, OpNode)]


def run(compiled, **data):
    backend = compiled.backend
    data = {k: backend.array(v) for k, v in data.items()}
    made = compiled.evaluate(compiled.randomize_params(0), data)
    return {
        k: np.asarray(v.detach() if hasattr(v, "detach") else v)
        for k, v in made.items()
    }


@pytest.mark.parametrize("name", BACKENDS)
def test_common_subexpressions_are_computed_once(name):
    double = lambda: op("exp")(x() * 2.0)
    model = Model.create(y=double() + double(), z=double())
    compiled = ml.compile(model, backend_of(name))
    assert len(model.calls) == 7
    assert steps(compiled) == ["multiply", "exp", "add"]
    made = run(compiled, x=X)
    np.testing.assert_allclose(made["y"], 2 * np.exp(2 * X), rtol=1e-5)
    np.testing.assert_allclose(made["z"], np.exp(2 * X), rtol=1e-5)


def test_similar_operations_are_not_merged():
    model = Model.create(
        ints=op("full_like", value=1)(x()),
        floats=op("full_like", value=1.0)(x()),
        a=x() * 1,
        b=x() * 1.0,
        c=x() * True,
        d=x() * 0.0,
        e=x() * -0.0,
        f=x().sum(0),
        g=x().sum(1),
        h=x() - 1.0,
        i=1.0 - x(),
    )
    compiled = ml.compile(model, ml.JaxBackend())
    assert len(steps(compiled)) == 11


def test_weights_and_random_draws_stay_apart():
    h = Linear(3, bias=False, name="own")(x())
    tied = [Linear(3, bias=False)(h, weight=weight_of(h)) for _ in range(2)]
    model = Model.create(
        a=Linear(3)(x()),
        b=Linear(3)(x()),
        c=Dropout(0.5)(x()),
        d=Dropout(0.5)(x()),
        tied=tied[0] + tied[1],
    )
    left = steps(ml.compile(model, ml.JaxBackend()))
    assert left.count("dropout") == 2
    assert left.count("linear") == 4  # two own, the owner, and one for both that share


def test_a_state_is_renewed_by_each_layer():
    h = x()
    model = Model.create(y=BatchNorm(name="a")(h) + BatchNorm(name="b")(h))
    compiled = ml.compile(model, ml.JaxBackend())
    assert steps(compiled).count("batch_norm") == 2
    assert {"a.running_mean", "b.running_var"} <= set(compiled.output_keys)
    aside = Model.create(y=x() + 1.0, z=BatchNorm(name="a")(x()))
    compiled = ml.compile(aside, ml.JaxBackend(), discard_keys=["z"])
    assert set(compiled.output_keys) == {"y", "a.running_mean", "a.running_var"}


@pytest.mark.parametrize("name", BACKENDS)
def test_constants_are_folded(name):
    table = op("arange", stop=3)() * 2.0 + np.array([0, 1, 0], "float32")
    compiled = ml.compile(Model.create(y=x() + op("cos")(table)), backend_of(name))
    assert steps(compiled) == ["add"]
    (folded,) = compiled.graph.constants.values()
    assert isinstance(folded, type(compiled.backend.ones(1)))
    made = run(compiled, x=X)
    np.testing.assert_allclose(made["y"], X + np.cos([0, 3, 4]), rtol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_constant_arrays_become_the_backends_own(name):
    compiled = ml.compile(Model.create(y=x() + np.arange(3.0)), backend_of(name))
    (constant,) = compiled.graph.constants.values()
    assert isinstance(constant, type(compiled.backend.ones(1)))
    assert compiled.graph.specs[compiled.graph.outputs["y"]].dtype == np.float32
    assert run(compiled, x=X)["y"].dtype == np.float32


def test_bound_inputs_and_weights_are_folded():
    model = Model.create(y=Linear(2, name="a")(IOKey("scale", shape=(3,))) * x()[:, :2])
    fixed = {"scale": np.ones(3), "a.weight": np.ones((2, 3)), "a.bias": np.zeros(2)}
    compiled = ml.compile(model, ml.JaxBackend(), constant_keys=fixed)
    assert steps(compiled) == ["getitem", "multiply"]
    np.testing.assert_allclose(run(compiled, x=X)["y"], 3 * X[:, :2])


def test_large_constants_are_not_folded():
    size = passes.FOLDED_BYTES // 4
    for extra, left in ((0, []), (1, ["zeros"])):
        model = Model.create(y=x().sum() + op("zeros", shape=(size + extra,))())
        compiled = ml.compile(model, ml.JaxBackend())
        assert steps(compiled) == [*left, "sum", "add"] or steps(compiled) == [
            "sum",
            *left,
            "add",
        ]


def test_an_output_may_be_a_constant():
    compiled = ml.compile(
        Model.create(y=op("arange", stop=3)(), z=x() + 1.0), ml.JaxBackend()
    )
    assert steps(compiled) == ["add"]
    np.testing.assert_array_equal(run(compiled, x=X)["y"], [0, 1, 2])
    assert compiled.shapes["y"] == (3,)


def test_loops_are_worked_on_inside():

    inner = Model()
    inner |= op("exp")(input="input", output="a")
    inner |= op("exp")(input="input", output="b")
    inner |= op("add")(left="a", right="b", output="c")
    inner |= op("arange", stop=3)(output="numbers")
    inner |= op("multiply")(left="c", right="numbers", output="d")
    inner |= op("tanh")(input="d", output="output")
    y = x()
    for _ in range(4):
        y = inner(y)
    compiled = ml.compile(Model.create(y=y), ml.JaxBackend(), scan_from=4)
    (loop,) = compiled.graph.nodes
    assert isinstance(loop, LoopNode)
    assert [n.op for n in loop.body.nodes if isinstance(n, OpNode)] == [
        "exp",
        "add",
        "multiply",
        "tanh",
    ]
    want = X
    for _ in range(4):
        want = np.tanh(2 * np.exp(want) * np.arange(3))
    np.testing.assert_allclose(run(compiled, x=X)["y"], want, rtol=1e-5)


def test_passes_change_neither_their_input_nor_the_numbers(monkeypatch):
    block = lambda: Sequential([Linear(3), Relu(), Dropout(0.2)])
    y = x()
    for _ in range(3):
        y = block()(y)
    model = Model.create(y=y + op("exp")(x()) + op("exp")(x()))
    backend = ml.JaxBackend()
    changed = ml.compile(model, backend, scan_from=3)
    before = []
    same = lambda graph, *args: before.append((graph, repr(graph))) or graph
    monkeypatch.setattr("frugax.models._compile.merge_equal", same)
    monkeypatch.setattr("frugax.models._compile.fold_constants", same)
    plain = ml.compile(model, backend, scan_from=3)
    assert len(steps(plain)) > len(steps(changed))
    graph, text = before[0]
    passes.prune(
        passes.fold_constants(passes.merge_equal(graph), backend.xp, backend.find)
    )
    assert repr(graph) == text
    params = plain.randomize_params(0)
    data = {"x": jnp.asarray(X), "key": jax.random.key(0)}
    want, made = plain.evaluate(params, data), changed.evaluate(params, data)
    np.testing.assert_array_equal(want["y"], made["y"])


def test_passes_can_be_repeated():
    model = Model.create(
        y=op("exp")(x()) + op("exp")(x()) * (op("arange", stop=3)() + 1)
    )
    compiled = ml.compile(model, ml.JaxBackend())
    graph, backend = compiled.graph, compiled.backend
    again = passes.merge_equal(graph)
    again = passes.prune(passes.fold_constants(again, backend.xp, backend.find))
    assert again == graph


def test_prune_keeps_the_operations_that_outputs_need():
    key = IOKey("x", shape=(2,))

    def node(i, left, right):
        wires = {"left": left, "right": right}
        return OpNode(f"n{i}", op("add"), "add", wires, (f"{i}",), ())

    graph = ModelGraph(
        {"x": key, "unread": key},
        {"/c": 1.0, "/d": 2.0},
        (node(0, "x", "/c"), node(1, "x", "/d"), node(2, "0", "0")),
        {"y": "2", "z": "1"},
        specs={"x": Spec((2,), np.dtype("float32"))},
    )
    pruned = passes.prune(graph, ["z"])
    assert [n.path for n in pruned.nodes] == ["n0", "n2"]
    assert set(pruned.inputs) == {"x"}
    assert set(pruned.constants) == {"/c"}
