"""Guarantees that hold on every backend, tested against both."""

from typing import Any

import numpy as np
import pytest

import frugax as ml
from frugax.errors import ShapeError
from frugax.models import MLP, IOKey, Linear, Model, op
from refusals import refuses

torch = pytest.importorskip("torch")
BACKENDS = {"jax": ml.JaxBackend, "torch": ml.TorchBackend}
both = pytest.mark.parametrize("library", BACKENDS)


def host(x):
    """Any array as NumPy has it; half-width floats as float32, exactly."""
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == ml.bfloat16 else x


def dtype_of(x):
    return str(x.dtype).removeprefix("torch.")


def small(library, **options):
    """A compiled MLP of 3 -> 4 -> 2, its parameters, and a batch of five."""
    backend = BACKENDS[library](**options)
    model = MLP(input_size=3, hidden_sizes=[4], output_size=2, activation="tanh")
    compiled = ml.compile(model, backend)
    data = {"input": backend.array(np.linspace(-1, 1, 15).reshape(5, 3))}
    return backend, compiled, compiled.randomize_params(0), data


# --- arrays -------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_new_arrays_have_the_backends_dtype(library, dtype):
    b = BACKENDS[library](dtype=dtype)
    made = [
        *(b.zeros(2, 3), b.ones((2, 3)), b.full((2, 3), 0.5), b.randn(2, 3)),
        *(b.rand([2, 3]), b.array([[0, 0.5, 1]] * 2)),
    ]
    assert {dtype_of(x) for x in made} == {dtype}
    assert {tuple(x.shape) for x in made} == {(2, 3)}
    assert dtype_of(b.ones(2, dtype=ml.int8)) == "int8"
    integers = "int64" if dtype == "float64" else "int32"
    assert dtype_of(b.arange(3)) == dtype_of(b.randint(0, 5, 3)) == integers
    assert dtype_of(b.arange(0, 1, 0.25)) == dtype
    np.testing.assert_array_equal(host(b.array([[0, 0.5, 1]])), [[0, 0.5, 1]])


@both
@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.arange(3), "int32"),
        (np.arange(3, dtype=np.uint8), "uint8"),
        (np.array([True, False]), "bool"),
        ([1, 2], "int32"),
        (2.5, "float32"),
        (np.ones(2, ml.bfloat16), "float32"),
    ],
)
def test_numbers_that_are_not_floating_keep_their_dtype(library, given, dtype):
    made = BACKENDS[library]().array(given)
    assert dtype_of(made) == dtype
    np.testing.assert_array_equal(host(made), np.asarray(given).astype(dtype))


@both
def test_an_array_does_not_change_with_its_source(library):
    given = np.zeros(64, np.float32)
    made = BACKENDS[library]().array(given)
    given[:] = 1
    np.testing.assert_array_equal(host(made), 0)


@both
@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda b: b.ones(2, -1), ValueError, (2, -1)),
        (lambda b: b.ones(2.5), ValueError, 2.5),
        (lambda b: b.ones(2, dtype="float31"), ValueError, "dtype"),
        (lambda b: b.array("text"), TypeError, "array"),
        (lambda b: b.array([object()]), TypeError, "array"),
        (lambda b: b.softmaxx(b.ones(2)), AttributeError, "softmax"),
        (lambda b: b.register_op("no name")(abs), ValueError, "'no name'"),
        (lambda b: type(b)(dtype="int32"), ValueError, "int32"),
        (lambda b: type(b)(device="gpu:77"), ValueError, "device"),
        (lambda b: type(b)(device="cpu:99"), ValueError, "device"),
        (lambda b: type(b)(device="abacus"), ValueError, "device"),
        (lambda b: type(b)(precision="lowest"), ValueError, "'lowest'"),
    ],
)
def test_wrong_use_is_refused_in_one_line(library, call, error, named):
    with refuses(error, named) as caught:
        call(BACKENDS[library]())
    assert "\n" not in str(caught.value)


# --- ops at once --------------------------------------------------------------------


@both
def test_any_op_runs_at_once_on_any_numbers(library):
    b = BACKENDS[library]()
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(host(b.add(b.array(x), 1)), x + 1)
    np.testing.assert_allclose(host(b.multiply(x, 2.0)), x * 2)
    np.testing.assert_allclose(host(b.concat([x, x], axis=1)), np.hstack([x, x]))
    np.testing.assert_allclose(
        host(b.concat(b.array(x), b.array(x))), np.vstack([x, x])
    )
    np.testing.assert_allclose(host(b.sum(b.array(x), 0)), x.sum(0))
    np.testing.assert_allclose(host(b.subtract(right=x, left=1.0)), 1 - x)
    values, order = b.top_k(b.array(x), k=2)
    np.testing.assert_array_equal(host(values), x[:, :0:-1])
    assert order.shape == (2, 2)
    assert {"add", "softmax", "ones"} <= set(dir(b))


