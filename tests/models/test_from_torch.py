"""Torch modules as models: structure, weights, ties and buffers, on both libraries."""

import collections
import dataclasses
import math
import statistics
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.errors import ShapeError, UnsupportedModuleError
from frugax.models import IOKey, Model, aten, from_torch, op
from refusals import refuses
from tiers import mostly_thorough

torch = pytest.importorskip("torch")
nn = torch.nn
pytree = torch.utils._pytree
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


def _write_at(x):
    x = x.clone()
    x[:, 0] = 1
    x[x > 1] = 0.5
    x[torch.tensor([0, 1]), torch.tensor([2, 3])] = x[0, 0].clone()
    x[..., torch.tensor([1, 1])] += 2
    return x.index_fill(3, torch.tensor([4]), 7.0).masked_scatter(x < -1, x * 2)


F = nn.functional


def _mix(x):
    """Rows go to one of three experts by their first number, as `transformers` does."""
    rows = x.reshape(-1, 8)
    places, order = rows[:, 0].clamp(-3, 3).sort()
    ends = torch.histc(places, 3, -3, 3).cumsum(0, dtype=torch.int32)
    weights = torch.linspace(-1, 1, 3 * 8 * 8).reshape(3, 8, 8)
    mixed = F.grouped_mm(rows[order].bfloat16(), weights.bfloat16(), offs=ends)
    return mixed[order.argsort()].float()


