"""Measure the live page with a long journal: time to paint, memory, console messages.

    python -m benchmarks.watch_page --points 1000000
    python -m benchmarks.watch_page --points 1000000 --runs 100

Writes benchmarks/results/watch_page.json and prints the table of docs/watch.md. A
journal of that many points (four columns of a quarter of the steps each, and grid
frames) is served by `frugax watch serve` and opened in headless Chromium, which must
paint within 1 s, hold at most 50 MB of JavaScript heap after a garbage collection and
say nothing on its console. Drawn is when the first chart holds data; `cold` is a server
that has not read the journal yet, `warm` one that has. With `--runs` as many runs are
on one page, whose summaries were prepared by a first server; its memory is read at the
end. That result goes to benchmarks/results/watch_page_runs.json.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import made_with

from frugax.fileio import write_whole
from frugax.watch.journal import Journal

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from chromium import BROWSER, Chromium, chromium

RESULTS = Path(__file__).parent / "results" / "watch_page.json"
BARS = {"first_paint_ms": 1000.0, "heap_bytes": 50e6, "complaints": 0}
COLUMNS = 4
FRAMES = 500


def write(path: Path, points: int) -> None:
    """Write a journal with a number of points in all."""
    n = points // COLUMNS
    steps = np.arange(1, n + 1)
    random = np.random.default_rng(0)
    noise = random.normal(size=n)
    columns = {
        "loss": (2 * np.exp(-steps / (n / 5)) + 0.05 * np.abs(noise)).astype("f4"),
        "accuracy": (1 - np.exp(-steps / (n / 8)) + 0.01 * noise).astype("f4"),
        "grad_norm": np.exp(noise / 2).astype("f4"),
        "seconds": np.cumsum(0.02 + 0.001 * np.abs(noise)),
    }
    with Journal.create(path, {"name": "long"}) as journal:
        journal.write_many(steps, columns)
        every = max(n // FRAMES, 1)
        grids = random.integers(0, 10, (FRAMES, 30, 30), dtype=np.int8)
        journal.write_many(steps[::every][:FRAMES], {"grid": grids}, stream="grid")


def serve(folder: Path) -> tuple["subprocess.Popen[str]", str]:
    """Start `frugax watch serve` in its own process; yield the page's address.

    Raises:
        RuntimeError: it did not start.
    """
    code = "from frugax.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "watch", "serve", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://\S+", line):
            return process, found[0]
    raise RuntimeError("the server said no address")


def visit(page: Chromium, address: str, *, rest_s: float) -> dict[str, float]:
    """Open the page once."""
    page.complaints.clear()
    page.open(address)
    drawn = page.wait_for(
        "performance.getEntriesByName('first-chart')[0]?.startTime", timeout_s=300
    )
    paints = page.run(
        "Object.fromEntries(performance.getEntriesByType('paint')"
        ".map((e) => [e.name, e.startTime]))"
    )
    page.wait_for("document.querySelector('#frame').width > 100")
    time.sleep(rest_s)
    page.run("gc()")
    heap = page.metrics()["JSHeapUsedSize"]
    for _ in range(30):  # scrubbing, zooming and back must not pile up
        page.run("document.querySelector('#back').click()")
    page.run(
        "(async () => { const s = document.querySelector('#span');"
        "for (const v of ['0.1', '0.01', '1']) { s.value = v;"
        "s.dispatchEvent(new Event('change'));"
        "await new Promise((done) => setTimeout(done, 500)); } })()"
    )
    page.run("gc()")
    points = page.run("fetch('/api/state').then((a) => a.json())")["streams"][""]
    return {
        "first_paint_ms": paints["first-paint"],
        "first_contentful_paint_ms": paints["first-contentful-paint"],
        "first_chart_ms": drawn,
        "heap_bytes": heap,
        "heap_after_use_bytes": page.metrics()["JSHeapUsedSize"],
        "complaints": len(page.complaints),
        "points": points["records"] * len(points["columns"]),
    }


def compare_runs(place: Path, points: int, runs: int, visits: int) -> dict[str, Any]:
    """Open the page of many runs, whose summaries a first server has prepared."""
    for i in range(runs):
        folder = place / "runs" / f"run{i}"
        folder.mkdir(parents=True)
        write(folder / "journal", points)
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    every = []
    for is_prepared in (False, True):
        server, address = serve(place / "runs")
        try:
            with chromium() as page:
                page.size(1280, 900)
                page.open(address)
                page.wait_for(
                    "document.querySelector('#said-word')?.textContent == 'all ended'",
                    timeout_s=3600,
                )
                for _ in range(visits if is_prepared else 0):
                    page.complaints.clear()
                    page.open(address)
                    drawn = page.wait_for(
                        "performance.getEntriesByName('first-chart')[0]?.startTime"
                    )
                    paint = page.run(
                        "performance.getEntriesByType('paint')[0].startTime"
                    )
                    page.run("gc()")
                    found = {"first_paint_ms": paint, "first_chart_ms": drawn}
                    found["heap_bytes"] = page.metrics()["JSHeapUsedSize"]
                    found["complaints"] = len(page.complaints)
                    every.append(found)
            status = Path(f"/proc/{server.pid}/status").read_text()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    peak_kib = int(re.findall(r"VmHWM:\s+(\d+)", status)[0])
    return {"runs": runs, "visits": every, "server_peak_bytes": 1024 * peak_kib}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1)
    asked = parser.parse_args()
    if BROWSER is None:
        raise SystemExit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as place:
        if asked.runs > 1:
            made = compare_runs(Path(place), asked.points, asked.runs, asked.visits)
            made |= {"points": asked.points, "load_average": os.getloadavg()}
            made |= {"made with": made_with()}
            path = RESULTS.with_name("watch_page_runs.json")
            write_whole(path, json.dumps(made, indent=1) + "\n")
            print(json.dumps(made, indent=1))
            return
        folder = Path(place) / "long"
        folder.mkdir()
        write(folder / "journal", asked.points)
        length = (folder / "journal").stat().st_size
        server, address = serve(folder)
        try:
            with chromium() as page:
                page.size(1280, 900)
                cold = visit(page, address, rest_s=1)
                warm = [
                    visit(page, address, rest_s=1) for _ in range(max(asked.visits, 1))
                ]
        finally:
            server.send_signal(signal.SIGINT)
            status = server.wait(30)
    every = [cold, *warm]
    worst = {name: max(visit[name] for visit in every) for name in cold}
    middle = {name: statistics.median(v[name] for v in warm) for name in cold}
    verdicts = {name: worst[name] <= bar for name, bar in BARS.items()}
    result = {
        "points": asked.points,
        "journal_bytes": length,
        "load_average": os.getloadavg(),
        "cold": cold,
        "warm": warm,
        "worst": worst,
        "bars": BARS,
        "kept": verdicts,
        "server_exit": status,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{asked.points:,} points, journal of {length / 2**20:.1f} MiB")
    print("| | cold | warm, median | worst | bar | |")
    print("|---|--:|--:|--:|--:|---|")
    for name in cold:
        unit, scale = ("ms", 1) if name.endswith("_ms") else ("", 1)
        if name.endswith("_bytes"):
            unit, scale = "MB", 1e6
        shown = [f"{v[name] / scale:,.4g} {unit}" for v in (cold, middle, worst)]
        bar = f"{BARS[name] / scale:,.4g} {unit}" if name in BARS else ""
        verdict = "" if name not in BARS else "kept" if verdicts[name] else "broken"
        print(f"| {name} | {' | '.join(shown)} | {bar} | {verdict} |")
    raise SystemExit(0 if all(verdicts.values()) else 1)


if __name__ == "__main__":
    main()
