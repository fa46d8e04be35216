"""What only the torch backend does: autograd, torch.compile, stand-ins for shapes."""

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import frugax as ml
from frugax.errors import MissingExtraError, ShapeError
from frugax.models import LSTM, MLP, IOKey, Linear, Model, op
from frugax.models.graph import Run
from refusals import refuses, warns

torch = pytest.importorskip("torch")


def small(**options: Any) -> tuple[Any, Any, Any, Any]:
    backend = ml.TorchBackend(**options)
    model = MLP(input_size=3, hidden_sizes=[4], output_size=2, activation="gelu")
    compiled = ml.compile(model, backend)
    data = {"input": backend.array(np.linspace(-1, 1, 15).reshape(5, 3))}
    return backend, compiled, compiled.randomize_params(0), data


# --- torch's own ways ---------------------------------------------------------------


def test_outputs_follow_requires_grad_as_a_module_does():
    b, compiled, params, data = small()
    assert not compiled.evaluate(params, data)["output"].requires_grad
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    compiled.evaluate(leaves, data)["output"].sum().backward()
    outputs, wanted = compiled.evaluate(params, data, {"output": b.ones(5, 2)})
    assert not outputs["output"].requires_grad
    for key, leaf in leaves.items():
        np.testing.assert_allclose(leaf.grad, wanted[key], rtol=1e-5)
    assert all(v.grad is None and not v.requires_grad for v in params.values())


def test_gradients_come_also_where_torch_has_them_switched_off():
    b, compiled, params, data = small()
    with torch.no_grad():
        _, gradients = compiled.evaluate(params, data, {"output": b.ones(5, 2)})
    np.testing.assert_allclose(gradients["linear_1.bias"], 5)


def test_the_pure_function_goes_through_torch_func():
    _, compiled, params, data = small(dtype="float64")
    f = lambda p: compiled.pure(p, data)["output"].sum()
    _, wanted = compiled.value_and_grad(params, data, lambda o: o["output"].sum())
    found = torch.func.grad(f)(params)
    for key in params:
        np.testing.assert_allclose(found[key], wanted[key], rtol=1e-12)
    rows = torch.func.vmap(lambda x: compiled.pure(params, {"input": x})["output"])
    np.testing.assert_allclose(
        rows(data["input"]), compiled.evaluate(params, data)["output"], rtol=1e-12
    )