def _bags(x):
    """Sums and means of rows of a table; some bags are empty, and one has padding."""
    rows, table = (x.flatten()[:8] > 0).long() + torch.arange(8), x.reshape(-1, 6)
    ends = torch.tensor([0, 3, 3, 6])
    mean = F.embedding_bag(rows, table, ends, mode="mean", padding_idx=4)
    weights = x.flatten()[:8]
    return mean + F.embedding_bag(
        rows, table, ends, mode="sum", per_sample_weights=weights
    )


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
    "bits": lambda x: torch.where(((x > 0) & (x < 1)) ^ ~(x < 2) | (x < -1), x, 0.0),
    "whole bits": lambda x: (x * 9).int() & 6 | (x * 5).int() ^ 3,
    "differences": lambda x: x.diff(dim=-1, append=x[..., :1]),
    "extremes": lambda x: torch.min(x, -x) + torch.max(x, x.mean()),
    "outer": lambda x: torch.outer(x[0, 0, 0], x[0, 0, 1]),
    "writes at indices": _write_at,
    "scatters": lambda x: torch.zeros_like(x).scatter(1, (x > 0).long(), x)
    + x.scatter_add(0, (x > 0).long(), x)
    + x.scatter_reduce(2, (x > 0).long(), x, "amax", include_self=False),
    "one-hot": lambda x: F.one_hot((x > 0).long(), 2) + x[..., None],
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=1),
    "losses": lambda x: F.cross_entropy(x, (x[:, 0] > 0).long(), label_smoothing=0.1)
    + F.binary_cross_entropy_with_logits(x, (x > 0).float())
    + F.smooth_l1_loss(x, 2 * x) + F.kl_div(x, x.softmax(1)),
    "three axes": lambda x: F.conv3d(x.transpose(0, 1)[None], x[:, :, None, :2, :2]),
    "patches": lambda x: F.fold(F.unfold(x, 3, padding=1), (7, 6), 3, padding=1),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=1.5),
    "grid": lambda x: F.grid_sample(x, x[:, :2, :, :5].movedim(1, -1).tanh()),
    "rotated": lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(2, 4, 7, 3, 2))
        * torch.polar(torch.ones(7, 3), torch.arange(21.0).reshape(7, 3))
    ),
    "halves": lambda x: (x.half() * 4e4).float(),
    "brains": lambda x: (x.bfloat16() + 1).float(),
    "spectrum": lambda x: torch.fft.rfft(x).abs() + torch.fft.fft(x).real[..., :4],
    "running": lambda x: x.cumsum(1) + x.cummax(-1)[0] + x.logcumsumexp(2),
    "dilated pool": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "own divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, True, True, 5),
    "counts": lambda x: torch.histc(x, 5, -1, 2) + torch.histc(x, 5),
    "experts": _mix,
    "bags": _bags,
    "pads that cut": lambda x: F.pad(x, [2, -1, 0, 0], "reflect")
    + F.pad(x, [-1, 2, 0, 0], "circular") + F.pad(x, [2, -1, 0, 0], "replicate"),
    "odds of bytes": lambda x: torch.logit((x > 0).to(torch.uint8) * 2),
    "whole powers": lambda x: (x * 3).int() ** (x * 2).int(),
    "wrapped": lambda x: (x * 99).to(torch.uint8) + (x * 99).to(torch.int8),
    "scatters without axes": lambda x: torch.scatter_reduce(
        x[0, 0, 0, 0].scatter(0, torch.tensor(0), x.mean(), reduce="add"),
        0, torch.tensor(0), x.mean(), "sum",
    ),
    "places of whole maxima": lambda x: F.max_pool2d(
        (x * 9).int(), 2, return_indices=True
    )[1],
    "special": lambda x: torch.special.i0e(x) + torch.special.i1(x)
    + torch.special.i1e(x) + torch.special.log_ndtr(x)
    + torch.special.ndtri(x.sigmoid()) + torch.polygamma(2, x.abs() + 1)
    + torch.special.zeta(x.abs() + 2, x.abs() + 1) + torch.frexp(x)[0]
    + torch.igamma(x.abs() + 1, x.abs()) + torch.igammac(x.abs() + 1, x.abs()),
    "next to it": lambda x: torch.nextafter(x, x + 1) - x,
    "puts": lambda x: torch.put(x, torch.tensor([3, 1]), x[0, 0, 0, :2]),
    "smoothed": lambda x: F.interpolate(
        x, (5, 4), mode="bicubic", antialias=True
    )[..., :3, :2]
    + F.interpolate(x, scale_factor=0.45, mode="bilinear", antialias=True),
    "distances": lambda x: torch.cdist(x, x[..., :3, :])
    + F.pdist(x[0, 0])[0]
    + torch.cdist(x, x[:1, :, 1:4], p=1.0),
    "where of bytes": lambda x: torch.where((x > 0).to(torch.uint8), x, 0.0)
    + (x > -2).to(torch.uint8).all(1, keepdim=True) * (x > 2).to(torch.uint8).any(),
    "all but a diagonal": lambda x: x[0, 0, :5, :5][~torch.eye(5).bool()].view(5, 4),
    "complex numbers": lambda x: torch.fft.fft(x * 2j + (1 - 0.5j)).real,
    "places of constants": lambda x: x[..., (torch.arange(6) % 2).nonzero().squeeze(-1)]
    + x[..., torch.where(torch.arange(6) > 2)[0]] * torch.arange(7)[2:5].unique(),
}  # fmt: skip


def _definite(x):
    return x @ x.mT + 3 * torch.eye(4)


def _solve(x):
    a, cholesky = _definite(x), torch.linalg.cholesky(_definite(x))
    return (
        torch.linalg.solve(a, x), torch.linalg.solve(a, x[..., 0]),
        torch.linalg.solve(a[0, 0], x), torch.linalg.solve(a, x, left=False),
        torch.linalg.solve_triangular(a.triu(), x, upper=True, left=False),
        torch.triangular_solve(x, a.triu(), transpose=True)[0],
        torch.cholesky_solve(x, cholesky), torch.cholesky_inverse(cholesky),
    )  # fmt: skip


