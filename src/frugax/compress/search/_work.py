"""`Work`: the tensors of a tree and what its caller asks for, coded into drafts."""

import contextlib
import dataclasses
import io
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from frugax.errors import OutputError
from frugax.fileio import write_error_reason
from frugax.trees import PyTree, describe

from .._arguments import MonotonicProgress, Progress
from ..arrays import Distortion, find_ties, named_arrays, release, unwrap_modules
from ..codecs import Form
from ..container import ContainerWriter
from ._calibration import Calibration
from ._draft import Draft, Steps
from ._encode import EncodeRequest, encode_all
from ._measure import Sensitivity
from ._source import Source

# Drafts of fewer bytes of weights stay in memory.
_IN_MEMORY = 64 << 20


@contextlib.contextmanager
def _explain_full_disk() -> Iterator[None]:
    # Say where drafts stand, and how to move them, if they cannot be written.
    try:
        yield
    except OSError as e:
        try:
            folder = tempfile.gettempdir()
        except OSError:  # no folder is writeable, and `gettempdir` says so too
            folder = os.environ.get("TMPDIR", "a temporary file")
        raise OutputError(
            f"{write_error_reason(folder, e)} Drafts stand in the folder for temporary "
            "files: the environment variable TMPDIR names another."
        ) from e


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """A tree to compress.

    Attributes:
        sources: its tensors.
        head: the entries of the header beside the tensors, such as `structure`.
        sensitivity: how errors of the tensors are weighed.
        progress: told about the share that is done.
    """

    sources: tuple[Source, ...]
    head: Mapping[str, Any]
    sensitivity: Sensitivity
    progress: MonotonicProgress

    @classmethod
    def read(
        cls,
        tree: PyTree,
        sensitivity: Sensitivity,
        metadata: Mapping[str, str] | None,
        progress: Progress | None,
    ) -> "Work":
        """Find the tensors of a tree.

        Raises:
            TypeError: a leaf is not an array or has a dtype that a file cannot hold,
                `progress` is not a function, or the metadata are not text.
            ValueError: two leaves share a name, or the tree has over 100 levels.
        """
        monotonic = MonotonicProgress(progress)
        for key, value in (metadata or {}).items():
            if not (isinstance(key, str) and isinstance(value, str)):
                raise TypeError(
                    f"metadata must be text by key, got {key!r}: {value!r:.60}."
                )
        plain = unwrap_modules(tree)
        arrays = named_arrays(plain)
        ties = find_ties(arrays)
        places = {name: at for at, name in enumerate(arrays)}
        tied: dict[str, list[tuple[int, str]]] = {}
        for name, first in ties.items():
            tied.setdefault(first, []).append((places[name], name))
        sources = tuple(
            Source(name, array, ties=tuple(tied.get(name, ())))
            for name, array in arrays.items()
            if name not in ties
        )
        structure = describe(plain)
        if "flat" in (structure or ()):  # without the leaves that no file has
            structure["flat"] = [*arrays]
        head = {"structure": structure}
        if metadata:
            head["metadata"] = dict(metadata)
        return cls(sources, head, sensitivity, monotonic)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration, where the sensitivity is one."""
        if isinstance(self.sensitivity, Calibration):
            return self.sensitivity
        return None

    @_explain_full_disk()
    def draft(
        self,
        steps: Steps,
        *,
        form: Callable[[Source], Form | None] = lambda _: None,
        gap: float | None = None,
        progress: Progress | None = None,
    ) -> Draft:
        """Code all tensors with these steps into a temporary file.

        One by one, so that neither the model nor the file need fit in memory.
        """
        sources = self.sources
        total = max(1, sum(source.array.nbytes for source in sources))
        errors: list[Distortion] = []
        done = 0

        def report(numbers: int) -> None:
            if progress is not None:
                part = numbers * source.array.itemsize
                progress((done + part) / total, f"coding {source.name or 'the array'}")

        file = _open_temporary(total)
        try:
            writer = ContainerWriter(file.write)
            requests = [EncodeRequest(s, steps(s), form(s)) for s in sources]
            encoded = encode_all(requests, report)
            for source in sources:
                report(0)
                tensor = next(encoded)
                release(source.array)
                writer.add(tensor)
                errors.append(tensor.error)
                done += source.array.nbytes
            ties = [(at, name, s.name) for s in sources for at, name in s.ties]
            length, records = writer.close(self.head, ties)
        # Also after Ctrl-C: the file has no name that anyone could delete, and fills
        # the disk until it is closed.
        except BaseException:
            file.close()
            raise
        draft = Draft(length, records, tuple(errors), sources, gap, file)
        # A draft is cached and passed on, so no `with` block spans its life: the file
        # closes with the last reference.
        weakref.finalize(draft, file.close)
        return draft


def _open_temporary(weights_bytes: int) -> io.BufferedIOBase:
    """Open a file in memory for few weights, else one on disk that has no name."""
    if weights_bytes <= _IN_MEMORY:
        return io.BytesIO()
    return cast(io.BufferedIOBase, tempfile.TemporaryFile())
