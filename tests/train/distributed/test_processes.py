"""Two real processes on this machine: the same losses, and what happens when one dies.

What each fault does to the others is in docs/distributed.md; how soon is measured by
`python -m benchmarks.run kills`.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import distributed_worker as worker
import forked
from frugax.train.distributed import EXIT_PEER_LOST, launch
from refusals import refuses

WORKER = str(Path(worker.__file__ or ""))
KILLED = 128 + signal.SIGKILL


@pytest.fixture(autouse=True)
def one_device_each(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of 50 steps in one process on one device."""
    losses = []
    worker.train_to(
        tmp_path_factory.mktemp("alone"),
        50,
        on_step=lambda number, metrics, state: losses.append(float(metrics["loss"])),
    )
    return losses


def start(folder, steps, *fault, processes=2, **options):
    command = [sys.executable, WORKER, str(folder), str(steps), *map(str, fault)]
    code = launch(command, processes=processes, label=True, **options)
    result = Path(folder) / "result"
    return code, result.read_text().split() if result.exists() else None


@pytest.mark.thorough
def test_a_run_that_lost_a_process_ends_like_an_uninterrupted_one(tmp_path, alone):
    whole = tmp_path / "whole"
    whole.mkdir()
    code, uninterrupted = start(whole, 50)
    assert code == 0
    assert uninterrupted is not None
    losses = [float(x) for x in (whole / "losses").read_text().split()]
    assert losses == pytest.approx(alone, abs=1e-6)  # at each of the 50 steps
    # Each process wrote its own half of the weights, and none of the other.
    written = [
        sum(p.stat().st_size for p in (whole / "frugax-50").glob(f"{part}/d/*"))
        for part in ("ocdbt.process_0", "ocdbt.process_1")
    ]
    assert 0.6 < written[1] / written[0] < 1.1, written

    code, result = start(tmp_path, 50, "step", "kill", 1, 25, restarts=1)
    assert code == 0
    assert result == uninterrupted  # to the last bit, and in two processes again
    # It goes on in another number of processes than it was begun with: 2 -> 1 ...
    more = worker.train_to(tmp_path, 60)
    assert more.steps == 10
    longer = worker.train_to(tmp_path / "longer", 70)
    # ... and 1 -> 2.
    code, result = start(tmp_path, 70)
    assert code == 0
    assert result is not None
    assert float(result[0]) == pytest.approx(longer.loss, abs=1e-6)


def more(*values):
    return pytest.param(*values, marks=pytest.mark.thorough)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        more(("step", "kill", 0, 25), KILLED, "[1] frugax: "),  # the coordinator
        more(("step", "hang", 1, 25), EXIT_PEER_LOST, "a process of this run hangs"),
        more(("step", "stop", 1, 25), EXIT_PEER_LOST, "[0] frugax: "),
        more(("step", "raise", 1, 25), 1, "the others are not waited for"),
        more(("compilation", "kill", 0, 0), KILLED, "process 0 ended with SIGKILL"),
        more(("compilation", "hang", 1, 0), EXIT_PEER_LOST, "Leaving with exit code 7"),
        more(("checkpoint", "kill", 0, 20), KILLED, "[1] frugax: "),
    ],
    ids=lambda x: "-".join(map(str, x)) if isinstance(x, tuple) else "",
)
def test_if_one_process_fails_the_others_exit(
    tmp_path, capfd, alone, fault, code, words
):
    # Long enough to leave by themselves; one that is stopped never does.
    grace_s = 1.0 if "stop" in fault else 60.0
    found, result = start(tmp_path, 50, *fault, grace_s=grace_s)
    message = capfd.readouterr()
    assert (found, result) == (code, None), message.err
    assert words in message.err
    assert "ended with exit code 75" in message.err  # the survivor, or both
    # Nothing before the last whole checkpoint is lost, and a run that goes on from it
    # ends as it would have.
    again = worker.train_to(tmp_path, 50)
    assert again.steps == {"compilation": 50, "checkpoint": 40}.get(fault[0], 30)
    assert again.loss == pytest.approx(alone[-1], abs=1e-6)


@pytest.mark.thorough
def test_sigterm_to_one_saves_and_stops_all(tmp_path, capfd):
    code, result = start(tmp_path, 100_000, "step", "term", 1, 25)
    assert (code, result) == (EXIT_PEER_LOST, None), capfd.readouterr().err
    saved = worker.train.Checkpoints(tmp_path).latest_intact_step()
    assert saved is not None
    assert 25 < saved < 100_000