LINEAR_ALGEBRA = {
    "factors": lambda x: (
        torch.linalg.cholesky(_definite(x), upper=True), *torch.linalg.qr(x),
        torch.linalg.qr(x, mode="r")[1], torch.linalg.svdvals(x),
    ),
    "eigen": lambda x: (
        torch.linalg.eigvalsh(_definite(x)), torch.linalg.eigh(_definite(x))[0]
    ),
    "numbers": lambda x: (torch.det(x), torch.linalg.slogdet(x)),
    "inverses": lambda x: (torch.linalg.inv(_definite(x)), torch.linalg.pinv(x)),
    "solutions": _solve,
    "exponential": lambda x: torch.matrix_exp(x * 0.3),
    "reflections": lambda x: torch.linalg.householder_product(x, x[..., :3, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_linear_algebra_is_converted(name):
    torch.manual_seed(0)
    function, x = LINEAR_ALGEBRA[name], torch.randn(2, 3, 4, 4)
    imported = from_torch(Function(function), (torch.randn(2, 3, 4, 4),))
    wanted = pytree.tree_leaves(function(x))
    compiled = ml.compile(imported.model, ml.JaxBackend())
    got = compiled.evaluate(imported.params, {"x": x.numpy()}).values()
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-4)


def _apply_all(x):
    return {name: function(x) for name, function in FUNCTIONS.items()}


# Tracing is what takes long, so each function has a trace of its own once a day only.
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(_apply_all, id="all of them"),
        *(
            pytest.param(f, id=n, marks=pytest.mark.thorough)
            for n, f in FUNCTIONS.items()
        ),
    ],
)
def test_a_function_is_converted(function):
    torch.manual_seed(0)
    imported = from_torch(Function(function), (torch.randn(2, 4, 7, 6),))
    assert imported.certificate.max_error < 1e-5


def test_a_module_that_is_traced_but_does_not_run_is_refused():
    def overlap(x):
        x = x.clone()
        x[torch.tensor([0, 1]), torch.tensor([2, 3])] = x[0, 0]
        return x

    with pytest.raises(UnsupportedModuleError, match="does not run"):
        from_torch(Function(overlap), (torch.randn(2, 4, 7, 6),))


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


# Where the two libraries' own gradients differ: at bounds, ties and zeros.
KINKS = {
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp by tensors": lambda x: x.clamp(min=x.round(), max=-x),
    "relu6": lambda x: F.relu6(x) + F.hardtanh(x) + F.relu(x),
    "hard": lambda x: F.hardswish(x) + F.hardsigmoid(x),
    "fmax": lambda x: torch.fmax(x, x.detach()) + torch.fmin(x.detach(), x),
    "atan2": lambda x: torch.atan2(x, x.roll(4)),
    "std": lambda x: (x * 0 + 1).std() + torch.std_mean(x.clamp(2, 2))[0],
    "norm": lambda x: x.norm(1) + (x * 0).norm() + x.norm(0.5),
    "adaptive pool": lambda x: F.adaptive_max_pool2d(
        x.abs().clamp(max=2).reshape(1, 1, 2, 8), 2
    ),
    "xlogy": lambda x: torch.xlogy(x.relu(), x.detach().relu()),
    "power of 0": lambda x: x.abs() ** x.detach().relu(),
    "logit": lambda x: torch.logit(x / 4, 0.25),
    "direction": lambda x: torch.view_as_real(torch.sgn(torch.complex(x, x + 0.5))),
    "dilated pool": lambda x: F.max_pool1d(x.abs()[None], 2, 1, dilation=3),
}


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


class Kinks(nn.Module):
    """Each function of a parameter of its own."""

    def __init__(self):
        super().__init__()
        values = torch.tensor([-3.0, -2, -1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 6, 6, 0, 0])
        made = {name.replace(" ", "_"): nn.Parameter(values.clone()) for name in KINKS}
        self.made = nn.ParameterDict(made)

    def forward(self, x):
        return tuple(
            f(self.made[name.replace(" ", "_")] * x).sum() for name, f in KINKS.items()
        )


def test_gradients_at_kinks_are_torchs():
    module, x = Kinks(), torch.ones(16)
    imported = from_torch(module, (x,))
    torch.stack(module(x)).sum().backward()
    compiled = ml.compile(imported.model, ml.JaxBackend())
    _, gradients = compiled.value_and_grad(
        imported.params, {"x": x.numpy()}, lambda out: sum(out.values())
    )
    for key, want in module.named_parameters():
        np.testing.assert_allclose(gradients[key], want.grad, 1e-5, 1e-6, err_msg=key)


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


