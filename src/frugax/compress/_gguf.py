"""`GGUF`: write weights as a `.gguf` file, in block formats of ggml."""

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from frugax.errors import UnsupportedFileError
from frugax.fileio import atomic_write

from ._export_layout import Item, Part, Rounded, round_to_groups
from ._gguf_model import (
    Value,
    describe_model,
    find_architecture,
    name_for_llama_cpp,
    rope_factors,
)
from ._gguf_vocabulary import describe_vocabulary
from ._roles import ModelConfig, Role, find_roles
from ._tensor_table import TensorReport
from .codecs import k_quants
from .codecs.groups import Grouping

# Types of github.com/ggml-org/ggml/blob/master/docs/gguf.md, by dtype and by blocks.
_TYPES = {
    "float32": 0,
    "float16": 1,
    "float64": 28,
    "bfloat16": 30,
    "int8": 24,
    "int16": 25,
    "int32": 26,
    "int64": 27,
    "Q4_0": 2,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q6_K": 14,
}
# The blocks of each number of bits, and those for rows that these do not divide.
_BLOCKS = {4: ("Q4_K", "Q4_0"), 6: ("Q6_K", "Q8_0"), 8: ("Q8_0", "Q8_0")}
_FILE_TYPES = {4: 15, 6: 18, 8: 7}  # for most tensors, as llama.cpp numbers them
_ENCODERS = {"Q4_K": k_quants.encode_q4_k, "Q6_K": k_quants.encode_q6_k}
_GROUP = 32
_ALIGNMENT = 32
_MAX_NAME = 63  # bytes, of ggml's 64 with the NUL behind
_DENSE = (Role.VECTOR, Role.ROUTER, Role.BIAS)


@dataclasses.dataclass(frozen=True)
class GGUF:
    """A `.gguf` file, with the names and metadata of llama.cpp where these are known.

    Attributes:
        file: the file to write.
        bits: of an integer, 4, 6 or 8.
        config: the model's configuration.
        folder: where the tokeniser is.
        place: where the weights come from, for messages.
    """

    file: Path
    bits: int
    config: ModelConfig
    folder: Path
    place: str

    def list_items(self, entries: Sequence[TensorReport]) -> list[Item]:
        """Return the tensors of the file: routers and tables of biases stay."""
        roles = find_roles({e.name: e.shape for e in entries}, self.config)
        items = [Item(e.name, (e.name,), e.shape) for e in entries]
        if find_architecture(self.config):
            items = name_for_llama_cpp(entries, self.config, self.place)
        listed: list[Item] = []
        for item in items:
            role = roles[item.sources[0]]
            # ggml adds the vectors of position_embd, and multiplies by no matrix of it.
            stays = role in _DENSE or item.name.startswith("position_embd")
            why = (role.value or "added to others") if stays else ""
            listed.append(dataclasses.replace(item, why_dense=why))
        return listed

    def why_not(self, item: Item) -> str:
        """Return why the shape of a tensor does not suit."""
        if item.shape[-1] % _GROUP:
            return f"rows of {item.shape[-1]}, no multiple of {_GROUP}"
        return ""

    def round(self, item: Item, array: np.ndarray, place: str) -> Rounded:
        """Round a tensor."""
        kind, other = _BLOCKS[self.bits]
        # An output head has finer steps, as llama.cpp gives it.
        if kind == "Q4_K" and item.name == "output.weight":
            kind, other = _BLOCKS[6]
        if item.shape[-1] % k_quants.BLOCK:
            kind = other
        if kind in _ENCODERS:
            blocks, decoded = _ENCODERS[kind](array)
            if not np.isfinite(decoded).all():
                raise UnsupportedFileError(
                    f"{place} has numbers up to {np.abs(array).max():.3g}, whose steps "
                    "are beyond float16: scale its weights down."
                )
        else:
            blocks, decoded = _round_simply(array, int(kind[1]), place)
        return Rounded(kind, [Part(item.name, kind, array.shape, blocks)], decoded)

    def write(self, parts: Sequence[Part], dense: set[str], place: str) -> None:
        """Write the file.

        Raises:
            UnsupportedFileError: it cannot hold a tensor.
        """
        metadata: dict[str, Value] = {"general.architecture": "frugax"}
        parts = list(parts)
        if find_architecture(self.config):
            metadata = describe_model(self.config, place)
            metadata["general.file_type"] = _FILE_TYPES[self.bits]
            metadata |= describe_vocabulary(self.folder, self.config)
            parts = [_widen_vector(part) for part in parts]
            if (factors := rope_factors(self.config)) is not None:
                name = "rope_freqs.weight"
                parts += [Part(name, "float32", factors.shape, factors.tobytes())]
        head = b"GGUF" + struct.pack("<IQQ", 3, len(parts), len(metadata))
        head += _pack_metadata(metadata)
        at = 0
        for name, kind, shape, data in parts:
            if kind not in _TYPES or len(shape) > 4 or not name:
                raise UnsupportedFileError(
                    f"{place}: tensor {name!r} of {kind} with {len(shape)} axes cannot "
                    "stand in a .gguf file: write a .safetensors file."
                )
            if len(name.encode()) > _MAX_NAME:
                raise UnsupportedFileError(
                    f"{place}: the name {name!r} has {len(name.encode())} bytes, and "
                    f"llama.cpp reads at most {_MAX_NAME}: rename the tensor."
                )
            sizes = shape[::-1] or (1,)
            head += _text(name) + struct.pack("<I", len(sizes))
            head += struct.pack(f"<{len(sizes)}QIQ", *sizes, _TYPES[kind], at)
            at += len(data) + -len(data) % _ALIGNMENT
        with atomic_write(self.file) as out:
            for data in (head, *(part.data for part in parts)):
                out.write(data + bytes(-len(data) % _ALIGNMENT))


