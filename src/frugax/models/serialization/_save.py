"""`save`: write a compiled model and its weights to a file, for `frugax.models.load`.

The file is a `.safetensors` file: the weights have the names of the single blocks, and
its metadata hold the model as JSON.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from frugax.compress.arrays import write_arrays
from frugax.errors import ShapeError
from frugax.models.dtypes import to_numpy
from frugax.models.graph import Program, unstack_weights
from frugax.models.ops import is_floating

from ._assign import check_arrays
from ._to_dict import layer_to_dict
from ._values import constant_to_json

METADATA_KEY, VERSION = "frugax", 1
# A file's JSON that is longer is not parsed: it could be made to fill the memory.
MAX_JSON_BYTES = 64 << 20
KEY_OPTIONS = ("data_keys", "discard_keys", "trainable_keys")  # arguments of `compile`
# Arrays that inputs are fixed to have this before their names, weights have nothing.
CONSTANT_PREFIX = "constant:"


def save(
    compiled: Program,
    path: str | os.PathLike[str],
    params: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
) -> None:
    """Write a compiled model and its weights to one file; see `CompiledModel.save`."""
    graph = compiled.graph
    held = sorted(set(graph.weights) - compiled.param_keys)
    # A file without the state could be loaded but not evaluated.
    if held and state is None:
        raise ValueError(
            f"the model takes {', '.join(held[:4])} with its data: pass them as state= "
            "too, such as compiled.initial_state() for the state of a new model."
        )
    arrays = {k: to_numpy(v) for k, v in {**params, **(state or {})}.items()}
    for key, weight in graph.weights.items():  # weights of loops are still stacked here
        if key in arrays and arrays[key].shape != weight.shape:
            raise ShapeError(
                f"{key!r} must have shape {weight.shape}, got {arrays[key].shape}."
            )
    flat = unstack_weights(graph, arrays)
    # Checked before writing, because an error at loading would come too late.
    check_arrays(compiled, flat, "the arrays to save")
    constants, constant_arrays = _split_constants(compiled)
    description = {
        "version": VERSION,
        "model": layer_to_dict(compiled.layer),
        "dtype": compiled.backend.dtype.name,
        "compile": _describe_options(compiled),
        "constants": constants,
    }
    # NaN and infinity are no JSON; `value_to_json` has a form for them.
    text = json.dumps(description, allow_nan=False)
    write_arrays(path, {**flat, **constant_arrays}, {METADATA_KEY: text})


def _describe_options(compiled: Program) -> dict[str, Any]:
    """The arguments of `compile` that do not follow from the model itself."""
    graph, options = compiled.graph, compiled.compile_options
    # The shapes go into the file, because the model alone may not determine them.
    shapes: dict[str, Any] = {}
    for key, known in graph.inputs.items():
        spec = graph.specs.get(key)
        # The dtype of random keys differs between the libraries, so loading infers it
        # again.
        if known.dtype == "key" or spec is None:
            continue
        dtype = None
        # Floating inputs take the dtype of the backend that the file is loaded for.
        if known.dtype is None and not is_floating(spec.dtype):
            dtype = spec.dtype.name
        lengths = [_describe_length(d) for d in spec.shape]
        shapes[key] = {"shape": lengths, "dtype": dtype}
    key_options = {name: sorted(options[name]) for name in KEY_OPTIONS}
    return {"shapes": shapes, "inference": options["inference"], **key_options}


def _describe_length(dimension: Any) -> int | str | None:
    if isinstance(dimension, int):
        return dimension
    name = str(dimension)
    if name.isidentifier():
        return name
    return None  # an expression such as `2*batch`, which only the model can give


def _split_constants(
    compiled: Program,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The fixed values of inputs and weights: numbers as JSON, and arrays by name."""
    numbers: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for key, value in compiled.compile_options["constant_keys"].items():
        if isinstance(value, (bool, int, float)):
            numbers[key] = constant_to_json(value, key)
        else:
            # The entry keeps the order of the constants; its array is stored under the
            # prefixed name.
            numbers[key] = None
            arrays[CONSTANT_PREFIX + key] = to_numpy(value)
    return numbers, arrays
