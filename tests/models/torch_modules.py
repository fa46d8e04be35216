"""Torch modules of functions, and the numbers of imported ones."""

import numpy as np
import pytest

import frugax as ml

torch = pytest.importorskip("torch")
nn = torch.nn


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def evaluate(imported, *inputs, backend=None):
    compiled = ml.compile(imported.model, backend or ml.JaxBackend())
    data = dict(zip(imported.shapes, (t.numpy() for t in inputs), strict=True))
    return np.asarray(compiled.evaluate(imported.params, data)["output"])
