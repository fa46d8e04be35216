"""Torch modules as models: structure, weights, names of inputs and outputs."""

import collections
import dataclasses
import threading

import numpy as np
import pytest

import frugax as ml
from frugax.errors import UnsupportedModuleError
from frugax.models import IOKey, Model, from_torch, op
from refusals import refuses
from tiers import mostly_thorough

torch = pytest.importorskip("torch")
from models.torch_modules import Function, evaluate  # noqa: E402 - it needs torch

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Tagger(nn.Module):
    """Embedding, a bidirectional LSTM of two layers with torch's two biases, Linear."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(12, 3)

    def forward(self, tokens):
        y, (h, _) = self.lstm(self.embed(tokens))
        return self.out(y), h


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.norm(self.embed(tokens)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.middle = nn.Conv2d(8, 16, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.norm, self.out = nn.GroupNorm(4, 16), nn.Conv2d(16, 2, 1)

    def forward(self, x):
        a = torch.relu(self.down(x))
        b = self.norm(self.middle(nn.functional.max_pool2d(a, 2)))
        return self.out(torch.cat([a, self.up(b)], 1))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 6, 3, stride=2, padding=1)
        self.act = nn.PReLU(6)

    def forward(self, x):
        y = nn.functional.adaptive_avg_pool1d(self.act(self.conv(x)), 3)
        return nn.functional.softplus(y.flatten(1)), y.amax(-1), y.std(-1)


def _normed():
    norms = nn.utils.parametrizations
    return nn.Sequential(
        norms.weight_norm(nn.Conv1d(4, 6, 3)),
        nn.ReLU(),
        norms.weight_norm(nn.ConvTranspose1d(6, 5, 2), dim=1),
        norms.spectral_norm(nn.Linear(9, 3)),
    )


def _cases():
    torch.manual_seed(0)
    tokens = torch.randint(0, 20, (2, 5))
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=True, activation="gelu"
    )
    return {
        "mlp": (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), (3, 4)),
        "tagger": (Tagger(), tokens),
        "normed weights": (_normed(), (2, 4, 10)),
        "gru": (nn.GRU(4, 6), (5, 2, 4)),
        "tied": (Tied(), tokens),
        "unet": (UNet(), (2, 3, 8, 8)),
        "pooled": (Pooled(), (2, 4, 10)),
        "encoder": (nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
                    (2, 5, 16)),
        "attention": (nn.TransformerDecoderLayer(16, 4, 32, batch_first=True),
                      (2, 5, 16)),
    }  # fmt: skip


def _inputs(made, count):
    if isinstance(made, torch.Tensor):
        return (made,)
    return tuple(torch.randn(made) for _ in range(count))


@pytest.mark.parametrize(
    "name",
    mostly_thorough(_cases(), in_ci=lambda n: n in {"tagger", "encoder"}),
)
def test_a_module_becomes_a_model(name):
    module, made = _cases()[name]
    inputs = _inputs(made, 2 if name == "attention" else 1)
    imported = from_torch(module.eval(), inputs)
    assert imported.certificate.max_error < 1e-5
    assert imported.certificate.samples == 3
    # The certificate is of torch; JAX must give the same.
    compiled = ml.compile(imported.model, ml.JaxBackend())
    assert compiled.param_keys == set(imported.params)
    data = {k: t.numpy() for k, t in zip(imported.shapes, inputs, strict=True)}
    data = {k: v.astype("int32") if v.dtype == "int64" else v for k, v in data.items()}
    got = compiled.evaluate(imported.params, data)
    with torch.no_grad():
        wanted = module(*inputs)
    leaves = torch.utils._pytree.tree_leaves(wanted)
    assert len(got) == len(leaves)
    for value, want in zip(got.values(), leaves, strict=True):
        np.testing.assert_allclose(value, want, 1e-4, 1e-5)


def test_gradients_of_an_imported_module_are_torchs():
    torch.manual_seed(1)
    module = Tied().eval()
    tokens = torch.randint(0, 20, (2, 5))
    imported = from_torch(module, (tokens,))
    assert sorted(imported.params) == ["embed.weight", "norm.bias", "norm.weight"]
    module(tokens).square().sum().backward()
    compiled = ml.compile(imported.model, ml.JaxBackend())
    _, gradients = compiled.value_and_grad(
        imported.params,
        {"tokens": tokens.numpy().astype("int32")},
        lambda out: (out["output"] ** 2).sum(),
    )
    for key, gradient in gradients.items():
        want = dict(module.named_parameters())[key].grad
        np.testing.assert_allclose(gradient, want, 1e-4, 1e-4)


def test_a_frozen_parameter_has_no_gradient_and_may_go_in_with_the_data():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    net[0].requires_grad_(requires_grad=False)
    x = torch.randn(5, 3)
    imported = from_torch(net, (x,))
    assert imported.frozen == ("0.weight", "0.bias")
    loss = lambda out: (out["output"] ** 2).sum()
    net(x).square().sum().backward()
    inputs = {"input": x.numpy()}
    for backend in (ml.JaxBackend(), ml.TorchBackend()):
        compiled = ml.compile(imported.model, backend)
        _, gradients = compiled.value_and_grad(imported.params, inputs, loss)
        assert not np.asarray(gradients["0.weight"]).any()
        wanted = net[2].weight.grad
        np.testing.assert_allclose(gradients["2.weight"], wanted, 1e-4, 1e-5)
    kept = {k: imported.params[k] for k in imported.frozen}
    trained = {k: v for k, v in imported.params.items() if k not in kept}
    compiled = ml.compile(imported.model, ml.JaxBackend(), data_keys=imported.frozen)
    _, gradients = compiled.value_and_grad(trained, inputs | kept, loss)
    assert set(gradients) == {"2.weight", "2.bias"}


def test_an_imported_model_is_saved_and_loaded(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x = torch.randn(2, 3, 6, 6)
    imported = from_torch(module.eval(), (x,))
    backend = ml.JaxBackend()
    compiled = ml.compile(imported.model, backend)
    compiled.save(tmp_path / "m.safetensors", imported.params)
    again, params, _ = ml.models.load(tmp_path / "m.safetensors", backend)
    data = {key: x.numpy() for key in imported.shapes}
    one, two = compiled.evaluate(imported.params, data), again.evaluate(params, data)
    np.testing.assert_allclose(one["output"], two["output"], 1e-6)


def test_a_forward_may_cast_its_parts_to_what_they_are():
    class Casts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(3, 4)

        def forward(self, x):
            self.gate = self.gate.to(torch.float32)
            return self.gate(x)

    assert from_torch(Casts(), (torch.ones(2, 3),)).certificate.max_error < 1e-6


def test_a_trainable_key_is_a_parameter_of_its_shape():
    w = IOKey("net.scale", shape=(3,), trainable=True)
    model = Model.create(y=op("multiply")(IOKey("x", shape=("batch", 3)), w))
    for backend in (ml.JaxBackend(), ml.TorchBackend()):
        compiled = ml.compile(model, backend)
        assert compiled.param_keys == {"net.scale"}
        assert compiled.data_keys == {"x"}
        assert compiled.randomize_params(0)["net.scale"].shape == (3,)
    with refuses(ValueError, "shape", "('batch', 3)"):
        IOKey("w", shape=("batch", 3), trainable=True)


def test_attributes_without_a_copy_are_shared():
    net = nn.Sequential(nn.Linear(2, 2), Function(torch.tanh))
    net[1].lock, net.rotate = threading.Lock(), staticmethod(torch.neg)
    imported = from_torch(net.train(), (torch.randn(3, 2),))
    assert imported.certificate.max_error < 1e-6
    assert net.training
    net.register_buffer("held", nn.Parameter(torch.ones(2)) * 2)
    with refuses(UnsupportedModuleError, "copied"):
        from_torch(net, (torch.randn(3, 2),))


class Crosses(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.spare = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, y, ignored=None):
        return self.a(x) + 2 * self.b(y)


def test_one_tensor_as_two_inputs_may_differ_later():
    module, x = Crosses(), torch.randn(3, 4)
    imported = from_torch(module, (x, x))
    got = evaluate(imported, x, x + 1)
    np.testing.assert_allclose(got, module(x, x + 1).detach(), 1e-5, 1e-6)


class Filters(nn.Module):
    """Scales the spectrum of its input by complex parameters, as Fourier operators."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4, 5, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.scale, n=x.shape[-1])


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.full((1,), 3.0))

    def forward(self, x):
        return x * self.x


