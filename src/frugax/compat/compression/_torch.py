"""Take the weights out of torch modules, and put weights into them.

The only file of this package that imports torch; imported when a module is met.
"""

import copy
from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from frugax.compress.arrays import named_arrays, to_library


def stored_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a module's state by name, shared ones once."""
    # keep_vars leaves the parameters themselves in the dict; detached copies would have
    # new identities, and shared weights could not be told.
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{name!r} in the module's state is a {type(value).__name__}: a file "
                "of weights holds tensors only."
            )
        tensors.setdefault(id(value), (name, value))
    return dict(tensors.values())


def read_weights(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights of a module by name, shared ones once.

    Raises:
        TypeError: it is not a module, or its state holds other values than tensors.
    """
    # Callers are checked at run time, whatever their annotations say.
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"ModelCompressionAPI compresses torch modules, got a "
            f"{type(model).__name__}: trees of arrays go to frugax.compress.save, one "
            "tensor to SystemIntegrationCoordinator."
        )
    return named_arrays(dict(stored_tensors(model)))


def copy_without_weights(model: nn.Module) -> tuple[nn.Module, dict[str, torch.device]]:
    """Return a copy whose weights take no memory, and the device of each weight."""
    stored = stored_tensors(model)
    # deepcopy takes the replacement of an object from its memo by id, so weights are
    # never copied and sharing survives.
    memo: dict[int, object] = {id(v): _empty(v, "meta") for v in stored.values()}
    return copy.deepcopy(model, memo), {n: v.device for n, v in stored.items()}


def copy_with_weights(
    bare: nn.Module,
    devices: Mapping[str, torch.device],
    weights: Mapping[str, np.ndarray],
) -> nn.Module:
    """Return a copy of a module without weights, with these weights in it.

    Raises:
        ValueError: names or shapes differ from the module's.
    """
    stored = stored_tensors(bare)
    model = copy.deepcopy(
        bare, {id(value): _empty(value, devices[n]) for n, value in stored.items()}
    )
    _narrow(model, weights)
    own = stored_tensors(model)
    for name in own.keys() | weights.keys():
        have = tuple(own[name].shape) if name in own else None
        given = weights[name].shape if name in weights else None
        if have != given:
            raise ValueError(
                f"{name!r} has the shape {given} in the file and {have} in the model: "
                "give the builder of the model that was compressed."
            )
    # copy_ into a parameter that requires a gradient is an error outside of no_grad.
    with torch.no_grad():
        for name, array in weights.items():
            own[name].copy_(to_library(array, own[name]))
    return model


def find_relu_pairs(model: nn.Module) -> list[tuple[str, str]]:
    """Return the names of every two `Linear`s with only a ReLU between them.

    They follow each other in a `Sequential`. Layers that are used in two places are
    left out: both would be narrowed.
    """
    places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    state = model.state_dict(keep_vars=True)
    weights = Counter(id(value) for value in state.values())
    once = lambda layer: (
        # By exact type: a subclass may compute something else from its weights.
        type(layer) is nn.Linear
        and places[id(layer)] == 1
        and all(weights[id(p)] == 1 for p in layer.parameters())
    )
    found: list[tuple[str, str]] = []
    for name, block in model.named_modules():
        if type(block) is not nn.Sequential:
            continue
        rows = [(f"{name}.{own}".lstrip("."), m) for own, m in block.named_children()]
        for (one, a), (_, b), (two, c) in zip(rows, rows[1:], rows[2:], strict=False):
            if once(a) and type(b) is nn.ReLU and once(c):
                found.append((one, two))
    return found


def _narrow(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Make `Linear`s around a ReLU as narrow as in the file."""
    for first, second in find_relu_pairs(model):
        a, b = model.get_submodule(first), model.get_submodule(second)
        assert isinstance(a, nn.Linear)
        assert isinstance(b, nn.Linear)
        given = weights.get(f"{first}.weight")
        if given is None or not 0 < len(given) < a.out_features:
            continue
        a.out_features = b.in_features = hidden = len(given)
        a.weight = _cut(a.weight, (hidden, a.in_features))
        b.weight = _cut(b.weight, (b.out_features, hidden))
        if a.bias is not None:
            a.bias = _cut(a.bias, (hidden,))


def _cut(like: torch.Tensor, shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(
        like.detach().new_empty(shape), requires_grad=like.requires_grad
    )


def _empty(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    # `empty_like` from "meta" would import 500 modules first.
    new = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new
