"""Every package beside its best peers, in one table and one JSON file.

    python -m benchmarks.results                 # minutes: short times, wide intervals
    python -m benchmarks.results --full          # hours: as the packages' pages state
    python -m benchmarks.results --rows counted  # bytes, flops, errors: on any machine
    python -m benchmarks.results --rows timed    # on a quiet machine
    python -m benchmarks.results --only tropical,train
    python -m benchmarks.results --kept          # assemble the last results

Runs the parts of the packages' benchmarks that compare with peers, one after the
other, and reads the rows of their JSON files. A row is the factor by which frugax is
ahead of a peer in its best form: the peer's time, bytes or error over ours, so that
above 1 is always better. With an interval a row is `ahead` or `behind` only if the
whole interval is; otherwise it is `cannot tell`. Losing rows stay. Writes
`benchmarks/results/all.json` and the tables of the README and of `docs/benchmarks.md`
after each part; rows of parts that were not asked for stay as they are. A run that was
stopped goes on where it was: parts that it finished with this source are not run again
(`--again` does).
"""

import argparse
import contextlib
import importlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import (
    DOWNLOADS,
    RESULTS,
    ROOT,
    Part,
    describe_machine,
    say,
    source_digest,
)

from frugax.fileio import write_whole

PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
ALL = RESULTS / "all.json"
SHORT = DOWNLOADS / "short"  # results of short runs
PACKAGES = ("remat", "train", "watch", "compress", "tropical", "models", "causal")
README_PACKAGES = ("remat", "train", "watch", "compress", "models")
EVEN = 1.001
MIN_CASES = 6  # 2 * 0.5**6 is the first below 5%
START, END = "<!-- results: start -->", "<!-- results: end -->"
STANDINGS = ("ahead", "even", "behind", "cannot tell")
Rows = list[dict[str, Any]]


def judge(row: dict[str, Any]) -> str:
    """`ahead`, `behind`, `even` or `cannot tell`."""
    # Exact figures that differ by less than this are the same to any user.
    low: Any = row["ahead_by"] / EVEN
    high: Any = row["ahead_by"] * EVEN
    is_exact = row["low"] is None or row["high"] is None
    if not is_exact:
        low, high = row["low"], row["high"]
    if not np.isfinite([low, high]).all():
        return "cannot tell"
    # That all of fewer cases point one way is not rare by chance (sign test).
    if row["cases"] is not None and row["cases"] < MIN_CASES:
        return "cannot tell"
    if row["unmeasured"]:
        return "cannot tell"
    if low > 1:
        return "ahead"
    if high < 1:
        return "behind"
    return "even" if is_exact else "cannot tell"


def find_parts() -> dict[tuple[str, str], Part]:
    """The parts that compare with peers, by package and name."""
    found = {}
    for package in PACKAGES:
        parts = importlib.import_module(f"benchmarks.{package}").PARTS
        found |= {(package, name): p for name, p in parts.items() if p.rows}
    return found


def measure(package: str, name: str, part: Part, *, full: bool, again: bool) -> str:
    """Run one part; return why it failed.

    One that was finished with this source is not run again.
    """
    if not full and not part.minutes[1]:
        return "it has no run of a few minutes: --full"
    path = (RESULTS if full else SHORT) / f"{package}.json"
    if not again and read_part(path, name).get("source") == source_digest():
        say(f"{package} {name}: done before")
        return ""
    command = [sys.executable, "-m", f"benchmarks.{package}", name, "--out", str(path)]
    started = time.time()
    log = DOWNLOADS / f"{package}-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    last = wait_for(command + ([] if full else [*part.short]), log)
    # A figure of an earlier day must not pass for the result of a run that failed.
    if not path.exists() or path.stat().st_mtime < started:
        return f"failed: {last or 'no results'}"
    return ""


def wait_for(command: list[str], log: Path) -> str:
    """Run a command, say twice a minute what it does, and return its last line."""
    with log.open("w+b") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                lines = log.read_text(errors="replace").splitlines()
                last = next((x for x in reversed(lines) if x.strip()), "")[:100]
                if process.returncode is not None:
                    return last
                say(f"  {last}")
        finally:
            process.kill()  # after Ctrl-C
            process.wait()


