"""Compare frugax with its rivals: cases, interleaved timing, counted figures, JSON.

A package's benchmark is a module with `PARTS` that ends with `run("PACKAGE", PARTS)`.
`python -m benchmarks.PACKAGE PART ...` measures some parts, prints a table of each, and
merges them into `benchmarks/results/PACKAGE.json`.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frugax.budget import table
from frugax.fileio import write_whole
from frugax.measure import time_interleaved
from frugax.run import describe_environment

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOWNLOADS = Path(tempfile.gettempdir()) / "frugax-benchmarks"
OURS, CONTROL = "frugax", "frugax again"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
QUICK = DOWNLOADS / "quick"  # results of short runs
Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison in the table of results.

    Attributes:
        task: in a few words, with its size.
        quantity: that is compared, with its unit.
        ours: our figure; less is better unless `ahead_by` says otherwise.
        peer: the rival.
        theirs: its figure.
        ahead_by: factor by which frugax is better; below 1 it is worse.
        low: least value of the factor; None if the figures are exact.
        high: largest value.
        cases: independent cases that the interval was drawn from; None if it is one of
            repeated measurements.
        unmeasured: peers that were not run, without which the best one is not known.
        date: when it was measured; "" for the date of the part.
    """

    task: str
    quantity: str
    ours: float
    peer: str
    theirs: float
    ahead_by: float
    low: float | None = None
    high: float | None = None
    cases: int | None = None
    unmeasured: tuple[str, ...] = ()
    date: str = ""

    @classmethod
    def counted(
        cls,
        task: str,
        quantity: str,
        ours: float,
        peer: str,
        theirs: float,
        **more: Any,
    ) -> "Row":
        """Compare two exact figures, of which less is better."""
        return cls(
            task=task,
            quantity=quantity,
            ours=ours,
            peer=peer,
            theirs=theirs,
            ahead_by=theirs / ours,
            **more,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A program of ours beside programs of others that do the same.

    Attributes:
        name: in a few words, with its size.
        ours: runs ours once; what it returns is waited for.
        rivals: the others by name, each in its best documented form. Names that begin
            with "frugax" are other forms of ours, and no peers in the table of results.
        control: ours once more, compiled anew where ours is compiled: its distance from
            a ratio of 1 is the noise. By default `ours` itself.
        steps: steps in one call; times are those of a step.
        clock: "wall", or "cpu" for the processor time of this process.
        expected: the result of all programs, or None to compare none.
        tolerance: largest relative difference of results from `expected`.
        task: the words of the rows in the table of results.
        bare: rivals that do less than ours, such as the plain program: no peers.
    """

    name: str
    ours: Callable[[], Any]
    rivals: Mapping[str, Callable[[], Any]]
    control: Callable[[], Any] | None = None
    steps: int = 1
    clock: str = "wall"
    expected: np.ndarray | float | None = None
    tolerance: float = 0.0
    task: str = ""
    bare: tuple[str, ...] = ()

    def measure(self, seconds: float, *, chunk_s: float = 0.02) -> Figures:
        """Time all programs in turns; ratios are those within a round, to ours.

        Raises:
            ValueError: a program gives another result than `expected`.
        """
        programs = {OURS: self.ours, CONTROL: self.control or self.ours, **self.rivals}
        if self.expected is not None:
            for name, program in programs.items():
                got = np.asarray(program())
                near = {"rtol": self.tolerance, "atol": self.tolerance}
                if not np.allclose(got, self.expected, **near):
                    raise ValueError(f"{self.name}: {name} gives another result.")
        times = time_interleaved(
            programs, (), seconds=seconds, chunk_s=chunk_s, clock=CLOCKS[self.clock]
        ).seconds
        return {
            name: {
                "us": 1e6 * float(np.median(taken)) / self.steps,
                "more_us": 1e6 * float(np.median(taken - times[OURS])) / self.steps,
                "rounds": len(taken),
            }
            | paired_ratio(taken / times[OURS])
            for name, taken in times.items()
        }

    def rows(
        self,
        found: Figures,
        *,
        peers: Sequence[str] = (),
        every: bool = False,
        unit: str = "us",
    ) -> list[Row]:
        """Rows beside the quickest peer and those named, or beside every peer."""
        rivals = [
            name
            for name in self.rivals
            if not name.startswith(OURS) and name not in self.bare
        ]
        best = min(rivals, key=lambda name: found[name]["ratio"])
        scale = {"us": 1.0, "ms": 1e-3}[unit]
        return [
            Row(
                task=self.task or self.name,
                quantity=unit if self.clock == "wall" else f"{unit} of processor time",
                ours=scale * found[OURS]["us"],
                peer=peer,
                theirs=scale * found[peer]["us"],
                ahead_by=found[peer]["ratio"],
                low=found[peer]["low"],
                high=found[peer]["high"],
            )
            for peer in dict.fromkeys(rivals if every else (best, *peers))
            if peer in found
        ]


def paired_ratio(ratios: Sequence[float] | np.ndarray) -> dict[str, float]:
    """The median of ratios within rounds, and its 95 % bootstrap interval."""
    return dict(
        zip(("ratio", "low", "high"), _bootstrap(ratios, np.median), strict=True)
    )


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of a mean, for example of paired differences."""
    return _bootstrap(values, np.mean)[1:]


def _bootstrap(values: Any, statistic: Callable[..., Any]) -> Any:
    values = np.asarray(values, float)
    drawn = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.quantile(statistic(drawn, axis=1), [0.025, 0.975])
    return float(statistic(values)), float(low), float(high)


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Processor time of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def timed_table(found: Mapping[str, Figures]) -> str:
    """The programs of each case, with their ratio to ours; the control is the noise."""
    rows = [
        [
            case,
            name,
            f"{f['us']:,.4g} us",
            f"{f['more_us']:+,.3g} us",
            f"{f['ratio']:.3f} ({f['low']:.3f} to {f['high']:.3f})",
        ]
        for case, programs in found.items()
        for name, f in programs.items()
    ]
    return table(["case", "program", "a step", "more", "times ours (95 %)"], rows)


def figures_table(found: Mapping[str, Figures]) -> str:
    """A line for each case, a column for each of its figures."""
    columns = list(dict.fromkeys(key for figures in found.values() for key in figures))
    rows = [
        [case, *(_shorten(figures.get(key, "")) for key in columns)]
        for case, figures in found.items()
    ]
    return table(["case", *columns], rows)


def _shorten(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a package's benchmark.

    Attributes:
        measure: from the options of the command to the figures.
        rows: from the figures to the comparisons in the table of results, if any.
        show: from the figures to a table.
        is_timed: whether its figures are times, which need a quiet machine.
        short: arguments of a run of a few minutes, on sizes that mean something.
        minutes: of a full and of a short run, roughly, on two cores; 0 for the second
            if there is no short run.
    """

    measure: Callable[[argparse.Namespace], Figures]
    rows: Callable[[Figures], Iterable[Row]] | None = None
    show: Callable[[Figures], str] = figures_table
    is_timed: bool = False
    short: tuple[str, ...] = ("--seconds", "2")
    minutes: tuple[float, float] = (10, 1)


def time_cases(
    make: Callable[[argparse.Namespace], Iterable[Case]],
    *,
    compares: bool = True,
    **how: Any,
) -> Part:
    """A part whose cases are timed.

    Args:
        make: from the options of the command to the cases.
        compares: whether its rows are in the table of results.
        how: arguments of `Case.rows`.
    """
    rows: list[Row] = []

    def measure(given: argparse.Namespace) -> Figures:
        found: Figures = {}
        rows.clear()
        for case in make(given):
            if not is_chosen(case.name, given):
                continue
            say(case.name)
            found[case.name] = case.measure(0.3 if given.quick else given.seconds)
            rows.extend(case.rows(found[case.name], **how))
        return found

    return Part(
        measure=measure,
        rows=(lambda _: rows) if compares else None,
        show=timed_table,
        is_timed=True,
    )


def is_chosen(name: str, given: argparse.Namespace) -> bool:
    """Whether `--cases` asks for a case, by its name up to the first comma."""
    return not given.cases or name.partition(",")[0] in given.cases.split(",")


def choose(names: Iterable[str], given: argparse.Namespace, quick: int) -> list[str]:
    """The names that `--cases` asks for; with `--quick` the first few.

    Raises:
        SystemExit: a name is unknown.
    """
    names = list(names)
    if not given.cases:
        return names[:quick] if given.quick else names
    asked = given.cases.split(",")
    if unknown := sorted(set(asked) - set(names)):
        raise SystemExit(
            f"no such case: {', '.join(unknown)}; have {', '.join(names)}."
        )
    return asked


def run(
    package: str,
    parts: Mapping[str, Part],
    *,
    about: str | None = None,
    options: Callable[[argparse.ArgumentParser], object] | None = None,
    cores: int | None = None,
    argv: Sequence[str] | None = None,
) -> Figures:
    """Measure the parts that the command asks for, print and keep them.

    Args:
        package: its name; the results go to the file of that name.
        parts: by name.
        about: for `--help`.
        options: adds options of the parts to the parser.
        cores: processor cores that this process is held to, if the system can.
        argv: the command's arguments; by default the process's own.

    Returns:
        The figures of each measured part.
    """
    ask = argparse.ArgumentParser(prog=f"python -m benchmarks.{package}")
    ask.description = (about or "").partition("\n\n")[0]
    ask.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    ask.add_argument("--cases", help="names of cases up to a comma, with commas")
    ask.add_argument("--seconds", type=float, default=20.0, help="of each timed case")
    ask.add_argument("--quick", action="store_true", help="small sizes, short times")
    ask.add_argument("--out", type=Path, help="the file of results")
    if options is not None:
        options(ask)
    argv = sys.argv[1:] if argv is None else argv
    given = ask.parse_args(argv)
    # Figures of a quick run must not take the place of stated ones.
    given.out = given.out or (QUICK if given.quick else RESULTS) / f"{package}.json"
    if unknown := sorted(set(given.parts) - set(parts)):
        ask.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}.")
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    measured: Figures = {}
    for name in given.parts or parts:
        say(f"{package}: {name}")
        begun = time.perf_counter()
        found = measured[name] = parts[name].measure(given)
        rows = parts[name].rows
        entry = {
            "command": shlex.join(["python", "-m", f"benchmarks.{package}", *argv]),
            "made_with": describe_machine(),
            "source": source_digest(),
            "seconds": round(time.perf_counter() - begun, 1),
            "rows": [dataclasses.asdict(row) for row in (rows(found) if rows else ())],
            "found": found,
        }
        keep(given.out, name, entry, merge=bool(given.cases))
        print(f"\n## {package}: {name}\n\n{parts[name].show(found)}", flush=True)
    return measured


def keep(path: Path, part: str, entry: Figures, *, merge: bool) -> None:
    """Write a part into a file of results; a run of some cases keeps the others."""
    record = json.loads(path.read_text()) if path.exists() else {}
    if merge and part in record:
        new = {(row["task"], row["peer"]) for row in entry["rows"]}
        date = record[part]["made_with"]["date"]
        old = [
            row | {"date": row["date"] or date}
            for row in record[part]["rows"]
            if (row["task"], row["peer"]) not in new
        ]
        entry = entry | {
            "rows": old + entry["rows"],
            "found": record[part]["found"] | entry["found"],
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(record | {part: entry}, indent=1) + "\n")


def describe_machine() -> dict[str, Any]:
    """Date, versions, commit, and the processor's name where the system tells it."""
    return describe_environment(ROOT) | {"cpu": _cpu_model()}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.processor()


@functools.cache
def source_digest() -> str:
    """Hash the package and its benchmarks: after a change all is measured anew."""
    found = hashlib.sha256()
    folders = ROOT / "src" / "frugax", ROOT / "benchmarks"
    for file in sorted(f for folder in folders for f in folder.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def install(*packages: str) -> Path:
    """The folder with these packages of peers in it, and nothing they depend on.

    Packages never go into the environment: add the folder to the end of `sys.path`.
    """
    uv = str(ROOT / ".tools" / "bin" / "uv")
    for package in packages:
        stamp = DOWNLOADS / f".{package}"
        if not stamp.exists():
            place = ["--python", sys.executable, "--target", str(DOWNLOADS)]
            command = [uv, "pip", "install", "-q", "--no-deps", package, *place]
            subprocess.run(command, check=True)
            stamp.touch()
    return DOWNLOADS


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
