"""`text` and `table`: record texts and tables of numbers from inside jitted code."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from .journal import TEXT_COLUMN
from .probes import frame

_MAX_BYTES = 2**16


def text(name: str, value: Any, *, max_bytes: int = 1024, when: Any = None) -> None:
    """Record a text, as often as is affordable.

    The stream has one column `utf8`: the text as `max_bytes` bytes of UTF-8, filled up
    with zeros, so that all texts of a stream have one shape. `journal.decode_text`
    reads it.

    Args:
        name: the name of the stream.
        value: a `str`, or an array of shape `(n,)` of bytes made by the program.
        max_bytes: longer texts are cut; 1 to 65,536.
        when: as for `record`.

    Raises:
        TypeError: the value is neither text nor a one-dimensional array of integers.
        ValueError: `max_bytes` is out of range.
    """
    if not 1 <= max_bytes <= _MAX_BYTES:
        raise ValueError(f"max_bytes must be from 1 to {_MAX_BYTES}, got {max_bytes}.")
    if isinstance(value, str):
        # A letter of several bytes is kept whole or not at all.
        kept = value.encode()[:max_bytes].decode(errors="ignore").encode()
        data: Any = np.frombuffer(kept, np.uint8)
    else:
        data = jnp.asarray(value)
        if data.ndim != 1 or not jnp.issubdtype(data.dtype, jnp.integer):
            raise TypeError(
                f"text {name!r} must be a str or bytes of shape (n,), got {data.dtype} "
                f"of shape {data.shape}."
            )
        data = data[:max_bytes].astype(jnp.uint8)
    filled = jnp.pad(jnp.asarray(data), (0, max_bytes - data.shape[0]))
    frame(name, {TEXT_COLUMN: filled}, when=when)


def table(name: str, columns: Mapping[str, Any], *, when: Any = None) -> None:
    """Record a table of numbers, as often as is affordable.

    Args:
        name: the name of the stream; its columns are those of the table.
        columns: arrays of shape `(rows,)` by name, such as the indices and the losses
            of the worst examples.
        when: as for `record`.

    Raises:
        ValueError: there is no column, or the arrays differ in length.
    """
    arrays = {label: jnp.asarray(array) for label, array in columns.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or any(len(shape) != 1 for shape in shapes):
        raise ValueError(
            f"table {name!r} needs columns of one length, got "
            f"{ {label: array.shape for label, array in arrays.items()} }."
        )
    frame(name, arrays, when=when)
