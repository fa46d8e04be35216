"""Shape inference by JAX: ops are traced abstractly, with named lengths symbolic."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models._backend import check_declared_shape, check_shape_keys
from frugax.models.graph import BackendRules, ModelGraph, Spec
from frugax.models.ops import Op

from ._backend import JaxBackend
from ._namespace import JaxNamespace


def spec_of(value: Any) -> Spec:
    """Read the shape and dtype of an array, a tracer, a number or a random key."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Spec(tuple(value.shape), value.dtype)
    # result_type gives JAX's own dtype of a Python number. np.asarray would make it 64
    # bits wide even where JAX has those switched off.
    return Spec(np.shape(value), jnp.result_type(value))


def rules_of(backend: JaxBackend) -> BackendRules:
    """Build the rules of a backend that `infer` needs."""

    def abstract(
        op: Op, args: tuple[Any, ...], attrs: tuple[tuple[str, Any], ...]
    ) -> tuple[Spec, ...]:
        fixed = tuple(map(_to_spec, args))
        # 2 and 2.0 are equal, and so hash alike, but give different dtypes. Their text
        # tells them apart in the cache.
        literals = repr([a for a in fixed if not isinstance(a, Spec)]) + repr(attrs)
        # The namespace is part of the cache's key: its dtype and precision decide what
        # an op makes of integers and Python numbers.
        return _infer_shapes(op, fixed, attrs, literals, backend.xp)

    return BackendRules(abstract, backend.find, backend.dtype, spec_of)


def _to_spec(value: Any) -> Any:
    if value is None or isinstance(value, (Spec, bool, int, float)):
        return value
    return spec_of(value)


# Equal blocks ask the same questions: with the cache 64 of them take about as long to
# infer as one or two.
@functools.lru_cache(maxsize=4096)
def _infer_shapes(
    op: Op,
    args: tuple[Any, ...],
    attrs: tuple[tuple[str, Any], ...],
    literals: str,  # part of the key of the cache
    xp: JaxNamespace,
) -> tuple[Spec, ...]:
    arrays = [
        jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args if isinstance(a, Spec)
    ]

    def body(*arrays: Any) -> Any:
        return op(xp, *fill_in(args, arrays), **dict(attrs))

    # Numbers and attributes are closed over rather than passed. As arguments of
    # eval_shape they would become tracers, which the dtype rules take for arrays.
    results = jax.eval_shape(body, *arrays)
    # An op with one output returns a bare array, all others a tuple.
    if not isinstance(results, (tuple, list)):
        results = (results,)
    return tuple(Spec(tuple(r.shape), r.dtype) for r in results)


def fill_in(args: Iterable[Any], arrays: Iterable[Any]) -> list[Any]:
    """Replace each spec, or text, among the arguments by the next array."""
    rest = iter(arrays)
    filled = list(args)
    for i, value in enumerate(filled):
        if isinstance(value, (Spec, str)):
            filled[i] = next(rest)
    return filled


def input_specs(
    flat: ModelGraph, shapes: Mapping[str, Any], backend: JaxBackend
) -> dict[str, Spec]:
    """Determine the shape and dtype of each input by the caller and the model."""
    check_shape_keys(shapes, flat.inputs)
    # One for all inputs, so that "batch" is the same dimension in each of them.
    dimensions = _SymbolicDimensions()
    specs: dict[str, Spec] = {}
    for key, about in flat.inputs.items():
        # The dtype of keys depends on jax_default_prng_impl; eval_shape asks for it
        # without computing a key.
        if about.dtype == "key":
            specs[key] = Spec((), jax.eval_shape(lambda: jax.random.key(0)).dtype)
            continue
        shape = shapes.get(key, about.known_shape)
        if shape is None:
            continue
        dtype = np.dtype(about.dtype or backend.dtype)
        # An array stands for its own shape and dtype, including a jax.ShapeDtypeStruct.
        # It takes precedence over the dtype that the model declares.
        if hasattr(shape, "shape") and hasattr(shape, "dtype"):
            shape, dtype = shape.shape, shape.dtype
        parsed = dimensions.parse_shape(key, shape)
        check_declared_shape(key, parsed, about.known_shape)
        specs[key] = Spec(parsed, dtype)
    return specs


class _SymbolicDimensions:
    """Turns names of dimensions into JAX's symbolic ones, all in one scope."""

    def __init__(self) -> None:
        # JAX refuses to compare dimensions of two scopes, even of the same name.
        self.scope = jax.export.SymbolicScope()
        self.count = 0

    def parse_shape(self, key: str, shape: Any) -> tuple[Any, ...]:
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise ValueError(
                f"shapes[{key!r}] must be a sequence such as [32, 128] or "
                f'["batch", 128], got {shape!r:.60}.'
            )
        return tuple(self._parse(key, length) for length in shape)

    def _parse(self, key: str, length: Any) -> Any:
        # True is an int in Python and would pass for a length of 1.
        if isinstance(length, (int, np.integer)) and not isinstance(length, bool):
            if length < 0:
                raise ValueError(f"shapes[{key!r}]: a length cannot be {length}.")
            return int(length)
        if length is None:
            self.count += 1
            length = f"free{self.count}"
        if isinstance(length, str) and length.isidentifier():
            return jax.export.symbolic_shape(length, scope=self.scope)[0]
        raise ValueError(
            f"shapes[{key!r}]: a dimension is a length, a name or None, got {length!r}."
        )