def test_an_input_and_a_weight_may_have_one_name():
    imported = from_torch(Scales(), (torch.ones(1),))
    assert set(imported.params) == {"x"}
    assert evaluate(imported, torch.full((1,), 2.0)) == 6


def test_an_input_has_the_name_of_its_argument():
    class Differs(nn.Module):
        def forward(self, X, Y, x_max):
            return (X - Y) / x_max

    imported = from_torch(Differs(), (torch.ones(2), torch.zeros(2), torch.ones(1)))
    assert list(imported.shapes) == ["X", "Y", "x_max"]


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_a_backward_of_its_own_is_named():
    module = nn.Sequential(Scales(), Function(Straight.apply))
    with pytest.warns(UserWarning, match="Straight: a backward of its own"):
        from_torch(module, (torch.randn(2, 3),))


def test_a_complex_parameter_is_its_two_parts():
    torch.manual_seed(0)
    module, x = Filters(), torch.randn(3, 4, 8)
    imported = from_torch(module, (torch.randn(2, 4, 8),))
    parts = torch.view_as_real(module.scale.detach())
    np.testing.assert_array_equal(imported.params["scale"], parts)
    got = evaluate(imported, x)
    np.testing.assert_allclose(got, module(x).detach(), 1e-5, 1e-6)
    module(x).square().sum().backward()
    compiled = ml.compile(imported.model, ml.JaxBackend())
    data = {"x": x.numpy()}
    loss = lambda out: (out["output"] ** 2).sum()
    _, gradients = compiled.value_and_grad(imported.params, data, loss)
    wanted = torch.view_as_real(module.scale.grad)
    np.testing.assert_allclose(gradients["scale"], wanted, 1e-4, 1e-5)


