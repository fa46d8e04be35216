"""Shape inference by torch: ops run on the meta device, with named lengths free."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from frugax.models._backend import check_declared_shape, check_shape_keys
from frugax.models.graph import BackendRules, ModelGraph, Spec
from frugax.models.ops import Op

from ._backend import TorchBackend
from ._free_dimensions import FreeLength, at, dimension, fill_free, free_names, lengths
from ._namespace import TorchNamespace

# A random key is an int64 tensor on torch, which has no dtype for keys.
_KEY = Spec((), np.dtype(np.int64))


def spec_of(value: Any, xp: TorchNamespace) -> Spec:
    """Shape and dtype of a tensor, or of what `xp` makes a tensor of."""
    if not isinstance(value, torch.Tensor):
        value = xp.asarray(value)
    return Spec(tuple(value.shape), xp.dtype_of(value))


def rules_of(backend: TorchBackend) -> BackendRules:
    """Build the rules of a backend that `infer` needs."""
    # Ops are asked for shapes on the meta device, whose tensors have a shape and a
    # dtype but no memory: a layer of any size costs the same.
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
    """Build the meta-device namespace once a dtype, so that `_shapes` is cached."""
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
    ) | dict.fromkeys(free_names(attrs))
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
    # Meta tensors would otherwise record a graph for a backward pass that never comes.
    with torch.no_grad():
        made = op(xp, *tensors, **{k: fill_free(v, which) for k, v in attrs})
    results = made if isinstance(made, (tuple, list)) else (made,)
    return tuple(spec_of(r, xp) for r in results)


def input_specs(
    flat: ModelGraph, shapes: Mapping[str, Any], backend: TorchBackend
) -> dict[str, Spec]:
    """Determine the shape and dtype of each input by the caller and the model."""
    check_shape_keys(shapes, flat.inputs)
    unnamed = itertools.count(1)
    specs: dict[str, Spec] = {}
    for key, about in flat.inputs.items():
        if about.dtype == "key":
            specs[key] = _KEY
            continue
        shape = shapes.get(key, about.known_shape)
        if shape is None:
            continue
        dtype = np.dtype(about.dtype or backend.dtype)
        # A `Spec` first: it has a shape and a dtype as well, but its shape may hold
        # free lengths, which a tensor's cannot.
        if isinstance(shape, Spec):
            shape, dtype = shape.shape, shape.dtype
        elif hasattr(shape, "shape") and hasattr(shape, "dtype"):
            specs[key] = spec_of(shape, backend.xp)
            check_declared_shape(key, specs[key].shape, about.known_shape)
            continue
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise ValueError(
                f"shapes[{key!r}] must be a sequence such as [32, 128] or "
                f'["batch", 128], got {shape!r:.60}.'
            )
        parsed = tuple(dimension(key, n, unnamed) for n in shape)
        check_declared_shape(key, parsed, about.known_shape)
        specs[key] = Spec(parsed, dtype)
    return specs
