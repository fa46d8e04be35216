"""Record the operations of a model by a walk under `jax.eval_shape`."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models.graph import Library, ModelGraph, Spec, record

from ._namespace import JaxNamespace


def spec_of(value: Any) -> Spec:
    """Read the shape and dtype of an array, a tracer, a number or a random key."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Spec(tuple(value.shape), value.dtype)
    # result_type gives JAX's own dtype of a Python number. np.asarray would make it 64
    # bits wide even where JAX has those switched off.
    return Spec(np.shape(value), jnp.result_type(value))


def library_of(xp: JaxNamespace, find: Any) -> Library:
    """JAX, for a run of a program."""
    failures = (jax.errors.JaxRuntimeError, FloatingPointError, MemoryError)
    return Library(xp, find, xp.float_dtype, spec_of, failures)


def record_shapes(
    graph: ModelGraph, specs: Mapping[str, Spec], library: Library
) -> ModelGraph:
    """Walk through a program under `jax.eval_shape`; names are symbolic lengths."""
    # One for all inputs: JAX refuses to compare dimensions of two scopes, even of the
    # same name.
    names = jax.export.SymbolicScope()

    def length(given: int | str) -> Any:
        if isinstance(given, str):
            return jax.export.symbolic_shape(given, scope=names)[0]
        return given

    structs = {
        key: jax.ShapeDtypeStruct(tuple(map(length, spec.shape)), spec.dtype)
        for key, spec in specs.items()
    }
    recorded: list[ModelGraph] = []
    jax.eval_shape(
        lambda given: recorded.append(record(graph, given, library)), structs
    )
    return recorded[0]
