"""Attention of imported torch modules, with masked rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.errors import UnsupportedModuleError
from frugax.models import aten, from_torch
from refusals import refuses

torch = pytest.importorskip("torch")
from models.torch_modules import evaluate  # noqa: E402 - it needs torch

nn = torch.nn
F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Attends(nn.Module):
    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Pads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, mask):
        return self.a(x, x, x, key_padding_mask=mask, need_weights=False)[0]


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


@pytest.mark.usefixtures("fixed_lengths")
def test_the_certificate_varies_masks_and_their_edge_rows(monkeypatch):
    # Wrong for rows that are masked entirely, and nowhere else.
    def plain(xp, q, k, v, mask, **_):
        scores = q @ k.swapaxes(-2, -1) / np.sqrt(q.shape[-1])
        return jax.nn.softmax(jnp.where(mask, scores, -1e30)) @ v

    monkeypatch.setitem(aten.FUNCTIONS, "scaled_dot_product_attention", plain)
    q, mask = torch.randn(3, 4, 8), torch.ones(3, 4, 4, dtype=torch.bool)
    with refuses(UnsupportedModuleError):
        from_torch(Attends(), (q, q + 1, q - 1, mask))
