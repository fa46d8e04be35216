"""The report: its figures, and the drawing of the graph."""

import re

import numpy as np

from frugax.causal.campaign import ExperimentRecord, Forecast
from frugax.causal.campaign.report import (
    ExperimentOutcome,
    draw_graph,
    render_calibration,
)


def test_the_width_of_the_forecasts_is_reported():
    wide = Forecast(
        expected=0.0,
        low=-20.0,
        high=3.0,
        worth=0.0,
        best={"x": 1.0},
        best_expected=0.0,
        best_low=-20.0,
        best_high=3.0,
        prob_optimal=0.5,
    )
    step = ExperimentOutcome(
        record=ExperimentRecord(id=0, values={"x": 1.0}),
        forecast=wide,
        cost=1.0,
        spent_before=0.0,
        mean=1.0,
        inside=True,
    )
    said = render_calibration((step,) * 8, 2.0)
    assert "8 of 8 outcomes were within" in said
    assert "The median width of the intervals was 23, 12 times the target" in said


def test_all_edges_stay_inside_the_drawing():
    names = ("a", "b", "c", "a name that is far too long for its box")
    edges = np.zeros((4, 4))
    edges[0, 1] = edges[0, 2] = 0.9
    edges[1, 2] = edges[1, 0] = 0.3  # within a column, and back
    edges[2, 0], edges[2, 3] = 0.2, 0.62
    drawn = draw_graph(names, edges, target="c", settable=frozenset("a"))
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', drawn)
    assert box is not None
    paths = re.findall(r'class="edge" d="M([^"]+)"', drawn)
    assert len(paths) == 6
    points = [re.findall(r"(-?\d+) (-?\d+)", path) for path in paths]
    labels = re.findall(r'class="odds" x="(-?\d+)" y="(-?\d+)"', drawn)
    for x, y in [xy for some in (*points, labels) for xy in some]:
        assert 0 <= int(x) <= int(box[1]) - 2
        assert 0 <= int(y) <= int(box[2]) - 2
    assert f"<title>{names[3]}</title>" in drawn
    assert "a name that i…" in drawn
