"""Torch modules in other dtypes than float32, as models."""

import numpy as np
import pytest

from frugax.errors import UnsupportedModuleError
from frugax.models import from_torch
from refusals import refuses
from tiers import mostly_thorough

torch = pytest.importorskip("torch")
from models.torch_modules import Function, evaluate  # noqa: E402 - it needs torch

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


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


@pytest.mark.usefixtures("fixed_lengths")
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
    with pytest.warns(UserWarning, match=r"(?s)torch_modules\.py.*float64"):
        imported = from_torch(Function(function), (torch.randn(3, 2),))
    x = torch.randn(4, 2)
    np.testing.assert_allclose(evaluate(imported, x), function(x), 1e-5, 1e-6)
    module, x = Function(function).double(), x.double()
    assert from_torch(module, (x,)).certificate.dtype == "float64"


@pytest.mark.usefixtures("fixed_lengths")
def test_an_output_in_float64_of_a_module_of_float32_is_refused_with_the_remedy():
    module, x = Function(lambda x: x.double() * 3), torch.randn(2)
    names = ("float64", "module.double()", "torch_modules.py")
    with refuses(UnsupportedModuleError, *names):
        from_torch(module, (x,))
    assert from_torch(module.double(), (x.double(),))


WIDE = 2**40 + 1


NEEDS_64_BITS = {
    "number": (lambda x: x * WIDE % 97, 3),
    "tensor": (lambda x: x * torch.tensor(WIDE) % 97, 3),
    "input": (lambda x: x % 97, WIDE),
    "output": (lambda x: x.to(torch.int64) << 34, 3),
}


@pytest.mark.usefixtures("fixed_lengths")
@pytest.mark.parametrize(
    "name", mostly_thorough(NEEDS_64_BITS, in_ci=lambda name: name != "tensor")
)
def test_an_integer_of_more_than_32_bits_is_refused(name):
    forward, number = NEEDS_64_BITS[name]
    with refuses(UnsupportedModuleError):
        from_torch(Function(forward), (torch.tensor([number, 2]),))
