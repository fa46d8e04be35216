"""What a file says of itself where decoding does not look: is it true?"""

import dataclasses

from ._arrays import dtype_named
from ._container import Content
from ._decode import compare, named
from ._digest import Digest
from ._planes import layers_of
from ._records import BLOCK, Record


def check_chunks(content: Content, record: Record) -> None:
    """Compare every chunk of a tensor with its own checksum, and decode nothing.

    Raises:
        CorruptFileError: they differ; the message names the tensor.
    """
    each = dataclasses.replace(content, whole=False)
    with named(record):
        for chunk in record.chunks:
            each.block(chunk)


def check_layers(content: Content, record: Record) -> None:
    """Decode a tensor of planes up to each of its layers, and compare the digests.

    Raises:
        CorruptFileError: one is not what was written; the message names the tensor.
        UnsupportedFileError: it uses a coder of a newer version.
    """
    step, dtype = record.step, dtype_named(record.dtype)
    if step is None or not record.planes:
        return
    digests = [Digest() for _ in record.layers]
    each = len(record.chunks) // len(record.layers)
    for i in range(each):
        with named(record):
            blocks = [content.block(c) for c in record.chunks[i::each]]
            size = min(BLOCK, record.size - i * BLOCK)
            layers = layers_of(blocks, record.planes, step, dtype, size)
            for digest, values in zip(digests, layers, strict=True):
                digest.update(values)
    with named(record):
        for layer, digest in enumerate(digests, 1):
            compare(digest.hexdigest(), record.up_to(layer))