def test_a_torch_optimizer_trains_it():
    b, compiled, params, _ = small()
    rng = np.random.default_rng(0)
    x = b.array(rng.normal(size=(64, 3)))
    y = torch.stack([x.sum(1), x[:, 0]], 1)
    leaves = {k: v.requires_grad_() for k, v in params.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=0.03)
    losses = []
    for _ in range(60):
        loss = ((compiled.evaluate(leaves, {"input": x})["output"] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_a_tensor_is_shared_and_other_arrays_are_copied():
    b = ml.TorchBackend()
    own = torch.ones(3)
    assert b.array(own) is own
    assert b.array(own, dtype="float16").dtype == torch.float16
    read_only = np.broadcast_to(np.float32(2), (3,))
    np.testing.assert_array_equal(b.array(read_only), 2)


def test_a_tensor_on_another_device_is_named():
    b = ml.TorchBackend()
    x = IOKey("x", shape=(2, 3))
    compiled = ml.compile(Model.create(output=x + IOKey("y", shape=(2, 3))), b)
    away = {"x": b.ones(2, 3), "y": b.ones(2, 3).to("meta")}
    with refuses(ValueError, "data['y']"):
        compiled.evaluate({}, away)


def test_a_precision_lasts_as_long_as_the_call(monkeypatch):
    inside = []
    b, compiled, params, data = small(precision="high")
    plain = b.xp.linear
    monkeypatch.setattr(
        type(b.xp),
        "linear",
        lambda xp, *args: (
            inside.append(torch.get_float32_matmul_precision()),
            plain(*args),
        )[1],
    )
    before = torch.get_float32_matmul_precision()
    compiled.evaluate(params, data)
    b.linear(b.ones(2, 3), b.ones(4, 3))
    assert inside
    assert set(inside) == {"high"}
    assert torch.get_float32_matmul_precision() == before == "highest"


def test_devices_go_by_their_names():
    assert ml.TorchBackend(device="cpu").ones(1).device.type == "cpu"
    assert ml.TorchBackend(device="cpu:0").ones(1).device.type == "cpu"
    assert ml.TorchBackend(device=torch.device("cpu")).randn(1).device.type == "cpu"
    assert "device=cpu" in repr(ml.TorchBackend(device="cpu"))


@pytest.mark.gpu
def test_models_run_on_an_accelerator():
    if not torch.accelerator.is_available():
        pytest.skip("no accelerator")
    b, compiled, params, data = small(device="gpu:0")
    outputs, gradients = compiled.evaluate(params, data, {"output": b.ones(5, 2)})
    kinds = {v.device.type for v in (*outputs.values(), *gradients.values())}
    assert kinds == {torch.accelerator.current_accelerator().type}
    _, here, _, inputs = small()
    host = {k: v.cpu() for k, v in params.items()}
    wanted = here.evaluate(host, inputs)["output"]
    # Products of at most four terms, possibly in TensorFloat-32 (10 bits).
    np.testing.assert_allclose(outputs["output"].cpu(), wanted, atol=2**-8)


def test_a_missing_torch_names_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(ml.models.__dict__, "TorchBackend", raising=False)
    with refuses(MissingExtraError, '"frugax[torch]"'):
        ml.models.TorchBackend  # noqa: B018 - looking it up is what fails


@pytest.mark.slow
@pytest.mark.thorough
def test_neither_backend_imports_the_other_library():
    for mine, other in (("JaxBackend", "torch"), ("TorchBackend", "jax")):
        program = (
            f"import sys, frugax as ml; b = ml.{mine}();"
            "m = ml.models.Linear(2); c = ml.compile(m, b, shapes={'input': ['n', 3]});"
            "c.evaluate(c.randomize_params(), {'input': b.ones(1, 3)});"
            f"sys.exit('{other}' in sys.modules)"
        )
        assert (
            subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
        )


# --- plans --------------------------------------------------------------------------


def test_a_compiled_schedule_equals_the_walk_over_the_graph():
    b = ml.TorchBackend()
    x, n = IOKey("x", shape=("n", 3)), IOKey("n", shape=("n", 1), dtype="int32")
    model = Model.create(
        a=(x * 2 + n) / (1.5 + x * x) @ np.ones((3, 2), np.float32),
        b=op("top_k", k=2)(Linear(3)(x))[1],
        c=op("where")(n > 1, n // 2, 7),
        d=LSTM(2)(op("stack", axis=1)(x, x))[0],
    )
    compiled = ml.compile(model, b)
    params = compiled.randomize_params(0)
    for dtype in ("float32", "float16"):  # also what the weights are not
        data = {"x": b.array(np.eye(3), dtype=dtype), "n": b.array([[0], [1], [2]])}
        wanted = Run(compiled.graph, {**params, **data}, b.library).outputs()
        found = compiled.evaluate(params, data)
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert found[key].dtype == value.dtype
            np.testing.assert_array_equal(found[key], value)


def test_checks_are_made_once_for_each_set_of_shapes(monkeypatch):
    b, compiled, params, data = small()
    seen = []
    check = compiled.check
    monkeypatch.setattr(
        type(compiled),
        "check",
        lambda self, *given, **options: seen.append(1) or check(*given, **options),
    )
    for n in (5, 5, 2, 5, 2):
        compiled.evaluate(params, {"input": data["input"][:n]})
    assert len(seen) == 2
    with pytest.raises(ShapeError):
        compiled.evaluate(params, {"input": b.ones(5, 4)})
    monkeypatch.setattr("frugax.models.to_torch._compiled.PLANS_KEPT", 3)
    for n in range(8):  # plans are forgotten, so that they do not pile up
        compiled.evaluate(params, {"input": b.ones(n, 3)})
    assert len(compiled._plans) == 3


def test_parameters_of_another_dtype_are_promoted_as_by_hand():
    _, compiled, params, data = small(dtype="bfloat16")
    wide = {k: v.float() for k, v in params.items()}
    assert compiled.evaluate(params, data)["output"].dtype == torch.bfloat16
    assert compiled.evaluate(wide, data)["output"].dtype == torch.float32


# --- stand-ins for free lengths -----------------------------------------------------


def test_no_name_passes_for_another():
    names = [f"name{i}" for i in range(20)]
    keys = {name: IOKey(name, shape=(name, 2)) for name in names}
    wired: dict[str, Any] = {f"{n}_flat": x.reshape(-1) for n, x in keys.items()}
    both = keys["name3"] @ keys["name8"].T
    model = Model.create(**wired, both=both)
    shapes = ml.compile(model, ml.TorchBackend()).shapes
    assert [str(shapes[f"{name}_flat"][0]) for name in names] == [
        f"2*{name}" for name in names
    ]
    assert str(shapes["both"]) == "(name3, name8)"


def test_a_size_that_is_not_a_multiple_is_shown_as_unknown():
    x = IOKey("x", shape=("time", 2))
    model = Model.create(half=x[::2], less=x[2:], bias=Linear(3)(x))
    shapes = ml.compile(model, ml.TorchBackend()).shapes
    assert str(shapes["half"]) == "(?(time), 2)"
    assert str(shapes["less"]) == "(time - 2, 2)"


def test_a_loop_over_a_free_length_is_walked_once(monkeypatch):
    b = ml.TorchBackend()
    steps = []
    tanh = torch.tanh
    monkeypatch.setattr(torch, "tanh", lambda x: steps.append(1) or tanh(x))
    compiled = ml.compile(LSTM(2), b, shapes={"input": ["batch", "time", 3]})
    assert str(compiled.shapes["output"]) == "(batch, time, 2)"
    assert len(steps) < 20
    out = compiled.evaluate(compiled.randomize_params(0), {"input": b.ones(2, 5, 3)})
    assert out["output"].shape == (2, 5, 2)


# --- torch.compile ------------------------------------------------------------------


@pytest.mark.thorough
def test_a_compiled_model_gives_the_same(monkeypatch):
    with warnings.catch_warnings():
        # Equal also without a C++ compiler; torch warns about itself when imported.
        warnings.simplefilter("ignore")
        b, compiled, params, data = small(jit=True)
        weights = {"output": b.array(np.linspace(1, 2, 10).reshape(5, 2))}
        outputs, gradients = compiled.evaluate(params, data, weights)
        again = compiled.evaluate(params, data)
    _, plain, _, _ = small()
    assert not plain.jit
    wanted, slopes = plain.evaluate(params, data, weights)
    np.testing.assert_allclose(
        outputs["output"], wanted["output"], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(again["output"], wanted["output"], rtol=1e-5, atol=1e-6)
    for key in params:
        np.testing.assert_allclose(gradients[key], slopes[key], rtol=1e-5, atol=1e-6)


def test_a_failing_compiler_is_reported_and_skipped(monkeypatch):
    def broken(*args, **kwargs):
        from torch._dynamo.exc import TorchDynamoException

        def call(*args):
            raise TorchDynamoException("no working C++ compiler")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    _, compiled, params, data = small(jit=True)
    with warns(RuntimeWarning, "torch.compile"):
        found = compiled.evaluate(params, data)["output"]
    _, plain, _, _ = small()
    np.testing.assert_array_equal(found, plain.evaluate(params, data)["output"])
    compiled.evaluate(params, {"input": data["input"][:2]})  # no second warning


def test_a_model_that_draws_is_not_compiled():
    b = ml.TorchBackend(jit=True)
    model = Model.create(output=op("dropout")(IOKey("x", shape=(4, 4))))
    compiled = ml.compile(model, b)
    with warns(RuntimeWarning, "numbers"):
        compiled.evaluate({}, {"x": b.ones(4, 4), "key": b.get_random_key()})
