"""Ten colours for ten values, in three sets, and a ramp for everything else."""

from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import UInt8

Palette: TypeAlias = Literal["arc", "colour_blind", "high_contrast"]

PALETTES: dict[Palette, tuple[str, ...]] = {
    # As the ARC pages draw them.
    "arc": (
        "#000000", "#0074d9", "#ff4136", "#2ecc40", "#ffdc00",
        "#aaaaaa", "#f012be", "#ff851b", "#7fdbff", "#870c25",
    ),
    # Okabe & Ito's eight (2008, jfly.uni-koeln.de/color), a grey, and a deep brown.
    # tests/watch/sinks/test_palettes.py measures how far apart any two stay.
    "colour_blind": (
        "#000000", "#0072b2", "#d55e00", "#009e73", "#f0e442",
        "#b4b4b4", "#cc79a7", "#e69f00", "#56b4e9", "#5c1a00",
    ),
    # Corners of the colour cube: the greatest distances that a screen has.
    "high_contrast": (
        "#000000", "#0000ff", "#ff0000", "#00a000", "#ffff00",
        "#808080", "#ff00ff", "#ff8000", "#00ffff", "#700000",
    ),
}  # fmt: skip

# What is masked, padding or no number.
PAD = "#d9dde2"

# viridis (van der Walt & Smith 2015, CC0), of which matplotlib keeps 256.
_RAMP = (
    "#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c",
    "#28ae80", "#5ec962", "#addc30", "#fde725",
)  # fmt: skip
RAMP_LEVELS = 255


def check_palette(palette: str) -> Palette:
    """The palette of that name.

    Raises:
        ValueError: there is none.
    """
    for known in get_args(Palette):
        if palette == known:
            return known
    raise ValueError(
        f"palette must be one of {', '.join(get_args(Palette))}, got {palette!r}."
    )


def as_bytes(colours: tuple[str, ...]) -> UInt8[np.ndarray, "colours 3"]:
    """Colours such as `#ff4136` as red, green and blue."""
    return np.array([list(bytes.fromhex(c[1:])) for c in colours], np.uint8)


def ramp() -> UInt8[np.ndarray, "levels 3"]:
    """The ramp's `RAMP_LEVELS` colours, dark for the lowest."""
    anchors = as_bytes(_RAMP).astype(float)
    at = np.linspace(0, len(anchors) - 1, RAMP_LEVELS)
    columns = [np.interp(at, np.arange(len(anchors)), anchors[:, i]) for i in range(3)]
    return np.stack(columns, axis=1).round().astype(np.uint8)
