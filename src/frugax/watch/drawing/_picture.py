"""`Picture`: an array as a colour code per cell, ready to draw or to encode as PNG.

Whole numbers from 0 to 9 have a colour each, as in ARC; -1 is padding. Other numbers
lie on a ramp from the lowest to the highest. `uint8` with three or four channels last
is a colour image.
"""

import dataclasses
import struct
import zlib
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Shaped, UInt8

from ..journal import TEXT_COLUMN
from ._palettes import PAD, PALETTES, RAMP_LEVELS, Palette, hex_to_rgb, ramp

# Of many lanes (or channels), the first four are shown side by side.
_MAX_LANES = 4
# The longer side of a PNG in pixels, or slightly less.
_PNG_SIDE = 320


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An array that is ready to be drawn.

    Attributes:
        kind: `"digits"`, codes are the values 0 to 9; `"ramp"`, codes are levels
            between `low` and `high`; `"colours"`, codes are red, green and blue.
        codes: one code for each cell, or three.
        known: False where a cell is masked, padding or not finite.
        low: the lowest known value.
        high: the highest known value.
        gaps: the number of cells that only separate two lanes.
        note: a remark for the reader, such as the lanes that are left out.
    """

    kind: Literal["digits", "ramp", "colours"]
    codes: UInt8[np.ndarray, "rows columns"] | UInt8[np.ndarray, "rows columns 3"]
    known: Bool[np.ndarray, "rows columns"]
    low: float = 0.0
    high: float = 9.0
    gaps: int = 0
    note: str = ""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.known.shape[0]

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.known.shape[1]

    def colours(self, palette: Palette) -> UInt8[np.ndarray, "rows columns 3"]:
        """Return red, green and blue of each cell."""
        if self.kind == "colours":
            rgb = self.codes.copy()
        elif self.kind == "digits":
            rgb = hex_to_rgb(PALETTES[palette])[self.codes]
        else:
            rgb = ramp()[self.codes]
        # After the palette: unknown cells hold code 0, which is a colour of its own.
        rgb[~self.known] = hex_to_rgb((PAD,))[0]
        return rgb

    def levels_to_values(self) -> Float[np.ndarray, "rows columns"]:
        """Return the approximate values of a picture of kind `"ramp"`."""
        # Approximate, because 255 levels keep about two digits of the original values.
        share = self.codes / (RAMP_LEVELS - 1)
        return self.low + share * (self.high - self.low)

    def cell_text(self, row: int, column: int) -> str:
        """Return the value of a cell as short text; empty where it is unknown."""
        if not self.known[row, column] or self.kind == "colours":
            return ""
        code = int(self.codes[row, column])
        if self.kind == "digits":
            return str(code)
        level = code / (RAMP_LEVELS - 1)
        return f"{self.low + level * (self.high - self.low):.2g}"

    def describe(self) -> str:
        """Describe the size, the range and the omissions in one line."""
        parts = [f"{self.rows} × {self.columns}"]
        if self.kind == "ramp":
            parts.append(f"{self.low:.4g} to {self.high:.4g}")
        masked = int((~self.known).sum()) - self.gaps
        if masked:
            parts.append(f"{masked} masked")
        if self.note:
            parts.append(self.note)
        return ", ".join(parts)

    def shrink(self, max_cells: int) -> "Picture":
        """Keep every n-th row and column, so that there are at most `max_cells`."""
        every = -(-max(self.rows, self.columns) // max_cells)
        if every <= 1:
            return self
        return dataclasses.replace(
            self,
            # Copied: a strided view would keep the large array in memory.
            codes=np.ascontiguousarray(self.codes[::every, ::every]),
            known=np.ascontiguousarray(self.known[::every, ::every]),
            gaps=0,
            note=f"1 of {every} rows and columns of {self.rows} × {self.columns}",
        )


def make_picture(
    array: npt.ArrayLike, mask: npt.ArrayLike | None = None, *, name: str = "grid"
) -> Picture:
    """Convert an array to a picture.

    Args:
        array: `(rows, columns)`; one axis is a single row. More axes are lanes, of
            which the first four are shown side by side, unless the dtype is `uint8`
            with three or four channels last.
        mask: the known cells; of the shape of `array`, or of its rows and columns. By
            default those that `array` itself masks are not known.
        name: the name for error messages.

    Raises:
        TypeError: `array` does not hold real numbers, or is being traced.
        ValueError: `array` is empty, or the mask has another shape.
    """
    values = _to_numbers(array, name)
    if mask is None and isinstance(array, np.ma.MaskedArray):
        mask = ~np.ma.getmaskarray(array)
    if not values.size:
        raise ValueError(f"{name} must not be empty, got shape {values.shape}.")
    if values.ndim < 2:
        values = values.reshape(1, -1)
        if mask is not None:
            mask = np.reshape(np.asarray(mask), (1, -1))
    if values.dtype == np.uint8 and values.ndim == 3 and values.shape[-1] in {3, 4}:
        known = _expand_mask(mask, values.shape[:2], name)
        return Picture(kind="colours", codes=values[..., :3].copy(), known=known)
    known, note, gaps = _expand_mask(mask, values.shape, name), "", 0
    if values.ndim > 2:
        lane_width = values.shape[-1] + 1
        values, known, note = _place_lanes_side_by_side(values, known)
        gaps = values.shape[0] * (values.shape[1] // lane_width)
    if values.dtype.kind in "biu" and values.min() >= -1 and values.max() <= 9:
        known = known & (values >= 0)
        codes = np.where(known, values, 0).astype(np.uint8)
        return Picture(kind="digits", codes=codes, known=known, gaps=gaps, note=note)
    wide = values.astype(np.float64)
    known = known & np.isfinite(wide)
    low = high = 0.0
    if known.any():
        low, high = float(wide[known].min()), float(wide[known].max())
    # Halved, because the difference of two finite numbers may overflow.
    span = high / 2 - low / 2 or 1.0
    level = (np.where(known, wide, low) / 2 - low / 2) / span * (RAMP_LEVELS - 1)
    # 255 levels are as many as the ramp has colours.
    codes = level.round().astype(np.uint8)
    return Picture(
        kind="ramp",
        codes=codes,
        known=known,
        low=low,
        high=high,
        gaps=gaps,
        note=note,
    )


def make_pictures(values: Mapping[str, np.ndarray]) -> dict[str, Picture]:
    """Convert every array of a record to a picture.

    An array called `mask` is not drawn: it masks the others that have its shape. Nor
    is a text, which is an array of bytes.
    """
    mask = values.get("mask")
    found: dict[str, Picture] = {}
    for name, value in values.items():
        if name in ("mask", TEXT_COLUMN) or value.ndim < 1 or not value.size:
            continue
        # The last two axes are cells below lanes; the first two are those of an image
        # with channels last.
        shapes = {value.shape, value.shape[-2:], value.shape[:2]}
        fits = mask is not None and mask.shape in shapes
        found[name] = make_picture(value, mask if fits else None, name=name)
    return found


def _to_numbers(array: npt.ArrayLike, name: str) -> np.ndarray:
    try:
        values = np.asarray(array)
    except TypeError as e:  # tracers of JAX, and other objects
        raise TypeError(
            f"{name} must be an array of numbers, got {type(array).__name__}; inside "
            "jit use jax_log_grid, or return it from the function."
        ) from e
    if values.dtype.kind in "biuf":
        return values
    try:
        return values.astype(np.float32, casting="safe")  # bfloat16, float8
    except TypeError as e:
        raise TypeError(f"{name} must hold real numbers, got {values.dtype}.") from e


def _expand_mask(
    mask: npt.ArrayLike | None, shape: tuple[int, ...], name: str
) -> Bool[np.ndarray, "..."]:
    if mask is None:
        return np.ones(shape, bool)
    known = np.asarray(mask).astype(bool)
    if known.shape not in {shape, shape[-2:]}:
        raise ValueError(
            f"the mask of {name} must have its shape {shape}, got {known.shape}."
        )
    return np.broadcast_to(known, shape).copy()


def _place_lanes_side_by_side(
    values: Shaped[np.ndarray, "*lanes rows columns"],
    known: Bool[np.ndarray, "*lanes rows columns"],
) -> tuple[np.ndarray, np.ndarray, str]:
    """Join the first lanes into one array, with an unknown column between two."""
    rows, columns = values.shape[-2:]
    lanes = values.reshape(-1, rows, columns)
    shown = min(len(lanes), _MAX_LANES)
    # The gap between two lanes is an unknown column and so has no colour of the
    # palette.
    wide = np.zeros((rows, shown * (columns + 1) - 1), values.dtype)
    seen = np.zeros(wide.shape, bool)
    flat = known.reshape(-1, rows, columns)
    for i in range(shown):
        start = i * (columns + 1)
        wide[:, start : start + columns] = lanes[i]
        seen[:, start : start + columns] = flat[i]
    return wide, seen, f"{shown} of {len(lanes)} lanes"


# Written by hand in twenty lines, so that no user needs an imaging library.
def encode_png(pixels: UInt8[np.ndarray, "rows columns 3"], *, scale: int = 1) -> bytes:
    """Encode red, green and blue as a PNG file.

    Args:
        pixels: the colours.
        scale: the pixels of the file for each pixel, in both directions; >= 1.
    """
    large = pixels.repeat(scale, axis=0).repeat(scale, axis=1)
    rows, columns = large.shape[:2]
    # Each row begins with its filter. "Up" (2) stores the differences from the row
    # above, which are mostly zero in scaled cells.
    lines = np.empty((rows, 1 + 3 * columns), np.uint8)
    lines[:, 0] = 2
    flat = large.reshape(rows, -1)
    lines[0, 1:] = flat[0]
    # The subtraction of uint8 wraps modulo 256, exactly as the PNG filter demands.
    lines[1:, 1:] = flat[1:] - flat[:-1]
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    chunks = (b"IHDR", head), (b"IDAT", body), (b"IEND", b"")
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in chunks:
        check = struct.pack(">I", zlib.crc32(kind + data))
        parts.append(struct.pack(">I", len(data)) + kind + data + check)
    return b"".join(parts)


def picture_png(picture: Picture, palette: Palette) -> bytes:
    """Encode a picture as a PNG file, large enough to show single cells."""
    scale = max(1, _PNG_SIDE // max(picture.rows, picture.columns))
    return encode_png(picture.colours(palette), scale=scale)
