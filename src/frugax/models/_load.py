"""`models.load`: read a saved model and weights without running code; compile it."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from frugax.budget import from_plain
from frugax.compress.arrays import (
    DTYPE_NAMES,
    dtype_from_name,
    read_metadata,
    read_safetensors,
)
from frugax.errors import CorruptFileError, UnsupportedFileError

from ._compile import compile
from .graph import Spec
from .serialization import (
    CONSTANT_PREFIX,
    MAX_JSON_BYTES,
    METADATA_KEY,
    VERSION,
    ArrayConstant,
    NumberConstant,
    assign_weights,
    constant_from_json,
    layer_from_dict,
)

if TYPE_CHECKING:
    from .to_jax import JaxBackend
    from .to_torch import TorchBackend


class Loaded(NamedTuple):
    """The result of `load`: `compiled, params, state = load(...)`.

    Attributes:
        compiled: the model, compiled for the backend.
        params: its parameters by key.
        state: the weights that go in with the data, by key; often empty.
    """

    compiled: Any
    params: dict[str, Any]
    state: dict[str, Any]


def load(
    path: str | os.PathLike[str],
    backend: "JaxBackend | TorchBackend",
    *,
    cast: bool = False,
    allow_non_finite: bool = False,
    **options: Any,
) -> Loaded:
    """Load a model and its weights, and compile it for a backend of either library.

    The classes of its layers must be imported already; see `layer_from_dict`.

    Args:
        path: a file that `compiled.save` wrote.
        backend: a `JaxBackend` or `TorchBackend`.
        cast: cast the weights to the backend's dtype even where digits are lost. On a
            backend of the dtype that they were saved with they keep their dtypes; on
            another they are cast to the dtype of the backend.
        allow_non_finite: accept NaN and infinite weights.
        **options: arguments of `compile` that replace those the model was saved with:
            `shapes`, `inference`, `jit`, `data_keys`, ...

    Returns:
        The compiled model, its parameters and its state.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: the file does not exist.
        ShapeError: the file's arrays do not fit its model.
        UnsupportedFileError: a newer version wrote it, it holds layers that are not
            imported, or it is not a saved model.
        ValueError: it holds NaN or infinity, or another dtype than the backend's.

    Example:
        >>> import tempfile, frugax as ml
        >>> layer, backend = ml.models.Linear(3), ml.JaxBackend()
        >>> compiled = ml.compile(layer, backend, shapes={"input": [2, 4]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = f"{folder}/model.safetensors"
        ...     compiled.save(file, compiled.randomize_params())
        ...     again, params, state = ml.models.load(file, backend)
        >>> params["weight"].shape
        (3, 4)
    """
    stored = read_safetensors(path)
    description = _read_description(read_metadata(path), path)
    try:
        model = layer_from_dict(description.model)
        how = _options(description, stored) | options
    except (TypeError, ValueError) as e:
        raise UnsupportedFileError(f"{os.fspath(path)}: {e}") from e
    compiled = compile(model, backend, **how)
    arrays = {k: a for k, a in stored.items() if not k.startswith(CONSTANT_PREFIX)}
    params, state = assign_weights(
        compiled.program,
        arrays,
        os.fspath(path),
        keep=description.dtype == backend.dtype.name,
        cast=cast,
        allow_non_finite=allow_non_finite,
    )
    return Loaded(compiled, params, state)


def _read_description(
    metadata: Mapping[str, str], path: str | os.PathLike[str]
) -> "_Description":
    where = Path(path)
    if METADATA_KEY not in metadata:
        raise UnsupportedFileError(
            f"{where}: it holds arrays but no model; describe and compile the model "
            "yourself and use load_state_dict."
        )
    try:
        plain = _parse_json(metadata[METADATA_KEY])
        version = from_plain(int, plain["version"], at="version")
        # A newer version may have other fields.
        description = from_plain(_Description, plain) if version <= VERSION else None
    except (TypeError, ValueError, LookupError, RecursionError) as e:
        raise CorruptFileError(f"{where}: its description is damaged: {e}") from e
    if description is None:
        raise UnsupportedFileError(
            f"{where}: it is of version {version}; this frugax reads up to "
            f"{VERSION}: update frugax."
        )
    return description


def _parse_json(text: str) -> Any:
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"the description is longer than {MAX_JSON_BYTES:,} bytes.")
    return json.loads(text)


@dataclasses.dataclass(frozen=True)
class _Stated:
    shape: tuple[int | str | None, ...]
    dtype: str | None


@dataclasses.dataclass(frozen=True)
class _CompileOptions:
    """The arguments of `compile` in a file."""

    shapes: Mapping[str, _Stated]
    inference: bool
    data_keys: tuple[str, ...]
    discard_keys: tuple[str, ...]
    trainable_keys: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Description:
    version: int
    model: Any
    dtype: str
    compile: _CompileOptions
    # Of arrays None: they are among the weights.
    constants: Mapping[str, NumberConstant | ArrayConstant | None]


def _options(given: _Description, arrays: Mapping[str, Any]) -> dict[str, Any]:
    shapes: dict[str, Any] = {}
    for key, stated in given.compile.shapes.items():
        shapes[key] = stated.shape
        if stated.dtype is not None:
            if stated.dtype not in DTYPE_NAMES:
                at = f"compile.shapes.{key}.dtype"
                raise ValueError(f"{at}: there is no dtype {stated.dtype!r:.60}.")
            shapes[key] = Spec(stated.shape, dtype_from_name(stated.dtype))
    constants: dict[str, Any] = {}
    for key, value in given.constants.items():
        if value is None:
            if CONSTANT_PREFIX + key not in arrays:
                raise ValueError(f"constants.{key}: its array is not in the file.")
            constants[key] = np.array(arrays[CONSTANT_PREFIX + key])
        else:
            constants[key] = constant_from_json(value, f"constants.{key}").value
    own = {"shapes": shapes, "constant_keys": constants}
    return {**vars(given.compile), **own}
