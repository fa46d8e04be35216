"""A torch module with an `assert`, in a file whose asserts pytest does not rewrite."""

from typing import Any

import torch
from torch import nn


class Asserts(nn.Module):
    """Asserts a value as `vocos` does; `train` returns None as in `loralib`."""

    window: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.ones(3))

    def train(self, mode=True) -> Any:  # noqa: FBT002
        super().train(mode)

    def forward(self, x):
        assert (self.window > 0).all()
        return x * self.window
