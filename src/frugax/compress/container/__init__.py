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
    Layer as Layer,
    Record as Record,
    compute_digest as compute_digest,
)
from ._prefix import (
    Prefix as Prefix,
    list_prefixes as list_prefixes,
)
from ._writer import (
    LayeredWriter as LayeredWriter,
    write as write,
)
