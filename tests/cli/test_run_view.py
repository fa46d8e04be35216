"""What `frugax run` prints where its output is not a terminal."""

import io

from rich.console import Console

from frugax.cli._run_view import RunView


def test_a_line_a_minute_says_how_far_a_training_is(monkeypatch):
    output = io.StringIO()
    view = RunView(Console(file=output, width=100), None)
    now = 0.0
    monkeypatch.setattr(view._bar, "get_time", lambda: now)
    for step in range(1, 301):
        now = float(step)  # a step a second
        view.training(step, 1000, {"loss": 0.5})
    lines = output.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        f"step {step} of 1,000" for step in (61, 121, 181, 241)
    ]
    assert "loss 0.5  1 steps/s" in lines[0]
