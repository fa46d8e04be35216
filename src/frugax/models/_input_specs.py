"""Read the shapes of a model's inputs from the caller and from the model."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import ShapeError

from .dtypes import as_dtype
from .graph import ModelGraph, Spec, fits_shape


def input_specs(
    graph: ModelGraph, shapes: Mapping[str, Any], backend: Any
) -> dict[str, Spec]:
    """Shape and dtype of each input that is known; a free length is a name.

    Raises:
        ShapeError: a shape is not the one that the model declares.
        ValueError: it is not a shape, or there is no such input.
    """
    unknown = sorted(set(shapes) - set(graph.inputs))
    if unknown:
        raise ValueError(
            f"shapes: there is no input {unknown[0]!r}; there are: "
            f"{', '.join(sorted(graph.inputs)) or 'none'}."
        )
    unnamed = (f"free{number}" for number in itertools.count(1))
    specs: dict[str, Spec] = {}
    for key, about in graph.inputs.items():
        if about.dtype == "key":
            specs[key] = backend.key_spec
            continue
        shape = shapes.get(key, about.known_shape)
        if shape is None:
            continue
        dtype = np.dtype(about.dtype or backend.dtype)
        # An array stands for its own shape and dtype, including a jax.ShapeDtypeStruct.
        # It takes precedence over the dtype that the model declares.
        if hasattr(shape, "shape") and hasattr(shape, "dtype"):
            shape, dtype = tuple(shape.shape), as_dtype(shape.dtype)
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise ValueError(
                f"shapes[{key!r}] must be a sequence such as [32, 128] or "
                f'["batch", 128], got {shape!r:.60}.'
            )
        parsed = tuple(_parse_length(key, length, unnamed) for length in shape)
        # A model that was traced for one batch has no other.
        if not fits_shape(parsed, about.known_shape):
            raise ShapeError(
                f"shapes[{key!r}] is {parsed}, but the model was made for "
                f"{about.known_shape}: only lengths that are names there are free."
            )
        specs[key] = Spec(parsed, dtype)
    return specs


def _parse_length(key: str, length: Any, unnamed: Iterator[str]) -> int | str:
    # True is an int in Python and would pass for a length of 1.
    if isinstance(length, (int, np.integer)) and not isinstance(length, bool):
        if length < 0:
            raise ValueError(f"shapes[{key!r}]: a length cannot be {length}.")
        return int(length)
    if length is None:
        length = next(unnamed)
    if isinstance(length, str) and length.isidentifier():
        return length
    raise ValueError(
        f"shapes[{key!r}]: a dimension is a length, a name or None, got {length!r}."
    )