@both
def test_a_user_op_belongs_to_one_backend(library):
    b, other = BACKENDS[library](), BACKENDS[library]()

    @b.register_op("thrice")
    def thrice(x, y=None, *, more=0.0):
        return 3 * x + more if y is None else 3 * x + y

    assert thrice(2) == 6  # the function is still itself
    np.testing.assert_allclose(host(b.thrice(b.ones(2), more=1.0)), 4)
    assert not hasattr(other, "thrice")
    model = Model.create(output=op("thrice")(Linear(2)(IOKey("x", shape=("n", 2)))))
    compiled = ml.compile(model, b)
    data = {"x": b.ones(3, 2)}
    params = compiled.randomize_params(1)
    plain = host(
        b.linear(data["x"], params["linear_0.weight"], params["linear_0.bias"])
    )
    np.testing.assert_allclose(
        host(compiled.evaluate(params, data)["output"]), 3 * plain
    )
    with refuses(ValueError, "thrice"):
        ml.compile(model, other)


@both
def test_a_user_op_replaces_the_tables_op_in_models_too(library):
    b = BACKENDS[library]()
    b.register_op("relu")(lambda x: x * 0 + 7)
    model = Model.create(output=op("relu")(IOKey("x", shape=(2,))))
    np.testing.assert_array_equal(
        host(ml.compile(model, b).evaluate({}, {"x": b.ones(2)})["output"]), 7
    )
    assert float(BACKENDS[library]().relu(b.ones(()))) == 1


# --- random numbers -----------------------------------------------------------------


@both
def test_random_numbers_depend_on_the_seed_only(library):
    def draw(b):
        return [host(x) for x in (b.randn(50), b.rand(50), b.randint(0, 99, 50))]

    one, same, other = (BACKENDS[library](seed=s) for s in (7, 7, 8))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - to see that nothing of it is used
    first = draw(one)
    torch.manual_seed(1)
    for a, b, c in zip(first, draw(same), draw(other), strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)
    assert not np.array_equal(draw(one)[0], first[0])
    one.set_seed(7)
    np.testing.assert_array_equal(draw(one)[0], first[0])


@both
def test_keys_split_into_different_ones(library):
    b: Any = BACKENDS[library]()
    key = b.get_random_key()
    new, use = b.split_key(key)
    drawn = [host(b.random_normal(k, shape=(8,))) for k in (key, new, use)]
    again = host(b.random_normal(b.split_key(key)[1], shape=(8,)))
    np.testing.assert_array_equal(drawn[2], again)
    assert len({d.tobytes() for d in drawn}) == 3


