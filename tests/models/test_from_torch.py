"""Torch modules as models: structure, weights, ties and buffers, on both libraries."""

import numpy as np
import pytest

import frugax as ml
from frugax.errors import UnsupportedModuleError
from frugax.models import IOKey, Model, from_torch, op
from refusals import refuses

torch = pytest.importorskip("torch")
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
        "encoder": (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
                    (2, 5, 16)),
        "attention": (nn.TransformerDecoderLayer(16, 4, 32, batch_first=True),
                      (2, 5, 16)),
    }  # fmt: skip


def _inputs(made, count):
    if isinstance(made, torch.Tensor):
        return (made,)
    return tuple(torch.randn(made) for _ in range(count))


@pytest.mark.parametrize("name", list(_cases()))
def test_a_module_becomes_a_model(name):
    module, made = _cases()[name]
    inputs = _inputs(made, 2 if name == "attention" else 1)
    imported = from_torch(module, inputs)
    assert imported.certificate.max_error < 1e-5
    assert imported.certificate.samples == 3
    # The certificate is of torch; JAX must give the same.
    compiled = ml.compile(imported.model, ml.JaxBackend())
    assert compiled.param_keys == set(imported.params)
    data = {k: t.numpy() for k, t in zip(imported.shapes, inputs, strict=True)}
    data = {k: v.astype("int32") if v.dtype == "int64" else v for k, v in data.items()}
    got = compiled.evaluate(imported.params, data)
    with torch.no_grad():
        wanted = module.eval()(*inputs)
    leaves = torch.utils._pytree.tree_leaves(wanted)
    assert len(got) == len(leaves)
    for value, want in zip(got.values(), leaves, strict=True):
        np.testing.assert_allclose(value, want, 1e-4, 1e-5)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _write(x):
    x = x.clone()
    x[:, 1:3] = 2 * x[:, :2]
    x[..., -1] = x[..., 0]
    return x


F = nn.functional
FUNCTIONS = {
    "ceil pool": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "ceil mean": lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
    "ceil mean of the inside": lambda x: F.avg_pool2d(
        x, 3, 2, 1, ceil_mode=True, count_include_pad=False
    ),
    "best": lambda x: torch.topk(x, 2, dim=1, largest=False)[0],
    "places": lambda x: torch.sort(x, dim=-1, descending=True)[1] + x.argsort(-1),
    "writes": _write,
    "windows": lambda x: x.unfold(-1, 3, 2),
    "unshuffled": lambda x: F.pixel_unshuffle(x[..., :6, :6], 2),
    "shuffled": lambda x: F.channel_shuffle(x, 2),
    "arithmetic": lambda x: torch.lerp(torch.addcmul(x, x, x, value=0.5), x + 1, 0.3),
    "shrinks": lambda x: F.softshrink(x) + F.hardshrink(x) + F.softsign(x)
    + F.threshold(x, 0.1, 2.0),
    "moments": lambda x: sum(torch.var_mean(x, dim=(2, 3), keepdim=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_converted(name):
    torch.manual_seed(0)
    imported = from_torch(Function(FUNCTIONS[name]), (torch.randn(2, 4, 7, 6),))
    assert imported.certificate.max_error < 1e-5


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


def test_an_imported_model_is_saved_and_loaded(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x = torch.randn(2, 3, 6, 6)
    imported = from_torch(module, (x,))
    backend = ml.JaxBackend()
    compiled = ml.compile(imported.model, backend)
    compiled.save(tmp_path / "m.safetensors", imported.params)
    again, params, _ = ml.models.load(tmp_path / "m.safetensors", backend)
    data = {key: x.numpy() for key in imported.shapes}
    one, two = compiled.evaluate(imported.params, data), again.evaluate(params, data)
    np.testing.assert_allclose(one["output"], two["output"], 1e-6)


def test_a_module_that_cannot_be_converted_is_named_with_its_place():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvalsh(x @ x.T)

    net = nn.Sequential(nn.Linear(3, 3), Odd())
    with refuses(UnsupportedModuleError, 1):
        from_torch(net, (torch.randn(3, 3),))
    with refuses(TypeError, "torch.nn.Module"):
        from_torch(abs, (torch.ones(2),))


def test_a_setting_that_cannot_be_converted_is_named_with_its_place():
    net = nn.Sequential(nn.ReLU(), nn.Sequential(nn.MaxPool2d(2, dilation=2)))
    with refuses(UnsupportedModuleError, 1):
        from_torch(net, (torch.randn(1, 2, 8, 8),))


def test_a_module_that_torch_cannot_trace_is_reported_by_name():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with refuses(UnsupportedModuleError, "torch.export"):
        from_torch(Branches(), (torch.ones(2),))


def test_a_model_that_differs_is_refused():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.bernoulli(torch.full_like(x, 0.5))

    with refuses(UnsupportedModuleError):
        from_torch(Noisy(), (torch.randn(4, 4),))


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).train()
    from_torch(module, (torch.randn(2, 3),))
    assert module.training
    assert module[1].training


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
