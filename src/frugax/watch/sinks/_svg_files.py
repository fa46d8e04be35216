"""A sink that draws recorded frames (arrays) as SVG files in a tree of folders."""

import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from frugax.fileio import make_folder, write_whole

from .._event import Event, to_plain
from ..drawing import Palette, check_palette, make_pictures, picture_svg, step_svg

_STEP_NAMES = {"before", "after", "mask"}
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class SvgFiles:
    """Draws each frame into a file of its own.

    The tree is `STREAM/[episode_0007/]step_000012[_NAME].svg`: with the folder of an
    episode if the record has a number called `episode`, and with a name if it has
    several pictures. A record with `before` and `after` becomes one picture of the
    whole step.

    Attributes:
        name: the name in the receipt.
        written: the number of files that were written.
        skipped: the number of files beyond `max_files`.
    """

    name = "svg files"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        palette: Palette = "arc",
        show_numbers: bool = False,
        max_files: int = 10_000,
    ) -> None:
        """Create the folder.

        Args:
            folder: the root of the tree; files of earlier runs are replaced.
            palette: the palette, as in `grid_svg`.
            show_numbers: as in `grid_svg`.
            max_files: the number of files to write at most; none is ever deleted.

        Raises:
            OutputError: the folder cannot be created.
            ValueError: `max_files` is below 1, or the palette is unknown.
        """
        if max_files < 1:
            raise ValueError(f"max_files must be >= 1, got {max_files}.")
        self._palette: Palette = check_palette(palette)
        self._numbers = show_numbers
        self._max_files = max_files
        self.written = 0
        self.skipped = 0
        self._folder = make_folder(folder)

    def write(self, events: Sequence[Event]) -> None:
        """Draw the frames among the records.

        Raises:
            OutputError: the file cannot be written.
        """
        for event in events:
            if event.kind != "frame":
                continue
            for path, drawing in self._draw(event).items():
                if self.written >= self._max_files:
                    self.skipped += 1
                    continue
                # Whole or not at all, since a viewer may watch the folder.
                write_whole(path, drawing)
                self.written += 1

    def close(self) -> None:
        """Do nothing: every file is written at once."""

    def _draw(self, event: Event) -> dict[Path, str]:
        folder = self._folder / safe_file_name(event.stream or "steps")
        values = dict(event.values)
        title = f"{event.stream or 'step'} {event.step}"
        if "episode" in values and values["episode"].size == 1:
            episode = to_plain(values.pop("episode"))
            number = safe_file_name(str(episode))
            if isinstance(episode, int):
                number = f"{episode:04d}"
            folder /= f"episode_{number}"
            title = f"episode {episode}, step {event.step}"
        path = folder / f"step_{event.step:06d}.svg"
        if {"before", "after"} <= values.keys():
            mask = values.get("mask")
            if mask is not None and mask.shape != values["before"].shape:
                mask = None
            drawing = step_svg(
                values["before"],
                {k: v for k, v in values.items() if k not in _STEP_NAMES},
                values["after"],
                mask=mask,
                title=title,
                palette=self._palette,
                show_numbers=self._numbers,
            )
            return {path: drawing}
        pictures = make_pictures(values)
        drawings: dict[Path, str] = {}
        for name, picture in pictures.items():
            own_path, own_title = path, title
            if len(pictures) > 1:
                own_path = path.with_name(f"{path.stem}_{safe_file_name(name)}.svg")
                own_title = f"{title}, {name}"
            drawings[own_path] = picture_svg(
                picture, own_title, palette=self._palette, show_numbers=self._numbers
            )
        return drawings


def safe_file_name(name: str) -> str:
    """Turn a name into a file name that stays in its folder and is unique."""
    # Leading dots go too: ".." would lead out of the folder, and dotted files are
    # hidden. File systems allow 255 bytes in a name; 80 leave room for the prefix and
    # the suffix.
    safe = _UNSAFE.sub("_", name).strip(".")[:80]
    if safe != name:
        # The checksum keeps names apart that differ in replaced characters only.
        safe += f"-{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"
    return safe