def test_a_module_that_cannot_be_converted_is_named_with_its_place():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.ldl_factor(x @ x.T)[0]

    net = nn.Sequential(nn.Linear(3, 3), Odd())
    with refuses(UnsupportedModuleError, 1):
        from_torch(net, (torch.randn(3, 3),))
    with refuses(TypeError, "torch.nn.Module"):
        from_torch(abs, (torch.ones(2),))


def test_a_module_of_torch_jit_is_refused():
    with pytest.warns(DeprecationWarning, match="deprecated"):
        net = torch.jit.script(nn.Sequential(nn.ReLU()))
    for module, name in ((net, "the module"), (nn.Sequential(nn.ReLU(), net), "1 is")):
        with refuses(UnsupportedModuleError, "torch.jit", name):
            from_torch(module, (torch.ones(2),))


def _differentiate(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x.sin().sum(), x)[0]


@pytest.mark.parametrize(
    "function", [_differentiate, torch.func.grad(lambda x: x.sin().sum())]
)
def test_a_forward_that_takes_a_derivative_is_refused(function):
    net = Function(lambda x: function(x))
    with refuses(UnsupportedModuleError, "derivative", __file__, "jax.grad"):
        from_torch(net, (torch.ones(2),))


def test_an_error_inside_of_pythons_library_has_the_place_that_called_it():
    mean = lambda x: x + statistics.mean([])
    line = mean.__code__.co_firstlineno
    with refuses(UnsupportedModuleError, f"{__file__}:{line}"):
        from_torch(Function(mean), (torch.ones(2),))


def test_a_setting_that_cannot_be_converted_is_named_with_its_source_line():
    class Drops(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, training=True)

    net = nn.Sequential(nn.ReLU(), nn.Sequential(Drops()))
    names = ("1.0", __file__, "training=self.training")
    with refuses(UnsupportedModuleError, *names) as caught:
        from_torch(net, (torch.randn(1, 2),))
    line = Drops.forward.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}" in str(caught.value)


def _branch(x):
    return x if x.sum() > 0 else -x


def _branch_twice(x):
    if x.max().item() > 1:  # its peak, which has no gradient
        x = x / x.max().item()
    if torch.equal(x, x.abs()) or 7.0 in x:
        return x.sqrt() * (2 if x.sum() > 4 else 1)
    return x * (3 if x.sum() > 4 else 1)


def _assert(x):
    assert (x.abs() < 100).all()
    torch.distributions.Normal(x, x.exp())
    if not torch.isfinite(x).all():
        raise ValueError
    return x * 2


def _fill(x):
    x = x * torch.FloatTensor([2.0]).to(x.device)
    grid = torch.arange(0, torch.tensor([1.0, 3.0])[1].item())
    grid[-1] = 5
    grid.add_(1)
    for at in grid:
        if at > 2:
            x = x + at
    return x


@pytest.mark.parametrize("function", [_branch, _branch_twice, _assert, _fill])
def test_a_module_takes_the_way_that_data_say(function):
    imported = from_torch(Function(function), (torch.randn(4, 3),))
    compiled = ml.compile(imported.model, ml.JaxBackend())

    @jax.jit
    def pulled(data):
        outputs, pull = jax.vjp(lambda d: compiled.evaluate(imported.params, d), data)
        return outputs, pull({"output": jnp.ones((3, 2))})[0]

    for number in range(6):
        x = (2 * torch.randn(3, 2) + 2 * (number % 3)).requires_grad_()
        x = x.abs().detach().requires_grad_() if number % 2 else x
        y = function(x)
        y.sum().backward()
        outputs, gradient = pulled({"x": x.detach().numpy()})
        np.testing.assert_allclose(outputs["output"], y.detach(), 1e-6)
        np.testing.assert_allclose(gradient["x"], x.grad, 1e-5)


