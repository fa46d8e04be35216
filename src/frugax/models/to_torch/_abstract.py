"""What an op makes of shapes, asked of torch's meta device and remembered."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from frugax.models._backend import check_shape_keys
from frugax.models.graph import BackendRules, ModelGraph, Spec
from frugax.models.ops import Op

from ._backend import TorchBackend
from ._free import FreeLength, at, dimension, lengths
from ._namespace import TorchNamespace

_KEY = Spec((), np.dtype(np.int64))


def spec_of(value: Any, xp: TorchNamespace) -> Spec:
    """Shape and dtype of a tensor, or of what `xp` makes a tensor of."""
    if not isinstance(value, torch.Tensor):
        value = xp.asarray(value)
    return Spec(tuple(value.shape), xp.dtype_of(value))


def rules_of(backend: TorchBackend) -> BackendRules:
    """What `infer` needs to know of a backend."""
    meta = _meta(backend.dtype)

    def abstract(
        op: Op, given: tuple[Any, ...], attrs: tuple[tuple[str, Any], ...]
    ) -> tuple[Spec, ...]:
        fixed = tuple(g if _is_plain(g) else spec_of(g, backend.xp) for g in given)
        # Equal numbers of different types, as 2 and 2.0, make different dtypes.
        written = repr([g for g in fixed if not isinstance(g, Spec)]) + repr(attrs)
        return _shapes(op, fixed, attrs, written, meta)

    describe = functools.partial(spec_of, xp=backend.xp)
    return BackendRules(abstract, backend.find, backend.dtype, describe)


@functools.cache
def _meta(dtype: np.dtype) -> TorchNamespace:
    """Where tensors have no values; one for each dtype, so that `_shapes` hits."""
    return TorchNamespace(dtype, device=torch.device("meta"))


def _is_plain(given: Any) -> bool:
    return given is None or isinstance(given, (Spec, bool, int, float))


@functools.lru_cache(maxsize=4096)
def _shapes(
    op: Op,
    given: tuple[Any, ...],
    attrs: tuple[tuple[str, Any], ...],
    written: str,
    xp: TorchNamespace,
) -> tuple[Spec, ...]:
    names = dict.fromkeys(
        name
        for g in given
        if isinstance(g, Spec)
        for length in g.shape
        if isinstance(length, FreeLength)
        for name in length.names
    )
    first = _once(op, given, attrs, xp, 0)
    if not names:
        return first
    second = _once(op, given, attrs, xp, 1)
    return tuple(
        Spec(lengths(a.shape, b.shape, tuple(names)), a.dtype)
        for a, b in zip(first, second, strict=True)
    )


def _once(
    op: Op,
    given: tuple[Any, ...],
    attrs: tuple[tuple[str, Any], ...],
    xp: TorchNamespace,
    which: int,
) -> tuple[Spec, ...]:
    tensors = [
        xp.zeros([at(n, which) for n in g.shape], g.dtype) if isinstance(g, Spec) else g
        for g in given
    ]
    with torch.no_grad():
        made = op(xp, *tensors, **dict(attrs))
    results = made if isinstance(made, (tuple, list)) else (made,)
    return tuple(spec_of(r, xp) for r in results)


def input_specs(
    flat: ModelGraph, shapes: Mapping[str, Any], backend: TorchBackend
) -> dict[str, Spec]:
    """Shape and dtype of each input, from what the caller and the model say.

    Args:
        flat: the program.
        shapes: what the caller says: lengths, names, None; or an array.
        backend: gives the dtype where none is said.

    Raises:
        ValueError: a shape names no input, or is no shape.
    """
    check_shape_keys(shapes, flat.inputs)
    unnamed = itertools.count(1)
    specs: dict[str, Spec] = {}
    for key, about in flat.inputs.items():
        if about.dtype == "key":
            specs[key] = _KEY
            continue
        said = shapes.get(key, about.shape)
        if said is None:
            continue
        dtype = np.dtype(about.dtype) if about.dtype else backend.dtype
        if isinstance(said, Spec):
            said, dtype = said.shape, said.dtype
        elif hasattr(said, "shape") and hasattr(said, "dtype"):
            specs[key] = spec_of(said, backend.xp)
            continue
        if isinstance(said, str) or not isinstance(said, Sequence):
            raise ValueError(
                f"shapes[{key!r}] must be a sequence such as [32, 128] or "
                f'["batch", 128], got {said!r:.60}.'
            )
        specs[key] = Spec(tuple(dimension(key, n, unnamed) for n in said), dtype)
    return specs
