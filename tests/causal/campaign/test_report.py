"""The report: its figures, and the drawing of the graph."""

import re

import numpy as np

from frugax.causal.campaign.report import (
    draw_graph,
)


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
