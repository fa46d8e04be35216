"""The league's table is true to its JSON, and its verdicts to their intervals."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location(
    "league", ROOT / "benchmarks" / "league.py"
)


@pytest.fixture(scope="module")
def league():
    import sys

    assert _SPEC is not None
    assert _SPEC.loader is not None
    # A dataclass looks its module up there.
    module = importlib.util.module_from_spec(_SPEC)
    sys.modules["league"] = module
    sys.path.insert(0, str(ROOT))
    try:
        _SPEC.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT))
    return module


@pytest.fixture(scope="module")
def results():
    path = ROOT / "benchmarks" / "results" / "league.json"
    return json.loads(path.read_text())


def block(league, path):
    text = path.read_text()
    assert text.count(league.START) == text.count(league.END) == 1, path
    return text.partition(league.START)[2].partition(league.END)[0].lstrip("\n")


def test_the_tables_match_the_json(league, results):
    assert block(league, league.PAGE) == league.page_text(results)
    assert block(league, league.README) == league.readme_text(results)


def test_the_readme_compares_only_in_the_league(league):
    text = league.README.read_text()
    table = league.START + "\n" + block(league, league.README)
    prose = re.sub(r"^```.*?^```", "", text.replace(table, ""), flags=re.S | re.M)
    claims = re.findall(r"\d[\d.,]*\s*(?:times|x) (?:as|faster|less|more)", prose)
    assert claims == []


def row(league, **changes):
    facts = {"room": "remat", "task": "t", "quantity": "ms", "ours": 1.0}
    return league.Row(**facts | {"peer": "p", "theirs": 2.0, "ahead_by": 2.0} | changes)


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({}, "ahead"),
        ({"ahead_by": 0.5}, "behind"),
        ({"ahead_by": 1.0002}, "even"),
        ({"low": 1.1, "high": 3.0}, "ahead"),
        ({"low": 0.9, "high": 3.0}, "cannot tell"),
        ({"ahead_by": 0.8, "low": 0.7, "high": 0.9}, "behind"),
        ({"ahead_by": float("nan")}, "cannot tell"),
        ({"low": 1.5, "high": 3.0, "cases": 2}, "cannot tell"),
        ({"low": 1.5, "high": 3.0, "cases": 6}, "ahead"),
        ({"low": 1.5, "high": 3.0, "unmeasured": ("botorch",)}, "cannot tell"),
    ],
)
def test_a_standing_needs_the_whole_interval(league, changes, standing):
    assert row(league, **changes).standing == standing


def test_every_kept_result_can_be_read(league):
    for source in league.SOURCES:
        path = ROOT / "benchmarks" / "results" / source.file
        rows = list(source.rows(json.loads(path.read_text())))
        assert rows, source.module
        assert all(r.ahead_by > 0 for r in rows)


def test_a_run_that_fails_leaves_no_old_figures(league, tmp_path):
    source = league.Source(
        module="no_such_benchmark", file="remat.json", rows=league.remat_rows, out=""
    )
    data, _, why = league.measure(source, full=True, folder=tmp_path)
    assert data is None
    assert why.startswith("failed: ")


def test_losing_rows_are_marked(league):
    entries = [league.entry(row(league, ahead_by=0.5), "command", "date")]
    assert "**behind**" in league.league_table(entries)