def test_a_forward_may_cast_its_parts_to_what_they_are():
    class Casts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(3, 4)

        def forward(self, x):
            self.gate = self.gate.to(torch.float32)
            return self.gate(x)

    assert from_torch(Casts(), (torch.ones(2, 3),)).certificate.max_error < 1e-6


def test_what_forward_stores_is_gone_before_it_is_traced_again():
    class Caches(nn.Module):
        ones = None

        def forward(self, x):
            if self.ones is None:
                self.ones = x.new_ones(1)
            return self.ones * (x if x.sum() > 0 else -x)

    assert from_torch(Caches(), (torch.randn(2, 3),)).certificate.max_error == 0


def _shrink(x):
    while x.sum() > 1:
        x = x / 2
    return x


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (_shrink, "torch.where"),
        (lambda x: x if x.sum() > 0 else x[0], "torch.where"),
        (lambda x: x[: int(x[0, 0])], "as a Python number"),
        (lambda x: sum(x[i] for i in x[0].nonzero()), "range(n)"),
    ],
)
def test_a_module_that_asks_for_numbers_of_data_is_refused(function, remedy):
    line = function.__code__.co_firstlineno
    line += function is _shrink
    with refuses(UnsupportedModuleError, f"{__file__}:{line}", remedy):
        from_torch(Function(function), (torch.ones(2, 2),))


def test_an_assertion_of_a_module_and_a_train_without_a_result_are_no_obstacle():
    from asserting_module import Asserts  # here, since it needs torch

    imported = from_torch(Asserts(), (torch.randn(2, 3),))
    assert imported.certificate.max_error == 0
    assert imported.free_shapes["x"] == ("x_0", 3)


DRAWS = {
    "bernoulli.p": lambda x: x + torch.bernoulli(torch.full_like(x, 0.5)),
    "randn_like.default": lambda x: x + torch.randn_like(x),
    "randn.default": lambda x: x + torch.randn(4, 4),
}


@pytest.mark.parametrize("operation", DRAWS)
def test_a_module_that_draws_is_refused_with_the_remedy(operation):
    name = operation.partition(".")[0]
    with refuses(UnsupportedModuleError, f"aten.{name}", __file__, "input"):
        from_torch(Function(DRAWS[operation]), (torch.randn(4, 4),))


class Asks(nn.Module):
    """Branches on values that no input reaches."""

    def __init__(self):
        super().__init__()
        self.register_buffer("is_ready", torch.tensor(True))
        self.register_buffer("powers", torch.tensor([1, 2, 3]))
        self.flags = torch.tensor([True, False, True])

    def forward(self, x):
        if not self.is_ready:
            x = x + x.sum()
        for flag in self.flags:
            x = x * 2 if flag else x + 1
        count = int(self.powers.sum() % 4)
        if (self.powers > 2).any() and torch.equal(self.powers, self.powers.abs()):
            x = x.repeat(1, count) * self.powers.tolist()[1]
        return x * torch.ones(3).mean().item()


def test_a_branch_on_a_buffer_is_the_one_that_its_value_takes():
    module = Asks()
    imported = from_torch(module, (torch.randn(2, 3),))
    assert imported.certificate.max_error < 1e-6
    assert imported.free_shapes["x"] == ("x_0", "x_1")
    module.is_ready.fill_(False)
    assert from_torch(module, (torch.randn(2, 3),)).certificate.max_error < 1e-6


def test_a_branch_on_a_buffer_that_forward_changes_is_not_the_old_one():
    class Counts(Asks):
        def forward(self, x):
            self.powers.add_(x.sum().long())
            return x if self.powers[0] > 0 else -x

    imported = from_torch(Counts(), (torch.ones(2, 3),))
    compiled = ml.compile(imported.model, ml.JaxBackend())
    data = {"x": np.full((2, 3), -2, np.float32)}
    assert compiled.evaluate(imported.params, data)["output"].max() == 2


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


# --- masks, dtypes and inputs -----------------------------------------------------


