"""The weights of a torch module as NumPy arrays, and back."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from frugax.compress.arrays import named_arrays, to_library


def read_state(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights of a module by name, shared ones once.

    Raises:
        TypeError: it is not a module, or its state holds more than tensors.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"ModelCompressionAPI compresses torch modules, got a "
            f"{type(model).__name__}: trees of arrays go to frugax.compress.save, one "
            "tensor to SystemIntegrationCoordinator."
        )
    tensors: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{name!r} in the module's state is a {type(value).__name__}: a file "
                "of weights holds tensors only."
            )
        if not any(value is known for known in tensors.values()):
            tensors[name] = value
    return named_arrays(tensors)


def write_state(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Put weights into a module in place.

    Raises:
        ValueError: the file is of another model.
    """
    own = model.state_dict(keep_vars=True)
    for name, array in weights.items():
        have = tuple(own[name].shape) if name in own else "not there"
        if have != array.shape:
            raise ValueError(
                f"{name!r} has the shape {array.shape} in the file; in the model it is "
                f"{have}. Give the builder of the model that was compressed."
            )
    written = [own[name] for name in weights]
    for name, value in own.items():
        if not any(value is known for known in written):
            raise ValueError(
                f"the model has {name!r}, the file does not. Give the builder of the "
                "model that was compressed."
            )
    with torch.no_grad():
        for name, array in weights.items():
            own[name].copy_(to_library(array, own[name]))


def to_torch(array: np.ndarray, device: str) -> torch.Tensor:
    """Return the same values as a tensor on a device."""
    return to_library(array, torch.empty(0, device=device))


def from_dlpack(array: object) -> torch.Tensor:
    """Return an array of JAX as a tensor of its own."""
    return torch.from_dlpack(array).clone()
