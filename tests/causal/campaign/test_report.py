"""The report: its figures, and the drawing of the graph."""

import re

import numpy as np
import pytest

from frugax.causal.campaign import ExperimentRecord, Forecast
from frugax.causal.campaign.report import (
    ExperimentOutcome,
    draw_graph,
    find_binomial_range,
    render_calibration,
)


@pytest.mark.parametrize(
    ("n", "usual"), [(1, (0, 1)), (3, (1, 3)), (10, (7, 10)), (100, (84, 95))]
)
def test_the_number_of_hits_is_a_binomial_range(n, usual):
    drawn = np.random.default_rng(0).binomial(n, 0.9, 100_000)
    low, high = find_binomial_range(n)
    assert np.mean(drawn < low) <= 0.027
    assert np.mean(drawn > high) <= 0.027
    assert np.mean(drawn <= low) > 0.023
    assert (low, high) == usual


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


def test_labels_of_a_crowded_graph_do_not_overlap():
    names = tuple("abcdefgh")
    edges = np.random.default_rng(0).uniform(0, 0.99, (8, 8)) * (1 - np.eye(8))
    drawn = draw_graph(names, edges, target="c", settable=frozenset("a"))
    found = re.findall(r'class="odds" x="(\d+)" y="(\d+)"[^>]*>(\d+%)<', drawn)
    labels = [
        (int(x) - 3 * len(t), int(y) - 9, int(x) + 3 * len(t), int(y))
        for x, y, t in found
    ]
    rects = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', drawn)
    boxes = [
        (x, y, x + wide, y + high) for x, y, wide, high in (map(int, r) for r in rects)
    ]
    for i, (left, top, right, bottom) in enumerate(labels):
        for other in (*labels[:i], *boxes):
            assert (
                left >= other[2]
                or right <= other[0]
                or (top >= other[3] or bottom <= other[1])
            )
    assert len(labels) > 15
    no_room = re.findall(r"No room in the picture for: (.*)\.<", drawn)[0].split(", ")
    assert len(labels) + len(no_room) == (edges >= 0.05).sum()
