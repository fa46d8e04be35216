"""Draw arrays as pictures: SVG documents, PNG files and coloured text in a terminal.

Start at `grid_svg` or `log_grid_to_console`; `make_picture` decides how an array is
shown, and all of them draw its result. Guide: docs/watch_pictures.md.
"""

from ._console import escape_controls, log_grid_to_console, picture_cells
from ._grid_svg import episode_svg, grid_svg, picture_svg, sheet_svg, step_svg
from ._palettes import PAD, PALETTES, Palette, check_palette, hex_to_rgb, ramp
from ._picture import Picture, encode_png, make_picture, make_pictures, picture_png

__all__ = [
    "PAD",
    "PALETTES",
    "Palette",
    "Picture",
    "check_palette",
    "encode_png",
    "episode_svg",
    "escape_controls",
    "grid_svg",
    "hex_to_rgb",
    "log_grid_to_console",
    "make_picture",
    "make_pictures",
    "picture_cells",
    "picture_png",
    "picture_svg",
    "ramp",
    "sheet_svg",
    "step_svg",
]
