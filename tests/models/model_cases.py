"""Small models and how they are evaluated."""

import jax
import numpy as np

import frugax as ml
from frugax.models import (
    IOKey,
)

X = np.arange(6, dtype="float32").reshape(2, 3) - 2


def compiled(model, **how):
    how.setdefault("shapes", {})
    return ml.compile(model, ml.JaxBackend(), **how)


def evaluate(model, data=None, **how):
    """The outputs of a model, as NumPy arrays."""
    made = compiled(model, **how)
    data = {"x": X} if data is None else data
    data = {k: jax.numpy.asarray(v) for k, v in data.items()}
    outputs = made.evaluate(made.randomize_params(0), data)
    return {k: np.asarray(v) for k, v in outputs.items()}


def x(shape=("batch", 3), **about):
    return IOKey("x", shape=shape, **about)
