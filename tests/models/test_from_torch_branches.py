"""Torch modules whose forward branches on data, buffers or lengths, as models."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.errors import ShapeError, UnsupportedModuleError
from frugax.models import from_torch
from refusals import refuses
from tiers import mostly_thorough

torch = pytest.importorskip("torch")
from models.torch_modules import Function, evaluate  # noqa: E402 - it needs torch

nn = torch.nn
F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


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


@pytest.mark.parametrize(
    "function",
    [
        _branch,
        pytest.param(_branch_twice, marks=pytest.mark.thorough),
        _assert,
        _fill,
    ],
)
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


@pytest.mark.usefixtures("fixed_lengths")
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


def test_a_buffer_may_be_a_length():
    class Pads(nn.Module):  # as the codec of sounds in transformers
        def __init__(self):
            super().__init__()
            self.register_buffer("stride", torch.tensor(2))

        def forward(self, x):
            wanted = torch.ceil(x.shape[1] / self.stride).long() * self.stride
            if x.shape[1] < wanted - 1:
                x = x * 2
            x = F.pad(x, (self.stride, wanted - x.shape[1]), "reflect")
            return x.view(-1, self.stride)

    imported, x = from_torch(Pads(), (torch.randn(2, 5),)), torch.randn(3, 5)
    assert imported.free_shapes["x"] == ("x_0", 5)
    np.testing.assert_allclose(evaluate(imported, x), Pads()(x))


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


@pytest.mark.parametrize(
    "name", mostly_thorough(BRANCHES, in_ci=lambda name: name in {"both", "multiple"})
)
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