def read_part(path: Path, name: str) -> dict[str, Any]:
    """What a file of results has of a part; {} if nothing."""
    return json.loads(path.read_text()).get(name, {}) if path.exists() else {}


def expect_minutes(package: str, name: str, part: Part, *, full: bool) -> float:
    """How long its last run took, otherwise its usual time."""
    path = (RESULTS if full else SHORT) / f"{package}.json"
    usual = 60 * part.minutes[0 if full else 1]
    return read_part(path, name).get("seconds", usual) / 60


def read_rows(package: str, name: str, path: Path) -> Rows:
    """The rows of a part as the file of all results has them."""
    entry = read_part(path, name)
    rows = entry.get("rows", [])
    about = {"package": package, "part": name, "command": entry.get("command", "")}
    return [
        about
        | row
        | {"standing": judge(row), "date": row["date"] or entry["made_with"]["date"]}
        for row in rows
    ]


def assemble(
    results: dict[str, Any],
    parts: Iterable[tuple[str, str]],
    found: dict[tuple[str, str], tuple[Rows, str]],
    command: str,
) -> dict[str, Any]:
    """Replace the rows of some parts; those of the others stay."""
    kept: dict[tuple[str, str], Rows] = {}
    for row in results.get("rows", []):
        kept.setdefault((row["package"], row["part"]), []).append(row)
    missing = dict(results.get("missing", {}))
    for key, (rows, why) in found.items():
        missing.pop(" ".join(key), None)
        if rows:
            kept[key] = rows
        # The rows of an earlier run are dated, and better than none.
        elif key not in kept and why:
            missing[" ".join(key)] = why
    order = list(parts)
    return {
        "command": command,
        "made_with": describe_machine(),
        "missing": missing,
        "rows": [row for key in order for row in kept.get(key, [])],
    }


def results_table(rows: Rows) -> str:
    """The rows as Markdown, a table for each package."""
    lines: list[str] = []
    package = ""
    for row in rows:
        if row["package"] != package:
            package = row["package"]
            lines += [
                f"\n## `{package}`\n",
                "| task | ours | best peer | ahead by | standing | measured |",
                "|---|--:|--:|--:|---|---|",
            ]
        peer = row["peer"]
        if row["unmeasured"]:
            peer += f" (not run: {', '.join(row['unmeasured'])})"
        lines.append(
            f"| {row['task']} | {row['ours']:,.4g} {row['quantity']} "
            f"| {peer}: {row['theirs']:,.4g} "
            f"| {show_factor(row)} | {show_standing(row)} "
            f"| {row['date'].partition(' ')[0]} |"
        )
    return "\n".join(lines).strip()


def show_standing(row: dict[str, Any]) -> str:
    """Losing rows are the ones to see first."""
    return "**behind**" if row["standing"] == "behind" else row["standing"]


def describe_run(results: dict[str, Any]) -> str:
    """One line: date, machine and command of the measurement."""
    made = results["made_with"]
    counts = {
        standing: sum(row["standing"] == standing for row in results["rows"])
        for standing in STANDINGS
    }
    summary = ", ".join(f"{n} {standing}" for standing, n in counts.items())
    return (
        f"{made['date']}, frugax {made['frugax']}, JAX {made['jax']}, Python "
        f"{made['python']}, {made['system']}; `{results['command']}`: {summary}."
    )


