"""Frames as SVG files in a tidy tree of folders."""

import os
from collections.abc import Sequence
from pathlib import Path

from frugax.fileio import make_folder, write_whole

from ._event import Event
from ._file_names import safe_name
from ._numbers import plain
from ._palettes import Palette, check_palette
from ._picture import pictures
from ._svg import grid_svg, step_svg

_STEP = {"before", "after", "mask"}


class SvgFiles:
    """Draws each frame into a file of its own.

    The tree is `STREAM/[episode_0007/]step_000012[_NAME].svg`: an episode's folder if
    the record has a number called `episode`, a name if it holds several pictures. A
    record with `before` and `after` is one picture of the whole step.

    Attributes:
        name: for the receipt.
        written: how many files were written.
        skipped: how many were not, because there were `most_files`.
    """

    name = "svg files"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        palette: Palette = "arc",
        show_numbers: bool = False,
        most_files: int = 10_000,
    ) -> None:
        """Make the folder.

        Args:
            folder: where the tree stands; files of earlier runs are replaced.
            palette: as in `grid_svg`.
            show_numbers: as in `grid_svg`.
            most_files: after so many, no more are written; nothing is ever deleted.

        Raises:
            OutputError: the folder cannot be made.
            ValueError: `most_files` is below 1, or there is no such palette.
        """
        if most_files < 1:
            raise ValueError(f"most_files must be >= 1, got {most_files}.")
        self._palette: Palette = check_palette(palette)
        self._numbers = show_numbers
        self._most = most_files
        self.written = 0
        self.skipped = 0
        self._folder = make_folder(folder)

    def write(self, events: Sequence[Event]) -> None:
        """Draw the frames among the records.

        Raises:
            OutputError: no space or no permission.
        """
        for event in events:
            if event.kind != "frame":
                continue
            for path, drawing in self._drawn(event).items():
                if self.written >= self._most:
                    self.skipped += 1
                    continue
                write_whole(path, drawing)
                self.written += 1

    def close(self) -> None:
        """Nothing is held back."""

    def _drawn(self, event: Event) -> dict[Path, str]:
        folder = self._folder / safe_name(event.stream or "steps")
        values = dict(event.values)
        title = f"{event.stream or 'step'} {event.step}"
        if "episode" in values and values["episode"].size == 1:
            episode = plain(values.pop("episode"))
            number = (
                f"{episode:04d}"
                if isinstance(episode, int)
                else safe_name(str(episode))
            )
            folder /= f"episode_{number}"
            title = f"episode {episode}, step {event.step}"
        path = folder / f"step_{event.step:06d}.svg"
        mask = values.get("mask")
        if {"before", "after"} <= values.keys():
            fits = mask is not None and mask.shape == values["before"].shape
            return {
                path: step_svg(
                    values["before"],
                    {k: v for k, v in values.items() if k not in _STEP},
                    values["after"],
                    mask=mask if fits else None,
                    title=title,
                    palette=self._palette,
                    show_numbers=self._numbers,
                )
            }
        names = list(pictures(values))
        found: dict[Path, str] = {}
        for name in names:
            value = values[name]
            fits = mask is not None and mask.shape in {value.shape, value.shape[-2:]}
            one = len(names) == 1
            where = (
                path if one else path.with_name(f"{path.stem}_{safe_name(name)}.svg")
            )
            found[where] = grid_svg(
                value,
                mask=mask if fits else None,
                title=title if one else f"{title}, {name}",
                palette=self._palette,
                show_numbers=self._numbers,
            )
        return found
