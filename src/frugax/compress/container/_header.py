"""Parse the JSON header of an `.fxz` file; every value in it is checked before use."""

import contextlib
import dataclasses
import json
import operator
from typing import Any

from frugax.errors import CorruptFileError, UnsupportedFileError

from ..arrays import DTYPE_NAMES, QUANTISABLE
from ..codecs import Step, find_form, numbers_per_chunk, row_length
from ._metadata import EXACT, Chunk, Header, Record

# A file may state at most this many decoded bytes for each of its own, past 64 MiB, so
# that a small forged file can never ask for much memory. The writer pads a file that
# really shrinks more.
MAX_RATIO, FREE_BYTES = 4096, 64 << 20
_FIELDS = operator.itemgetter("chunks", "codec", "digest", "dtype", "name", "shape")


def parse_header(plain: bytes, data_bytes: int) -> Header:
    """Parse and check a header."""
    match _load_json(plain):
        case {"structure": structure, "tensors": list(items), **others}:
            records = _parse_records(items, data_bytes)
        case _:
            raise CorruptFileError("the header lacks its structure or its tensors.")
    # Names become keys of a dict, where the second tensor would replace the first.
    if len({r.name for r in records}) != len(records):
        raise CorruptFileError("the header names a tensor twice.")
    # Overlapping chunks would let a small file decode to many tensors.
    spans = sorted(
        (c.offset, c.length) for r in records if not r.tied for c in r.chunks
    )
    end = 0
    for offset, length in spans:
        if offset < end:
            raise CorruptFileError("two chunks of the file overlap.")
        end = offset + length
    decoded = sum(record.nbytes for record in records)
    if decoded > max(FREE_BYTES, MAX_RATIO * max(0, data_bytes)):
        raise CorruptFileError(
            f"the file says it holds {decoded} bytes, over {MAX_RATIO} for each of "
            "its own: frugax writes no such file."
        )
    metadata = others.get("metadata", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise CorruptFileError(f"the header has the metadata {metadata!r:.80}.")
    return Header(
        structure=structure, tensors=records, data_bytes=data_bytes, metadata=metadata
    )


def _load_json(plain: bytes) -> Any:
    # Stricter than `json.loads`: no key twice, no NaN, no infinity.
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        by_key = dict(pairs)
        if len(by_key) != len(pairs):
            raise ValueError("a key stands twice")
        return by_key

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not a number")

    try:
        return json.loads(plain, object_pairs_hook=unique, parse_constant=refuse)
    # Nesting as deep as a forger likes exhausts the stack of the parser.
    except (ValueError, RecursionError) as e:
        raise CorruptFileError(f"the header is not valid JSON: {e}.") from e


def _parse_records(items: list[Any], data_bytes: int) -> tuple[Record, ...]:
    """Parse all records; one with `tied` alone has the values of another."""
    own = {i: x for i, x in enumerate(items) if not (type(x) is dict and "tied" in x)}
    parsed = {i: _parse_record(item, data_bytes) for i, item in own.items()}
    by_name = {record.name: record for record in parsed.values()}
    for i, item in enumerate(items):
        if i in parsed:
            continue
        match item:
            case {"name": str(name), "tied": str(other)} if other in by_name:
                parsed[i] = dataclasses.replace(by_name[other], name=name, tied=other)
            case _:
                raise CorruptFileError(f"a tensor is tied to none: {item!r:.80}.")
    return tuple(parsed[i] for i in range(len(items)))


def _parse_record(item: Any, data_bytes: int) -> Record:
    values: tuple[Any, ...] = (None,) * 6
    with contextlib.suppress(KeyError, TypeError):
        values = _FIELDS(item)
    # By hand: patterns would take a third of the time of small files.
    if [*map(type, values)] != [list, str, str, str, str, list]:
        raise CorruptFileError("the header has a tensor without its six keys.")
    chunks, codec, digest, dtype, name, shape = values
    # Unknown is not damaged: a newer writer may use a codec that this version lacks.
    form = find_form(codec)
    if (form is None and codec not in EXACT) or dtype not in DTYPE_NAMES:
        raise UnsupportedFileError(
            f"tensor {name!r} has the codec {codec!r} and the dtype {dtype!r}, which "
            "this version does not know: update frugax."
        )
    # NumPy 2 has at most 64 axes, and would fail on more only after the chunks were
    # read.
    if not all(map(_is_count, shape)) or len(shape) > 64:
        raise CorruptFileError(f"tensor {name!r} has the shape {shape!r:.80}.")
    record = Record(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        codec=codec,
        step=None if form is None else _parse_step(item, name),
        rel_error=_parse_size(item.get("rel_error", 0.0), name, "rel_error"),
        max_abs=_parse_size(item.get("max_abs", 0.0), name, "max_abs"),
        digest=digest,
        chunks=tuple(_parse_chunk(c, name, data_bytes) for c in chunks),
    )
    if not _is_consistent(record):
        raise CorruptFileError(f"tensor {name!r}: its chunks do not make its shape.")
    return record


def _is_consistent(record: Record) -> bool:
    """Whether the parts of a record agree with each other."""
    numbers = numbers_per_chunk(record.codec, record.shape)
    each = -(-record.size // numbers)
    by_columns = record.form is not None and record.form.columns
    if by_columns and (
        len(record.shape) < 2 or not record.size or numbers % row_length(record.shape)
    ):  # chunks that are not whole rows have no columns
        return False
    if record.codec == "stored" and record.stored_bytes != record.nbytes:
        return False
    return len(record.chunks) == each


def _parse_chunk(item: Any, name: str, data_bytes: int) -> Chunk:
    if type(item) is list and len(item) == 3 and all(map(_is_count, item)):
        offset, length, crc = item
        if length and offset + length <= data_bytes:
            return Chunk(offset, length, crc)
    raise CorruptFileError(f"tensor {name!r} has a chunk outside the file.")


def _parse_step(item: dict[str, Any], name: str) -> Step:
    match item:
        case {"step": [int(mantissa), int(exponent)], "dtype": str(dtype)}:
            if dtype in QUANTISABLE:
                try:
                    return Step(mantissa, exponent)
                except ValueError as e:
                    raise CorruptFileError(f"tensor {name!r} has {e}") from e
    raise CorruptFileError(f"tensor {name!r} is quantised without a step.")


def _parse_size(value: Any, name: str, key: str) -> float:
    # Not True, which is an int, nor an integer of hundreds of digits.
    if (type(value) is float and value >= 0) or _is_count(value):
        return float(value)
    raise CorruptFileError(f"tensor {name!r} has the {key} {value!r:.40}.")


def _is_count(value: Any) -> bool:
    # `type`, not `isinstance`: True is an int. 2^48 keeps products within int64.
    return type(value) is int and 0 <= value < 1 << 48
