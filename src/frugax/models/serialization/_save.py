"""A compiled model and its weights written to one file; `_load` reads it.

The file is a `.safetensors` file: weights by each block's name, and in its metadata the
model as JSON.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from frugax.errors import ShapeError
from frugax.models.graph import IOKey, Spec, unstack_weights
from frugax.models.ops import is_floating

from . import _safetensors
from ._assign import CompiledWeights, check_arrays, to_numpy
from ._to_dict import layer_to_dict
from ._values import constant_to_json

METADATA_KEY, VERSION = "frugax", 1
MAX_JSON_BYTES = 64 << 20  # bytes of JSON that are parsed
KEY_OPTIONS = ("data_keys", "discard_keys", "trainable_keys")  # of `compile`
CONSTANT_PREFIX = "constant:"  # before the names of arrays that inputs are fixed to


def save(
    compiled: CompiledWeights,
    path: str | os.PathLike[str],
    params: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
) -> None:
    """Write a compiled model and its weights to one file, whole or not at all.

    Args:
        compiled: the model.
        path: the file; `.safetensors` is its usual ending.
        params: an array for each parameter, by key.
        state: an array for each weight that goes in with the data: running statistics,
            and weights named in `data_keys`. Not needed where there is none.

    Raises:
        OutputError: the file cannot be written.
        ShapeError: arrays are missing, too many, or of wrong shapes.
        TypeError: a layer cannot be described; see `layer_to_dict`.
        ValueError: the model has state and none is given.
    """
    graph = compiled.graph
    held = sorted(set(graph.weights) - compiled.param_keys)
    if held and state is None:
        raise ValueError(
            f"the model is given {', '.join(held[:4])} with its data: pass them as "
            "state= too, such as compiled.initial_state() for the state of a new model."
        )
    arrays = {k: to_numpy(v) for k, v in {**params, **(state or {})}.items()}
    for key, weight in graph.weights.items():  # those of loops are still stacked here
        if key in arrays and arrays[key].shape != weight.shape:
            raise ShapeError(
                f"{key!r} must have shape {weight.shape}, got {arrays[key].shape}."
            )
    flat = unstack_weights(graph, arrays)
    check_arrays(compiled, flat, "what is to be saved")
    constants, fixed = _constants(compiled)
    about = {
        "version": VERSION,
        "model": layer_to_dict(compiled.layer),
        "dtype": compiled.backend.dtype.name,
        "compile": _how(compiled),
        "constants": constants,
    }
    text = json.dumps(about, allow_nan=False)
    _safetensors.write_safetensors(path, {**flat, **fixed}, {METADATA_KEY: text})


def _how(compiled: CompiledWeights) -> dict[str, Any]:
    """What `compile` was told that the model does not say itself."""
    graph, how = compiled.graph, compiled.compile_options
    return {
        "shapes": {
            key: {
                "shape": [_length(d) for d in spec.shape],
                "dtype": _dtype(about, spec),
            }
            for key, about in graph.inputs.items()
            if about.dtype != "key" and (spec := graph.specs.get(key)) is not None
        },
        "inference": how["inference"],
        **{name: sorted(how[name]) for name in KEY_OPTIONS},
    }


def _dtype(about: IOKey, spec: Spec) -> str | None:
    # Floating inputs take the dtype of the backend that the file is loaded for.
    own = about.dtype is not None or is_floating(spec.dtype)
    return None if own else spec.dtype.name


def _length(dimension: Any) -> int | str | None:
    if isinstance(dimension, int):
        return dimension
    name = str(dimension)
    return name if name.isidentifier() else None


def _constants(
    compiled: CompiledWeights,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What inputs and weights are fixed to: numbers as JSON, arrays by name."""
    numbers: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for key, value in compiled.compile_options["constant_keys"].items():
        if isinstance(value, (bool, int, float)):
            numbers[key] = constant_to_json(value, key)
        else:
            numbers[key] = None
            arrays[CONSTANT_PREFIX + key] = to_numpy(value)
    return numbers, arrays