@pytest.mark.thorough
def test_processes_do_not_outlive_a_launcher_that_was_killed(tmp_path):
    script = (
        "import os, pathlib, time\n"
        "from frugax.train import distributed\n"
        "distributed.initialize()\n"
        f"p = pathlib.Path({str(tmp_path)!r}) / os.environ['FRUGAX_PROCESS']\n"
        "p.write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    start = (
        "import sys; from frugax.train.distributed import launch\n"
        f"launch([sys.executable, '-c', {script!r}], processes=2)\n"
    )
    with subprocess.Popen([sys.executable, "-c", start]) as launcher:
        while len(list(tmp_path.iterdir())) < 2 and launcher.poll() is None:
            time.sleep(0.1)
        launcher.kill()
    pids = [int(p.read_text()) for p in tmp_path.iterdir()]
    assert len(pids) == 2
    waited_until = time.monotonic() + 60
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < waited_until, "they are still running"
        time.sleep(0.1)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_peer_that_dies_ends_the_others_with_its_code(capfd):
    script = (
        "import os, sys, time\n"
        "if os.environ['FRUGAX_PROCESS'] == '1': sys.exit(7)\n"
        "time.sleep(600)\n"
    )
    code = launch([sys.executable, "-c", script], processes=2, grace_s=0.5)
    assert code == 7
    message = capfd.readouterr().err
    assert message == (
        "frugax launch: process 1 ended with exit code 7; the others are given time "
        "to leave.\n"
    )


@pytest.mark.parametrize(
    ("codes", "expected"), [((75, 3), 3), ((75, 75), 75), ((0, 75), 75), ((0, 0), 0)]
)
def test_the_exit_code_is_that_of_the_first_process_that_failed(codes, expected):
    # The one with 75 is the first to end.
    script = (
        "import os, sys, time\n"
        f"code = {codes}[int(os.environ['FRUGAX_PROCESS'])]\n"
        "time.sleep(0 if code == 75 else 0.5)\n"
        "sys.exit(code)\n"
    )
    command = [sys.executable, "-c", script]
    assert launch(command, processes=2, grace_s=30) == expected


def test_all_are_restarted_up_to_the_limit(tmp_path):
    script = (
        "import sys, os, pathlib\n"
        f"p = pathlib.Path({str(tmp_path)!r}) / os.environ['FRUGAX_PROCESS']\n"
        "n = len(p.read_text()) if p.exists() else 0\n"
        "p.write_text('x' * (n + 1))\n"
        "sys.exit(3 if n < 2 else 0)\n"
    )
    run = lambda restarts: launch(
        [sys.executable, "-c", script], processes=2, restarts=restarts, grace_s=30
    )
    assert run(1) == 3
    assert run(0) == 0
    assert (tmp_path / "0").read_text() == "xxx"


@pytest.mark.parametrize(
    ("times", "code"), [(1, 128 + signal.SIGTERM), (3, 128 + signal.SIGTERM)]
)
def test_signals_are_forwarded_and_prevent_a_restart(tmp_path, times, code):
    # The first is answered by saving; only a process that is deaf needs the third.
    deaf = times > 1
    script = (
        "import os, pathlib, signal, sys, time\n"
        f"p = pathlib.Path({str(tmp_path)!r}) / os.environ['FRUGAX_PROCESS']\n"
        "def save(*_):\n"
        "    p.write_text(p.read_text() + ' saved')\n"
        f"    {'return' if deaf else 'sys.exit(0)'}\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "p.write_text('started')\n"
        "while True: time.sleep(0.01)\n"
    )
    start = (
        "import sys; from frugax.train.distributed import launch\n"
        f"sys.exit(launch([sys.executable, '-c', {script!r}], processes=2, "
        "restarts=5))\n"
    )
    launcher = forked.Command("-c", start)
    for sent in range(times):
        words = "started" + " saved" * sent
        while [p.read_text() for p in tmp_path.iterdir()] != [words] * 2:
            assert launcher.poll() is None
            time.sleep(0.02)
        launcher.send_signal(signal.SIGTERM)
    assert launcher.wait().returncode == code
    assert {p.read_text() for p in tmp_path.iterdir()} >= {
        "started" + " saved" * min(times, 2)
    }


@pytest.mark.parametrize(
    ("options", "lines"), [((), ["0", "1"]), (("--label",), ["[0] 0", "[1] 1"])]
)
def test_the_command_describes_its_steps(options, lines):
    # One write a line: unbuffered, print makes two, and two processes mix them.
    say = "import os; os.write(1, os.environb[b'FRUGAX_PROCESS'] + b'\\n')"
    done = forked.frugax("launch", "-n", "2", *options, "--", sys.executable, "-c", say)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines


def test_a_missing_command_is_reported_in_one_line():
    done = forked.frugax("launch", "-n", "2", "--", "no-such-program")
    assert done.returncode == 2
    assert done.stderr.startswith("frugax: frugax launch: ")
    assert "no-such-program" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"processes": 0}, "processes"),
        ({"processes": 1, "restarts": -1}, "restarts"),
        ({"processes": 1, "devices": 0}, "devices"),
        ({"processes": 1, "grace_s": -1.0}, "grace_s"),
    ],
)
def test_bad_numbers_are_refused(options, named):
    with refuses(ValueError, named):
        launch(["true"], **options)
    with refuses(ValueError, "launch"):
        launch([], processes=1)
