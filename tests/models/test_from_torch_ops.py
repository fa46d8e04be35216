"""ATen's operations in imported modules: numbers, gradients and refused settings."""

import numpy as np
import pytest

import frugax as ml
from frugax.errors import ShapeError, UnsupportedModuleError
from frugax.models import IOKey, Model, from_torch, op
from refusals import refuses

torch = pytest.importorskip("torch")
from models.torch_modules import Function, evaluate  # noqa: E402 - it needs torch

nn = torch.nn
F = torch.nn.functional
pytree = torch.utils._pytree
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


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
    "windows": lambda x: x.transpose(1, 2).unfold(-1, 3, 2).unfold(1, 2, 1),
    "unshuffled": lambda x: F.pixel_unshuffle(x[..., :6, :6], 2),
    "a view of repeats": lambda x: x.permute(2, 0, 1, 3).repeat(1, 2, 1, 1).view(-1, 6),
    "shuffled": lambda x: F.channel_shuffle(x, 2),
    "arithmetic": lambda x: torch.lerp(torch.addcmul(x, x, x, value=0.5), x + 1, 0.3),
    "shrinks": lambda x: F.softshrink(x) + F.hardshrink(x) + F.softsign(x)
    + F.threshold(x, 0.1, 2.0),
    "moments": lambda x: sum(torch.var_mean(x, dim=(2, 3), keepdim=True)),
    "bits": lambda x: torch.where(((x > 0) & (x < 1)) ^ ~(x < 2) | (x < -1), x, 0.0),
    "whole bits": lambda x: (x * 9).int() & 6 | (x * 5).int() ^ 3,
    "differences": lambda x: x.diff(dim=-1, append=x[..., :1]),
    "extremes": lambda x: torch.min(x, -x) + torch.max(x, x.mean()),
    "equal": lambda x: (x == x.round()) | (x != -x.abs()) | (x < 2.0),
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


def _apply_linear_algebra(x):
    return {name: function(x) for name, function in LINEAR_ALGEBRA.items()}


# Tracing is what takes long, so each function has a trace of its own once a day only.
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(_apply_linear_algebra, id="all of them"),
        *(
            pytest.param(f, id=n, marks=pytest.mark.thorough)
            for n, f in LINEAR_ALGEBRA.items()
        ),
    ],
)
def test_linear_algebra_is_converted(function):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4)
    imported = from_torch(Function(function), (torch.randn(2, 3, 4, 4),))
    wanted = pytree.tree_leaves(function(x))
    compiled = ml.compile(imported.model, ml.JaxBackend())
    got = compiled.evaluate(imported.params, {"x": x.numpy()}).values()
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-4)


def _apply_all(x):
    return {name: function(x) for name, function in FUNCTIONS.items()}


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


@pytest.mark.parametrize("rows", [3, 1])  # torch leaves lengths other than 1 free
def test_memory_that_is_written_later_may_hold_anything_before(rows):
    def reverse(x):
        order = x[:, 0].argsort()
        places = torch.empty_like(order) - 1
        places[order] = torch.arange(order.shape[0])
        return x[order][places] + places[:, None]

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills such memory with large numbers
    try:
        imported = from_torch(Function(reverse), (torch.randn(rows, 2),))
    finally:
        torch.use_deterministic_algorithms(before)
    x = torch.randn(rows + 2 if rows > 1 else 1, 2)
    np.testing.assert_allclose(evaluate(imported, x), reverse(x), 1e-6)


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


def test_a_cast_to_half_overflows_as_torchs():
    imported = from_torch(Function(lambda x: (x.half() * 3).float()), (torch.randn(2),))
    assert np.isinf(evaluate(imported, torch.full((2,), 3e4))).all()


@pytest.mark.usefixtures("fixed_lengths")
def test_an_operation_that_its_function_does_not_take_is_named_with_its_place():
    with refuses(UnsupportedModuleError, "aten.median", "torch_modules.py"):
        from_torch(Function(lambda x: x.sum().median(0)[0]), (torch.randn(2),))


@pytest.mark.usefixtures("fixed_lengths")
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
