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


def test_every_kept_result_can_be_read(league, results):
    for source in league.SOURCES:
        path = ROOT / "benchmarks" / "results" / source.file
        rows = list(source.rows(json.loads(path.read_text())))
        assert rows or source.module in results["missing"], source.module
        assert all(r.ahead_by > 0 for r in rows)


@pytest.fixture
def bench(league, tmp_path, monkeypatch):
    """A benchmark that counts its runs in the file of its results."""
    monkeypatch.setattr(league, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(league, "RESULTS", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(league, "ROOT", tmp_path)

    def write(text):
        (tmp_path / "benchmarks" / "toy.py").write_text(text)

    write(
        "import sys\nfrom pathlib import Path\nout = Path(sys.argv[-1])\n"
        "count = int(out.read_text()) if out.exists() else 0\n"
        "out.write_text(str(count + 1))\n"
    )
    source = league.Source(
        module="toy", file="toy.json", rows=lambda data: [], quick=()
    )
    return source, write


def test_a_run_that_fails_leaves_no_old_figures(league, bench, tmp_path):
    source, write = bench
    (tmp_path / "toy.json").write_text("{}")
    write("raise SystemExit('no luck')")
    data, _, why = league.measure(source, full=True)
    assert data is None
    assert why == "failed: no luck"


def test_a_finished_benchmark_is_run_again_only_when_it_changed(league, bench):
    source, write = bench
    assert [league.measure(source, full=False)[0] for _ in range(2)] == [1, 1]
    assert league.measure(source, full=False, again=True)[0] == 2
    write("import sys\nopen(sys.argv[-1], 'w').write('10')\n")
    assert league.measure(source, full=False)[0] == 10
    # How long it took is what the next run foretells.
    assert 0 < league.expect_seconds(source, full=False) < 60
    assert league.expect_seconds(source, full=True) == 600


def test_rows_of_other_benchmarks_stay(league):
    first, second = league.SOURCES[0], league.SOURCES[1]
    commands = [f"python -m benchmarks.{s.module}" for s in (first, second)]
    old = [league.entry(row(league), command, "2026-01-01") for command in commands]
    kept = {"rows": old, "missing": {second.module: "x"}}
    found = league.assemble(kept, {second.module: (None, commands[1], "failed")}, "c")
    assert [r["date"] for r in found["rows"]] == ["2026-01-01"] * 2
    assert found["missing"] == {}
    empty = league.assemble({}, {second.module: (None, commands[1], "failed")}, "c")
    assert empty["missing"] == {second.module: "failed"}


def test_a_plan_that_needs_more_bytes_is_behind(league):
    ours = {"bytes": 200, "extra": 0.0, "met": False}
    found = {
        "made_with": {"date": "2026-01-01"},
        "rows": [
            {
                "task": "t",
                "peer": "p",
                "theirs": {"bytes": 100, "extra": 1.0},
                "ours": ours,
            }
        ],
    }
    (behind,) = league.by_hand_rows({"net": found})
    assert behind.standing == "behind"
    ours |= {"bytes": 100, "met": True}
    (ahead,) = league.by_hand_rows({"net": found})
    assert (ahead.standing, ahead.ahead_by) == ("ahead", 2.0)


def test_losing_rows_are_marked(league):
    entries = [league.entry(row(league, ahead_by=0.5), "command", "date")]
    assert "**behind**" in league.league_table(entries)