class Attends(nn.Module):
    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Pads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, mask):
        return self.a(x, x, x, key_padding_mask=mask, need_weights=False)[0]


def evaluate(imported, *inputs, backend=None):
    compiled = ml.compile(imported.model, backend or ml.JaxBackend())
    data = dict(zip(imported.shapes, (t.numpy() for t in inputs), strict=True))
    return np.asarray(compiled.evaluate(imported.params, data)["output"])


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_whose_keys_are_all_masked_is_torchs(kind):
    torch.manual_seed(0)
    q = torch.randn(2, 4, 6, 8)
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    padded = mask.clone()
    padded[1] = False
    if kind == "float":
        mask, padded = (torch.where(m, 0.0, -torch.inf) for m in (mask, padded))
    imported = from_torch(Attends(), (q, q + 1, q - 1, mask))
    args = (q, q + 1, q - 1, padded)
    for backend in (ml.JaxBackend(), ml.TorchBackend()):
        got = evaluate(imported, *args, backend=backend)
        np.testing.assert_allclose(got, Attends()(*args), 1e-5, 1e-6)


def test_a_padded_row_of_multi_head_attention_is_torchs():
    torch.manual_seed(0)
    x, none = torch.randn(2, 4, 8), torch.zeros(2, 4, dtype=torch.bool)
    full = none.clone()
    full[1] = True
    module = Pads().eval()
    imported = from_torch(module, (x, none))
    got = evaluate(imported, x, full)
    np.testing.assert_allclose(got, module(x, full).detach(), 1e-5, 1e-6)


def test_the_certificate_varies_masks_and_their_edge_rows(monkeypatch):
    # Wrong for rows that are masked entirely, and nowhere else.
    def plain(xp, q, k, v, mask, **_):
        scores = q @ k.swapaxes(-2, -1) / np.sqrt(q.shape[-1])
        return jax.nn.softmax(jnp.where(mask, scores, -1e30)) @ v

    monkeypatch.setitem(aten.FUNCTIONS, "scaled_dot_product_attention", plain)
    q, mask = torch.randn(3, 4, 8), torch.ones(3, 4, 4, dtype=torch.bool)
    with refuses(UnsupportedModuleError):
        from_torch(Attends(), (q, q + 1, q - 1, mask))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_a_module_in_another_dtype_says_which_were_compared(dtype):
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    net, x = net.to(getattr(torch, dtype)), torch.randn(3, 8)
    imported = from_torch(net, (x.to(getattr(torch, dtype)),))
    wide = dtype == "float64"
    assert imported.certificate.dtype == ("float64" if wide else "float32")
    assert imported.certificate.max_error < (1e-13 if wide else 1e-5)


def test_a_part_in_float64_is_compared_in_float64():
    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4).double()

        def forward(self, x):
            return self.last(self.first(x).double())

    imported = from_torch(Ends(), (torch.randn(3, 4),))
    assert imported.certificate.dtype == "float64"
    assert imported.certificate.max_error < 1e-6
    assert imported.params["first.weight"].dtype == "float32"


def test_a_module_that_float32_does_not_suit_says_so():
    net = nn.Sequential(Function(torch.Tensor.half), nn.Linear(2, 2).half())
    with refuses(UnsupportedModuleError, "float32", "float16"):
        from_torch(net, (torch.randn(2, 2),))


def _rotate_in_float64(x):
    place = torch.arange(x.shape[0], dtype=torch.float64)
    angles = torch.outer(x[:, 0].double(), 0.5**place)
    turned = torch.polar(torch.ones_like(angles), angles)
    return x + torch.view_as_real(turned).float().sum(1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumsum(0, dtype=torch.float64).float(),
        lambda x: x + (x * torch.ones(2, dtype=torch.float64)).sum().float(),
        _rotate_in_float64,
    ],
)
def test_float64_inside_a_module_of_float32_becomes_float32_with_a_warning(function):
    with pytest.warns(UserWarning, match=f"(?s){Path(__file__).name}.*float64"):
        imported = from_torch(Function(function), (torch.randn(3, 2),))
    x = torch.randn(4, 2)
    np.testing.assert_allclose(evaluate(imported, x), function(x), 1e-5, 1e-6)
    module, x = Function(function).double(), x.double()
    assert from_torch(module, (x,)).certificate.dtype == "float64"


