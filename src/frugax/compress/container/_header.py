"""The header of a file, from JSON: nothing in it is believed unchecked."""

import json
from typing import Any

from frugax.errors import CorruptFileError, UnsupportedFileError

from ..arrays._leaves import DTYPE_NAMES, QUANTISABLE
from ..codecs._blocks import numbers_per_chunk
from ..codecs._planes import MOST_PLANES
from ..codecs._uniform import LEAST_STEP, Step
from ._metadata import CODECS, STEPPED, Chunk, Header, Layer, Record

# A file may say it holds at most this many bytes for each of its own, past 64 MiB;
# what shrinks more is padded. So a small file can never ask for much memory.
MOST_RATIO, FREE_BYTES = 4096, 64 << 20


def header_from(plain: bytes, data_bytes: int) -> Header:
    """Read and check a header.

    Args:
        plain: its JSON.
        data_bytes: how long the file's data are.

    Raises:
        CorruptFileError: it is damaged, or contradicts itself.
        UnsupportedFileError: it names a codec or a dtype of a newer version.
    """
    match _load_json(plain):
        case {"structure": structure, "tensors": list(items), **others}:
            records = tuple(_record(item, data_bytes) for item in items)
        case _:
            raise CorruptFileError("the header lacks its structure or its tensors.")
    if len({r.name for r in records}) != len(records):
        raise CorruptFileError("the header names a tensor twice.")
    spans = sorted((c.offset, c.length) for r in records for c in r.chunks)
    at = 0
    for offset, length in spans:
        if offset < at:
            raise CorruptFileError("two chunks of the file overlap.")
        at = offset + length
    decoded = sum(record.nbytes for record in records)
    if decoded > max(FREE_BYTES, MOST_RATIO * max(0, data_bytes)):
        raise CorruptFileError(
            f"the file says it holds {decoded} bytes, over {MOST_RATIO} for each of "
            "its own: no frugax wrote it."
        )
    return Header(
        structure=structure,
        tensors=records,
        data_bytes=data_bytes,
        metadata=_metadata(others),
    )


def _metadata(others: dict[str, Any]) -> dict[str, str]:
    found = others.get("metadata", {})
    if not isinstance(found, dict) or not all(
        isinstance(v, str) for v in found.values()
    ):
        raise CorruptFileError(f"the header has the metadata {found!r:.80}.")
    return found


def _load_json(plain: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands twice")
        return found

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is no number")

    try:
        return json.loads(plain, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as e:
        raise CorruptFileError(f"the header is no JSON: {e}.") from e


def _record(item: Any, data_bytes: int) -> Record:
    match item:
        case {
            "chunks": list(chunks),
            "codec": str(codec),
            "digest": str(digest),
            "dtype": str(dtype),
            "name": str(name),
            "shape": list(shape),
        }:
            pass
        case _:
            raise CorruptFileError("the header has a tensor without its six keys.")
    if codec not in CODECS or dtype not in DTYPE_NAMES:
        raise UnsupportedFileError(
            f"tensor {name!r} has the codec {codec!r} and the dtype {dtype!r}, which "
            "this version does not know: update frugax."
        )
    if not all(_is_whole(n) for n in shape) or len(shape) > 64:
        raise CorruptFileError(f"tensor {name!r} has the shape {shape!r:.80}.")
    record = Record(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        codec=codec,
        step=_step(item, name) if codec in STEPPED else None,
        rel_error=_error(item, name, "rel_error"),
        max_abs=_error(item, name, "max_abs"),
        digest=digest,
        chunks=tuple(_chunk(c, name, data_bytes) for c in chunks),
        planes=_planes(item, name) if codec == "planes" else 0,
        layers=_layers(item, name) if codec == "planes" else (),
        norm=_error(item, name, "norm") if "norm" in item else None,
    )
    each = -(-record.size // numbers_per_chunk(codec, record.shape))
    sound = len(chunks) == each * (len(record.layers) if record.planes else 1)
    if record.planes:
        sound = sound and len(record.layers) - record.planes in (0, 1)
        # Values between two levels are told in half steps.
        halved = record.step is not None and record.step.exponent > LEAST_STEP.exponent
        sound = sound and halved and record.size > 0
        # What is said of the whole is said of the last layer.
        sound = sound and record.truncate(len(record.layers)) == record
    if codec == "stored":
        sound = sound and record.stored_bytes == record.nbytes
    if not sound:
        raise CorruptFileError(f"tensor {name!r}: its chunks do not make its shape.")
    return record


def _chunk(item: Any, name: str, data_bytes: int) -> Chunk:
    match item:
        case [int(offset), int(length), int(crc)] if all(map(_is_whole, item)):
            if length and offset + length <= data_bytes:
                return Chunk(offset, length, crc)
    raise CorruptFileError(f"tensor {name!r} has a chunk outside the file.")


def _step(item: dict[str, Any], name: str) -> Step:
    match item:
        case {"step": [int(mantissa), int(exponent)], "dtype": str(dtype)}:
            if dtype in QUANTISABLE:
                try:
                    return Step(mantissa, exponent)
                except ValueError as e:
                    raise CorruptFileError(f"tensor {name!r} has {e}") from e
    raise CorruptFileError(f"tensor {name!r} is quantised without a step.")


def _planes(item: dict[str, Any], name: str) -> int:
    match item:
        case {"planes": int(planes)} if 1 <= planes <= MOST_PLANES:
            return planes
    raise CorruptFileError(f"tensor {name!r} has no number of planes.")


def _layers(item: dict[str, Any], name: str) -> tuple[Layer, ...]:
    match item:
        case {"layers": [_, *_] as layers}:
            return tuple(_layer(layer, name) for layer in layers)
    raise CorruptFileError(f"tensor {name!r} has planes without layers.")


def _layer(item: Any, name: str) -> Layer:
    match item:
        case [int() | float() as rel_error, int() | float() as max_abs, str(digest)]:
            return Layer(
                _size(rel_error, name, "rel_error"),
                _size(max_abs, name, "max_abs"),
                digest,
            )
    raise CorruptFileError(f"tensor {name!r} has the layer {item!r:.80}.")


def _error(item: dict[str, Any], name: str, key: str) -> float:
    return _size(item.get(key, 0), name, key)


def _size(value: Any, name: str, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise CorruptFileError(f"tensor {name!r} has the {key} {value!r:.40}.")
    try:
        return float(value)
    except OverflowError as e:
        raise CorruptFileError(f"tensor {name!r} has the {key} {value!r:.40}.") from e


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48
