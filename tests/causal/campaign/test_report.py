"""The report: its figures, and the drawing of the graph."""

import re

import numpy as np
import pytest

from frugax import ExperimentBudget, causal
from frugax.causal.campaign import report_page
from frugax.causal.campaign.report import draw_graph


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


def test_labels_of_a_graph_do_not_cover_each_other():
    edges = np.full((4, 4), 0.3)
    np.fill_diagonal(edges, 0)
    drawn = draw_graph(tuple("abcd"), edges, target="d", settable=frozenset("a"))
    places = re.findall(r'class="odds" x="(\d+)" y="(\d+)"', drawn)
    boxes = np.array(places, int) / [24, 10]  # sizes of "30%"
    apart = np.abs(boxes[:, None] - boxes[None]).max(2)
    assert len(places) == 12
    assert (apart + np.eye(12) >= 0.8).all()


@pytest.mark.parametrize("strength", [0.0, 1.5])
def test_a_cause_of_two_variables_that_no_row_has_is_named(strength):
    def observe(do, rows, rng):
        hidden = strength * rng.standard_normal(rows)
        x, z = hidden + rng.standard_normal(rows), rng.standard_normal(rows)
        x, z = (np.full(rows, do.get(n, v)) for n, v in (("x", x), ("z", z)))
        y = x + z + hidden + 0.5 * rng.standard_normal(rows)
        return {"x": x, "z": z, "y": y}

    campaign = causal.Campaign(
        variables={"x": (-3, 3), "z": (-3, 3)},
        target="y",
        budget=ExperimentBudget(n=4),
        rows_per_experiment=5,
    )
    campaign.tell_observations(observe({}, 100, np.random.default_rng(0)))
    while (one := campaign.ask()) is not None:
        rng = np.random.default_rng([1, one.id])
        campaign.tell(one, observe(one.intervention.values, 5, rng))
    page = report_page("some", campaign, campaign.advise())
    assert ("x and y (" in page) == (strength > 0)
    assert "z and y (" not in page
    assert "y and z (" not in page
