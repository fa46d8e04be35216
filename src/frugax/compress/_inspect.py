"""What a file says of itself: one row for each tensor, and a picture of them all."""

import dataclasses
import os

from frugax.budget import format_bytes, table

from ._container import Record
from ._file import open_file
from ._rate_picture import Dot, rate_picture
from ._report import gap_to_bound_db


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One tensor, as the file's header has it.

    Attributes:
        name: its name.
        dtype: its dtype.
        shape: its shape.
        codec: its codec.
        bytes: its bytes in the file, without its part of the header.
        original_bytes: its bytes once decoded.
        rel_error: ||decoded - original|| / ||original|| as stated; 0 if exact.
        max_abs: the largest error as stated; 0 if exact.
        bits_per_weight: bits in the file for each number.
        bound_gap_db: how far the stated error is above the least possible for a
            Gaussian in as many bits, in dB; None if exact.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    bytes: int
    original_bytes: int
    rel_error: float
    max_abs: float
    bits_per_weight: float
    bound_gap_db: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a file says of itself. Nothing was decoded: `verify` does that.

    Attributes:
        place: the file.
        file_bytes: its length.
        tensors: one row for each tensor, in the tree's order.
    """

    place: str
    file_bytes: int
    tensors: tuple[TensorRow, ...]

    @property
    def original_bytes(self) -> int:
        """Bytes of the arrays once decoded."""
        return sum(tensor.original_bytes for tensor in self.tensors)

    @property
    def bound_gap_db(self) -> float | None:
        """The tensors' gaps averaged over their weights; None if all are exact."""
        pairs = [
            (t.bound_gap_db, 8 * t.bytes / t.bits_per_weight)
            for t in self.tensors
            if t.bound_gap_db is not None
        ]
        weights = sum(n for _, n in pairs)
        return sum(gap * n for gap, n in pairs) / weights if weights else None

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
        head = ["tensor", "weights", "codec", "bytes", "bits each", "relative error"]
        gap = self.bound_gap_db
        ratio = self.original_bytes / self.file_bytes
        said = (
            f"file: {self.file_bytes:,} bytes ({format_bytes(self.file_bytes)}), "
            f"{ratio:.4g}x smaller than the {len(self.tensors)} tensors"
            + ("" if gap is None else f", {gap:.2f} dB from the bound on average")
        )
        if any((t.bound_gap_db or 0) < 0 for t in self.tensors):
            said += (
                "\nBelow 0 dB: the bound is that of Gaussian weights; these are easier."
            )
        return f"{table([*head, 'largest', 'from bound'], rows)}\n{said}"


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
            tensors=tuple(map(_row, file.header.tensors)),
        )


def _row(record: Record) -> TensorRow:
    gap = None
    if record.rel_error:
        gap = gap_to_bound_db(
            rel_error=record.rel_error,
            stored_bytes=record.stored_bytes,
            size=record.size,
        )
    return TensorRow(
        name=record.name,
        dtype=record.dtype,
        shape=record.shape,
        codec=record.codec,
        bytes=record.stored_bytes,
        original_bytes=record.nbytes,
        rel_error=record.rel_error,
        max_abs=record.max_abs,
        bits_per_weight=8 * record.stored_bytes / max(1, record.size),
        bound_gap_db=gap,
    )
