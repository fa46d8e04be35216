"""Convert trees of JAX, torch or NumPy weights to named NumPy arrays, and back.

bfloat16 and the 8-bit floats are not NumPy dtypes; `ml_dtypes`, which comes with JAX,
provides them and is imported only when such an array is met.
"""

import functools
import os
import sys
from typing import Any

import numpy as np

from frugax.errors import MissingExtraError
from frugax.trees import (
    PyTree,
    data_to_key,
    describe,
    is_array,
    is_random_key,
    key_to_data,
    named_leaves,
)

from ._mapped import check_mapped, find_path

_NUMPY_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("uint64", "float16", "float32", "float64", "complex64", "complex128"),
)
# Those of `ml_dtypes`; the 4-bit floats have neither NaN nor infinity.
FLOATS_OF_ML_DTYPES = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz"),
)
_ML_NAMES = (*FLOATS_OF_ML_DTYPES, "float4_e2m1fn", "int4", "uint4")
# Float dtypes that may lose precision; 8-bit floats are already quantised.
QUANTISABLE = ("float16", "bfloat16", "float32", "float64")
DTYPE_NAMES = frozenset(_NUMPY_NAMES + _ML_NAMES)


@functools.cache  # asked for twice for each tensor of a file
def dtype_from_name(name: str) -> "np.dtype[Any]":
    """Return the little-endian dtype with one of `DTYPE_NAMES`."""
    if name in _NUMPY_NAMES:
        return np.dtype(name).newbyteorder("<")
    try:
        import ml_dtypes
    except ImportError as e:
        raise MissingExtraError(
            f"{name} weights need a package: pip install ml_dtypes."
        ) from e
    return np.dtype(getattr(ml_dtypes, name))


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Return every leaf by name as a contiguous little-endian NumPy array."""
    # The input is never changed; arrays that are already contiguous are not copied.
    leaves = named_leaves(tree)
    # A tree with a class in it comes back by `load(path, like=tree)` alone, and `like`
    # has its text and functions.
    if "flat" in (describe(tree) or ()):
        stored = [(name, to_stored(leaf)) for name, leaf in leaves]
        leaves = [(name, leaf) for name, leaf in stored if leaf is not None]
    for name, _ in leaves:
        try:
            name.encode()
        except UnicodeEncodeError as e:
            raise ValueError(
                f"leaf {name!r}: this name cannot be written, because half of a "
                "surrogate pair is not a character: rename the key."
            ) from e
    return {name: _to_array(leaf, name) for name, leaf in leaves}


def to_stored(leaf: Any) -> Any:
    """Return the stored form of a leaf of a module; None for text and functions."""
    if is_array(leaf):
        return key_to_data(leaf)
    if isinstance(leaf, int | float | complex):
        return np.asarray(leaf)
    function = callable(leaf) and not hasattr(leaf, "state_dict")
    if function or isinstance(leaf, str | bytes):
        return None
    return leaf


def to_library(array: np.ndarray, leaf: Any) -> Any:
    """Convert an array to the library of a leaf, and to its sharding or device."""
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if not is_array(leaf):  # a number of Python's
        return type(leaf)(array.item())
    if torch is not None and isinstance(leaf, torch.Tensor):
        from ._torch import from_numpy

        return from_numpy(array, leaf)
    if jax is not None and isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return jax.device_put(data_to_key(array, leaf), leaf.sharding)
    return array


def check_not_input(path: str | os.PathLike[str], tree: PyTree) -> None:
    """Refuse to overwrite the file that the weights are read from."""
    if not os.path.exists(path):
        return
    for name, leaf in named_leaves(unwrap_modules(tree)):
        if not isinstance(leaf, np.ndarray):
            continue
        place = find_path(leaf)
        if place and os.path.exists(place) and os.path.samefile(place, path):
            raise ValueError(
                f"{os.fspath(path)} is the file that leaf {name!r} is read from: write "
                "to another."
            )


def unwrap_modules(tree: PyTree, levels: int = 100) -> PyTree:
    """Replace every torch module in the tree by its state dict."""
    # A torch module can only be here if its owner imported torch: looking in
    # `sys.modules` spares all others that import.
    torch = sys.modules.get("torch")
    if torch is None or not levels:  # a tree that is too deep is refused later
        return tree
    if isinstance(tree, torch.nn.Module):
        return dict(tree.state_dict())
    # Not their subclasses: a named tuple cannot be built from one list of children.
    if type(tree) in (list, tuple):
        children = [unwrap_modules(child, levels - 1) for child in tree]
        changed = any(a is not b for a, b in zip(children, tree, strict=True))
        if changed:
            return type(tree)(children)
        return tree
    if isinstance(tree, dict):
        named = {key: unwrap_modules(child, levels - 1) for key, child in tree.items()}
        if any(named[key] is not tree[key] for key in tree):
            return named
    return tree


def _to_array(leaf: Any, name: str) -> np.ndarray:
    place = "(the array)"
    if name:
        place = f"leaf {name!r}"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        from ._torch import to_numpy

        leaf = to_numpy(leaf, place)
    if not is_array(leaf):
        if not name and isinstance(leaf, str | os.PathLike):
            raise TypeError(
                f"weights must be a tree of arrays, got {_describe(leaf)}: read the "
                "file first, with frugax.compress.load_weights(path)."
            )
        raise TypeError(
            f"{place} must be an array, got a {type(leaf).__name__}: "
            f"{_describe(leaf)}. {_suggest(leaf)}"
        )
    # `np.asarray` would drop the mask and store the values that it hides.
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(
            f"{place} is a masked array, and a file has no place for its mask: store "
            "leaf.filled(value), and leaf.mask beside it if you need it."
        )
    if is_random_key(leaf):
        raise TypeError(
            f"{place} has dtype {leaf.dtype}, which a file of weights cannot hold: "
            "store jax.random.key_data(key), and read it with jax.random.wrap_key_data."
        )
    try:
        array = np.asarray(leaf)
    except (TypeError, RuntimeError) as e:  # JAX's, in a traced function or deleted
        why = str(e).partition("\n")[0]
        if type(e).__name__ == "TracerArrayConversionError":
            why = "it is traced by jit, grad or vmap: compress outside of these."
        raise TypeError(f"{place} has no values that can be read: {why}") from e
    # NumPy wraps anything that it cannot read, such as an abstract array of shape and
    # dtype, in an array with one object.
    if array.dtype == object and str(leaf.dtype) != "object":
        raise TypeError(
            f"{place} is a {type(leaf).__name__}, which has no values: give the array "
            "that it stands for."
        )
    if array.dtype.name not in DTYPE_NAMES:
        raise TypeError(
            f"{place} has dtype {array.dtype}, which a file of weights cannot hold: "
            f"use one of {', '.join(sorted(DTYPE_NAMES))}."
        )
    check_mapped(array)
    # The reshape is for 0-d arrays, which `ascontiguousarray` makes 1-d.
    whole = np.ascontiguousarray(array).reshape(array.shape)
    return whole.astype(dtype_from_name(array.dtype.name), copy=False)


def _describe(leaf: object) -> str:
    """Show a leaf on one line."""
    return f"{' '.join(repr(leaf).split()):.60}"


def _suggest(leaf: object) -> str:
    """Say what to give in place of a leaf that is not an array."""
    if hasattr(leaf, "state_dict"):
        return "Give its weights in its place: leaf.state_dict()."
    take_out = "it out first: arrays, rest = frugax.trees.partition(tree)."
    if isinstance(leaf, int | float | complex):
        return f"Keep the number with np.asarray, or take {take_out}"
    if isinstance(leaf, str | bytes) or callable(leaf):
        return f"Take {take_out}"
    return "If there are weights in it, give these in its place, else leave it out."