def test_an_output_in_float64_of_a_module_of_float32_is_refused_with_the_remedy():
    module, x = Function(lambda x: x.double() * 3), torch.randn(2)
    with refuses(UnsupportedModuleError, "float64", "module.double()", __file__):
        from_torch(module, (x,))
    assert from_torch(module.double(), (x.double(),))


def test_an_operation_that_its_function_does_not_take_is_named_with_its_place():
    with refuses(UnsupportedModuleError, "aten.median", __file__):
        from_torch(Function(lambda x: x.sum().median(0)[0]), (torch.randn(2),))


def test_attributes_without_a_copy_are_shared():
    net = nn.Sequential(nn.Linear(2, 2), Function(torch.tanh))
    net[1].lock, net.rotate = threading.Lock(), staticmethod(torch.neg)
    imported = from_torch(net.train(), (torch.randn(3, 2),))
    assert imported.certificate.max_error < 1e-6
    assert net.training
    net.register_buffer("held", nn.Parameter(torch.ones(2)) * 2)
    with refuses(UnsupportedModuleError, "copied"):
        from_torch(net, (torch.randn(3, 2),))


def test_a_cast_to_half_overflows_as_torchs():
    imported = from_torch(Function(lambda x: (x.half() * 3).float()), (torch.randn(2),))
    assert np.isinf(evaluate(imported, torch.full((2,), 3e4))).all()


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


class Embeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        # By a step that is a float, as in XLNet.
        places = torch.arange(length, 0, -1.0, dtype=torch.int64)[None]
        places = places.expand(tokens.shape[0], -1)
        x = self.table(tokens) + self.table(places % 20)
        return self.layer(x, mask).reshape(-1, 8)


@pytest.mark.parametrize(
    "module", [Embeds(), nn.EmbeddingBag(20, 4, mode="max"), nn.EmbeddingBag(20, 4)]
)
def test_batch_and_length_are_free(module):
    torch.manual_seed(0)
    imported = from_torch(module.eval(), (torch.randint(0, 20, (2, 5)),))
    (name,) = imported.free_shapes
    assert imported.free_shapes == {name: (f"{name}_0", f"{name}_1")}
    assert imported.certificate.other_lengths == 1
    tokens = torch.randint(0, 20, (3, 7), dtype=torch.int32)
    for backend in (ml.JaxBackend(), ml.TorchBackend()):
        got = evaluate(imported, tokens, backend=backend)
        np.testing.assert_allclose(got, module(tokens).detach(), 1e-4, 1e-5)


def test_the_batch_is_free_where_other_lengths_are_not():
    # As of rotary embeddings that take the places of two sequences in a row.
    module = Function(lambda given: given[0] * torch.cat(given[1:]))
    inputs = [torch.randn(2, 7), torch.randn(3), torch.randn(4)]
    imported = from_torch(module, (inputs,))
    assert list(imported.free_shapes.values()) == [("x_0_0", 7), (3,), (4,)]
    assert evaluate(imported, torch.randn(5, 7), *inputs[1:]).shape == (5, 7)


def test_lengths_are_free_of_arguments_that_forward_takes_by_any_name():
    class Adds(nn.Module):
        def forward(self, x, **others):
            return x + others["y"]

    imported = from_torch(Adds(), (torch.ones(2, 3),), {"y": torch.ones(2, 3)})
    assert list(imported.free_shapes) == ["x", "y"]
    assert evaluate(imported, torch.ones(4, 5), torch.ones(4, 5)).shape == (4, 5)


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


