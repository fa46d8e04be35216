"""The head of a block: whether it is one that a journal's writer makes."""

import math
from typing import Any

from frugax.errors import CorruptFileError

from ._dtypes import DTYPES
from ._packing import Packed
from ._values import MOST_AXES, MOST_COLUMNS, MOST_RECORD_BYTES, fits_array

RECORDS_PER_BLOCK = 64
# Arrays of one block, unpacked; a single record may be larger.
MOST_BLOCK_BYTES = 4 * 2**20
_NUMBERS = ("i8", "f4", "f8")


def check_head(head: dict[str, Any]) -> None:
    """Check what `decode_block` reads of a head, apart from its columns.

    Raises:
        CorruptFileError: something is missing or out of bounds.
    """
    kind = head.get("kind")
    if kind not in ("records", "rewind", "dropped", "closed"):
        raise CorruptFileError(f"its kind {kind!r:.99} is unknown.")
    head.setdefault("before", head.get("first"))
    numbers = {"records": ("n", "before"), "dropped": ("bytes",)}
    for key in ("first", *numbers.get(kind, ())):
        if not is_count(head.get(key)):
            raise CorruptFileError(f"it has a wrong {key!r}.")
    if kind == "rewind":
        others = head.get("others", {})
        if not is_step(head.get("step")) or type(others) is not dict:
            raise CorruptFileError("it has a wrong 'step'.")
        if not all(is_step(step) for step in others.values()):
            raise CorruptFileError("it has a wrong 'step' of a stream.")
    elif kind == "closed":
        counts = head.get("streams", {})
        if type(counts) is not dict or not all(map(is_count, counts.values())):
            raise CorruptFileError("it has a wrong count of records.")


def checked_columns(head: dict[str, Any]) -> list[tuple[str, str, int, Packed | None]]:
    """Name, dtype and count of each column; for arrays what unpacks them, still empty.

    Raises:
        CorruptFileError: one is not as `encode_records` makes it, or too large.
    """
    n, columns, packs = head["n"], head.get("columns"), head.get("packs")
    stream = head.get("stream", "")
    if not 1 <= n <= RECORDS_PER_BLOCK or type(columns) is not list:
        raise CorruptFileError("it has a wrong shape.")
    if type(stream) is not str or len(columns) > MOST_COLUMNS:
        raise CorruptFileError("it has a wrong stream, or too many columns.")
    if type(packs) is not list or not all(map(is_count, packs)):
        raise CorruptFileError("it has wrong lengths.")
    checked: list[tuple[str, str, int, Packed | None]] = []
    size = 0
    for column in columns:
        match column:
            case [str(name), str(code), int(count)] if 1 <= count <= n:
                if code not in _NUMBERS:
                    raise CorruptFileError("it has a column of no numbers.")
                checked.append((name, code, count, None))
            case [str(name), str(code), int(count), list(shape), "plain" | "xor"] if (
                1 <= count <= n and code in DTYPES and _is_shape(shape)
            ):
                size += count * math.prod(shape) * DTYPES[code].itemsize
                lazy = Packed(b"", code, (count, *shape), column[4])
                checked.append((name, code, count, lazy))
            case _:
                raise CorruptFileError("it has a wrong column.")
    if len({name for name, *_ in checked}) < len(checked):
        raise CorruptFileError("it names a column twice.")
    if size > (MOST_RECORD_BYTES if n == 1 else MOST_BLOCK_BYTES):
        raise CorruptFileError(f"it claims {size:,} bytes of arrays.")
    if len(packs) != 1 + sum(lazy is not None for *_, lazy in checked):
        raise CorruptFileError("it has a wrong number of lengths.")
    return checked


def is_count(value: object) -> bool:
    """Whether it is a whole number from 0 on, within int64."""
    return type(value) is int and 0 <= value < 2**63


def _is_shape(shape: list[object]) -> bool:
    if len(shape) > MOST_AXES or not all(map(is_count, shape)):
        return False
    return fits_array(shape)  # pyright: ignore[reportArgumentType]


def is_step(value: object) -> bool:
    """Whether it is a whole number within int64."""
    return type(value) is int and -(2**63) <= value < 2**63
