"""Grids and status in every terminal: colour, no colour, narrow, no terminal."""

import io
import re
import sys

import numpy as np
import pytest
from rich.console import Console

from frugax.watch.drawing import log_grid_to_console
from frugax.watch.sinks import Sink, Terminal
from refusals import refuses

from ..watching import Clock, event


def console(*, colour=True, width=80, height=40, encoding="utf-8"):
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding, errors="replace", newline="")
    system = "truecolor" if colour else None
    return Console(
        file=file,
        force_terminal=colour,
        color_system=system,
        width=width,
        height=height,
        legacy_windows=False,
        _environ={"TERM": "xterm-256color"},
    )


def written(out):
    out.file.flush()
    return out.file.buffer.getvalue().decode(out.file.encoding)


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize(
    ("grid", "title", "lines"),
    [
        (
            [[1, 2, -1], [3, 0, 9]],
            "Grid",
            ["Grid", "1 2 ·", "3 0 9", "2 × 3, 1 masked"],
        ),
        ([[0.0, 0.5, 1.0, np.nan]], "", ["  = @ ·", "1 × 4, 0 to 1, 1 masked"]),
        # A title can neither style nor steer the terminal.
        ([[1]], "[red]x[/red]\x1b[2J\r\x07", ["[red]x[/red] [2J  ", "1", "1 × 1"]),
    ],
)
def test_a_terminal_without_colour_prints_values_and_shades(capfd, grid, title, lines):
    log_grid_to_console(np.array(grid), title=title)
    assert capfd.readouterr().out.splitlines() == lines


def test_in_colour_each_cell_has_its_background_unless_no_color_is_set(monkeypatch):
    out = console()
    log_grid_to_console([[2, 8]], console=out)
    assert re.findall(r"48;2;(\d+;\d+;\d+)", written(out)) == [
        "255;65;54",
        "127;219;255",
    ]
    monkeypatch.setenv("NO_COLOR", "1")
    buffer = io.StringIO()
    plain_out = Console(force_terminal=True, width=40, file=buffer)
    log_grid_to_console([[2, 8]], console=plain_out)
    assert buffer.getvalue().splitlines()[0] == "2 8"


def test_a_wide_grid_is_half_blocks_of_two_rows_each():
    out = console(width=40)
    log_grid_to_console(np.repeat([[1], [2], [3]], 30, axis=1), console=out)
    lines = plain(written(out)).split("\n")
    assert lines[:2] == ["▀" * 30] * 2
    assert "38;2;0;116;217;48;2;255;65;54m" in written(out)


@pytest.mark.parametrize("colour", [True, False])
def test_a_grid_that_does_not_fit_is_cut_off_with_a_note(colour):
    out = console(colour=colour, width=20)
    log_grid_to_console(np.ones((4, 50), int), console=out)
    text = plain(written(out))
    assert "... 30 more columns" in text
    assert max(map(len, text.split("\n"))) <= 20


def test_a_terminal_without_unicode_gets_letters_it_has():
    out = console(encoding="ascii")
    log_grid_to_console([[1, -1]] * 2, title="é", console=Console(file=io.StringIO()))
    blind = console(colour=False, encoding="ascii")
    for each in (out, blind):
        log_grid_to_console([[1, -1]] * 50, console=each)
    assert "1 ." in written(blind)
    assert "▀" not in written(out)
    assert "?" not in written(out).split("50")[0]


def step(number, **values):
    return event("scalar", "", number, values)


STATUS = {
    "overhead": np.float64(0.02),
    "budget": np.float64(0.01),
    "kept_summary": np.int64(5),
    "dropped_summary": np.int64(0),
    "kept_frame": np.int64(10),
    "dropped_frame": np.int64(3),
}


def test_without_a_terminal_plain_lines_are_printed_at_intervals():
    out, clock = console(colour=False, width=200), Clock()
    sink = Terminal(console=out, clock=clock)
    assert isinstance(sink, Sink)
    for i in range(100):
        clock.now = float(i)
        sink.write([step(10 * i, norm=2.0, loss=1 / (i + 1))])
    sink.write([event("summary", "watch", 990, STATUS)])
    sink.close()
    lines = written(out).splitlines()
    assert len(lines) == 11
    assert lines[0] == "step 0  loss 1  norm 2"
    assert lines[-1] == (
        "step 990  loss 0.01  norm 2  10 steps/s  overhead 2% of 1%  lost 3 frames"
    )


def test_on_a_terminal_one_block_stays_and_shows_the_newest_grid():
    out, clock = console(), Clock()
    sink = Terminal(console=out, clock=clock)
    for i in range(3):
        clock.now = float(i)
        grid = np.full((2, 2), i + 1)
        sink.write([step(i, loss=1.0), event("frame", "grid", i, {"grid": grid})])
    sink.write([event("summary", "watch", 990, STATUS)])
    assert sys.stdout is sys.__stdout__ or not hasattr(sys.stdout, "rich_proxied_file")
    sink.close()
    text = written(out)
    last = plain(text[text.rindex("╭") :])
    for said in (
        "step 2",
        "1 steps/s",
        "2% of 1%",
        "lost 3",
        "loss 1",
        "grid, step",
    ):
        assert said in last
    assert "48;2;46;204;64" in text  # green, the third grid's
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_drawing_is_not_more_frequent_than_asked():
    out, clock = console(), Clock()
    sink = Terminal(console=out, clock=clock, interval_s=1.0)
    for i in range(100):
        clock.now = i * 0.1
        sink.write([step(i, loss=1.0)])
    assert written(out).count("╭") == 10
    sink.close()
    assert written(out).count("╭") >= 11  # grids since the last drawing are shown


def test_a_grid_taller_than_the_terminal_is_thinned_to_fit():
    out = console(height=16)
    sink = Terminal(console=out)
    sink.write([event("frame", "grid", 0, {"grid": np.ones((60, 60), int)})])
    sink.close()
    block = plain(written(out))
    assert block[block.rindex("╭") :].count("\n") <= 16
    assert "▀" in block


def test_an_invalid_interval_is_refused():
    with refuses(ValueError, "interval_s"):
        Terminal(interval_s=-1.0)
