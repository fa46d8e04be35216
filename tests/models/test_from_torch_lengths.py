"""Free lengths of imported torch modules."""

import numpy as np
import pytest

import frugax as ml
from frugax.errors import ShapeError
from frugax.models import from_torch
from refusals import refuses

torch = pytest.importorskip("torch")
from models.torch_modules import Function, evaluate  # noqa: E402 - it needs torch

nn = torch.nn
F = nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


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


def test_lengths_of_padding_and_gates_are_free():
    function = lambda x: F.glu(
        F.pad(x, (1, 2), "reflect") + F.pad(x, (3, 0), "circular"), 0
    )
    imported, x = (
        from_torch(Function(function), (torch.randn(2, 5, 4),)),
        torch.randn(6, 3, 5),
    )
    assert imported.free_shapes["x"][1:] == ("x_1", "x_2")
    np.testing.assert_allclose(evaluate(imported, x), function(x), 1e-6)


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


def test_lengths_are_fixed_where_forward_takes_no_free_ones():
    def scale(x):
        if not all(type(n) is int for n in x.shape):
            raise TypeError
        return x * 2

    imported = from_torch(Function(scale), (torch.ones(2, 3),))
    assert imported.free_shapes == {"x": (2, 3)}


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
