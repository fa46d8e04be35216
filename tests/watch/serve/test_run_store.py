"""The page's status of a run that is alive, has ended, was killed, or is damaged."""

import fcntl
import json
import os

import numpy as np
import pytest

from frugax.errors import ConfigError
from frugax.watch.journal import Journal, is_held
from frugax.watch.serve import RunCollection, RunStore
from refusals import refuses


def _read(journal, *, now=0.0):
    run = RunStore(journal, "name")
    run.open()
    while run.poll(now)[1]:
        pass
    return run


def _describe(run):
    return run.describe(0) | run.details()


def _state(folder, *, later=0.0):
    now = os.stat(folder / "journal").st_mtime + later
    return _describe(_read(folder / "journal", now=now))


def test_fresh_records_mean_that_it_runs(folder):
    state = _state(folder, later=5)
    assert state["state"] == "running"
    assert state["title"] == "small"
    assert state["streams"][""]["records"] == 100
    assert state["streams"]["grid"]["frames"]["grid"]["count"] == 10
    assert state["facts"]["steps"] == 200
    assert state["facts"]["budgets"][0]["limit_text"] == "1%"
    assert any("receipt.json" in text for text in state["facts"]["missing"])


def test_values_that_are_not_finite_are_null_and_listed_with_their_holes(tmp_path):
    values = [1.0, np.nan, np.inf, -2.5, np.nan]
    with Journal.create(tmp_path / "journal", {}) as journal:
        for step, value in enumerate(values):
            journal.write(step, {"bad": np.nan, "loss": value})
    run = _read(tmp_path / "journal")
    told = _describe(run)
    assert told["columns"] == [["", "bad", None], ["", "loss", -2.5]]
    assert told["streams"][""]["latest"]["loss"] is None
    assert told["extremes"] == {"loss": [-2.5, 1.0]}
    bad, loss = run.points("", "bad"), run.points("", "loss")
    assert bad is not None
    assert bad["holes"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert loss is not None
    assert loss["y"] == [1.0, None, None, -2.5, None]


def test_a_silent_run_without_a_lock_is_dead_unless_its_journal_is_closed(folder):
    assert _state(folder, later=600)["state"] == "died"
    (folder / ".lock").touch()  # left behind by a process that was killed
    assert _state(folder, later=600)["state"] == "died"
    with Journal.append_to(folder / "journal"):
        pass
    assert _state(folder, later=600)["state"] == "closed"


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="Linux says who locks")
def test_a_silent_run_that_holds_its_lock_is_alive(folder):
    with Journal.append_to(folder / "journal"):  # of `watch.run`, without `.lock`
        assert _state(folder, later=600)["state"] == "quiet"
    (folder / "journal").write_bytes((folder / "journal").read_bytes()[:-30])
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_held(folder / ".lock") is True
        assert _state(folder, later=600)["state"] == "quiet"
    assert is_held(folder / ".lock") is False


def test_a_receipt_means_that_it_has_ended(finished):
    state = _state(finished, later=600)
    assert state["state"] == "finished"
    facts = state["facts"]
    assert facts["budgets"][0]["measured_text"] == "0.4%"
    assert facts["budgets"][0]["verdict"] == "kept"
    assert facts["evaluations"] == {"accuracy": {"x": [50, 100], "y": [0.5, 0.75]}}
    assert facts["missing"] == []


def test_a_run_before_its_first_step_is_waited_for(folder):
    (folder / "journal").rename(folder / "kept")
    runs = RunCollection(folder)
    assert not runs.poll()
    assert runs.details(0)["state"] == "waiting"
    (folder / "kept").rename(folder / "journal")
    runs.poll()
    assert runs.details(0)["streams"][""]["last"] == 100


def test_a_state_that_time_alone_has_changed_is_told(folder):
    written = os.stat(folder / "journal").st_mtime
    run = _read(folder / "journal", now=written)
    assert run.state[0] == "running"
    assert run.poll(written + 5) == (False, False)
    assert run.poll(written + 600) == (True, False)
    assert run.state[0] == "died"


def test_a_journal_alone_is_enough(finished, tmp_path):
    runs = RunCollection(finished / "journal")
    assert runs.details(0)["facts"]["finished"]  # beside it
    alone = tmp_path / "alone"
    (finished / "journal").rename(alone)
    state = _describe(_read(alone))
    assert state["title"] == "small"  # its meta says so
    assert state["streams"][""]["records"] == 100


def test_another_journal_in_its_place_is_followed(folder):
    run = _read(folder / "journal")
    before = _describe(run)["rewinds"]
    (folder / "journal").rename(folder / "old")
    with Journal.create(folder / "journal", {}) as journal:
        journal.write(7, {"loss": 1.0})
    for _ in range(3):
        run.poll(0.0)
    state = _describe(run)
    assert state["streams"][""]["last"] == 7
    assert state["rewinds"] > before  # by which pages forget what they hold
    assert run.points("", "loss") == {"x": [7.0], "y": [1.0]}


def test_a_journal_that_cannot_be_read_is_reported_once(folder):
    (folder / "journal").write_bytes(b"something else")
    run = RunStore(folder / "journal", "name")
    assert run.poll(0.0) == (True, False)
    assert run.state[0] == "unreadable"
    # Neither news again nor more to read: a server would be busy for good.
    assert run.poll(0.0) == (False, False)


@pytest.mark.parametrize("text", ["{", "[1]", "\xff", "[" * 1_000])
def test_damage_is_declared_and_the_rest_is_shown(folder, text):
    (folder / "receipt.json").write_bytes(text.encode("latin-1"))
    (folder / "config.yaml").write_bytes(text.encode("latin-1"))
    state = _state(folder)
    assert state["facts"]["missing"]
    assert state["streams"][""]["records"] == 100
    data = bytearray((folder / "journal").read_bytes())
    data[len(data) // 2] ^= 255
    (folder / "journal").write_bytes(data)
    assert _state(folder)["damage"]


def test_numbers_in_a_receipt_that_are_not_finite_are_harmless(finished):
    receipt = json.loads((finished / "receipt.json").read_text())
    receipt["spends"][0]["measured"] = float("nan")
    receipt["evaluations"] = [[1, {"a": float("inf")}], ["x", 3], 5]
    (finished / "receipt.json").write_text(json.dumps(receipt))
    facts = _state(finished)["facts"]
    assert facts["budgets"][0]["measured"] is None
    assert facts["evaluations"] == {}


def test_a_folder_without_a_run_is_reported(tmp_path):
    with refuses(ConfigError, "folder"):
        RunCollection(tmp_path / "nothing")
    with refuses(ConfigError, "here"):
        RunCollection(tmp_path)
    (tmp_path / "text").write_text("hello")
    with refuses(ConfigError, "journal"):
        RunCollection(tmp_path / "text")
