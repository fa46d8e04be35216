"""Colour palettes of drawings: ten colours for small integers, a ramp for all else."""

from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import UInt8

Palette: TypeAlias = Literal["arc", "colour_blind", "high_contrast"]

PALETTES: dict[Palette, tuple[str, ...]] = {
    # The colours of the ARC web pages.
    "arc": (
        "#000000", "#0074d9", "#ff4136", "#2ecc40", "#ffdc00",
        "#aaaaaa", "#f012be", "#ff851b", "#7fdbff", "#870c25",
    ),
    # Okabe & Ito's eight (2008, jfly.uni-koeln.de/color), a grey, and a deep brown.
    # tests/watch/drawing/test_pictures.py measures the least distance of two of them.
    "colour_blind": (
        "#000000", "#0072b2", "#d55e00", "#009e73", "#f0e442",
        "#b4b4b4", "#cc79a7", "#e69f00", "#56b4e9", "#5c1a00",
    ),
    # Corners of the RGB cube, the greatest distances on a screen.
    "high_contrast": (
        "#000000", "#0000ff", "#ff0000", "#00a000", "#ffff00",
        "#808080", "#ff00ff", "#ff8000", "#00ffff", "#700000",
    ),
}  # fmt: skip

# The colour of cells that are masked, padding or not finite.
PAD = "#d9dde2"

# Rec. 709 luma. Black text is readable on colours above the threshold, white below.
LUMA = np.array([0.2126, 0.7152, 0.0722])
LIGHT_ABOVE = 140

# Nine of the 256 colours of viridis (van der Walt & Smith 2015, CC0), a ramp that is
# perceptually uniform and readable for colour-blind people.
_RAMP = (
    "#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c",
    "#28ae80", "#5ec962", "#addc30", "#fde725",
)  # fmt: skip
# 255 remains free: films encode unknown cells as 255.
RAMP_LEVELS = 255


def check_palette(palette: str) -> Palette:
    """Return the palette of that name.

    Raises:
        ValueError: the palette is unknown.
    """
    for known in get_args(Palette):
        if palette == known:
            return known
    raise ValueError(
        f"palette must be one of {', '.join(get_args(Palette))}, got {palette!r}."
    )


def hex_to_rgb(colours: tuple[str, ...]) -> UInt8[np.ndarray, "colours 3"]:
    """Convert colours such as `#ff4136` to red, green and blue."""
    return np.array([list(bytes.fromhex(c[1:])) for c in colours], np.uint8)


def ramp() -> UInt8[np.ndarray, "levels 3"]:
    """Return the colours of the ramp, dark for the lowest level."""
    anchors = hex_to_rgb(_RAMP).astype(float)
    positions = np.linspace(0, len(anchors) - 1, RAMP_LEVELS)
    columns = [
        np.interp(positions, np.arange(len(anchors)), anchors[:, i]) for i in range(3)
    ]
    return np.stack(columns, axis=1).round().astype(np.uint8)
