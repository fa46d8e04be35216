"""Each figure of the README is one that a command measured and kept."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text()
PROSE = re.sub(r"\s+", " ", README)


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("part", ["plan", "run"])
def test_the_outputs_are_those_that_the_commands_printed(part):
    found = results("first_page")[part]
    assert found["command"].removeprefix("frugax ") in README
    assert f"\n{found['table']}\n```" in README


def test_the_page_shows_the_measured_cost_and_dates():
    found = results("first_page")
    made, seconds = found["made_with"], found["plan"]["cpu_seconds"]
    day = made["date"].split()[0]
    assert f"JAX {made['jax']}, {seconds:.0f} s of processor time, {day}" in PROSE
    assert f"two shared CPU cores, JAX {made['jax']}, {day}" in PROSE


def test_the_clock_of_each_tutorial_is_the_measured_one():
    for name, seconds in results("first_page")["clock"].items():
        link = rf"\(docs/tutorials/{name}\.md\)[\w ]* in {seconds:.1f} s"
        assert len(re.findall(link, PROSE)) == 1, name


def test_the_large_decoder_comes_from_the_targets_benchmark():
    rows = results("targets")["rows"]
    (row,) = [r for r in rows if (r["net"], r.get("budget")) == ("decoder70b", "40GiB")]
    assert row["met"]
    assert f"{row['plain_gib']:.0f} GiB of temporaries on each of 256 H100s" in PROSE
    assert f"within {row['budget'].removesuffix('GiB')} GiB" in PROSE
    assert f"for {row['extra_flops']:.0%} more flops" in PROSE
    assert f"in {row['seconds']:.0f} seconds" in PROSE


def test_the_captions_figures_are_in_the_picture():
    picture = (ROOT / "docs" / "pictures" / "memory.svg").read_text()
    found = re.search(r"<desc>(\d+ MiB) with the plan, (\d+ MiB) without", picture)
    more = re.search(r"limit (\d+ MiB); ([\d.]+)% more flops", picture)
    assert found
    assert more
    alt = f"{found[2]} without a plan, {found[1]} within a limit of {more[1]}"
    assert alt in PROSE
    assert f"{float(more[2]):.0f}% more flops" in PROSE
