"""A sink that shows the state of a run in the terminal, in one block that updates."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from frugax.budget import Verdict, format_share

from .._event import (
    STATUS_STREAM,
    Event,
    event_numbers,
    event_pictures,
    lost_text,
    overhead_spend,
)
from ..drawing import (
    Palette,
    Picture,
    check_palette,
    escape_controls,
    picture_cells,
)

# Speed is averaged over this window, so that it follows changes but does not jump.
_WINDOW_S = 10.0
# More figures or frames would not fit on a terminal of 24 lines.
_MAX_FIGURES = 12
_MAX_FRAMES = 3
_STYLES = {
    Verdict.KEPT: "green",
    Verdict.CANNOT_TELL: "",
    Verdict.BROKEN: "bold red",
}


class Terminal:
    """Shows the newest values: speed, metrics, overhead, losses and grids.

    On a terminal this is a block that updates in place, with the output of the program
    above it. Elsewhere it is a plain line now and then.

    Attributes:
        name: the name in the receipt.
    """

    name = "terminal"

    def __init__(
        self,
        *,
        console: Console | None = None,
        palette: Palette = "arc",
        interval_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the display; it appears with the first record.

        Args:
            console: the console; by default standard error, so that the output of the
                program can be piped.
            palette: the palette, as in `grid_svg`.
            interval_s: the least time between two updates, in seconds; by default 0.25
                on a terminal and 10 elsewhere.
            clock: monotonic seconds.

        Raises:
            ValueError: `interval_s` is negative, or the palette is unknown.
        """
        self._console = console or Console(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        if interval_s is None:
            interval_s = 0.25 if self._is_live else 10.0
        if not interval_s >= 0:
            raise ValueError(f"interval_s must be >= 0, got {interval_s}.")
        self._palette: Palette = check_palette(palette)
        self._interval_s = interval_s
        self._clock = clock
        self._shown_at: float | None = None
        self._live: Live | None = None
        self._step: int | None = None
        self._recent_steps: deque[tuple[float, int]] = deque()
        self._figures: dict[str, float] = {}
        self._status: dict[str, float] = {}
        self._frames: dict[str, Event] = {}
        self._is_stale = False

    def write(self, events: Sequence[Event]) -> None:
        """Keep the newest values; update the display if it is time."""
        for event in events:
            self._keep(event)
        self._is_stale = True
        now = self._clock()
        if self._shown_at is None or now - self._shown_at >= self._interval_s:
            self._show(now)

    def close(self) -> None:
        """Show the last state, which stays."""
        if self._is_stale:
            self._show(self._clock())
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _keep(self, event: Event) -> None:
        if event.stream == STATUS_STREAM:
            self._status.update({k: float(v) for k, v in event.values.items()})
            return
        if event.kind == "frame":
            # Converted when drawn: most frames are replaced before that.
            self._frames.pop(event.stream, None)  # re-inserted as the newest
            self._frames[event.stream] = event
            while len(self._frames) > _MAX_FRAMES:
                del self._frames[next(iter(self._frames))]
            return
        self._figures.update(event_numbers(event))
        if not event.stream:
            self._step = event.step
            # By the clock of arrival: events carry no time of their own.
            self._recent_steps.append((self._clock(), event.step))

    def _show(self, now: float) -> None:
        self._shown_at, self._is_stale = now, False
        if not self._is_live:
            self._console.print(Text("  ".join(self._line(now))), soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,  # its thread would cost the program time
                # Only streams that go to this terminal: a pipe must stay as it is.
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start()
        self._live.update(self._block(now), refresh=True)

    def _speed(self, now: float) -> float | None:
        while (
            len(self._recent_steps) > 2 and self._recent_steps[0][0] < now - _WINDOW_S
        ):
            self._recent_steps.popleft()
        # A speed needs the difference of two points.
        if len(self._recent_steps) < 2:
            return None
        seconds = self._recent_steps[-1][0] - self._recent_steps[0][0]
        steps = self._recent_steps[-1][1] - self._recent_steps[0][1]
        return steps / seconds if seconds > 0 else None

    def _line(self, now: float) -> list[str]:
        parts: list[str] = []
        if self._step is not None:
            parts.append(f"step {self._step:,}")
        parts += [f"{k} {v:.4g}" for k, v in self._figures_to_show().items()]
        speed = self._speed(now)
        if speed is not None:
            parts.append(f"{speed:.3g} steps/s")
        parts += [text.plain for text in self._status_texts()]
        return [escape_controls(part) for part in parts]

    def _figures_to_show(self) -> dict[str, float]:
        # The loss first, then the others in order of appearance.
        first = {k: v for k, v in self._figures.items() if k == "loss"}
        return dict(list((first | self._figures).items())[:_MAX_FIGURES])

    def _status_texts(self) -> Iterator[Text]:
        if spend := overhead_spend(self._status):
            text = f"overhead {format_share(self._status['overhead'])}"
            style = _STYLES[spend.verdict]
            yield Text(f"{text} of {format_share(spend.limit)}", style=style)
        if lost := lost_text(self._status):
            is_summary = self._status.get("dropped_summary")
            yield Text(f"lost {lost}", style="bold red" if is_summary else "yellow")

    def _pictures(self) -> Iterator[tuple[int, str, Picture]]:
        for event in self._frames.values():
            for key, picture in event_pictures(event).items():
                yield event.step, key, picture

    def _block(self, now: float) -> RenderableType:
        head: list[Text] = []
        if self._step is not None:
            head.append(Text(f"step {self._step:,}", style="bold"))
        speed = self._speed(now)
        if speed is not None:
            head.append(Text(f"{speed:.3g} steps/s", style="cyan"))
        head += self._status_texts()
        figures = [
            Text.assemble((escape_controls(k), "dim"), " ", (f"{v:.4g}", "bold"))
            for k, v in self._figures_to_show().items()
        ]
        parts: list[RenderableType] = []
        if head:
            parts.append(Text("   ").join(head))
        if figures:
            parts.append(Columns(figures, padding=(0, 3)))
        # A block that is taller than the terminal could not be updated in place.
        room = self._console.height - 6 - len(figures) // 3
        grids: list[RenderableType] = []
        for step, name, picture in self._pictures():
            small = picture.shrink(max(2 * (room - 3), 4))
            cells = picture_cells(
                small,
                self._console,
                palette=self._palette,
                width=self._console.width - 4,
                lines=room - 3,
            )
            if len(cells.lines) + 2 <= room:
                caption = Text(f"{escape_controls(name)}, step {step}", style="dim")
                grids.append(Group(caption, cells))
        if grids:
            parts.append(Columns(grids, padding=(0, 3)))
        return Panel(
            Group(*parts), title="watch", title_align="left", border_style="dim"
        )
