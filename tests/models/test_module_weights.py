"""Weights of flax and equinox modules, compared by the modules' outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax import models as m
from frugax.errors import ShapeError, UnsupportedModuleError
from refusals import refuses

BACKEND = ml.JaxBackend()
IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("f4")
ROWS = np.random.default_rng(1).normal(size=(2, 7, 8)).astype("f4")


def shaken(tree):
    """Weights without zeros, which would hide a bias that is not loaded."""
    rng = np.random.default_rng(0)
    shake = lambda a: (np.asarray(a) + 0.2 * rng.random(a.shape)).astype(a.dtype)
    return jax.tree.map(lambda a: jnp.asarray(shake(a)), tree)


def compare(layer, x, load, wanted, names=None, **options):
    compiled = ml.compile(layer, BACKEND, shapes={"input": x.shape}, **options)
    params, state = load(compiled, names)
    got = compiled.evaluate(params, {"input": x, **state})["output"]
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


def compare_flax(layer, module, x, names=None, **options):
    # Compiled whole: by themselves, their operations are a program each.
    variables = shaken(jax.jit(module.init)(jax.random.key(0), x))
    load = lambda compiled, names: m.from_flax(compiled, variables, names)
    compare(layer, x, load, jax.jit(module.apply)(variables, x), names, **options)


def test_a_flax_net_is_found_by_its_numbers():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.BatchNorm(use_running_average=True)(nn.Conv(6, (3, 3))(x))
            x = nn.Conv(4, (3, 3), strides=2)(nn.relu(x))
            x = nn.LayerNorm()(nn.Dense(5)(x.reshape(x.shape[0], -1)))
            return nn.Dense(3)(x)

    layers = [m.Conv2D(6), m.BatchNorm(), m.Relu(), m.Conv2D(4, stride=2), m.Flatten()]
    model = m.Model(*layers, m.Linear(5), m.LayerNorm(epsilon=1e-6), m.Linear(3))
    compare_flax(model, Net(), IMAGES, inference=True)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_gates_of_a_flax_cell_are_stacked(kind):
    nn = pytest.importorskip("flax.linen")
    cell = {"lstm": nn.OptimizedLSTMCell(5), "gru": nn.GRUCell(5)}[kind]
    layer = {"lstm": m.LSTM(5), "gru": m.GRU(5)}[kind]
    compare_flax(layer, nn.RNN(cell), ROWS, {"cell": ""})


@pytest.mark.thorough
def test_attention_of_flax_has_axes_for_its_heads():
    nn = pytest.importorskip("flax.linen")
    module = nn.MultiHeadDotProductAttention(num_heads=2)
    compare_flax(m.MultiHeadAttention(8, heads=2), module, ROWS)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_transposed_convolution_of_flax_is_flipped(stride):
    nn = pytest.importorskip("flax.linen")
    module = nn.ConvTranspose(4, (3, 3), strides=(stride, stride), padding="SAME")
    compare_flax(m.ConvTranspose2D(4, stride=stride, padding="same"), module, IMAGES)


def test_an_nnx_module_is_read_without_its_random_keys():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(8, 4, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.rest = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])

    net = Net(nnx.Rngs(0))
    model = m.Model(*[m.Linear(4, name=n) for n in ("first", "end0", "end1")])
    wanted = net.rest[1](net.rest[0](net.first(ROWS)))
    load = lambda compiled, names: m.from_flax(compiled, net, names)
    compare(model, ROWS, load, wanted, {"rest.{i}": "end{i}"})


def compare_equinox(layer, module, x, wanted, names=None):
    load = lambda compiled, names: m.from_equinox(compiled, module, names)
    compare(layer, x, load, wanted, names)


def test_converted_equinox_modules_keep_their_results():
    nn = pytest.importorskip("equinox").nn
    key, rows = jax.random.key(0), ROWS.reshape(-1, 8)
    mlp = nn.MLP(8, 2, 6, 2, key=key)
    layer = m.MLP(input_size=8, hidden_sizes=[6, 6], output_size=2)
    wanted = jax.jit(jax.vmap(mlp))(rows)
    compare_equinox(layer, mlp, rows, wanted, {"layers.{i}": "linear_{i}"})
    attention = nn.MultiheadAttention(2, 8, key=key)
    wanted = jax.jit(jax.vmap(lambda x: attention(x, x, x)))(ROWS)
    layer = m.MultiHeadAttention(8, heads=2, bias=False)
    compare_equinox(layer, attention, ROWS, wanted)
    channels_first = jnp.asarray(np.moveaxis(IMAGES, -1, 1))
    on_images = lambda f: np.moveaxis(jax.jit(jax.vmap(f))(channels_first), 1, -1)
    conv = nn.Conv2d(3, 4, 3, padding=1, key=key)
    compare_equinox(m.Conv2D(4), conv, IMAGES, on_images(conv))
    up = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1, key=key)
    layer = m.ConvTranspose2D(4, stride=2, padding=1, output_padding=1)
    compare_equinox(layer, up, IMAGES, on_images(up))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_converted_equinox_cells_keep_their_results(kind):
    nn = pytest.importorskip("equinox").nn
    draw = np.random.default_rng(0).normal
    x, h, c = (draw(size=(1, n)).astype("f4") for n in (3, 5, 5))
    if kind == "gru":
        cell, layer = nn.GRUCell(3, 5, key=jax.random.key(0)), m.GRUCell(5)
        run, data = lambda: cell(x[0], h[0]), {"input": x, "state": h}
    else:
        cell, layer = nn.LSTMCell(3, 5, key=jax.random.key(0)), m.LSTMCell(5)
        data = {"input": x, "state": h, "cell_state": c}
        run = lambda: cell(x[0], (h[0], c[0]))[0]
    shapes = {k: v.shape for k, v in data.items()}
    compiled = ml.compile(layer, BACKEND, shapes=shapes)
    params, _ = m.from_equinox(compiled, cell)
    got = compiled.evaluate(params, data)["output"]
    np.testing.assert_allclose(got[0], jax.jit(run)(), 1e-5, 1e-6)


def test_what_holds_no_weights_is_refused():
    compiled = ml.compile(m.Linear(3, name="a"), BACKEND, shapes={"input": (1, 4)})
    theirs = {"a": {"kernel": np.ones((5, 3), "f4"), "bias": np.ones(3, "f4")}}
    with refuses(ShapeError, "a.kernel"):  # by the name that flax gave it
        m.from_flax(compiled, theirs)
    with refuses(TypeError, "arrays"):
        m.from_flax(compiled, {})
    with refuses(TypeError, "'a'"):
        m.from_flax(compiled, {"a": "weights"})
    with refuses(TypeError, "nnx.Module"):
        m.from_flax(compiled, 3)


def test_the_pattern_that_states_most_matches():
    names = {
        "weight_ih_l{i}": "layer{i}.weight",
        "weight_ih_l{i}_reverse": "back{i}.weight",
    }
    layers = [m.Linear(4, bias=False, name=n) for n in ("layer0", "back0")]
    compiled = ml.compile(m.Model(*layers), BACKEND, shapes={"input": (1, 4)})
    theirs = {
        "weight_ih_l0": np.ones((4, 4), "f4"),
        "weight_ih_l0_reverse": np.zeros((4, 4), "f4"),
    }
    params, _ = ml.models.load_state_dict(compiled, theirs, names)
    assert params["layer0.weight"].all()
    assert not params["back0.weight"].any()


# --- settings -----------------------------------------------------------------------


def load_equinox(layer, module, shape):
    return m.from_equinox(ml.compile(layer, BACKEND, shapes={"input": shape}), module)


def test_a_setting_that_differs_from_an_equinox_module_is_named():
    nn = pytest.importorskip("equinox").nn
    key = jax.random.key(0)
    conv = lambda **settings: nn.Conv2d(4, 4, 3, key=key, **settings)
    mlp = nn.MLP(8, 2, 6, 1, activation=jax.nn.gelu, key=key)
    ours = m.MLP(input_size=8, hidden_sizes=[6], output_size=2)
    rows, images = (2, 6), (2, 8, 8, 4)
    for layer, module, shape, named in (
        (m.LayerNorm(), nn.LayerNorm(6, eps=1e-2), rows, (0.01, 1e-05)),
        (m.RMSNorm(), nn.RMSNorm(6, eps=1e-3, use_bias=False), rows, (0.001, 1e-06)),
        (m.GroupNorm(2), nn.GroupNorm(3, 6), (2, 4, 6), (2, 3)),
        (m.Conv2D(4), conv(stride=2), images, ("stride", "padding")),
        (m.Conv2D(4, stride=2), conv(stride=2, padding=1), images, ("padding",)),
        (m.Conv2D(4), conv(padding=1, padding_mode="CIRCULAR"), images, ("CIRCULAR",)),
        (
            m.MultiHeadAttention(8, heads=4, bias=False),
            nn.MultiheadAttention(2, 8, key=key),
            (2, 3, 8),
            (4, 2),
        ),
    ):
        with refuses(UnsupportedModuleError, *named):
            load_equinox(layer, module, shape)
    compiled = ml.compile(ours, BACKEND, shapes={"input": (2, 8)})
    linear = lambda *sizes: nn.Linear(*sizes, key=key)
    wrapped = nn.Sequential([linear(8, 6), nn.Lambda(jax.nn.gelu), linear(6, 2)])
    final = nn.MLP(8, 2, 6, 1, final_activation=jax.nn.sigmoid, key=key)
    for module, names, named in (
        (mlp, {"layers.{i}": "linear_{i}"}, "gelu"),
        (final, {"layers.{i}": "linear_{i}"}, "sigmoid"),
        (wrapped, {"layers.0": "linear_0", "layers.2": "linear_1"}, "gelu"),
    ):
        with refuses(UnsupportedModuleError, "relu", named):
            m.from_equinox(compiled, module, names)


def test_a_setting_that_is_equal_is_loaded():
    nn = pytest.importorskip("equinox").nn
    load_equinox(m.LayerNorm(epsilon=1e-2), nn.LayerNorm(6, eps=1e-2), (2, 6))
    load_equinox(m.GroupNorm(3), nn.GroupNorm(3, 6), (2, 4, 6))


def test_a_setting_that_differs_from_a_flax_module_is_named():
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    compiled = ml.compile(m.LayerNorm(), BACKEND, shapes={"input": (2, 6)})
    with refuses(UnsupportedModuleError, 1e-06, 1e-05):
        m.from_flax(compiled, nnx.LayerNorm(6, rngs=rngs))
    m.from_flax(compiled, nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs))
    # The weights alone: flax's own default, unless the caller states another.
    weights = {"scale": np.ones(6, "f4"), "bias": np.zeros(6, "f4")}
    with refuses(UnsupportedModuleError, 1e-06, 1e-05):
        m.from_flax(compiled, weights)
    m.from_flax(compiled, weights, epsilon=1e-5)
    compiled = ml.compile(m.Conv2D(4), BACKEND, shapes={"input": (2, 8, 8, 3)})
    with refuses(UnsupportedModuleError, "stride", 2):
        m.from_flax(compiled, nnx.Conv(3, 4, (3, 3), strides=2, rngs=rngs))
    m.from_flax(compiled, nnx.Conv(3, 4, (3, 3), rngs=rngs))
    compiled = ml.compile(
        m.Conv2D(4, padding=1), BACKEND, shapes={"input": (2, 8, 8, 3)}
    )
    for settings, named in (
        ({"padding": "CIRCULAR"}, "CIRCULAR"),
        ({"mask": np.zeros((3, 3, 3, 4), "f4")}, "mask"),
        ({"dtype": jax.numpy.bfloat16}, "bfloat16"),
    ):
        with refuses(UnsupportedModuleError, named):
            m.from_flax(compiled, nnx.Conv(3, 4, (3, 3), **settings, rngs=rngs))
    net = m.Model(m.Linear(4), m.Relu(), m.Dropout(0.5), m.Linear(2))
    compiled = ml.compile(net, BACKEND, shapes={"input": (2, 3)})
    linear = lambda *sizes: nnx.Linear(*sizes, rngs=rngs)
    drop = nnx.Dropout(0.5, rngs=rngs)
    names = {"layers.0": "linear_0", "layers.3": "linear_1"}
    module = nnx.Sequential(linear(3, 4), nnx.relu, drop, linear(4, 2))
    m.from_flax(compiled, module, names)
    with refuses(UnsupportedModuleError, "gelu", "relu"):
        module = nnx.Sequential(linear(3, 4), nnx.gelu, drop, linear(4, 2))
        m.from_flax(compiled, module, names)
