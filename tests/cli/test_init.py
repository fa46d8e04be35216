"""`frugax init`: a model and a config that run as they are."""

import pytest

from forked import frugax, inline


@pytest.mark.thorough
def test_the_files_run_as_they_are_written(tmp_path):
    folder = tmp_path / "mine"
    done = inline("init", folder)
    assert done.returncode == 0
    assert f"frugax run {folder / 'model.yaml'}" in done.stdout
    assert f"frugax plan {folder / 'train.py'}" in done.stdout
    few = "train.steps=5", "train.evaluate_every=5", "budgets.time.seconds=1h"
    runs = tmp_path / "runs"
    # In a process of its own: this one raises where ranks are promoted.
    done = frugax("run", folder / "model.yaml", "--runs", runs, "--set", *few)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (runs / "model" / "model.fxz").is_file()


def test_the_script_is_planned_and_runs_as_it_is_written(tmp_path):
    inline("init", tmp_path)
    script, small = tmp_path / "train.py", ["--layers", "2", "--width", "32"]
    done = frugax("plan", script, "--budget", "1GiB", "--", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step (train.py:" in done.stdout
    done = frugax("exec", script, *small, "--steps", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 0: loss" in done.stdout


def test_no_file_of_the_user_is_replaced(tmp_path):
    (tmp_path / "model.yaml").write_text("mine")
    done = inline("init", tmp_path)
    assert done.returncode == 2
    assert "model.yaml exists and is not replaced" in done.stderr
    assert (tmp_path / "model.yaml").read_text() == "mine"
    assert not (tmp_path / "model.py").exists()


def test_a_folder_that_is_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = inline("init", tmp_path / "file")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "cannot be written" in done.stderr
