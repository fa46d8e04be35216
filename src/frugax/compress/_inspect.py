"""`inspect`: an `.fxz` file's header as a table or picture of tensors, undecoded."""

import dataclasses
import math
import os

from frugax.budget import format_bytes
from frugax.report import Axis, Plot

from ._tensor_table import (
    TensorReport,
    average_gap_db,
    format_below_bound,
    show_error,
    show_gap,
    tensor_table,
)
from .container import open_file

# The Gaussian bound: each bit halves the error, that is, 6.02 dB.
_DB_PER_BIT = 20 * math.log10(2)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The statements of a file about itself. Nothing was decoded: `verify` does that.

    Attributes:
        place: the file.
        file_bytes: its length.
        tensors: each tensor as the header has it, in the tree's order.
    """

    place: str
    file_bytes: int
    tensors: tuple[TensorReport, ...]

    @property
    def original_bytes(self) -> int:
        """Bytes of the decoded arrays, of which tied ones are one."""
        return sum(t.original_bytes for t in self.tensors if not t.tied)

    @property
    def bound_gap_db(self) -> float | None:
        """The tensors' gaps averaged over their weights; None if all are exact."""
        return average_gap_db(self.tensors)

    def svg(self) -> str:
        """Draw bits against error of every tensor that is not exact, and the bound.

        No code for Gaussian weights can be above the dashed line; the codec leaves the
        distance from it down to a dot. The pointer on a dot shows the tensor's name.
        """
        return _draw_svg(
            os.path.basename(self.place),
            [t for t in self.tensors if t.rel_error],
            exact=sum(not t.rel_error for t in self.tensors),
        )

    _repr_svg_ = svg  # notebooks show it

    def __str__(self) -> str:
        columns = {
            "bits each": lambda t: f"{t.bits_per_weight:.2f}",
            "relative error": lambda t: show_error(t.rel_error, 4),
            "largest": lambda t: show_error(t.rel_error and t.max_abs, 4),
            "from bound": show_gap,
        }
        gap = self.bound_gap_db
        ratio, count = self.original_bytes / self.file_bytes, len(self.tensors)
        return (
            tensor_table(self.tensors, columns)
            + f"\nfile: {self.file_bytes:,} bytes ({format_bytes(self.file_bytes)}), "
            f"{ratio:.4g}x smaller than the {count} tensor{'s' * (count != 1)}"
            + ("" if gap is None else f", {gap:.2f} dB from the bound on average")
            + format_below_bound(self.tensors)
        )


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Read the header of an `.fxz` file; its data is not decoded.

    Args:
        path: the file.

    Raises:
        CorruptFileError: the header is damaged, or the file is cut off.
        FileNotFoundError: there is no such file.
        UnsupportedFileError: it is not an `.fxz` file, or is of a newer version.
    """
    # Mapped, so that only the pages of the header and the footer are read.
    with open_file(path) as file:
        return Inspection(
            place=os.fspath(path),
            file_bytes=file.nbytes,
            tensors=tuple(map(TensorReport.of, file.header.tensors)),
        )


def _draw_svg(title: str, tensors: list[TensorReport], *, exact: int) -> str:
    count = len(tensors)
    caption = f"{count} tensor{'s' * (count != 1)} with an error"
    if not tensors:
        caption = f"nothing to draw: every tensor is exact ({exact} of them)"
    elif exact:
        caption += f"; {exact} more kept exact, not shown"
    levels = [-20 * math.log10(tensor.rel_error) for tensor in tensors]
    bits = [tensor.bits_per_weight for tensor in tensors]
    max_bits = math.ceil(max(bits, default=1) * 1.05)
    # An error as large as the weights is at 0 dB: the axis has a length all the same.
    max_db = math.ceil(max([10, *(db * 1.15 for db in levels)]) / 10) * 10
    plot = Plot(
        title,
        x=Axis(
            low=0,
            high=max_bits,
            label="bits in the file for each weight",
            about=8,
            whole=True,
        ),
        y=Axis(low=0, high=max_db, label="error below the weights, dB"),
        width=736,
        height=330,
        notes=(caption,),
        description=f"{title}: bits and error of each tensor; {caption}",
    )
    end = min(max_bits, max_db / _DB_PER_BIT)
    bound = end * _DB_PER_BIT
    plot.limit((0, end), (0, bound))
    words = "no code is better for Gaussian weights"
    aside = {"anchor": "end", "shift": (-8, -6), "is_inside": True}
    plot.text(end, bound, words, "limit", **aside)
    # A tensor whose error is above its own size would lie below the axis.
    heights = [max(0.0, db) for db in levels]
    tips = [
        f"{tensor.name or '(the array)'}: {tensor.codec}, "
        f"{tensor.bits_per_weight:.2f} bits, {db:.1f} dB"
        for tensor, db in zip(tensors, levels, strict=True)
    ]
    plot.dots(bits, heights, "s0", tips=tips)
    return plot.svg()
