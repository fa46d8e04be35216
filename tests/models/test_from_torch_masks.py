"""Torch modules that select rows by a mask, as models: numbers, gradients, refusals."""

import jax
import numpy as np
import pytest

import frugax as ml
from frugax.errors import UnsupportedModuleError
from frugax.models import from_torch
from refusals import refuses

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")  # of empty selections


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, m):
        return self.function(x, m)


def _labels(x):
    return torch.where(x[..., 3] > 0.5, -1, (x[..., 0] > 0).long())


def _write_clipped(x, m):
    x = x.clone()
    x[x < 0] = 0.5
    x[m] += 1
    x[:, m[0]] = x[:, m[0]] * 2
    return x


def _write_at_places(x, m):
    rows = x.reshape(-1, x.shape[-1])
    (at,) = torch.where(m.reshape(-1))
    out = torch.zeros_like(rows).index_add(0, at, rows[at] * 2)
    out[at] = torch.tanh(out[at]) + out[at]
    out[at // 2] = rows[at].detach()  # twice at some places
    return out


def _write_in_each(x, m):
    rows = x[m]
    rows[:, torch.tensor([1, 3])] = rows[:, :2] * 2
    return rows.sum(0)


def _scatter(rows, places):
    start, at = torch.full((3, 4), 0.5), places[:, None].expand(-1, 4)
    kinds = ("sum", "amax", "amin")
    found = [
        start.scatter_reduce(0, at, rows, kind, include_self=own)
        for kind in kinds
        for own in (True, False)
    ]
    return torch.stack(found)


FUNCTIONS = {
    "sum": lambda x, m: x[m].sum() + x.masked_select(m[..., None]).sum(),
    "mean": lambda x, m: x[m].mean(0) + x[m, 1].mean(),
    # The same mask, computed twice.
    "cross entropy": lambda x, m: F.cross_entropy(
        x[_labels(x) != -1], _labels(x)[_labels(x) != -1]
    ),
    "smoothed": lambda x, m: F.cross_entropy(
        x[m], (x[m][:, 0] > 0).long(), label_smoothing=0.1
    ),
    "squares": lambda x, m: F.mse_loss(x[m].view(-1), 2 * x[m].reshape(-1)),
    "divergence": lambda x, m: F.kl_div(
        x[m].log_softmax(-1), (2 * x[m]).softmax(-1), reduction="batchmean"
    ),
    "writes": _write_clipped,
    "places": lambda x, m: x[torch.where(m)].sum(0),
    "writes at places": _write_at_places,
    "writes in each": _write_in_each,
    "numbers": lambda x, m: x[m].sum() / max(x[m].shape[0], 1) / (x[m].numel() + 1),
    "positions": lambda x, m: (x[m] * torch.arange(x[m].shape[0])[:, None]).sum(0),
    "moments": lambda x, m: (x - x[m].mean()) / (1 + x[m].std(0)) + x[m].var(),
    "two masks": lambda x, m: torch.cat([x[m], x[~m] * 2]).mean(),
    "rows beside others": lambda x, m: torch.cat([x[m] * 2, x[0]]).square().sum(0),
    "masks of masks": lambda x, m: x[m][x[m][:, 0] > 0].sum(),
    "products": lambda x, m: x[m].T @ x[m],
    "attention": lambda x, m: (x[m] @ x[m].T).softmax(-1).square().sum(),
    "logarithms": lambda x, m: torch.log(x[x > 0]).sum(),
    "picks": lambda x, m: (
        x[m].gather(1, (x[m][:, :1] > 0).long()).mean()
        + x[m, (x[m][:, 0] > 0).long()].sum()
    ),
    "norms": lambda x, m: F.normalize(x[m], dim=-1).sum(0) + x[m].any(),
    "scatters": lambda x, m: _scatter(x[m], (x[m][:, 0] > 0).long()),
    "columns": lambda x, m: x[:, m[0]].prod(1),
}


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x, m):
        found = {name: f(x, m) for name, f in FUNCTIONS.items()}
        out = torch.zeros_like(x)
        out[m] = self.norm(torch.relu(self.layer(x[m])))
        return found | {"layers": out}


@pytest.fixture(scope="module")
def imported():
    torch.manual_seed(0)
    module = Everything()
    x, m = torch.randn(2, 5, 4), torch.rand(2, 5) > 0.4
    result = from_torch(module, (x, m))
    backends = ml.JaxBackend(), ml.TorchBackend()
    return module, result, [ml.compile(result.model, b) for b in backends]


@pytest.mark.parametrize("kind", ["mixed", "all", "none"])
def test_selected_rows_are_torchs(imported, kind):
    module, result, compiled = imported
    assert result.certificate.max_error < 1e-5
    assert result.certificate.samples == 5  # of which two have uniform masks
    torch.manual_seed(1)
    x, m = torch.randn(2, 5, 4), torch.rand(2, 5) > 0.5
    m = {"mixed": m, "all": m | True, "none": m & False}[kind]
    wanted = [t.detach() for t in module(x, m).values()]
    data = {"x": x.numpy(), "m": m.numpy()}
    for evaluate in (one.evaluate for one in compiled):
        got = evaluate(result.params, data).values()
        for want, value, name in zip(wanted, got, module(x, m), strict=True):
            np.testing.assert_allclose(value, want, 1e-4, 1e-5, err_msg=name)
    empty_means = [torch.isnan(t).any() for t in wanted]
    assert any(empty_means) == (kind == "none")


def test_gradients_of_selected_rows_are_torchs(imported):
    module, result, (compiled, _) = imported
    torch.manual_seed(2)
    x, m = torch.randn(2, 5, 4, requires_grad=True), torch.rand(2, 5) > 0.5
    torch.stack([out.sum() for out in module(x, m).values()]).sum().backward()

    def loss(x):
        out = compiled.evaluate(result.params, {"x": x, "m": m.numpy()})
        return sum(value.sum() for value in out.values())

    gradient = jax.jit(jax.grad(loss))(x.detach().numpy())
    np.testing.assert_allclose(gradient, x.grad, 1e-3, 1e-4)


REFUSED = {
    "returned": (lambda x, m: x[m], "index.Tensor"),
    "sorted": (lambda x, m: x[m].sort(0)[0].sum(), "sort.default"),
    "first": (lambda x, m: x[m][0], "select.int"),
}


@pytest.mark.usefixtures("fixed_lengths")
@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_leave_the_module_or_are_mixed_are_refused_with_a_place(name):
    function, operation = REFUSED[name]
    x, m = torch.randn(2, 5, 4), torch.rand(2, 5) > 0.4
    with refuses(UnsupportedModuleError, f"aten.{operation}", __file__):
        from_torch(Function(function), (x, m))
