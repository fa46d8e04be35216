"""The quick rows of the golden tables are what the program gives."""

import argparse
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from . import __main__ as command
from .table import Case, Table, compare, is_close, make_header, run_case

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(jax.__version__ != "0.10.2", reason="the tables are of JAX 0.10.2")
def test_the_quick_cases_are_as_stored():
    command = [sys.executable, "-m", "tests.golden", "--check", "--quick"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("before", "after", "tolerance", "close"),
    [
        (1, 1, 0.0, True),
        (1, True, 1.0, False),
        (100, 101, 0.0, False),
        (100, 101, 0.01, True),
        (-1.0, -1.02, 0.01, False),
        ("a", "b", 1.0, False),
        (None, 0, 1.0, False),
        # In a list, beside its largest number.
        ([1000.0, 0.001], [1000.0, 0.002], 1e-5, True),
        ([1000.0, 0.1], [1000.0, 0.2], 1e-5, False),
        ([1, "x"], [1, "y"], 1.0, False),
        ([1, 2], [1], 1.0, False),
    ],
)
def test_cells_are_compared_up_to_their_tolerance(before, after, tolerance, close):
    assert is_close(before, after, tolerance) is close


def test_a_moved_cell_is_named_and_another_machine_is_not_compared():
    case = Case("one", dict, tolerance={"bytes": 0.1}, machine=("digest",))
    stored = {"bytes": 100, "digest": "a", "gone": 1}
    found = {"bytes": 105, "digest": "b", "new": 2}
    lines, left_out = compare(case, stored, found, is_same_machine=True)
    assert lines == [
        'one: digest: "a" -> "b"',
        "one: gone: 1 -> nothing",
        "one: new: nothing -> 2",
    ]
    assert left_out == 0
    lines, left_out = compare(case, stored, found, is_same_machine=False)
    assert len(lines) == 2
    assert left_out == 1


@dataclasses.dataclass
class TooSmallError(Exception):
    needed: int


def test_an_error_is_a_row_with_its_type_and_what_is_needed():
    def outcome():
        raise TooSmallError(7)

    assert run_case(Case("one", outcome)) == {"error": "TooSmallError", "needed": 7}


def test_a_table_comes_back_as_it_was_written(tmp_path):
    rows = {"b": {"x": 1.5, "y": ["nan", None]}, "a": {"z": True}}
    Table({"machine": "this"}, rows).write(tmp_path / "t.json")
    assert Table.read(tmp_path / "t.json") == Table({"machine": "this"}, rows)
    assert len((tmp_path / "t.json").read_text().splitlines()) == 7
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
    assert Table.read(tmp_path / "none.json") is None


@pytest.fixture
def run_part(tmp_path, monkeypatch, capsys):
    """Run cases as the part `small`; return the exit code, the text and the file."""
    monkeypatch.setattr(command, "FOLDER", tmp_path)

    def run(*cases, check):
        monkeypatch.setattr(command, "load_cases", lambda part: iter(cases))
        options = argparse.Namespace(case="", quick=False, missing=False, check=check)
        code = command._run_part("small", options)
        return code, capsys.readouterr().out, tmp_path / "small.json"

    return run


def test_a_check_fails_where_a_cell_moved_and_writes_nothing(run_part):
    code, _, file = run_part(Case("one", lambda: {"bytes": 1}), check=False)
    stored = file.read_bytes()
    assert code == 0
    assert run_part(Case("one", lambda: {"bytes": 1}), check=True)[0] == 0
    code, text, _ = run_part(Case("one", lambda: {"bytes": 2}), check=True)
    assert code == 1
    assert "one: bytes: 1 -> 2" in text
    assert file.read_bytes() == stored


@pytest.mark.parametrize("check", [True, False])
def test_a_case_without_its_package_keeps_its_row_and_is_named(
    run_part, tmp_path, check
):
    rows = {"one": {"bytes": 1}}
    Table(make_header("small"), rows).write(tmp_path / "small.json")

    def outcome():
        raise ModuleNotFoundError("No module named 'haiku'", name="haiku")

    code, text, file = run_part(Case("one", outcome), check=check)
    table = Table.read(file)
    assert code == 0
    assert "small: one: not run: needs haiku" in text
    assert table is not None
    assert table.rows == rows
