"""What a file says of itself: one row for each tensor, and a picture of them all."""

import dataclasses
import os

from frugax.budget import format_bytes, table

from ._rate_picture import Dot, rate_picture
from ._report import TensorReport, average_gap_db, format_below_bound
from .container._file import open_file
from .container._prefix import Prefix, list_prefixes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a file says of itself. Nothing was decoded: `verify` does that.

    Attributes:
        place: the file.
        file_bytes: its length.
        tensors: each tensor as the header has it, in the tree's order.
        prefixes: how much of it can be read by itself, the shortest first; of a file
            that is not progressive only the whole.
    """

    place: str
    file_bytes: int
    tensors: tuple[TensorReport, ...]
    prefixes: tuple[Prefix, ...]

    @property
    def original_bytes(self) -> int:
        """Bytes of the arrays once decoded."""
        return sum(tensor.original_bytes for tensor in self.tensors)

    @property
    def bound_gap_db(self) -> float | None:
        """The tensors' gaps averaged over their weights; None if all are exact."""
        return average_gap_db(self.tensors)

    def svg(self) -> str:
        """Bits against error of every tensor that is not exact, beside the bound."""
        dots = [
            Dot(t.name or "(the array)", t.codec, t.bits_per_weight, t.rel_error)
            for t in self.tensors
            if t.rel_error
        ]
        exact = len(self.tensors) - len(dots)
        return rate_picture(os.path.basename(self.place), dots, exact=exact)

    def __str__(self) -> str:
        rows = [
            [
                t.name or "(the array)",
                f"{t.dtype}{list(t.shape)}",
                t.codec,
                f"{t.bytes:,}",
                f"{t.bits_per_weight:.2f}",
                f"{t.rel_error:.4g}" if t.rel_error else "exact",
                f"{t.max_abs:.4g}" if t.rel_error else "exact",
                "-" if t.bound_gap_db is None else f"{t.bound_gap_db:.2f} dB",
            ]
            for t in self.tensors
        ]
        head = [
            "tensor",
            "weights",
            "codec",
            "bytes",
            "bits each",
            "relative error",
        ]
        gap = self.bound_gap_db
        ratio, count = self.original_bytes / self.file_bytes, len(self.tensors)
        said = (
            f"file: {self.file_bytes:,} bytes ({format_bytes(self.file_bytes)}), "
            f"{ratio:.4g}x smaller than the {count} tensor{'s' * (count != 1)}"
            + ("" if gap is None else f", {gap:.2f} dB from the bound on average")
            + format_below_bound(self.tensors)
        )
        shown = f"{table([*head, 'largest', 'from bound'], rows)}\n{said}"
        return f"{shown}\n{self._parts()}" if len(self.prefixes) > 1 else shown

    def _parts(self) -> str:
        """Some of the prefixes: the first, the last, and where the error halves."""
        shown: list[Prefix] = []
        for prefix in self.prefixes:
            last = prefix is self.prefixes[-1]
            if not shown or last or prefix.rel_error <= shown[-1].rel_error / 2:
                shown.append(prefix)
        rows = [
            [
                f"{p.bytes:,}",
                f"{self.original_bytes / p.bytes:.4g}x",
                f"{p.rel_error:.4g}" if p.rel_error else "exact",
                f"{p.max_abs:.4g}" if p.max_abs else "exact",
            ]
            for p in shown
        ]
        head = ["read", "smaller", "relative error", "largest"]
        return f"{len(self.prefixes)} prefixes, of which:\n{table(head, rows)}"


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Read what an `.fxz` file says of its tensors; its data is not decoded.

    Args:
        path: the file.

    Raises:
        CorruptFileError: the header is damaged, or the file is cut off.
        FileNotFoundError: there is no such file.
        UnsupportedFileError: it is no `.fxz` file, or of a newer version.
    """
    with open_file(path) as file:
        return Inspection(
            place=os.fspath(path),
            file_bytes=file.nbytes,
            tensors=tuple(
                TensorReport.of(r, rel_error=r.rel_error, max_abs=r.max_abs)
                for r in file.header.tensors
            ),
            prefixes=list_prefixes(file.header, file.nbytes),
        )
