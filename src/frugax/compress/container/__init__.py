"""The `.fxz` file: written in one pass, read tensor by tensor, never trusted."""

from ._file import (
    CompressedFile as CompressedFile,
    decompress as decompress,
    open_file as open_file,
)
from ._metadata import (
    Digest as Digest,
    EncodedTensor as EncodedTensor,
    Header as Header,
    Record as Record,
    compute_digest as compute_digest,
)
from ._writer import (
    ContainerWriter as ContainerWriter,
    write as write,
)
