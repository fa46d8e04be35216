"""Bytes that a value keeps in memory."""

import gc
import sys
import types
import weakref

import numpy as np

from frugax.options import check_number

# SI megabytes, as the limits of the configs are documented.
BYTES_PER_MB = 1_000_000

# Shared with the whole program, so no single value keeps them alive.
_SHARED = (
    type(None),
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    weakref.ref,
)


def held_bytes(value: object) -> int:
    """Bytes that stay in memory as long as `value` does.

    A part reached twice counts once, and a view counts as the whole array behind it.
    Arrays of other libraries count their `nbytes`. A file mapped into memory counts
    nothing, since the system takes such pages back by itself.

    Args:
        value: anything: arrays, containers, objects, nested at will, cycles included.
    """
    total = 0
    # The parts themselves and not only their ids: the id of a part that has gone may be
    # given to another.
    seen: dict[int, object] = {}
    # A list of parts to visit and not recursion: linked data may be nested deeper than
    # Python's stack.
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, _SHARED):
            continue
        seen[id(part)] = part
        nbytes = getattr(part, "nbytes", None)
        if isinstance(part, np.ndarray):
            # This counts the numbers only where the array owns them.
            total += sys.getsizeof(part)
            waiting.append(part.base)
            waiting.extend(part.flat if part.dtype.hasobject else ())
        elif isinstance(nbytes, int) and not isinstance(part, memoryview | np.generic):
            total += nbytes
        else:
            total += sys.getsizeof(part)
            waiting.extend(gc.get_referents(part))
    return total


def to_limit_bytes(name: str, limit_mb: float) -> int:
    """The limit of an argument in bytes, given in MB of 1,000,000 bytes.

    Raises:
        TypeError: it is not a number.
        ValueError: it is below one byte, or not finite.
    """
    check_number(name, limit_mb, minimum=1 / BYTES_PER_MB)
    return int(limit_mb * BYTES_PER_MB)
