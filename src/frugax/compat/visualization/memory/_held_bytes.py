"""Count the bytes that a value keeps alive, by walking its parts.

Arrays count by the buffer they keep alive, so a view of ten numbers into a large
array counts as that array, and two views of one array count once.
"""

import math
import mmap
import sys
import types
import weakref
from collections import deque
from typing import Any

import numpy as np

# SI megabytes, as the limits of the configs are documented.
BYTES_PER_MB = 1_000_000

_PLAIN = (str, bytes, bytearray, bool, int, float, complex, np.generic, type(None))
_LISTS = (list, tuple, set, frozenset, deque)
# Shared with the whole program, so no single value keeps them alive.
_SHARED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    weakref.ref,
)


def held_bytes(value: object) -> int:
    """Bytes that stay in memory as long as `value` does.

    Args:
        value: anything: arrays (NumPy, JAX, or whatever has `nbytes`), containers,
            dataclasses and other objects, nested at will, cycles included.

    Returns:
        Bytes, >= 0. A part reached twice counts once. A file mapped into memory counts
        nothing, since the system takes such pages back by itself; nor does a JAX
        array that was donated or deleted. An array on several devices counts
        what this process holds of it.
    """
    total = 0
    seen: set[int] = set()
    # A list of parts to visit and not recursion: linked data may be nested deeper than
    # Python's stack.
    waiting: list[object] = [value]
    while waiting:
        part = waiting.pop()
        # Only parts that `value` keeps alive get here, so no id is used twice.
        if id(part) in seen or isinstance(part, _SHARED):
            continue
        seen.add(id(part))
        total += _own_bytes(part, waiting)
    return total


def _own_bytes(part: Any, waiting: list[object]) -> int:
    """The bytes of one part; puts the parts that it refers to on `waiting`."""
    if isinstance(part, np.ndarray):
        return _array_bytes(part, waiting)
    if isinstance(part, _PLAIN):
        return sys.getsizeof(part)
    if isinstance(part, dict | types.MappingProxyType):
        # A copy, since another thread may change the dict during the walk.
        for key, inner in tuple(part.items()):
            waiting += (key, inner)
        return sys.getsizeof(part)
    if isinstance(part, _LISTS):
        waiting.extend(part)
        return sys.getsizeof(part)
    if isinstance(part, memoryview):
        waiting.append(part.obj)
        return sys.getsizeof(part)
    if isinstance(part, mmap.mmap):
        return 0
    if (nbytes := _foreign_bytes(part)) is not None:
        return nbytes
    _fields(part, waiting)
    return sys.getsizeof(part)


def _array_bytes(array: np.ndarray, waiting: list[object]) -> int:
    base = array.base
    if base is None:
        if array.dtype.hasobject:
            waiting.extend(array.flat)
        return array.nbytes
    if isinstance(base, np.ndarray):
        waiting.append(base)  # counted once, whatever number of views there are
        return 0
    if isinstance(base, mmap.mmap):
        # Pages of a private copy cannot be given back once they are written to.
        return array.nbytes if getattr(array, "mode", "r") == "c" else 0
    if isinstance(base, bytes | bytearray | memoryview) or hasattr(base, "nbytes"):
        waiting.append(base)
        return 0
    return array.nbytes  # a capsule or the like: it cannot be asked


def _foreign_bytes(part: Any) -> int | None:
    """Return the size that another library's array reports, or None."""
    nbytes = getattr(part, "nbytes", None)
    if not isinstance(nbytes, int | np.integer):
        return None
    if callable(deleted := getattr(part, "is_deleted", None)) and deleted():
        return 0
    sharding = getattr(part, "sharding", None)
    if sharding is None or len(sharding.device_set) < 2:
        return int(nbytes)
    shard = math.prod(sharding.shard_shape(part.shape)) * part.dtype.itemsize
    return shard * len(sharding.addressable_devices)


def _fields(part: Any, waiting: list[object]) -> None:
    # Only the fields of a mapping that is not a dict: to ask an open file of arrays for
    # its items would load them.
    fields = getattr(part, "__dict__", None)
    if isinstance(fields, dict):
        waiting.append(fields)
    for cls in type(part).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            # A private slot is stored under its class's name.
            hidden = slot.startswith("__") and not slot.endswith("__")
            name = f"_{cls.__name__.lstrip('_')}{slot}" if hidden else slot
            if name not in ("__dict__", "__weakref__") and hasattr(part, name):
                waiting.append(getattr(part, name))
