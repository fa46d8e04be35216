"""Networks for the tests of the guide's names, and the error after decompression."""

import numpy as np

from frugax.compat.compression import SystemConfiguration

RNG = np.random.default_rng(0)
CPU = SystemConfiguration(jax_backend="cpu")


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def net():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )


def rel_error(restored, model):
    states = restored.state_dict().values(), model.state_dict().values()
    pairs = list(zip(*states, strict=True))
    error = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    return (error / sum(float((b**2).sum()) for _, b in pairs)) ** 0.5