def page_text(results: dict[str, Any]) -> str:
    """The block of docs/benchmarks.md: standings, rows behind, and missing parts.

    Every row is on the site's page of its package (site/hooks.py).
    """
    missing = "".join(
        f"- `{name}` was not measured: {why}.\n"
        for name, why in results["missing"].items()
    )
    behind = [row for row in results["rows"] if row["standing"] == "behind"]
    lines = [
        describe_run(results),
        "",
        f"| package | {' | '.join(STANDINGS)} |",
        "|---|--:|--:|--:|--:|",
        *standings(results["rows"]),
        "",
        "## Where frugax is behind",
        "",
        "| package | task | best peer | ahead by |",
        "|---|---|---|--:|",
    ]
    for row in behind:
        cells = (f"`{row['package']}`", row["task"], row["peer"], show_factor(row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{missing}"


def standings(rows: Rows) -> list[str]:
    """A line for each package: how many of its rows stand how."""
    lines = []
    for package in dict.fromkeys(row["package"] for row in rows):
        found = [row["standing"] for row in rows if row["package"] == package]
        counts = [str(found.count(standing)) for standing in STANDINGS]
        lines.append(f"| `{package}` | {' | '.join(counts)} |")
    return lines


def show_factor(row: dict[str, Any]) -> str:
    """The factor of a row, with its interval if it has one."""
    if row["low"] is None:
        return f"{row['ahead_by']:.4g}"
    return f"{row['ahead_by']:.4g} ({row['low']:.3g} to {row['high']:.3g})"


def readme_text(results: dict[str, Any]) -> str:
    """The block of the README: a row each for the packages that it begins with."""
    lines = [
        "| package | rows ahead | its best row | its worst row |",
        "|---|--:|---|---|",
    ]
    for package in README_PACKAGES:
        rows = [row for row in results["rows"] if row["package"] == package]
        ahead = sum(row["standing"] == "ahead" for row in rows)
        # A row without its best peers is neither the best nor the worst.
        compared = [row for row in rows if not row["unmeasured"]] or rows
        compared.sort(key=lambda row: -row["ahead_by"])
        # Without the worst row the table would be an advertisement.
        ends = [
            f"{row['ahead_by']:.3g}, {show_standing(row)}: {row['task']} "
            f"({row['peer']})"
            for row in (compared[0], compared[-1])
        ]
        lines.append(f"| `{package}` | {ahead} of {len(rows)} | {' | '.join(ends)} |")
    return "\n".join(lines) + "\n"


def replace_block(path: Path, text: str) -> None:
    """Replace the text between the markers of a page."""
    before, _, rest = path.read_text().partition(START)
    _, _, after = rest.partition(END)
    write_whole(path, f"{before}{START}\n{text}{END}{after}")


def main() -> None:
    """Run the parts, write the JSON and the pages, print the table."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    how = ask.add_mutually_exclusive_group()
    how.add_argument("--full", action="store_true", help="stated figures; hours")
    how.add_argument("--kept", action="store_true", help="run nothing")
    ask.add_argument("--again", action="store_true", help="run finished ones again")
    ask.add_argument("--rows", choices=("counted", "timed"), help="by default both")
    ask.add_argument("--only", help="packages, separated by commas")
    ask.add_argument("--out", type=Path, default=ALL)
    given = ask.parse_args()
    # As after Ctrl-C, the benchmark that is running ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked = given.only.split(",") if given.only else PACKAGES
    if unknown := sorted(set(asked) - set(PACKAGES)):
        ask.error(
            f"no such package: {', '.join(unknown)}; there are {', '.join(PACKAGES)}."
        )
    parts = find_parts()
    chosen = {
        key: part
        for key, part in parts.items()
        if key[0] in asked and given.rows in (None, ("counted", "timed")[part.is_timed])
    }
    command = shlex.join(["python", "-m", "benchmarks.results", *sys.argv[1:]])
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    folder = RESULTS if given.full or given.kept else SHORT
    for number, ((package, name), part) in enumerate(chosen.items(), 1):
        why = ""
        if not given.kept:
            rest = list(chosen.items())[number - 1 :]
            left = sum(expect_minutes(*key, p, full=given.full) for key, p in rest)
            about = f"{package} {name}; about {left:.0f} min left"
            say(f"{number} of {len(chosen)}, {about}")
            why = measure(package, name, part, full=given.full, again=given.again)
        path = folder / f"{package}.json"
        why = why or ("" if read_part(path, name) else "it was not measured")
        found = {(package, name): ([] if why else read_rows(package, name, path), why)}
        # Written each time, so that a run that is stopped has not been for nothing.
        results = assemble(results, parts, found, command)
        write_whole(given.out, json.dumps(results, indent=1) + "\n")
        if given.out == ALL:
            replace_block(PAGE, page_text(results))
            replace_block(README, readme_text(results))
    print(results_table(results["rows"]))
    for name, why in results["missing"].items():
        print(f"{name}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
