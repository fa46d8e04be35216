"""A task's snapshots: taken when affordable, checked, journalled and drawn."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import watch
from frugax.budget import OverheadBudget
from frugax.errors import ConfigError
from frugax.run._snapshot_html import render_streams
from frugax.run._snapshots import Snapshots
from frugax.run._task_checks import check_show
from refusals import refuses


class Purse(watch.Watcher):
    """A watcher that can afford a number of seconds, and counts the spent ones."""

    def __init__(self, journal: watch.Journal, seconds: float) -> None:
        super().__init__(journal, OverheadBudget("1%"))
        self.seconds, self.asked, self.paid = seconds, [], 0

    def can_afford(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return seconds <= self.seconds

    @contextlib.contextmanager
    def overhead(self):
        self.paid += 1
        yield


@pytest.fixture
def journal(tmp_path):
    with watch.Journal.create(tmp_path / "journal", {}) as journal:
        yield journal


def one_grid(params, carried):
    return {"grids": {"now": params[None]}, "told": {"sum": params.sum()}}


def streams_of(journal, tmp_path):
    journal.flush()
    return watch.read(tmp_path / "journal").streams


def test_snapshots_takes_each_step_once(journal, tmp_path):
    purse = Purse(journal, seconds=1e9)
    snapshots = Snapshots(one_grid, purse, journal)
    snapshots.record(0, jnp.zeros((2, 2)))
    snapshots.offer(3, jnp.ones((2, 2)))
    snapshots.record(3, jnp.ones((2, 2)))
    assert purse.paid == 2
    assert snapshots.last_step == 3
    streams = streams_of(journal, tmp_path)
    assert streams["grids"].steps.tolist() == streams["told"].steps.tolist() == [0, 3]
    assert streams["grids"]["now"].shape == (2, 1, 2, 2)
    assert streams["told"]["sum"].tolist() == [0, 4]


def test_a_snapshot_must_afford_the_cost_of_the_last_one(journal, tmp_path):
    purse = Purse(journal, seconds=0.0)
    snapshots = Snapshots(one_grid, purse, journal)
    snapshots.offer(1, jnp.zeros((2, 2)))  # its cost is not known yet
    snapshots.offer(2, jnp.zeros((2, 2)))
    assert purse.asked[0] == 0 < purse.asked[1]
    assert snapshots.last_step == 1
    snapshots.record(3, jnp.zeros((2, 2)))  # at any cost
    assert streams_of(journal, tmp_path)["grids"].steps.tolist() == [1, 3]


def test_a_surplus_is_not_spent_at_once(journal, tmp_path):
    snapshots = Snapshots(
        one_grid, Purse(journal, seconds=1e9), journal, min_steps_apart=4
    )
    for step in range(1, 11):
        snapshots.offer(step, jnp.zeros((2, 2)))
    snapshots.record(10, jnp.zeros((2, 2)))
    assert streams_of(journal, tmp_path)["grids"].steps.tolist() == [1, 5, 9, 10]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (3, 3),
        ({"": {"a": 1}}, "''"),
        ({"watch": {"a": 1}}, "watch"),
        ({1: {"a": 1}}, 1),
        ({"s": jnp.zeros(2)}, "'s'"),
        ({"s": {}}, "'s'"),
        ({"s": {"a": "text"}}, "'s'"),
        ({"s": {"a": jnp.zeros(2, complex)}}, "'s'"),
    ],
)
def test_a_snapshot_that_cannot_be_shown_is_named(given, named):
    with refuses(ConfigError, named):
        check_show(lambda params: given, jnp.zeros(2))


def test_a_snapshot_that_can_be_shown_passes():
    check_show(one_grid, jnp.zeros((2, 2)), None)
    check_show(lambda p: {"s": {"a": p > 0, "b": 1, "c": np.int8(2)}}, jnp.zeros(2))
    assert jax.eval_shape(one_grid, jnp.zeros((2, 2)), None)  # it was not run


def recorded(journal, tmp_path, *, steps, name="grids"):
    for step in range(steps):
        grids = np.full((2, 3, 3), step % 10, np.int8)
        journal.write(step, {"given": grids, "now": grids[0]}, stream=name)
        journal.write(step, {"sum": step / 8, "each": np.arange(2.0)}, stream="told")
        journal.write(step, {"overhead": 0.5}, stream="watch")
    return streams_of(journal, tmp_path)


def test_grids_are_drawn_for_some_steps_and_the_last_one_is_seen(journal, tmp_path):
    page = render_streams(recorded(journal, tmp_path, steps=50))
    frames = re.findall(r'data-frame="(\d+)" data-step="(\d+)"( hidden)?>', page)
    assert [int(i) for i, _, _ in frames] == list(range(12))
    assert (frames[0][1], frames[-1][1]) == ("0", "49")
    assert [bool(hidden) for *_, hidden in frames] == [True] * 11 + [False]
    assert 'max="11" value="11"' in page
    assert "Recorded at 50 training steps" in page
    assert page.count(">given</text>") == page.count(">now</text>") == 12


def test_numbers_are_shown_in_a_table(journal, tmp_path):
    page = render_streams(recorded(journal, tmp_path, steps=3))
    assert '<td>sum</td><td class="n">0</td><td class="n">0.125</td>' in page
    ones = '<td class="n">1</td>' * 3
    assert f"<td>each[1]</td>{ones}</tr>" in page
    assert ">overhead<" not in page  # the cost of watching is shown elsewhere


def test_names_are_text_and_no_html(journal, tmp_path):
    page = render_streams(recorded(journal, tmp_path, steps=1, name="<script>"))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_no_streams_no_section(journal, tmp_path):
    journal.write(1, {"overhead": 0.5}, stream="watch")
    assert render_streams(streams_of(journal, tmp_path)) == ""