def test_a_length_that_was_traced_is_not_free():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(2, 6) if x.shape[0] == 2 else x * 2

    imported = from_torch(Fixed(), (torch.randn(2, 6),))
    assert imported.free_shapes["x"][0] == 2
    for backend in (ml.JaxBackend(), ml.TorchBackend()):
        for shape in (("batch", 6), (3, 6)):
            with refuses(ShapeError, "x", 2):
                ml.compile(imported.model, backend, shapes={"x": shape})


def pad_to_four(x):
    return F.pad(x, (0, 4 - x.shape[1] % 4), value=1.0) if x.shape[1] % 4 else x


def cumulate_by_four(x):
    return torch.cat([p.cumsum(0) for p in x.chunk(math.ceil(x.shape[0] / 4))])


# A forward, the shape of the example, one that takes the same way, and one that does
# not.
BRANCHES = {
    "longer": (lambda x: x * 2 if x.shape[1] > 8 else x + 1, (2, 5), (3, 8), (3, 9)),
    "multiple": (lambda x: pad_to_four(x).cumsum(1), (2, 5), (3, 7), (3, 8)),
    "one batch": (lambda x: x * 3 if x.shape[0] == 4 else x, (5, 2), (3, 2), (4, 2)),
    "both": (
        lambda x: x if x.shape[0] < 2 * x.shape[1] + 1 else -x, (4, 5), (3, 2), (5, 2)
    ),
    "chunks": (
        cumulate_by_four, (3, 2), (4, 2), (5, 2)
    ),
    "single": (lambda x: x.sum(0) if x.shape[0] == 1 else x, (2, 3), (4, 3), (1, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_a_length_for_which_forward_takes_another_way_is_refused(name):
    forward, example, same, other = BRANCHES[name]
    imported = from_torch(Function(forward), (torch.randn(example),))
    assert isinstance(next(iter(imported.free_shapes.values()))[0], str)
    x = torch.randn(same)
    for backend in (ml.JaxBackend(), ml.TorchBackend()):
        got = evaluate(imported, x, backend=backend)
        np.testing.assert_allclose(got, forward(x), 1e-5, 1e-6)
        with refuses(ShapeError, "imported where"):
            evaluate(imported, torch.randn(other), backend=backend)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(4)])
def test_a_module_in_training_mode_is_imported_in_evaluation_mode_and_says_so(layer):
    net, x = nn.Sequential(nn.Linear(3, 4), layer), torch.randn(6, 3)
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


def test_a_module_whose_next_call_differs_is_refused():
    with refuses(UnsupportedModuleError, "second call", "input"):
        from_torch(Counts(), (torch.ones(2),))


WIDE = 2**40 + 1
NEEDS_64_BITS = {
    "number": (lambda x: x * WIDE % 97, 3),
    "tensor": (lambda x: x * torch.tensor(WIDE) % 97, 3),
    "input": (lambda x: x % 97, WIDE),
    "output": (lambda x: x.to(torch.int64) << 34, 3),
}


@pytest.mark.parametrize("name", NEEDS_64_BITS)
def test_an_integer_of_more_than_32_bits_is_refused(name):
    forward, number = NEEDS_64_BITS[name]
    with refuses(UnsupportedModuleError):
        from_torch(Function(forward), (torch.tensor([number, 2]),))


def test_a_forward_may_change_its_inputs():
    imported = from_torch(Function(lambda x: x.mul_(2) + 1), (torch.ones(2),))
    np.testing.assert_allclose(evaluate(imported, torch.ones(2)), [3, 3])


def test_strides_over_a_part_of_a_tensor_are_refused():
    with refuses(UnsupportedModuleError, "as_strided"):
        from_torch(
            Function(lambda x: x[2:].as_strided((2, 2), (1, 2), 0)), (torch.randn(9),)
        )


def test_a_saved_model_names_operations_of_the_table_only():
    for backend in (ml.JaxBackend(), ml.TorchBackend()):
        layer = op("aten", function="from_file.default", arguments=("@0",))
        with refuses(ShapeError, "from_file.default"):
            ml.compile(Model.create(y=layer(IOKey("x", shape=(2,)))), backend)
