"""One description gives the same numbers in JAX and in torch."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from frugax import models
from frugax.models import (
    Chain,
    Conv,
    Flatten,
    Gelu,
    LayerNorm,
    Linear,
    MeanPool,
    Relu,
    Residual,
    Tanh,
)

torch = pytest.importorskip("torch")
pointwise = st.sampled_from([Relu(), Gelu(), Tanh()])


@st.composite
def chains(draw):
    """A chain of up to six layers that fit one another, and an input shape for it."""
    image = draw(st.booleans())
    size = st.integers(1, 6)
    shape = draw(st.tuples(size, size, size) if image else st.tuples(size))
    options = [pointwise, st.just(LayerNorm()), st.builds(Linear, size, st.booleans())]
    if image:
        options += [st.builds(Conv, size, st.integers(1, 4), st.integers(1, 3))]
    layers = draw(st.lists(st.one_of(options), max_size=4))
    if draw(st.booleans()):
        layers.append(Residual(Chain(LayerNorm(), draw(pointwise))))
    if image:
        layers.append(draw(st.sampled_from([Flatten(), MeanPool(), MeanPool(1)])))
    return Chain(*layers), shape


def both(model, shape):
    return models.compile(model, shape), models.compile(model, shape, backend="torch")


def as_torch(params):
    return {name: torch.tensor(np.asarray(p)) for name, p in params.items()}


def tolerance(nodes, dtype):
    """Rounding of sums of `widest` terms, layer after layer, on values of about 1."""
    widest = max([int(np.prod(n.before)) * 9 for n in nodes], default=1)
    return 10 * float(np.finfo(dtype).eps) * widest * (len(nodes) + 1)


@settings(max_examples=25, deadline=None)
@given(chains(), st.integers(1, 3), st.integers(0, 2**31))
def test_outputs_agree(given, batch, seed):
    """In float64, where a wrong formula cannot hide behind rounding."""
    in_jax, in_torch = both(*given)
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        params = {
            name: jnp.asarray(float(p.fill or 0) + 0.5 * rng.normal(size=p.shape))
            for node in in_jax.nodes
            for name, p in node.parameters.items()
        }
        x = rng.normal(size=(batch, *given[1]))
        ours = np.asarray(jax.jit(in_jax.apply)(params, jnp.asarray(x)))
    theirs = in_torch.apply(as_torch(params), torch.tensor(x)).numpy()
    assert ours.dtype == theirs.dtype == np.float64
    assert ours.shape == theirs.shape
    # A norm over nearly equal numbers magnifies rounding by up to 1 / sqrt(epsilon).
    atol = tolerance(in_jax.nodes, np.float64) / LayerNorm().epsilon ** 0.5
    np.testing.assert_allclose(ours, theirs, atol=atol * (1 + np.abs(theirs).max()))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (models.mlp([16, 8], 3), (5,)),
        (models.residual_mlp(8, 2, 3, hidden=12), (5,)),
        (models.convnet([4, 6], 3), (7, 8, 2)),
        (Chain(Conv(2, 4, 3), Tanh(), MeanPool(2), Flatten(), Linear(3)), (11, 12, 1)),
    ],
)
def test_outputs_and_gradients_agree_from_the_same_parameters(model, shape):
    in_jax, in_torch = both(model, shape)
    params = in_jax.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    shake = lambda p: p + 0.3 * rng.normal(size=p.shape).astype("f4")
    params = {name: shake(p) for name, p in params.items()}  # no bias is 0
    x = rng.normal(size=(4, *shape)).astype("f4")

    ours = jax.jit(in_jax.apply)(params, jnp.asarray(x))
    total = lambda p: in_jax.apply(p, jnp.asarray(x)).sum()
    ours_grads = jax.jit(jax.grad(total))(params)
    leaves = {n: p.requires_grad_() for n, p in as_torch(params).items()}
    theirs = in_torch.apply(leaves, torch.tensor(x))
    theirs.sum().backward()

    atol = tolerance(in_jax.nodes, np.float32)
    theirs_out = theirs.detach().numpy()
    np.testing.assert_allclose(ours, theirs_out, atol=atol * np.abs(theirs_out).max())
    for name, tensor in leaves.items():
        grad = tensor.grad.numpy()
        np.testing.assert_allclose(
            ours_grads[name], grad, atol=atol * (1 + np.abs(grad).max()), err_msg=name
        )


def test_convolution_agrees_with_its_definition():
    layer, rng = Conv(2, kernel=2, stride=2), np.random.default_rng(0)
    compiled = models.compile(layer, (3, 4, 2))
    weight, bias = rng.normal(size=(2, 2, 2, 2)), rng.normal(size=2)
    x = rng.normal(size=(1, 3, 4, 2))
    padded = np.pad(x[0], [(0, 1), (0, 0), (0, 0)])  # 3 rows need a fourth
    expected = np.array(
        [
            [
                np.tensordot(padded[2 * i : 2 * i + 2, 2 * j : 2 * j + 2], weight, 3)
                for j in range(2)
            ]
            for i in range(2)
        ]
    )
    params = {"weight": jnp.asarray(weight, "f4"), "bias": jnp.asarray(bias, "f4")}
    got = compiled.apply(params, jnp.asarray(x, "f4"))[0]
    atol = tolerance(compiled.nodes, "f4")
    np.testing.assert_allclose(got, expected + bias, atol=atol)


def test_init_is_one_program_and_has_the_stated_spread():
    compiled = models.compile(models.residual_mlp(128, 2, 10), (64,))
    params = compiled.init(jax.random.key(0))
    again = compiled.init(jax.random.key(0))
    named = {n: p for node in compiled.nodes for n, p in node.parameters.items()}
    assert set(params) == set(named)
    for name, p in named.items():
        np.testing.assert_array_equal(params[name], again[name])
        assert params[name].dtype == jnp.float32
        if p.fill is None:
            # Four standard errors of a standard deviation: std / sqrt(2 n) each.
            np.testing.assert_allclose(
                params[name].std(), p.std, atol=4 * p.std / (2 * p.size) ** 0.5
            )
        else:
            np.testing.assert_array_equal(params[name], np.full(p.shape, p.fill))
    starts = [float(params[n].ravel()[0]) for n in named if n.endswith("weight")]
    assert len(set(starts)) == len(starts)  # no draw is used twice
    text = jax.jit(compiled.init).lower(jax.random.key(0)).as_text()
    assert text.count("erf_inv") == 1


def test_torch_init_has_the_same_spread_and_leaves_the_global_generator_alone():
    in_jax, in_torch = both(models.mlp([256], 3), (64,))
    before = torch.get_rng_state()
    params = in_torch.init(3)
    assert torch.equal(before, torch.get_rng_state())
    assert {n: tuple(p.shape) for n, p in params.items()} == {
        n: p.shape for n, p in in_jax.init(jax.random.key(0)).items()
    }
    n = 64 * 256
    # Four standard errors of a standard deviation: std / sqrt(2 n) each.
    std = (2 / 64) ** 0.5
    off = float(params["0.weight"].std()) - std
    assert abs(off) <= 4 * std / (2 * n) ** 0.5
    assert torch.equal(in_torch.init(3)["0.weight"], params["0.weight"])


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_wrong_parameters_and_inputs_are_named_with_their_layer(backend):
    compiled = models.compile(models.mlp([64], 10), (3,), backend=backend)
    array = jnp.ones if backend == "jax" else torch.ones
    params = compiled.init(jax.random.key(0) if backend == "jax" else 0)
    x = array((2, 3))
    wrong = r"'2\.weight' has shape \(10, 63\).*needs \(10, 64\)"
    with pytest.raises(ValueError, match=wrong):
        compiled.apply(params | {"2.weight": array((10, 63))}, x)
    with pytest.raises(ValueError, match=r"no parameter '3\.weight'"):
        compiled.apply(params | {"3.weight": array(1)}, x)
    with pytest.raises(ValueError, match=r"no parameter 'z'; the model has 0\.weight"):
        compiled.apply(params | {"z": 1}, x)
    with pytest.raises(ValueError, match=r"'2\.bias' must be an array, got 1\."):
        compiled.apply(params | {"2.bias": 1}, x)
    with pytest.raises(ValueError, match=r"'0\.bias' of layer '0' is missing"):
        compiled.apply({n: p for n, p in params.items() if n != "0.bias"}, x)
    with pytest.raises(ValueError, match=r"shape \(3,\).*compiled for \(batch, 3\)"):
        compiled.apply(params, array((3,)))


def test_compiled_models_hash_and_compare():
    a, b = (models.compile(models.mlp([4], 2), [3]) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != models.compile(models.mlp([4], 2), [5])


def test_an_unknown_backend_is_refused():
    code = "from frugax import models as m; m.compile(m.Relu(), (1,), backend='tf')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert """backend must be "jax" or "torch", got 'tf'""" in ran.stderr


def test_torch_is_asked_for_by_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "frugax\[torch\]"'):
        models.compile(Relu(), (1,), backend="torch")


def test_the_jax_backend_does_not_import_torch():
    code = (
        "import sys, frugax.models as m; m.compile(m.mlp([4], 2), (3,)), m.accuracy;"
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
