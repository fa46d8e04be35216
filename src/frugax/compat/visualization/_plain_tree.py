"""Convert nested data to JSON and a list of arrays, and back, without running code.

In the JSON a list is a list, and every mapping has one key that names its type:

    {"map": {name: value}}          dict whose keys are all text
    {"dict": [[key, value], ...]}   any other dict
    {"tuple": [value, ...]}         {"complex": [real, imaginary]}
    {"array": [dtype, shape]}       {"scalar": dtype}       {"bytes": length}

The last three take their values from the arrays, in the order in which they stand.
"""

import math
import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from frugax.errors import CorruptFileError
from frugax.watch.journal import fits_array
from frugax.watch.journal.packing import DTYPES, code_of

Json: TypeAlias = Any
# Far below Python's recursion limit of 1000, as each level takes several calls, and a
# list that contains itself ends here too.
MOST_DEEP = 100
# Python reads no longer whole numbers from text, by default.
_MOST_BITS = 14_000


def to_tree(data: object) -> tuple[Json, list[np.ndarray]]:
    """Split nested data into JSON and arrays.

    Returns:
        What JSON can hold, and the arrays in order; each is `()` or more, in C order.

    Raises:
        TypeError: a value is not a dict, list, tuple, number, str, None, bool, bytes
            or array of numbers.
        ValueError: it is nested over 100 deep, holds itself, or a number is too long.
    """
    arrays: list[np.ndarray] = []
    return _flatten(data, arrays, "data", 0), arrays


def _flatten(value: object, arrays: list[np.ndarray], place: str, depth: int) -> Json:
    if depth > MOST_DEEP:
        raise ValueError(
            f"{place:.99}... lies over {MOST_DEEP} deep, or the data holds itself."
        )
    into = lambda part, key: _flatten(part, arrays, f"{place}[{key!r}]", depth + 1)
    # Exact types: a subclass, such as a named tuple or an ordered dict, would come back
    # as another type, so it is refused rather than changed.
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if isinstance(value, int) and kind is int:
        if value.bit_length() > _MOST_BITS:
            raise ValueError(f"{place} is a whole number of over {_MOST_BITS} bits.")
        return value
    # NumPy's complex128 is a subclass of complex, and is stored as a scalar below.
    if isinstance(value, complex) and kind is complex:
        return {"complex": [value.real, value.imag]}
    if isinstance(value, list) and kind is list:
        return [into(part, i) for i, part in enumerate(value)]
    if isinstance(value, tuple) and kind is tuple:
        return {"tuple": [into(part, i) for i, part in enumerate(value)]}
    if isinstance(value, dict) and kind is dict:
        if all(type(key) is str for key in value):
            return {"map": {key: into(part, key) for key, part in value.items()}}
        return {"dict": [[into(k, "key"), into(v, k)] for k, v in value.items()]}
    if isinstance(value, bytes) and kind is bytes:
        # A view: bytes cannot change, so nothing needs to be copied.
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(value)}
    array, code = _as_plain(value, place)
    arrays.append(array)
    # NumPy's scalars keep their dtype this way; a Python number would lose float32.
    if isinstance(value, np.generic):
        return {"scalar": code}
    return {"array": [code, list(array.shape)]}


def _as_plain(value: Any, place: str) -> tuple[np.ndarray, str]:
    """An array's copy or view, in C order and little-endian, and its dtype's name."""
    # JAX is not imported for this test: reading a file must not wait for it.
    jax = _jax_if_loaded()
    if jax is not None and isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{place} is being traced: save the result of the jitted function."
        )
    plain = isinstance(value, np.generic | np.ndarray)
    if jax is not None and isinstance(value, jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise TypeError(f"{place} is a random key: save jax.random.key_data of it.")
        plain = True
    if not plain or isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{place} is a {type(value).__qualname__}: only dicts, lists, tuples, "
            "numbers, text, None, truth values, bytes and arrays can be stored."
        )
    # This waits for the device, and gathers an array that is sharded.
    array = np.asarray(value)
    code = code_of(array.dtype)
    if code is None:
        raise TypeError(f"{place} is an array of {array.dtype}, not of numbers.")
    # Not ascontiguousarray: that makes a () array one of (1,).
    return np.asarray(array, DTYPES[code], order="C"), code


def _jax_if_loaded() -> Any:
    """JAX; None where nothing has imported it, and so nothing can be an array of it."""
    return sys.modules.get("jax")


def shapes(tree: Json, *, depth: int = 0) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The dtypes and shapes of the arrays that belong to a tree, in order."""
    if depth > MOST_DEEP:
        raise CorruptFileError(f"it is nested over {MOST_DEEP} deep.")
    match tree:
        case None | bool() | int() | float() | str():
            return
        case list(parts):
            inside = parts
        case {"map": dict(named)} if len(tree) == 1:
            inside = list(named.values())
        case {"tuple": list(parts)} if len(tree) == 1:
            inside = parts
        case {"dict": list(pairs)} if len(tree) == 1 and all(map(_is_pair, pairs)):
            inside = [part for pair in pairs for part in pair]
        case {"complex": [float(), float()]} if len(tree) == 1:
            return
        case {"bytes": int(length)} if len(tree) == 1 and length >= 0:
            yield "u1", (length,)
            return
        case {"scalar": str(code)} if len(tree) == 1 and code in DTYPES:
            yield code, ()
            return
        case {"array": [str(code), list(sides)]} if (
            len(tree) == 1 and code in DTYPES and _is_shape(sides)
        ):
            yield code, tuple(sides)
            return
        case _:
            raise CorruptFileError("it holds something unknown.")
    for part in inside:
        yield from shapes(part, depth=depth + 1)


def from_tree(tree: Json, arrays: Iterator[np.ndarray]) -> Any:
    """Rebuild nested data from JSON and arrays.

    Args:
        tree: a tree that `shapes` has accepted.
        arrays: the arrays that `shapes` lists, in order.

    Raises:
        CorruptFileError: a dict's key is one that Python cannot have.
    """
    together = lambda part: from_tree(part, arrays)
    match tree:
        case list(parts):
            return [together(part) for part in parts]
        case {"map": dict(named)}:
            return {key: together(part) for key, part in named.items()}
        case {"tuple": list(parts)}:
            return tuple(together(part) for part in parts)
        case {"dict": list(pairs)}:
            try:
                return {together(key): together(value) for key, value in pairs}
            except TypeError as e:
                raise CorruptFileError(f"it holds a dict of wrong keys: {e}") from e
        case {"complex": [real, imaginary]}:
            return complex(real, imaginary)
        case {"bytes": _}:
            return next(arrays).tobytes()
        case {"scalar": _}:
            return next(arrays)[()]
        case {"array": _}:
            return next(arrays)
    return tree


def _is_pair(pair: object) -> bool:
    return type(pair) is list and len(pair) == 2


def _is_shape(sides: list[Any]) -> bool:
    return all(type(side) is int and side >= 0 for side in sides) and (
        # The first term concerns empty arrays, which NumPy refuses if their other sides
        # are huge. Arrays with elements are held to `most_bytes` instead.
        fits_array(sides) or math.prod(sides) > 0
    )
