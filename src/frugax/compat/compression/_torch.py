"""Take the weights out of torch modules, and put weights into them.

The only file of this package that imports torch; imported when a module is met.
"""

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from frugax.compress.arrays import named_arrays
from frugax.errors import ConfigError

from ._monitor import Agreement

_HINT = "Give the builder of the model that was compressed."


def read_state(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights of a module by name, shared ones once."""
    # Callers are checked at run time, whatever their annotations promise.
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"ModelCompressionAPI compresses torch modules, got a "
            f"{type(model).__name__}: trees of arrays go to frugax.compress.save, one "
            "tensor to SystemIntegrationCoordinator."
        )
    seen: set[int] = set()
    tensors: dict[str, torch.Tensor] = {}
    # keep_vars leaves the parameters themselves in the dict; detached copies would have
    # new identities, and shared weights could not be told.
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{name!r} in the module's state is a {type(value).__name__}: a file "
                "of weights holds tensors only."
            )
        if id(value) not in seen:
            seen.add(id(value))
            tensors[name] = value
    return named_arrays(tensors)


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """A module whose weights take no memory.

    Attributes:
        module: the module, its weights on torch's "meta" device.
        devices: the device of each weight.
    """

    module: nn.Module
    devices: Mapping[str, str]


def make_skeleton(model: nn.Module) -> Skeleton:
    """Copy a module without its weights; the module is only read."""
    stored = _stored(model)
    # deepcopy takes the replacement of an object from its memo by id, so weights are
    # never copied and sharing survives.
    bare = {id(value): _empty(value, "meta") for value in stored.values()}
    devices = {name: str(value.device) for name, value in stored.items()}
    return Skeleton(copy.deepcopy(model, bare), devices)


def weight_shapes(skeleton: Skeleton) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight in the module, before anything narrowed it."""
    return {n: tuple(value.shape) for n, value in _stored(skeleton.module).items()}


def fill_skeleton(
    skeleton: Skeleton, weights: Mapping[str, torch.Tensor], device: str | None = None
) -> nn.Module:
    """Make a module like the skeleton, with these weights in it.

    Args:
        skeleton: the module without weights; only read.
        weights: tensors by the names of `read_state`, perhaps for narrower `Linear`s.
        device: where the weights go; None for the devices of the original.

    Raises:
        ValueError: names or shapes differ from the module's.
    """
    # The same way back: each meta tensor is replaced by an empty one on its device.
    memo: dict[int, object] = {
        id(value): _empty(value, device or skeleton.devices[name])
        for name, value in _stored(skeleton.module).items()
    }
    model = copy.deepcopy(skeleton.module, memo)
    if device is not None:  # buffers outside the state dict, too
        model = model.to(device)
    _fit_widths(model, weights)
    own = _stored(model)
    for name, value in weights.items():
        have = tuple(own[name].shape) if name in own else "not there"
        if have != tuple(value.shape):
            raise ValueError(
                f"{name!r} has the shape {tuple(value.shape)} in the file; in the "
                f"model it is {have}. {_HINT}"
            )
    given = {id(own[name]) for name in weights}
    if lacking := [name for name, value in own.items() if id(value) not in given]:
        raise ValueError(f"the model has {lacking[0]!r}, the file does not. {_HINT}")
    # copy_ into a parameter that requires a gradient is an error outside of no_grad.
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)
    return model


def find_relu_pairs(model: nn.Module) -> list[tuple[str, str]]:
    """Return the names of every two `Linear`s with only a ReLU between them.

    They follow each other in a `Sequential`. Layers that are used in two places are
    left out: both would be narrowed.
    """
    places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    weights = Counter(id(v) for v in _stored(model).values())
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


def check_device(device: str | None) -> None:
    """Refuse a device that is not here before the work, not when weights go to it."""
    if device is None:
        return
    try:
        sound = torch.empty(0, device=device).device.type != "meta"
        why = "it holds no values"
    except (RuntimeError, AssertionError) as e:  # the latter where CUDA is not built in
        sound, why = False, str(e).partition("\n")[0].rstrip(".")
    if not sound:
        raise ConfigError(
            f"device is {device!r}, which is of no use to torch here ({why}): name one "
            'that is, such as "cpu", or leave it out for where the model stands.'
        )