def test_what_no_output_needs_is_named_or_kept_as_an_input():
    module, x = Crosses(), torch.randn(3, 4)
    imported = from_torch(module, (x,), {"ignored": torch.ones(2), "y": x})
    assert imported.unused == ("spare.weight", "spare.bias")
    assert list(imported.shapes) == ["x", "y", "ignored"]
    got = evaluate(imported, x, x, torch.zeros(2))
    np.testing.assert_allclose(got, module(x, x).detach(), 1e-5, 1e-6)


@dataclasses.dataclass
class Answer:
    y: object
    cache: object


def test_outputs_that_are_not_tensors_are_named():
    # torch.export knows neither of these types.
    net = Function(lambda x: Answer(collections.UserDict(a=x + 1, b=x * 2), object()))
    with pytest.warns(UserWarning, match="also returns object"):
        imported = from_torch(net, (torch.ones(2, 3),))
    compiled = ml.compile(imported.model, ml.JaxBackend())
    got = compiled.evaluate({}, {"x": np.full((4, 3), 2.0, "f4")})
    assert [float(v[0, 0]) for v in got.values()] == [3, 4]


def test_a_module_in_training_mode_is_imported_in_evaluation_mode_and_says_so():
    layer = nn.BatchNorm1d(4)
    net, x = nn.Sequential(nn.Linear(3, 4), layer, nn.Dropout(0.5)), torch.randn(6, 3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.warns(UserWarning, match="training mode"):
        imported = from_torch(net, (x,))
    assert net.training
    assert layer.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    got = evaluate(imported, x)
    np.testing.assert_allclose(got, net.eval()(x).detach(), 1e-5, 1e-6)
    from_torch(net, (x,))  # without a warning
    from_torch(nn.Linear(3, 4).train(), (x,))  # the same


def test_a_forward_may_change_its_inputs():
    imported = from_torch(Function(lambda x: x.mul_(2) + 1), (torch.ones(2),))
    np.testing.assert_allclose(evaluate(imported, torch.ones(2)), [3, 3])
