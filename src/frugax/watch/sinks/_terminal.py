"""A run's state in the terminal while it goes: one block that stays in its place."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from frugax.budget import Receipt, format_share

from ._console import grid_cells, printable
from ._event import Event
from ._numbers import STATUS_STREAM, dropped, numbers, tag
from ._palettes import Palette, check_palette
from ._picture import Picture, pictures

# Speed is taken over this long, so that it follows a change but does not jump.
_WINDOW_S = 10.0
_MOST_FIGURES = 12
_MOST_FRAMES = 3
_MANY = {"summary": "summaries", "scalar": "scalars", "frame": "frames"}


class Terminal:
    """Shows the newest of everything: speed, metrics, overhead, losses, grids.

    On a terminal, a block that is drawn anew in its place; what the program prints
    appears above it. Elsewhere, a plain line now and then.

    Attributes:
        name: for the receipt.
        receipt: if set before `close`, printed there.
    """

    name = "terminal"

    def __init__(
        self,
        *,
        console: Console | None = None,
        palette: Palette = "arc",
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is shown before the first record.

        Args:
            console: where to; standard error if not given, so that what the program
                prints can be piped on.
            palette: as in `grid_svg`.
            every_s: least time between two drawings, in seconds; if not given, 0.25 on
                a terminal and 10 elsewhere.
            clock: seconds, rising.

        Raises:
            ValueError: `every_s` is negative, or there is no such palette.
        """
        self._console = Console(stderr=True) if console is None else console
        self._moving = self._console.is_terminal and not self._console.is_dumb_terminal
        if every_s is None:
            every_s = 0.25 if self._moving else 10.0
        if not every_s >= 0:
            raise ValueError(f"every_s must be >= 0, got {every_s}.")
        self.receipt: Receipt | None = None
        self._palette: Palette = check_palette(palette)
        self._every = every_s
        self._clock = clock
        self._shown_at: float | None = None
        self._live: Live | None = None
        self._step: int | None = None
        self._past: deque[tuple[float, int]] = deque()
        self._figures: dict[str, float] = {}
        self._status: dict[str, float] = {}
        self._frames: dict[str, Event] = {}
        self._stale = False

    def write(self, events: Sequence[Event]) -> None:
        """Take the newest of each; draw if that was not done a moment ago."""
        for event in events:
            self._take(event)
        self._stale = True
        now = self._clock()
        if self._shown_at is None or now - self._shown_at >= self._every:
            self._show(now)

    def close(self) -> None:
        """Draw the last state, which then stays, and the receipt if there is one."""
        if self._stale:
            self._show(self._clock())
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self.receipt is not None:
            self._console.print(Text(str(self.receipt)), soft_wrap=True)
            self.receipt = None

    def _take(self, event: Event) -> None:
        if event.stream == STATUS_STREAM:
            self._status.update({k: float(v) for k, v in event.values.items()})
            return
        if event.kind == "frame":
            # Kept as it came: most frames are gone before anything is drawn.
            self._frames.pop(event.stream, None)  # so that the newest stands last
            self._frames[event.stream] = event
            while len(self._frames) > _MOST_FRAMES:
                del self._frames[next(iter(self._frames))]
            return
        self._figures.update(numbers(event))
        if not event.stream:
            self._step = event.step
            self._past.append((self._clock(), event.step))

    def _show(self, now: float) -> None:
        self._shown_at, self._stale = now, False
        if not self._moving:
            self._console.print(Text("  ".join(self._line(now))), soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,  # a thread of its own would cost the program time
                # Only what goes to this terminal anyway: a pipe must stay as it is.
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start()
        self._live.update(self._block(now), refresh=True)

    def _speed(self, now: float) -> float | None:
        while len(self._past) > 2 and self._past[0][0] < now - _WINDOW_S:
            self._past.popleft()
        if len(self._past) < 2:
            return None
        seconds = self._past[-1][0] - self._past[0][0]
        steps = self._past[-1][1] - self._past[0][1]
        return steps / seconds if seconds > 0 else None

    def _line(self, now: float) -> list[str]:
        parts = [] if self._step is None else [f"step {self._step:,}"]
        parts += [f"{k} {v:.4g}" for k, v in self._shown_figures().items()]
        speed = self._speed(now)
        parts += [] if speed is None else [f"{speed:.3g} steps/s"]
        for said in (self._overhead(), self._losses()):
            parts += [said.plain] if said is not None else []
        return [printable(part) for part in parts]

    def _shown_figures(self) -> dict[str, float]:
        first = {k: v for k, v in self._figures.items() if k == "loss"}
        return dict(list((first | self._figures).items())[:_MOST_FIGURES])

    def _overhead(self) -> Text | None:
        if "overhead" not in self._status:
            return None
        spent, limit = self._status["overhead"], self._status.get("budget", np.nan)
        said = f"overhead {format_share(spent)}"
        if np.isnan(limit):
            return Text(said)
        return Text(
            f"{said} of {format_share(limit)}",
            style="green" if spent <= limit else "bold red",
        )

    def _losses(self) -> Text | None:
        lost = {k: n for k, (_, n) in dropped(self._status).items() if n}
        if not lost:
            return None
        said = ", ".join(
            f"{n:,} {kind if n == 1 else _MANY[kind]}" for kind, n in lost.items()
        )
        return Text(
            f"dropped {said}", style="bold red" if "summary" in lost else "yellow"
        )

    def _pictures(self) -> Iterator[tuple[int, str, Picture]]:
        for event in self._frames.values():
            for name, shown in pictures(event.values).items():
                yield event.step, tag(event.stream, name), shown

    def _block(self, now: float) -> RenderableType:
        head: list[Text] = []
        if self._step is not None:
            head.append(Text(f"step {self._step:,}", style="bold"))
        speed = self._speed(now)
        if speed is not None:
            head.append(Text(f"{speed:.3g} steps/s", style="cyan"))
        head += [
            said for said in (self._overhead(), self._losses()) if said is not None
        ]
        figures = [
            Text.assemble((printable(k), "dim"), " ", (f"{v:.4g}", "bold"))
            for k, v in self._shown_figures().items()
        ]
        parts: list[RenderableType] = []
        if head:
            parts.append(Text("   ").join(head))
        if figures:
            parts.append(Columns(figures, padding=(0, 3)))
        # Taller than the terminal, a block cannot be drawn in its place.
        room = self._console.height - 6 - len(figures) // 3
        grids: list[RenderableType] = []
        for step, name, shown in self._pictures():
            small = shown.thinned(max(2 * (room - 3), 4))
            cells = grid_cells(
                small,
                self._console,
                palette=self._palette,
                width=self._console.width - 4,
                lines=room - 3,
            )
            if len(cells.lines) + 2 <= room:
                said = Text(f"{printable(name)}, step {step}", style="dim")
                grids.append(Group(said, cells))
        if grids:
            parts.append(Columns(grids, padding=(0, 3)))
        return Panel(
            Group(*parts), title="watch", title_align="left", border_style="dim"
        )