def _round_simply(array: np.ndarray, bits: int, place: str) -> tuple[bytes, np.ndarray]:
    """Round to Q4_0 or Q8_0: groups of 32 with a float16 step."""
    integers, steps, decoded = round_to_groups(
        array,
        Grouping(bits, _GROUP),
        np.dtype(np.float16),
        np.dtype(np.float32),
        place=place,
    )
    groups = integers.reshape(-1, _GROUP)
    if bits == 4:
        # The integers plus 8; the second half of a group in the high nibbles.
        plain = (groups + 8).astype(np.uint8)
        half = _GROUP // 2
        packed = plain[:, :half] | (plain[:, half:] << 4)
    else:
        packed = groups.view(np.uint8)
    # A block is a step, then 32 integers.
    of_groups = steps.astype("<f2").reshape(-1, 1).view(np.uint8)
    return np.concatenate([of_groups, packed], axis=1).tobytes(), decoded


def _widen_vector(part: Part) -> Part:
    """Return a vector, or a small matrix that stays, in float32: ggml adds these."""
    if part.kind not in ("float16", "bfloat16") or len(part.shape) > 1:
        return part
    from .arrays import dtype_from_name

    wide = np.frombuffer(part.data, dtype_from_name(part.kind)).astype(np.float32)
    return part._replace(kind="float32", data=wide.tobytes())


def _pack_metadata(metadata: Mapping[str, Value]) -> bytes:
    return b"".join(_text(key) + _pack_value(value) for key, value in metadata.items())


def _pack_value(value: Value) -> bytes:
    """Return the type of a value and the value."""
    if isinstance(value, list):
        packed = [_pack_value(each) for each in value]
        kind = packed[0][:4] if packed else struct.pack("<I", 8)
        items = b"".join(each[4:] for each in packed)
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(value)) + items
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case int():
            return struct.pack("<II", 4, value)
        case _:
            return struct.pack("<If", 6, value)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()