def build_module(build: Callable[[], object]) -> nn.Module:
    """Call a builder."""
    # Callers are checked at run time, whatever their annotations promise. A module can
    # be called too, for answers.
    if isinstance(build, nn.Module) or not callable(build):
        raise TypeError(
            "build must be a function that makes a model, such as its class or "
            f"`lambda: model`, got a {type(build).__name__}."
        )
    model = build()
    if not isinstance(model, nn.Module):
        raise TypeError(f"the builder gave {type(model).__name__}, not a torch module.")
    return model


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """Return the same values as a tensor of its own."""
    name = array.dtype.name
    if name == "bfloat16" or name.startswith("float8"):
        # torch.from_numpy does not know the dtypes of ml_dtypes, so the bits travel as
        # integers.
        bits = array.view(np.int16 if name == "bfloat16" else np.int8)
        return torch.from_numpy(bits.copy()).view(getattr(torch, name))
    # A copy, because a decoded array may be a read-only view of a file.
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def _stored(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of the state dict; other buffers are copied as they are."""
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if torch.is_tensor(value)}


def _empty(tensor: torch.Tensor, device: str) -> torch.Tensor:
    # `empty_like` from "meta" would import 500 modules first.
    new = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new


def _fit_widths(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Make `Linear` layers as narrow as in the file: strategy "tropical" narrows."""
    for name, layer in list(model.named_modules()):
        weight = weights.get(f"{name}.weight")
        if type(layer) is not nn.Linear or weight is None or weight.ndim != 2:
            continue
        (n, m), (wide_n, wide_m) = weight.shape, layer.weight.shape
        if (n < wide_n and m == wide_m) or (n == wide_n and m < wide_m):
            new = nn.Linear(
                m,
                n,
                bias=layer.bias is not None,
                device=layer.weight.device,
                dtype=layer.weight.dtype,
            )
            new.train(layer.training)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, new)


def ready_for_dlpack(tensor: torch.Tensor, platform: str) -> torch.Tensor:
    """Return the tensor, dense and where JAX on this platform can share it."""
    # JAX refuses strides of other orders and tensors that require a gradient.
    plain = tensor.detach().contiguous()
    return plain.cpu() if platform == "cpu" or not plain.is_cuda else plain


def from_dlpack(array: object, *, copy: bool) -> torch.Tensor:
    """Return a JAX array as a tensor."""
    tensor = torch.from_dlpack(array)
    if copy:
        return tensor.clone()
    return tensor


def state_bytes(model: nn.Module) -> int:
    """Return the bytes of the weights, shared ones once."""
    own = {id(value): value for value in _stored(model).values()}
    return sum(value.numel() * value.element_size() for value in own.values())


def compare_answers(
    model: nn.Module, restored: nn.Module, batches: Iterable[Any]
) -> Agreement:
    """Call two models on every batch; both are in `eval` mode meanwhile.

    Args:
        model: the original.
        restored: the one with decoded weights.
        batches: inputs; of a tuple or list the first part is the input.

    Raises:
        ValueError: `batches` is empty.
    """
    same = rows = 0
    error = energy = 0.0
    # Each module by itself: a user may have put only some layers, such as frozen norms,
    # into eval mode.
    modes = {m: m.training for m in (*model.modules(), *restored.modules())}
    model.eval()
    restored.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                given = batch[0] if isinstance(batch, tuple | list) else batch
                # In float64, so that the sums of squares of many outputs do not round.
                want, got = model(given).double(), restored(given).double()
                same += int((want.argmax(-1) == got.argmax(-1)).sum())
                rows += want[..., 0].numel()
                error += float(((got - want) ** 2).sum())
                energy += float((want**2).sum())
    finally:
        for module, training in modes.items():
            module.training = training
    if not rows:
        raise ValueError("validation_data holds no batches.")
    return Agreement(same / rows, (error / energy) ** 0.5 if energy else 0.0)


def sample_tensor() -> torch.Tensor:
    """Return a tensor of 64 bits, which JAX would halve, to try transfers with."""
    return torch.arange(1024, dtype=torch.float64) + 2.0**-40
