"""What an op makes of shapes, asked of JAX and remembered."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models._backend import check_shape_keys
from frugax.models.graph import BackendRules, ModelGraph, Spec
from frugax.models.ops import Op

from ._backend import JaxBackend
from ._namespace import JaxNamespace


def spec_of(value: Any) -> Spec:
    """Shape and dtype of an array, a tracer, a number or a random key."""
    shape = np.shape(value) if not hasattr(value, "shape") else tuple(value.shape)
    dtype = value.dtype if hasattr(value, "dtype") else jnp.result_type(value)
    return Spec(shape, dtype)


def rules_of(backend: JaxBackend) -> BackendRules:
    """What `infer` needs to know of a backend."""

    def abstract(
        op: Op, given: tuple[Any, ...], attrs: tuple[tuple[str, Any], ...]
    ) -> tuple[Spec, ...]:
        fixed = tuple(g if _is_plain(g) else spec_of(g) for g in given)
        # Equal numbers of different types, as 2 and 2.0, make different dtypes.
        written = repr([g for g in fixed if not isinstance(g, Spec)]) + repr(attrs)
        return _shapes(op, fixed, attrs, written, backend.xp)

    return BackendRules(abstract, backend.find, backend.dtype, spec_of)


def _is_plain(given: Any) -> bool:
    return given is None or isinstance(given, (Spec, bool, int, float))


@functools.lru_cache(maxsize=4096)
def _shapes(
    op: Op,
    given: tuple[Any, ...],
    attrs: tuple[tuple[str, Any], ...],
    written: str,
    xp: JaxNamespace,
) -> tuple[Spec, ...]:
    arrays = [
        jax.ShapeDtypeStruct(g.shape, g.dtype) for g in given if isinstance(g, Spec)
    ]

    def body(*arrays: Any) -> Any:
        rest = iter(arrays)
        tensors = [next(rest) if isinstance(g, Spec) else g for g in given]
        return op(xp, *tensors, **dict(attrs))

    made = jax.eval_shape(body, *arrays)
    results = made if len(op.outputs) > 1 else (made,)
    return tuple(Spec(tuple(r.shape), r.dtype) for r in results)


def input_specs(
    flat: ModelGraph, shapes: Mapping[str, Any], backend: JaxBackend
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
    free = _Free()
    specs: dict[str, Spec] = {}
    for key, about in flat.inputs.items():
        if about.dtype == "key":
            specs[key] = Spec((), jax.eval_shape(lambda: jax.random.key(0)).dtype)
            continue
        said = shapes.get(key, about.shape)
        if said is None:
            continue
        dtype = np.dtype(about.dtype) if about.dtype else backend.dtype
        if hasattr(said, "shape") and hasattr(said, "dtype"):
            said, dtype = said.shape, said.dtype
        specs[key] = Spec(free.shape(key, said), dtype)
    return specs


class _Free:
    """Names of free dimensions become JAX's symbolic ones, all in one scope."""

    def __init__(self) -> None:
        self.scope = jax.export.SymbolicScope()
        self.count = 0

    def shape(self, key: str, said: Any) -> tuple[Any, ...]:
        if isinstance(said, str) or not isinstance(said, Sequence):
            raise ValueError(
                f"shapes[{key!r}] must be a sequence such as [32, 128] or "
                f'["batch", 128], got {said!r:.60}.'
            )
        return tuple(self.dimension(key, d) for d in said)

    def dimension(self, key: str, said: Any) -> Any:
        if isinstance(said, (int, np.integer)) and not isinstance(said, bool):
            if said < 0:
                raise ValueError(f"shapes[{key!r}]: a length cannot be {said}.")
            return int(said)
        if said is None:
            self.count += 1
            said = f"free{self.count}"
        if isinstance(said, str) and said.isidentifier():
            return jax.export.symbolic_shape(said, scope=self.scope)[0]
        raise ValueError(
            f"shapes[{key!r}]: a dimension is a length, a name or None, got {said!r}."
        )
