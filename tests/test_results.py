"""The table of results is true to its JSON, and its standings to their intervals."""

import dataclasses
import json
import re

import pytest
from benchmarks import harness, results
from benchmarks.harness import Case, Part, Row, keep, run, time_cases

from refusals import refuses


@pytest.fixture(scope="module")
def kept():
    return json.loads(results.ALL.read_text())


def block(path):
    text = path.read_text()
    assert text.count(results.START) == text.count(results.END) == 1, path
    return text.partition(results.START)[2].partition(results.END)[0].lstrip("\n")


def test_the_tables_match_the_json(kept):
    assert block(results.PAGE) == results.page_text(kept)
    assert block(results.README) == results.readme_text(kept)


def test_the_readme_compares_only_in_the_table():
    text = results.README.read_text()
    table = results.START + "\n" + block(results.README)
    prose = re.sub(r"^```.*?^```", "", text.replace(table, ""), flags=re.S | re.M)
    claims = re.findall(r"\d[\d.,]*\s*(?:times|x) (?:as|faster|less|more)", prose)
    assert claims == []


def row(**changes):
    one = Row.counted("t", "ms", 1.0, "p", 2.0)
    return dataclasses.asdict(dataclasses.replace(one, **changes))


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
def test_a_standing_needs_the_whole_interval(changes, standing):
    assert results.judge(row(**changes)) == standing


def test_the_kept_files_assemble_to_the_kept_table(kept):
    parts = results.find_parts()
    found = {
        key: (results.read_rows(*key, results.RESULTS / f"{key[0]}.json"), "")
        for key in parts
    }
    assembled = results.assemble({}, parts, found, kept["command"])
    packages = {key[0] for key in parts}
    wanted = [row for row in kept["rows"] if row["package"] in packages]
    assert results.results_table(assembled["rows"]) == results.results_table(wanted)
    assert all(row["ahead_by"] > 0 for row in wanted)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A benchmark that counts its runs in the file of its results."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "SHORT", tmp_path)
    monkeypatch.setattr(results, "DOWNLOADS", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "source_digest", lambda: "now")
    (tmp_path / "benchmarks").mkdir()

    def write(text):
        (tmp_path / "benchmarks" / "toy.py").write_text(text)

    write(
        "import json, sys\nfrom pathlib import Path\nout = Path(sys.argv[3])\n"
        "old = json.loads(out.read_text())['a']['found'] if out.exists() else 0\n"
        "entry = {'source': 'now', 'seconds': 60, 'found': old + 1}\n"
        "out.write_text(json.dumps({'a': entry}))\n"
    )
    return write


def measure(**how):
    part = Part(measure=lambda _: {})
    why = results.measure("toy", "a", part, **{"full": False, "again": False} | how)
    return why, results.read_part(results.RESULTS / "toy.json", "a").get("found")


def test_a_run_that_fails_leaves_no_old_figures(bench, tmp_path):
    (tmp_path / "toy.json").write_text("{}")
    bench("raise SystemExit('no luck')")
    assert measure(full=True)[0] == "failed: no luck"


def test_a_finished_part_is_run_again_only_when_the_source_changed(bench, monkeypatch):
    assert [measure()[1] for _ in range(2)] == [1, 1]
    assert measure(again=True)[1] == 2
    # How long it took is what the next run foretells.
    part = Part(measure=lambda _: {})
    assert results.expect_minutes("toy", "a", part, full=False) == 1
    monkeypatch.setattr(results, "source_digest", lambda: "later")
    assert measure()[1] == 3


def test_rows_of_other_parts_stay():
    first, second = ("remat", "time"), ("tropical", "matmul")
    old = [row() | {"package": p, "part": n} for p, n in (first, second)]
    kept = {"rows": old, "missing": {" ".join(second): "x"}}
    found = results.assemble(kept, [first, second], {second: ([], "failed")}, "c")
    assert found["rows"] == old
    assert found["missing"] == {}
    empty = results.assemble({}, [first, second], {second: ([], "failed")}, "c")
    assert empty["missing"] == {"tropical matmul": "failed"}


def test_losing_rows_are_marked():
    one = row(ahead_by=0.5)
    one |= {"package": "p", "date": "d", "standing": results.judge(one)}
    assert "**behind**" in results.results_table([one])


def test_a_case_times_rivals_in_turns_beside_a_control():
    case = Case(name="c", ours=lambda: 1, rivals={"b": lambda: 1, "a": lambda: 1})
    found = case.measure(0.01, chunk_s=0.001)
    assert list(found) == ["frugax", "frugax again", "b", "a"]
    assert found["frugax"]["ratio"] == 1.0
    assert all(f["low"] <= f["ratio"] <= f["high"] for f in found.values())
    found["a"]["ratio"], found["b"]["ratio"] = 0.5, 2.0
    (beside,) = case.rows(found)
    assert (beside.peer, beside.ahead_by) == ("a", 0.5)  # the winner, though it wins
    assert [r.peer for r in case.rows(found, peers=("b", "absent"))] == ["a", "b"]


def test_a_rival_with_another_result_is_an_error():
    rivals = {"wrong": lambda: 2.0}
    case = Case(name="c", ours=lambda: 1.0, rivals=rivals, expected=1.0)
    with refuses(ValueError, "wrong"):
        case.measure(0.01)


def test_a_quick_run_leaves_the_kept_results(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "QUICK", tmp_path / "quick")
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "kept")
    parts = {"a": Part(measure=lambda _: {"x": {"bytes": 1}})}
    for argv, folder in ((["a", "--quick"], "quick"), (["a"], "kept")):
        assert not (tmp_path / folder).exists()
        run("toy", parts, argv=argv)
        assert (tmp_path / folder / "toy.json").exists()


def test_cases_are_chosen_by_their_name_up_to_a_comma(tmp_path):
    def make(given):
        for name in ("net, 0.5", "net, 0.25", "other"):
            yield Case(name=name, ours=lambda: 1, rivals={"peer": lambda: 1})

    parts = {"a": time_cases(make)}
    argv = ["a", "--cases", "net", "--quick", "--out", str(tmp_path / "toy.json")]
    assert list(run("toy", parts, argv=argv)["a"]) == ["net, 0.5", "net, 0.25"]


def test_a_run_of_some_cases_keeps_the_others(tmp_path):
    out = tmp_path / "toy.json"

    def measure(given):
        return {name: {"bytes": 1} for name in given.cases.split(",")}

    def rows(found):
        return [Row.counted(name, "bytes", 1, "peer", 2) for name in found]

    parts = {"a": Part(measure=measure, rows=rows)}
    for cases in ("x,z", "y,x"):
        run("toy", parts, argv=["a", "--cases", cases, "--out", str(out)])
    entry = json.loads(out.read_text())["a"]
    assert list(entry["found"]) == ["x", "z", "y"]
    assert [r["task"] for r in entry["rows"]] == ["z", "y", "x"]
    assert [bool(r["date"]) for r in entry["rows"]] == [True, False, False]
    keep(out, "b", entry, merge=False)
    assert list(json.loads(out.read_text())) == ["a", "b"]