@both
def test_a_model_draws_from_the_key_it_is_given(library):
    b = BACKENDS[library]()
    x = IOKey("x", shape=("n", 500))
    model = Model.create(
        one=op("dropout", rate=0.25)(x), two=op("dropout", rate=0.25)(x)
    )
    compiled = ml.compile(model, b)
    keys = [b.get_random_key() for _ in range(2)]
    data = {"x": b.ones(4, 500)}
    made = [compiled.evaluate({}, data | {"key": k}) for k in (*keys[:1], *keys)]
    runs = [host(m["one"]) for m in made]
    assert not np.array_equal(host(made[0]["two"]), runs[0])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert set(np.unique(runs[0])) == {np.float32(0), np.float32(1 / 0.75)}
    # Five standard errors of a share of 2000 draws.
    assert abs((runs[0] == 0).mean() - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5


# --- compiled models ----------------------------------------------------------------


@both
def test_parameters_start_as_the_layers_say_and_by_their_key(library):
    b = BACKENDS[library]()
    model = MLP(input_size=200, hidden_sizes=[300], output_size=5)
    compiled = ml.compile(model, b)
    params = compiled.randomize_params(3)
    assert {k: tuple(v.shape) for k, v in params.items()} == {
        "linear_0.weight": (300, 200),
        "linear_0.bias": (300,),
        "linear_1.weight": (5, 300),
        "linear_1.bias": (5,),
    }
    first = host(params["linear_0.weight"])
    # He et al.: sqrt(2 / 200); five standard errors of a deviation of 60,000 draws.
    assert abs(first.std() / 0.1 - 1) < 5 / (2 * 60_000) ** 0.5
    np.testing.assert_array_equal(host(params["linear_0.bias"]), 0)
    np.testing.assert_array_equal(
        host(compiled.randomize_params(3)["linear_0.weight"]), first
    )
    for other in (compiled.randomize_params(4), compiled.randomize_params()):
        assert not np.array_equal(host(other["linear_0.weight"]), first)


@both
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_models_keep_to_their_dtype(library, dtype):
    b, compiled, params, data = small(library, dtype=dtype)
    outputs, gradients = compiled.evaluate(params, data, {"output": b.ones(5, 2)})
    assert {dtype_of(v) for v in (*params.values(), *gradients.values())} == {dtype}
    assert dtype_of(outputs["output"]) == dtype
    w, v = (host(params[f"linear_{i}.weight"]).astype(float) for i in (0, 1))
    wanted = np.tanh(host(data["input"]).astype(float) @ w.T) @ v.T
    digits = {"float16": 2**-11, "bfloat16": 2**-8, "float64": 2**-53}[dtype]
    # Two products of at most four terms below 4 and a tanh, each rounded once or twice.
    np.testing.assert_allclose(host(outputs["output"]), wanted, atol=40 * digits)


@both
def test_three_ways_to_a_gradient_agree(library):
    b, compiled, params, data = small(library)
    weights = b.array(np.linspace(1, 2, 10).reshape(5, 2))
    outputs, pulled = compiled.evaluate(params, data, {"output": weights})
    assert set(pulled) == set(params)
    value, gradients = compiled.value_and_grad(
        params, data, lambda outputs: (outputs["output"] * weights).sum()
    )
    also, same = compiled.value_and_grad(
        params,
        data | {"w": weights},
        lambda o, inputs: (o["output"] * inputs["w"]).sum(),
    )
    total = (host(outputs["output"]) * host(weights)).sum()
    np.testing.assert_allclose([float(value), float(also)], total, rtol=1e-6)
    loss = compiled.loss_function(lambda o: (o["output"] * weights).sum())
    np.testing.assert_allclose(float(loss(params, data)), total, rtol=1e-6)
    for key in params:
        np.testing.assert_allclose(host(gradients[key]), host(pulled[key]), rtol=1e-5)
        np.testing.assert_allclose(host(same[key]), host(pulled[key]), rtol=1e-5)


@both
def test_outputs_left_out_count_zero_and_unread_parameters_too(library):
    b = BACKENDS[library]()
    x = IOKey("x", shape=("n", 3))
    model = Model.create(a=Linear(2, name="a")(x), b=Linear(2, name="b")(x))
    compiled = ml.compile(model, b)
    params = compiled.randomize_params(0)
    outputs, gradients = compiled.evaluate(
        params, {"x": b.ones(4, 3)}, {"a": b.ones(4, 2)}
    )
    assert set(outputs) == {"a", "b"}
    np.testing.assert_allclose(host(gradients["a.bias"]), 4)
    np.testing.assert_array_equal(host(gradients["b.weight"]), np.zeros((2, 3)))
    _, none = compiled.evaluate(params, {"x": b.ones(4, 3)}, {})
    assert not any(host(g).any() for g in none.values())


@both
def test_numpy_arrays_are_accepted(library):
    _, compiled, params, data = small(library)
    params = {k: host(v).astype(np.float64) for k, v in params.items()}
    data = {"input": host(data["input"]).astype(np.float64)}
    cotangent = {"output": np.ones((5, 2))}
    outputs, gradients = compiled.evaluate(params, data, cotangent)
    assert (
        dtype_of(outputs["output"]) == dtype_of(gradients["linear_0.bias"]) == "float32"
    )
    np.testing.assert_allclose(host(gradients["linear_1.bias"]), 5)


@both
def test_every_batch_size_runs(library):
    _, compiled, params, data = small(library)
    whole = host(compiled.evaluate(params, data)["output"])
    for n in (0, 1, 3, 5):
        part = compiled.evaluate(params, {"input": data["input"][:n]})["output"]
        np.testing.assert_allclose(host(part), whole[:n], rtol=1e-5, atol=1e-6)


@both
def test_shapes_say_free_lengths_by_name(library):
    b = BACKENDS[library]()
    x, y = IOKey("x", shape=("batch", "time", 6)), IOKey("y", shape=("batch", None))
    model = Model.create(
        twice=op("concat", axis=0)(x, x),
        flat=op("reshape", shape=(-1, 3))(x),
        longer=op("pad", widths=((0, 0), (1, 2), (0, 0)))(x),
        total=y.sum(axis=0),
        out=Linear(4)(x),
    )
    shapes = ml.compile(model, b, shapes={}).shapes
    assert {k: str(shapes[k]) for k in model.outputs} == {
        "twice": "(2*batch, time, 6)",
        "flat": "(2*batch*time, 3)",
        "longer": "(batch, time + 3, 6)",
        "total": "(free1,)",
        "out": "(batch, time, 4)",
    }
    assert shapes["linear_0.weight"] == (4, 6)


@both
def test_equal_numbers_of_two_types_make_two_dtypes(library):
    b = BACKENDS[library]()
    n = IOKey("n", shape=(3,), dtype="int32")
    for number, dtype in ((2, "int32"), (2.0, "float32"), (True, "int32")):
        compiled = ml.compile(Model.create(output=n * number), b)
        made = compiled.evaluate({}, {"n": b.arange(3)})["output"]
        inferred = compiled.graph.specs[compiled.graph.outputs["output"]].dtype
        assert (dtype_of(made), inferred.name) == (dtype, dtype)
        np.testing.assert_array_equal(host(made), np.arange(3) * number)


# Each: the mistake, the error, and the required text; the same on both.
def _linear(b, **shapes):
    return ml.compile(Linear(2, name="first"), b, shapes=shapes or {"input": ["n", 3]})


def _two(left, right):
    return Model.create(output=IOKey("a", shape=left) + IOKey("b", shape=right))


def _wired(name, *shapes, **attributes):
    """A model of one op on inputs of these shapes."""
    inputs = [IOKey(f"x{i}", shape=shape) for i, shape in enumerate(shapes)]
    return Model.create(output=op(name, **attributes)(*inputs))


MISTAKES = [
    (
        lambda b: ml.compile(_wired("matmul", (2, 4), (2, 5)), b),
        ShapeError,
        ["matmul_0", "last dimension is 4", "second last is 2"],
    ),
    (
        lambda b: ml.compile(_wired("concat", (2, 4), (3, 2), axis=1), b),
        ShapeError,
        ["concat_0", "dimension 0 is 2 and 3"],
    ),
    (
        lambda b: ml.compile(_wired("reshape", (2, 3), shape=(4, 4)), b),
        ShapeError,
        ["reshape_0", "float32[2, 3]"],
    ),
    (
        lambda b: ml.compile(_wired("mse", (2, 3), (2, 1)), b),
        ShapeError,
        ["mse_0", "(2, 3)", "(2, 1)"],
    ),
    (
        lambda b: ml.compile(_wired("embedding", (2, 3), (5, 4)), b),
        ShapeError,
        ["embedding_0", "integers below 5"],
    ),
    (
        lambda b: ml.compile(Linear(10**13), b, shapes={"input": (2, 3)}),
        ShapeError,
        ["(10000000000000, 3)"],
    ),
    (
        lambda b: _linear(b).evaluate({"weights": b.ones(2, 3), "bias": b.ones(2)}, {}),
        ValueError,
        ["params lacks 'weight'", "'weights' is given"],
    ),
    (
        lambda b: _linear(b).evaluate(
            _linear(b).randomize_params(0), {"inputt": b.ones(1, 3)}
        ),
        ValueError,
        ["data lacks 'input'", "'inputt' is given"],
    ),
    (lambda b: _linear(b).evaluate({}, {}), ValueError, ["params lacks 'bias'"]),
    (
        lambda b: _linear(b).evaluate(_linear(b).randomize_params(0), {}),
        ValueError,
        ["data lacks 'input'", "Linear"],
    ),
    (
        lambda b: _linear(b).evaluate(
            _linear(b).randomize_params(0), {"input": b.ones(1, 3), "y": b.ones(1)}
        ),
        ValueError,
        ["data has 'y'", "no layer reads"],
    ),
    (
        lambda b: _linear(b).evaluate(
            _linear(b).randomize_params(0), {"input": [[1.0, 2.0, 3.0]]}
        ),
        TypeError,
        ["data['input']", "list", "backend.array"],
    ),
    (
        lambda b: _linear(b).evaluate(
            {"weight": b.ones(2, 4), "bias": b.ones(2)}, {"input": b.ones(1, 3)}
        ),
        ShapeError,
        ["Linear", "'weight'", "(2, 3)", "(2, 4)", "float32[1, 3]"],
    ),
    (
        lambda b: _linear(b).evaluate(
            _linear(b).randomize_params(0), {"input": b.ones(())}
        ),
        ShapeError,
        ["the input 'input' must have shape (n, 3), got ()"],
    ),
    (
        lambda b: _linear(b).evaluate(
            _linear(b).randomize_params(0), {"input": b.ones(1, 3)}, {"y": b.ones(1)}
        ),
        ValueError,
        ["output_gradients has 'y'", "output"],
    ),
    (
        lambda b: _linear(b).evaluate(
            _linear(b).randomize_params(0),
            {"input": b.ones(1, 3)},
            {"output": b.ones(3, 1)},
        ),
        ShapeError,
        ["output_gradients['output']", "(1, 2)", "(3, 1)"],
    ),
    (
        lambda b: _linear(b).evaluate(
            _linear(b).randomize_params(0),
            {"input": b.ones(1, 3)},
            {"output": [[1.0, 1.0]]},
        ),
        TypeError,
        ["output_gradients['output']", "list"],
    ),
    (
        lambda b: ml.compile(
            Model.create(output=op("argmax", axis=-1)(Linear(2)(IOKey("x", (3, 3))))), b
        ).evaluate(
            {"linear_0.weight": b.ones(2, 3), "linear_0.bias": b.ones(2)},
            {"x": b.ones(3, 3)},
            {"output": b.ones(3)},
        ),
        ValueError,
        ["output_gradients has 'output'", "integers"],
    ),
    (
        lambda b: _linear(b).value_and_grad(
            _linear(b).randomize_params(0),
            {"input": b.ones(1, 3)},
            lambda o: o["output"],
        ),
        TypeError,
        ["scalar", "(1, 2)"],
    ),
    (
        lambda b: _linear(b).value_and_grad(
            _linear(b).randomize_params(0), {"input": b.ones(1, 3)}, "loss"
        ),
        ValueError,
        ["'loss' is not an output", "output"],
    ),
    (
        lambda b: _linear(b).value_and_grad(
            _linear(b).randomize_params(0), {"input": b.ones(1, 3)}, lambda a, b, c: 0
        ),
        TypeError,
        ["needs 3 arguments"],
    ),
    (lambda b: _linear(b, x=[2, 3]), ValueError, ["no input 'x'", "input"]),
    (lambda b: _linear(b, input="n3"), ValueError, ["sequence", "'n3'"]),
    (lambda b: _linear(b, input=[2, -3]), ValueError, ["cannot be -3"]),
    (lambda b: _linear(b, input=[2, 3.0]), ValueError, ["a length", "3.0"]),
    (lambda b: _linear(b, input=["n", "m"]), ShapeError, ["Linear", "m", "free"]),
    (lambda b: ml.compile(Linear(2), b), ValueError, ["'input'", "shapes="]),
    (
        lambda b: ml.compile(_two(("n", 3), ("m", 3)), b),
        ShapeError,
        ["add_0", "n and m"],
    ),
    (
        # A length that one of torch's placeholders happens to have.
        lambda b: ml.compile(_two(("n", 3), (1009, 3)), b),
        ShapeError,
        ["add_0", "n and 1009"],
    ),
    (
        lambda b: ml.compile(_two((2, 3), (2, 4)), b),
        ShapeError,
        ["add_0", "dimension -1 is 3 and 4"],
    ),
]


@both
@pytest.mark.parametrize("i", range(len(MISTAKES)))
def test_both_backends_report_the_same_errors(library, i):
    call, error, said = MISTAKES[i]
    with pytest.raises(error) as caught:
        call(BACKENDS[library]())
    text = str(caught.value)
    assert not [s for s in said if s not in text], text
    assert "\n" not in text


@both
def test_debug_names_the_layer_that_gives_nan_first(library):
    x = IOKey("x", shape=(3,))
    model = Model.create(output=op("sqrt", name="root")(op("log", name="ln")(x)) + x)
    b = BACKENDS[library](debug=True)
    compiled = ml.compile(model, b)
    compiled.evaluate({}, {"x": b.array([1.0, 2.0, 3.0])})
    with refuses(FloatingPointError, "root"):
        compiled.evaluate({}, {"x": b.array([1.0, 0.5, 3.0])})
    with refuses(FloatingPointError, "'ln'"):
        compiled.evaluate({}, {"x": b.array([1.0, 0.0, 3.0])})
    with refuses(FloatingPointError, "'x'"):
        compiled.evaluate({}, {"x": b.array([1.0, np.nan, 3.0])})
    plain = ml.compile(model, BACKENDS[library]())
    assert np.isnan(host(plain.evaluate({}, {"x": b.array([0.5, 1, 1])})["output"])[0])


@both
def test_debug_reports_a_gradient_that_alone_is_not_finite(library):
    model = Model.create(output=op("sqrt")(IOKey("x", shape=(2,))))
    b = BACKENDS[library](debug=True)
    compiled = ml.compile(model, b, trainable_keys=["x"])
    with refuses(FloatingPointError, "NaN"):
        compiled.evaluate({"x": b.zeros(2)}, {}, {"output": b.ones(2)})
