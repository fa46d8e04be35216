"""What can be seen of an array: cells with a code each, and which of them count.

Whole numbers from 0 to 9 are values with a colour of their own, as in ARC; -1 is
padding. Any other numbers lie on a ramp from the lowest to the highest. `uint8` with
three or four channels last is a colour picture.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Shaped, UInt8

from ._palettes import PAD, PALETTES, RAMP_LEVELS, Palette, as_bytes, ramp

# Of many lanes (or channels), as many as can be told apart side by side.
_MOST_LANES = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An array made ready to be drawn.

    Attributes:
        kind: `"digits"`, codes are the values 0 to 9; `"ramp"`, codes are levels
            between `low` and `high`; `"colours"`, codes are red, green and blue.
        codes: one for each cell, or three.
        known: False where a cell is masked, padding or no number.
        low: the lowest value that is known.
        high: the highest.
        gaps: how many cells only stand between two lanes.
        note: what cannot be seen from the cells; may be empty.
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
        """Of cells."""
        return self.known.shape[0]

    @property
    def columns(self) -> int:
        """Of cells."""
        return self.known.shape[1]

    def colours(self, palette: Palette) -> UInt8[np.ndarray, "rows columns 3"]:
        """Red, green and blue of each cell."""
        if self.kind == "colours":
            shown = self.codes.copy()
        else:
            digits = self.kind == "digits"
            shown = (as_bytes(PALETTES[palette]) if digits else ramp())[self.codes]
        shown[~self.known] = as_bytes((PAD,))[0]
        return shown

    def said(self, row: int, column: int) -> str:
        """A cell's value as a short text; empty where it is not known."""
        if not self.known[row, column] or self.kind == "colours":
            return ""
        code = int(self.codes[row, column])
        if self.kind == "digits":
            return str(code)
        level = code / (RAMP_LEVELS - 1)
        return f"{self.low + level * (self.high - self.low):.2g}"

    def described(self) -> str:
        """Its size, its range and what is left out, as one line."""
        parts = [f"{self.rows} × {self.columns}"]
        if self.kind == "ramp":
            parts.append(f"{self.low:.4g} to {self.high:.4g}")
        masked = int((~self.known).sum()) - self.gaps
        if masked:
            parts.append(f"{masked} masked")
        return ", ".join([*parts, self.note] if self.note else parts)

    def thinned(self, most: int) -> "Picture":
        """Every nth row and column, so that there are at most `most` of each."""
        every = -(-max(self.rows, self.columns) // most)
        if every <= 1:
            return self
        return dataclasses.replace(
            self,
            codes=np.ascontiguousarray(self.codes[::every, ::every]),
            known=np.ascontiguousarray(self.known[::every, ::every]),
            gaps=0,
            note=f"1 of {every} rows and columns of {self.rows} × {self.columns}",
        )


def picture(
    array: npt.ArrayLike, mask: npt.ArrayLike | None = None, *, name: str = "grid"
) -> Picture:
    """Make an array ready to be drawn.

    Args:
        array: `(rows, columns)`; one axis is a single row. More axes are lanes, of
            which the first four stand side by side, unless it is `uint8` with three
            or four channels last.
        mask: which cells count; of the shape of `array`, or of its rows and columns.
        name: for error messages.

    Raises:
        TypeError: it does not hold real numbers, or is being traced.
        ValueError: it is empty, or the mask has another shape.
    """
    values = _numbers(array, name)
    if not values.size:
        raise ValueError(f"{name} must not be empty, got shape {values.shape}.")
    if values.ndim < 2:
        values = values.reshape(1, -1)
        mask = None if mask is None else np.reshape(np.asarray(mask), (1, -1))
    if values.dtype == np.uint8 and values.ndim == 3 and values.shape[-1] in {3, 4}:
        known = _known(mask, values.shape[:2], name)
        return Picture(kind="colours", codes=values[..., :3].copy(), known=known)
    known, note, gaps = _known(mask, values.shape, name), "", 0
    if values.ndim > 2:
        each = values.shape[-1] + 1
        values, known, note = _side_by_side(values, known)
        gaps = values.shape[0] * (values.shape[1] // each)
    if values.dtype.kind in "biu" and values.min() >= -1 and values.max() <= 9:
        known = known & (values >= 0)
        codes = np.where(known, values, 0).astype(np.uint8)
        return Picture(kind="digits", codes=codes, known=known, gaps=gaps, note=note)
    wide = values.astype(np.float64)
    known = known & np.isfinite(wide)
    seen = wide[known] if known.any() else np.zeros(1)
    low, high = float(seen.min()), float(seen.max())
    # Halved, because the distance between two finite numbers may not be one.
    span = high / 2 - low / 2 or 1.0
    level = (np.where(known, wide, low) / 2 - low / 2) / span * (RAMP_LEVELS - 1)
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


def pictures(values: Mapping[str, np.ndarray]) -> dict[str, Picture]:
    """Everything in a record that can be drawn, by name.

    An array called `mask` is no picture of its own: it masks those whose shape it has.
    """
    mask = values.get("mask")
    found: dict[str, Picture] = {}
    for name, value in values.items():
        if name == "mask" or value.ndim < 1 or not value.size:
            continue
        shapes = {value.shape, value.shape[-2:], value.shape[:2]}
        fits = mask is not None and mask.shape in shapes
        found[name] = picture(value, mask if fits else None, name=name)
    return found


def _numbers(array: npt.ArrayLike, name: str) -> np.ndarray:
    try:
        values = np.asarray(array)
    except TypeError as e:  # JAX's tracers, and what is no array at all
        raise TypeError(
            f"{name} must be an array of numbers, got {type(array).__name__}; inside "
            "jit use jax_log_grid, or return it from the function."
        ) from e
    if values.dtype.kind in "biuf":
        return values
    try:
        return values.astype(np.float32, casting="safe")  # bfloat16 and its kind
    except TypeError as e:
        raise TypeError(f"{name} must hold real numbers, got {values.dtype}.") from e


def _known(
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


def _side_by_side(
    values: Shaped[np.ndarray, "*lanes rows columns"],
    known: Bool[np.ndarray, "*lanes rows columns"],
) -> tuple[np.ndarray, np.ndarray, str]:
    """The first lanes as one array, with an unknown column between two of them."""
    rows, columns = values.shape[-2:]
    lanes = values.reshape(-1, rows, columns)
    shown = min(len(lanes), _MOST_LANES)
    wide = np.zeros((rows, shown * (columns + 1) - 1), values.dtype)
    seen = np.zeros(wide.shape, bool)
    flat = known.reshape(-1, rows, columns)
    for i in range(shown):
        at = slice(i * (columns + 1), i * (columns + 1) + columns)
        wide[:, at], seen[:, at] = lanes[i], flat[i]
    return wide, seen, f"{shown} of {len(lanes)} lanes"
