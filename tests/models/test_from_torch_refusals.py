"""Torch modules that no model can be made of: the message has place and remedy."""

import statistics

import pytest

from frugax.errors import UnsupportedModuleError
from frugax.models import from_torch
from refusals import refuses
from tiers import mostly_thorough

torch = pytest.importorskip("torch")
from models.torch_modules import Function  # noqa: E402 - it needs torch

nn = torch.nn
F = torch.nn.functional
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("fixed_lengths"),
]


def test_a_module_that_is_traced_but_does_not_run_is_refused():
    def overlap(x):
        x = x.clone()
        x[torch.tensor([0, 1]), torch.tensor([2, 3])] = x[0, 0]
        return x

    with pytest.raises(UnsupportedModuleError, match="does not run"):
        from_torch(Function(overlap), (torch.randn(2, 4, 7, 6),))


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


DRAWS = {
    "bernoulli.p": lambda x: x + torch.bernoulli(torch.full_like(x, 0.5)),
    "randn_like.default": lambda x: x + torch.randn_like(x),
    "randn.default": lambda x: x + torch.randn(4, 4),
}


@pytest.mark.parametrize(
    "operation", mostly_thorough(DRAWS, in_ci=lambda name: name == "randn.default")
)
def test_a_module_that_draws_is_refused_with_the_remedy(operation):
    name = operation.partition(".")[0]
    with refuses(UnsupportedModuleError, f"aten.{name}", "torch_modules.py", "input"):
        from_torch(Function(DRAWS[operation]), (torch.randn(4, 4),))


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_a_module_whose_next_call_differs_is_refused():
    with refuses(UnsupportedModuleError, "second call", "input"):
        from_torch(Counts(), (torch.ones(2),))
