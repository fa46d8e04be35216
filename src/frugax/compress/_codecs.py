"""A tensor to blocks and back, by the name of its codec."""

import numpy as np

from frugax.errors import CorruptFileError, UnsupportedFileError

from . import _lossless, _quantised
from ._arrays import dtype_named
from ._container import BLOCK, Header, Record, block_of, digest_of


def lossless_blocks(array: np.ndarray) -> tuple[str, tuple[bytes, ...]]:
    """The exact coding of an array: codec and blocks, `"stored"` if none is shorter.

    Of several blocks it is always lossless, at worst 0.01% longer, so that writing one
    need not wait for the next.
    """
    flat = array.reshape(-1)
    blocks = tuple(_lossless.encode(part) for part in _parts(flat))
    if len(blocks) > 1 or sum(map(len, blocks)) < array.nbytes:
        return "lossless", blocks
    return "stored", tuple(part.tobytes() for part in _parts(flat))


def quantised_blocks(levels: np.ndarray) -> tuple[bytes, ...]:
    """The coding of a tensor's flat levels."""
    return tuple(_quantised.encode(part) for part in _parts(levels))


def quantised_bytes(levels: np.ndarray) -> float:
    """How long `quantised_blocks(levels)` will be together, to about 0.1%."""
    return sum(_quantised.encoded_bytes(part) for part in _parts(levels))


def decode_tensor(file: memoryview, header: Header, record: Record) -> np.ndarray:
    """Decode one tensor, checking every chunk and then the whole against its digest.

    Args:
        file: the whole file.
        header: what it says of itself.
        record: the tensor to decode.

    Raises:
        CorruptFileError: its bytes are damaged; the message names the tensor.
        UnsupportedFileError: it uses a coder of a newer version.
    """
    dtype = dtype_named(record.dtype)
    try:
        blocks = [block_of(file, header, chunk) for chunk in record.chunks]
        flat = np.empty(record.size, dtype)
        for i, block in enumerate(blocks):
            part = flat[i * BLOCK : (i + 1) * BLOCK]
            part[:] = _decode_block(block, record, len(part))
        if digest_of(flat.view(np.uint8)) != record.digest:
            raise CorruptFileError("its values are not the ones that were written.")
    except CorruptFileError as e:
        raise CorruptFileError(f"tensor {record.name!r}: {e.args[0]}") from e
    except UnsupportedFileError as e:
        raise UnsupportedFileError(f"tensor {record.name!r}: {e.args[0]}") from e
    return flat.reshape(record.shape)


def _decode_block(block: memoryview, record: Record, size: int) -> np.ndarray:
    dtype = dtype_named(record.dtype)
    if record.codec == "stored":
        if len(block) != size * dtype.itemsize:
            raise CorruptFileError("a stored chunk has the wrong length.")
        return np.frombuffer(block, dtype)
    if record.step is not None:
        return _quantised.decode(block, record.step, dtype, size)
    return _lossless.decode(block, dtype, size)


def _parts(flat: np.ndarray) -> list[np.ndarray]:
    return [flat[i : i + BLOCK] for i in range(0, len(flat), BLOCK)]
