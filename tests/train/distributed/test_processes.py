"""Two real processes on this machine: the same losses, and what happens when one dies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frugax.train.distributed import EXIT_PEER_LOST, launch

sys.path.insert(0, str(Path(__file__).parent))
import worker

WORKER = str(Path(worker.__file__))


@pytest.fixture(autouse=True)
def one_device_each(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The last loss of 50 steps in one process on one device."""
    return worker.train_to(tmp_path_factory.mktemp("alone"), 50).loss


def start(folder, steps, *fault, processes=2, restarts=0):
    command = [sys.executable, WORKER, str(folder), str(steps), *fault]
    code = launch(command, processes=processes, restarts=restarts)
    result = Path(folder) / "result"
    return code, result.read_text().split() if result.exists() else None


@pytest.mark.slow
def test_a_run_that_lost_a_process_ends_as_one_that_did_not(tmp_path, alone):
    code, result = start(tmp_path, 50, "kill", "25", restarts=1)
    assert code == 0
    assert result is not None
    assert result[1:] == ["2", "2"]
    assert float(result[0]) == pytest.approx(alone, abs=1e-6)
    # It goes on with another number of processes than it was begun with.
    more = worker.train_to(tmp_path, 60)
    assert more.steps == 10
    again = worker.train_to(tmp_path.parent / "whole", 60)
    assert more.loss == pytest.approx(again.loss, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "stop"])
def test_nobody_waits_for_ever_for_a_process_that_hangs(tmp_path, fault):
    code, result = start(tmp_path, 50, fault, "25")
    assert code == EXIT_PEER_LOST
    assert result is None
    # One process alone goes on from the last checkpoint.
    assert worker.train_to(tmp_path, 30).steps == 10


def test_a_peer_that_dies_ends_the_others_with_its_code(tmp_path):
    script = (
        "import os, sys, time\n"
        "if os.environ['FRUGAX_PROCESS'] == '1': sys.exit(7)\n"
        "time.sleep(600)\n"
    )
    code = launch([sys.executable, "-c", script], processes=2, grace_s=0.5)
    assert code == 7


def test_all_are_started_again_as_often_as_asked(tmp_path):
    script = (
        "import sys, os, pathlib\n"
        f"p = pathlib.Path({str(tmp_path)!r}) / os.environ['FRUGAX_PROCESS']\n"
        "n = len(p.read_text()) if p.exists() else 0\n"
        "p.write_text('x' * (n + 1))\n"
        "sys.exit(3 if n < 2 else 0)\n"
    )
    run = lambda restarts: launch(
        [sys.executable, "-c", script], processes=2, restarts=restarts
    )
    assert run(1) == 3
    assert run(0) == 0
    assert (tmp_path / "0").read_text() == "xxx"


def test_the_command_says_what_it_does(tmp_path):
    say = "import os; print(os.environ['FRUGAX_PROCESS'], flush=True)"
    done = subprocess.run(
        [sys.executable, "-m", "frugax.cli", "launch", "-n", "2", "--", sys.executable]
        + ["-c", say],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"processes": 0}, "processes must be >= 1, got 0"),
        ({"processes": 1, "restarts": -1}, "restarts must be >= 0, got -1"),
    ],
)
def test_bad_numbers_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        launch(["true"], **options)
    with pytest.raises(ValueError, match="launch needs a command"):
        launch([], processes=1)
