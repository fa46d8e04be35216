"""Features of the JAX backend: scoped 64 bits, meshes, jit, precision, memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.models import MLP, IOKey, Linear, Model, op
from frugax.models.dtypes import as_dtype
from refusals import refuses

MODEL = MLP(input_size=3, hidden_sizes=[4], output_size=2)


def small(**options):
    backend = ml.JaxBackend(**options)
    compiled = ml.compile(MODEL, backend)
    data = {"input": backend.array(np.linspace(-1, 1, 15).reshape(5, 3))}
    return backend, compiled, compiled.randomize_params(0), data


# --- nothing global -----------------------------------------------------------------


def settings_of_jax():
    return dict(jax.config.values)


def test_no_setting_of_jax_changes():
    before = settings_of_jax()
    b, compiled, params, data = small(dtype="float64", device="cpu:0", debug=True)
    compiled.evaluate(params, data, {"output": b.ones(5, 2)})
    with pytest.raises(FloatingPointError):
        compiled.evaluate(params, {"input": b.full((5, 3), np.nan)})
    b.add(b.randn(2), 1)
    assert settings_of_jax() == before
    assert jnp.ones(1).dtype == jnp.float32


def test_weights_in_bfloat16_are_read_in_the_dtype_of_the_data():
    _, compiled, params, data = small()
    short = {k: v.astype(jnp.bfloat16) for k, v in params.items()}
    rounded = {k: v.astype(jnp.float32) for k, v in short.items()}
    got, want = (compiled.evaluate(p, data)["output"] for p in (short, rounded))
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, want)


def test_64_bits_are_kept_through_all_of_a_model():
    b, compiled, params, data = small(dtype="float64")
    tiny = {"input": data["input"] + b.full((5, 3), 1e-12)}
    moved = (
        compiled.evaluate(params, tiny)["output"]
        - compiled.evaluate(params, data)["output"]
    )
    assert moved.dtype == jnp.float64
    # The model is of slope about 1: a part in 1e12 is lost entirely in float32.
    assert 1e-14 < abs(np.asarray(moved)).max() < 1e-11
    loss, gradients = compiled.value_and_grad(params, data, lambda o: o["output"].sum())
    assert {g.dtype for g in (loss, *gradients.values())} == {jnp.dtype("float64")}


def test_a_64_bit_dtype_is_refused_clearly_where_x64_is_off():
    with refuses(ValueError, "dtype", "JaxBackend"):
        ml.JaxBackend().ones(2, dtype="int64")
    assert ml.JaxBackend(dtype="float64").ones(2, dtype="int64").dtype == as_dtype(
        "int64"
    )


# --- devices and meshes -------------------------------------------------------------


def test_one_device_is_not_two():
    with refuses(ValueError, "device", "device_mesh"):
        ml.JaxBackend(device="cpu", device_mesh=(1,))
    with refuses(ValueError, "platform"):
        ml.JaxBackend(device="cpu:0", platform="tpu")
    with refuses(ValueError, 0):
        ml.JaxBackend(platform="tpu")
    assert ml.JaxBackend(platform="cpu").ones(1).devices() == {jax.devices("cpu")[0]}
    device = jax.devices("cpu")[0]
    assert ml.JaxBackend(device=device).randn(2).devices() == {device}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ml.JaxBackend(device_mesh=()), "(2,)"),
        (lambda: ml.JaxBackend(device_mesh=(0,)), "(2,)"),
        (lambda: ml.JaxBackend(device_mesh=(10**6,)), "(1000000,)"),
        (lambda: ml.JaxBackend().ones(4, tensor_split=(0,)), "device_mesh"),
        (
            lambda: ml.JaxBackend(device_mesh=(2,)).ones(3, 4, tensor_split=(0,)),
            "(3, 4)",
        ),
        (
            lambda: ml.JaxBackend(device_mesh=(1,)).ones(4, tensor_split=(0, 1)),
            2,
        ),
        (
            lambda: ml.JaxBackend(device_mesh=(1,)).ones(4, tensor_split=(1,)),
            1,
        ),
    ],
)
def test_wrong_meshes_are_refused(call, named):
    with refuses(ValueError, named):
        call()


def test_a_model_on_four_devices_equals_one_device():
    b = ml.JaxBackend(device_mesh=(2, 2))
    shards = lambda x: {s.data.shape for s in x.addressable_shards}
    assert shards(b.ones(8, 6, device_mesh=(2, 2))) == {(4, 3)}
    assert shards(b.ones(8, 6, device_mesh=(2,), tensor_split=(1,))) == {(8, 3)}
    assert shards(b.randn(8, 6, tensor_split=(0, 0))) == {(2, 6)}
    assert shards(b.ones(8, 6, tensor_split=(None, -1))) == {(8, 3)}
    with refuses(ValueError, "0", (7, 6)):
        b.ones(7, 6, device_mesh=(2, 2))
    model = MLP(input_size=6, hidden_sizes=[8], output_size=3)
    spread, one = ml.compile(model, b), ml.compile(model, ml.JaxBackend())
    params = spread.randomize_params(1)
    assert shards(params["linear_0.weight"]) == {(4, 6)}
    assert shards(params["linear_1.bias"]) == {(3,)}
    x = np.linspace(-1, 1, 48).reshape(8, 6).astype("float32")
    data = {"input": b.array(x, device_mesh=(2, 2), tensor_split=(0,))}
    cotangent = {"output": np.ones((8, 3), "float32")}
    got = spread.evaluate(params, data, cotangent)
    host = jax.tree.map(np.asarray, params)
    want = one.evaluate(host, {"input": x}, cotangent)
    assert len(got[0]["output"].sharding.device_set) == 4
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, got, want)
    for name, value in one.randomize_params(jax.random.key(1)).items():
        np.testing.assert_array_equal(np.asarray(params[name]), value)


# --- jit, precision, memory ---------------------------------------------------------


def test_models_are_compiled_once_for_each_set_of_shapes():
    _, compiled, params, data = small()
    traced = []
    loss = lambda outputs: (traced.append(1), outputs["output"].sum())[1]
    for _ in range(3):
        compiled.value_and_grad(params, data, loss)
    assert len(traced) == 1
    compiled.value_and_grad(params, {"input": data["input"][:2]}, loss)
    assert len(traced) == 2
    _, plain, _, _ = small(jit=False)
    for _ in range(3):
        plain.value_and_grad(params, data, loss)
    assert len(traced) == 5


def test_the_jitted_program_is_the_one_written_by_hand():
    b = ml.JaxBackend()
    compiled = ml.compile(
        MLP(hidden_sizes=[4], output_size=2), b, shapes={"input": [5, 3]}
    )
    params = compiled.randomize_params(0)
    data = {"input": b.ones(5, 3)}

    def by_hand(params, data):
        linear = lambda x, n: (
            jax.lax.dot_general(
                x, params[f"linear_{n}.weight"], (((1,), (1,)), ((), ()))
            )
            + jax.lax.expand_dims(params[f"linear_{n}.bias"], (0,))
        )
        return {"output": linear(jax.nn.relu(linear(data["input"], 0)), 1)}

    def names(f):
        return sorted(str(e.primitive) for e in jax.make_jaxpr(f)(params, data).eqns)

    assert names(compiled.pure) == names(by_hand)


def test_the_pure_function_goes_through_jax():
    _, compiled, params, data = small()
    hand = jax.vmap(lambda x: compiled.pure(params, {"input": x})["output"])
    np.testing.assert_allclose(
        hand(data["input"]), compiled.evaluate(params, data)["output"], rtol=1e-6
    )
    slopes = jax.jacrev(lambda p: compiled.pure(p, data)["output"])(params)
    assert slopes["linear_0.weight"].shape == (5, 2, 4, 3)


@pytest.mark.parametrize("said", ["highest", "HIGHEST", jax.lax.Precision.HIGHEST])
def test_a_precision_reaches_every_product_of_a_model(said):
    _, compiled, params, data = small(precision=said)
    jaxpr = jax.make_jaxpr(compiled.pure)(params, data)
    products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    assert len(products) == 2
    highest = jax.lax.Precision.HIGHEST
    assert {e.params["precision"] for e in products} == {(highest, highest)}


def test_layers_are_named_in_the_compiled_program():
    b = ml.JaxBackend()
    model = Model.create(output=Linear(2, name="head")(IOKey("x", shape=(2, 3))))
    compiled = ml.compile(model, b)
    lowered = jax.jit(compiled.pure).lower(
        compiled.randomize_params(0), {"x": b.ones(2, 3)}
    )
    assert "head" in lowered.as_text(debug_info=True)


def test_an_eager_model_holds_no_result_longer_than_it_is_read():
    b = ml.JaxBackend(jit=False)
    alive = []

    @b.register_op("probe")
    def probe(x):
        alive.append(sum(a.shape == (311, 7) for a in jax.live_arrays()))
        return x + 1

    x = IOKey("x", shape=(311, 7))
    y = x
    for _ in range(6):
        y = op("probe")(y)
    compiled = ml.compile(Model.create(output=y), b)
    data = {"x": b.ones(311, 7)}
    alive.clear()
    compiled.evaluate({}, data)
    # The input, the result of the layer before, and the one being computed.
    assert max(alive) <= 3
