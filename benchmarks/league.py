"""The league: each room beside the best peer, in one table and one JSON file.

    python -m benchmarks.league                 # minutes: few rounds, wide intervals
    python -m benchmarks.league --full          # hours: as the rooms' pages state
    python -m benchmarks.league --only tropical,train
    python -m benchmarks.league --kept          # assemble the rooms' last results

Runs the rooms' own benchmarks, one after the other, and reads their JSON. A row is the
factor by which frugax is ahead of the best peer in its best form: the peer's time,
bytes or error over ours, so that above 1 is always better. With an interval a row is
`ahead` or `behind` only if the whole interval is; otherwise it is `cannot tell`. Losing
rows stay. Writes `benchmarks/results/league.json` and the tables of the README and of
`docs/league.md`.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import made_with

from frugax.fileio import write_whole

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "league.md"
README = ROOT / "README.md"
EVEN = 1.001
MIN_CASES = 6  # 2 * 0.5**6 is the first below 5%
START, END = "<!-- league: start -->", "<!-- league: end -->"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison.

    Attributes:
        room: that the task belongs to.
        task: in a few words, with its size.
        quantity: that is compared, with its unit.
        ours: our figure; less is better unless `ahead_by` says otherwise.
        peer: the best peer.
        theirs: its figure.
        ahead_by: factor by which frugax is better; below 1 it is worse.
        low: least value of the factor; None if the figures are exact.
        high: largest value.
        cases: independent cases that the interval was drawn from; None if it is one of
            repeated measurements.
        unmeasured: peers that were not run, without which the best one is not known.
    """

    room: str
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

    @property
    def standing(self) -> str:
        """`ahead`, `behind`, `even` or `cannot tell`."""
        # Exact figures that differ by less than this are the same to any user.
        low, high = self.ahead_by / EVEN, self.ahead_by * EVEN
        if self.low is not None and self.high is not None:
            low, high = self.low, self.high
        if not np.isfinite([low, high]).all():
            return "cannot tell"
        # That all of fewer cases point one way is not rare by chance (sign test).
        if self.cases is not None and self.cases < MIN_CASES:
            return "cannot tell"
        if self.unmeasured:
            return "cannot tell"
        if low > 1:
            return "ahead"
        if high < 1:
            return "behind"
        return "even" if self.low is None else "cannot tell"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A benchmark of a room.

    Attributes:
        module: run as `python -m benchmarks.MODULE`.
        file: its file of results.
        rows: reads the comparisons from that file.
        full: its arguments for stated figures.
        quick: its arguments for a few minutes; None if it cannot be that short.
        out: its option for another file of results; "" without such an option.
    """

    module: str
    file: str
    rows: Callable[[Any], Iterable[Row]]
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None
    out: str = "--out"


def remat_rows(data: Any) -> Iterator[Row]:
    """Per-layer checkpoints by hand, and PyTorch's budget API, at a quarter or half."""
    for net, found in data.get("time", {}).get("nets", {}).items():
        hand = found["programs"].get("by hand")
        asked = "0.25" if "plan 0.25" in found["programs"] else "0.5"
        plan = found["programs"].get(f"plan {asked}")
        if not hand or not plan:
            continue
        yield Row(
            room="remat",
            task=f"{net}: memory of the backward pass, planned for {asked}",
            quantity="share of the plain temporaries",
            ours=plan["share"],
            peer="jax.checkpoint on each layer",
            theirs=hand["share"],
            ahead_by=hand["share"] / plan["share"],
        )
        yield Row(
            room="remat",
            task=f"{net}: step time at that memory",
            quantity="ms",
            ours=plan["ms"],
            peer="jax.checkpoint on each layer",
            theirs=hand["ms"],
            **over(hand, plan),
        )
    for net, found in data.get("torch", {}).get("nets", {}).items():
        budget = found["budgets"].get("0.5")
        if budget:
            ours, theirs = budget["ours"]["peak_share"], budget["peak_share"]
            yield Row(
                room="remat",
                task=f"{net}: peak memory at a budget of one half",
                quantity="share of the unplanned peak",
                ours=ours,
                peer="torch activation_memory_budget",
                theirs=theirs,
                ahead_by=theirs / ours,
            )


def over(theirs: dict[str, float], ours: dict[str, float]) -> dict[str, float]:
    """The factor of two ratios to one reference, with the widest possible interval."""
    return {
        "ahead_by": theirs["ratio"] / ours["ratio"],
        "low": theirs["low"] / ours["high"],
        "high": theirs["high"] / ours["low"],
    }


def train_rows(data: Any) -> Iterator[Row]:
    """The time of one call of a compiled step."""
    for size, found in data.get("peers", {}).get("found", {}).items():
        who = found["who"]
        peers = {name: f for name, f in who.items() if not name.startswith("frugax")}
        best = min(peers, key=lambda name: peers[name]["us"])
        for peer in dict.fromkeys((best, "equinox filter_jit", "flax nnx, jax.jit")):
            if peer in peers:
                yield Row(
                    room="train",
                    task=f"one training step, {size} net ({found['net']})",
                    quantity="us",
                    ours=who["frugax"]["us"],
                    peer=peer,
                    theirs=peers[peer]["us"],
                    ahead_by=peers[peer]["ratio"],
                    low=peers[peer]["low"],
                    high=peers[peer]["high"],
                )


def watch_rows(data: Any) -> Iterator[Row]:
    """A loop whose every step records two numbers."""
    for step, found in data.get("scan", {}).get("found", {}).items():
        ours = found.get("watch.jit")
        not_peers = {"watch.jit", "unwatched", "unwatched, again"}
        for peer in [name for name in found if name not in not_peers]:
            if ours:
                yield Row(
                    room="watch",
                    task=f"step of a scan that records two numbers ({step})",
                    quantity="us",
                    ours=ours["us"],
                    peer=peer,
                    theirs=found[peer]["us"],
                    **over(found[peer], ours),
                )


def storage_rows(data: Any) -> Iterator[Row]:
    """Recorded frames on disk; our own formats are not peers."""
    for case, found in data.get("cases", {}).items():
        peers = {k: f for k, f in found.items() if k in STORAGE_PEERS}
        if not peers:
            continue
        best = max(peers, key=lambda name: peers[name]["ratio"])
        yield Row(
            room="watch",
            task=f"1,000 {case} frames on disk",
            quantity="bytes",
            ours=found["journal"]["bytes"],
            peer=best,
            theirs=peers[best]["bytes"],
            ahead_by=peers[best]["bytes"] / found["journal"]["bytes"],
        )


STORAGE_PEERS = ("pickle_gzip", "npz", "msgpack_zlib", "zarr")


def lossless_rows(data: Any) -> Iterator[Row]:
    """Bytes and decoding speed beside ZipNN and blosc2."""
    for name, case in data.get("cases", {}).items():
        best = max(("zipnn", "blosc2"), key=lambda peer: case[f"{peer}_ratio"])
        yield Row(
            room="compress",
            task=f"{name}, lossless",
            quantity="bytes",
            ours=case["bytes"] / case["ratio"],
            peer=best,
            theirs=case["bytes"] / case[f"{best}_ratio"],
            ahead_by=case["over_best_peer"],
        )
        speed = case.get("speed_over_zipnn")
        if speed:
            # The control is frugax against itself: its distance from 1 is the noise.
            noise = abs(np.log(speed["control"]))
            for what in ("decode", "encode"):
                yield Row(
                    room="compress",
                    task=f"{name}, lossless: {what}",
                    quantity="MB/s of processor time",
                    ours=case["mb_per_s"][what],
                    peer="zipnn",
                    theirs=case["mb_per_s"][f"zipnn {what}"],
                    ahead_by=speed[what],
                    low=float(speed[what] * np.exp(-noise)),
                    high=float(speed[what] * np.exp(noise)),
                )


def lossy_rows(data: Any) -> Iterator[Row]:
    """Files at the error of another quantiser, and errors in its bytes."""
    found = data.get("lossy", {}).get("found", {})
    for peer in [name for name in found if f"ours at the error of {name}" in found]:
        theirs = found[peer]
        at_error = found[f"ours at the error of {peer}"]
        at_bytes = found.get(f"ours at the bytes of {peer}")
        yield Row(
            room="compress",
            task="MiniLM at equal error of the weights",
            quantity="bytes",
            ours=at_error["bytes"],
            peer=peer,
            theirs=theirs["bytes"],
            ahead_by=theirs["bytes"] / at_error["bytes"],
        )
        for what, ours in {"weights": at_error, "bytes": at_bytes}.items():
            if ours:
                equal = (
                    "equal bytes" if what == "bytes" else "equal error of the weights"
                )
                yield Row(
                    room="compress",
                    task=f"MiniLM at {equal}: embeddings",
                    quantity="1 - cosine",
                    ours=ours["cosine_error"],
                    peer=peer,
                    theirs=theirs["cosine_error"],
                    ahead_by=theirs["cosine_error"] / ours["cosine_error"],
                )


def tropical_rows(data: Any) -> Iterator[Row]:
    """Max-plus products and shortest paths, on one core."""
    for part, task in {"matmul": "max-plus product", "closure": "all paths"}.items():
        for size, found in data.get(part, {}).get("found", {}).items():
            peers = {k: f for k, f in found.items() if not k.startswith("frugax")}
            if not peers:
                continue
            best = min(peers, key=lambda name: peers[name]["ms"])
            yield Row(
                room="tropical",
                task=f"{task}, {size}",
                quantity="ms",
                ours=found["frugax"]["ms"],
                peer=best,
                theirs=peers[best]["ms"],
                ahead_by=peers[best]["times_frugax"]["ratio"],
                low=peers[best]["times_frugax"]["low"],
                high=peers[best]["times_frugax"]["high"],
            )


def models_rows(data: Any) -> Iterator[Row]:
    """Value and gradients of one net, described and by hand."""
    for net, found in data.get("step", {}).get("nets", {}).items():
        contestants = {
            name: c["wall"]
            for name, c in found["step"]["contestants"].items()
            if name != "the same, compiled again"  # the control
        }
        ours = contestants.pop("frugax", None)
        if not ours or not contestants:
            continue
        best = min(contestants, key=lambda name: contestants[name]["ratio"])
        yield Row(
            room="models",
            task=f"{net}: value and gradients",
            quantity="ms",
            ours=ours["seconds"] * 1e3,
            peer=best,
            theirs=contestants[best]["seconds"] * 1e3,
            **over(contestants[best], ours),
        )


def structure_rows(data: Any) -> Iterator[Row]:
    """Who causes whom: F1 of directed edges, and processor time, beside GIES."""
    for cell, found in data.get("cells", {}).items():
        gies, ours = found.get("gies"), found.get("surrogate")
        if not gies or not ours:
            continue
        low, high = gies["f1_behind"]
        yield Row(
            room="causal",
            task=f"edges of random graphs, {cell}",
            quantity="F1, more is better",
            ours=ours["f1"],
            peer="GIES",
            theirs=gies["f1"],
            ahead_by=ours["f1"] / gies["f1"],
            low=1 + low / gies["f1"],
            high=1 + high / gies["f1"],
        )


def campaign_rows(data: Any) -> Iterator[Row]:
    """Regret at the end of campaigns, over the problems that every method solved."""
    runs = {name: found for name, found in data.items() if name != "made with"}
    problems = sorted(set.intersection(*(set(found) for found in runs.values())))
    regret = {
        name: np.array([found[problem]["regret"][-1] for problem in problems])
        for name, found in runs.items()
    }
    ours = regret.pop("campaign", None)
    if ours is None or not regret or not problems:
        return
    best = min(regret, key=lambda name: regret[name].mean())
    # Families differ in difficulty by far more than the methods do, so problems are
    # drawn again, with each method's regret on the same ones.
    drawn = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
    ratios = regret[best][drawn].mean(1) / np.maximum(ours[drawn].mean(1), 1e-12)
    low, high = np.quantile(ratios, [0.025, 0.975])
    families = {problem.rsplit(" ", 1)[0] for problem in problems}
    yield Row(
        room="causal",
        task=f"campaigns on {len(problems)} problems of {len(families)} families",
        quantity="mean regret",
        ours=float(ours.mean()),
        peer=best,
        theirs=float(regret[best].mean()),
        ahead_by=float(regret[best].mean() / max(ours.mean(), 1e-12)),
        low=float(low),
        high=float(high),
        cases=len(problems),
        unmeasured=tuple(name for name in CAMPAIGN_PEERS if name not in runs),
    )


# The rivals that docs/causal_campaign.md compares with; GP-UCB alone is not the best.
CAMPAIGN_PEERS = ("gp-ucb, shared", "cbo, true graph", "mcbo, true graph", "botorch")


SOURCES = (
    Source(
        module="remat",
        file="remat.json",
        rows=remat_rows,
        full=("--parts", "time,torch"),
        quick=("--parts", "time", "--nets", "mlp24", "--rounds", "3"),
    ),
    Source(
        module="train",
        file="train.json",
        rows=train_rows,
        full=("--parts", "peers"),
        quick=("--parts", "peers", "--rounds", "9"),
    ),
    Source(
        module="watch",
        file="watch.json",
        rows=watch_rows,
        full=("--parts", "scan", "--seconds", "90"),
        quick=("--parts", "scan", "--seconds", "10"),
    ),
    Source(
        module="watch_storage",
        file="watch_storage.json",
        rows=storage_rows,
        quick=(),
        out="--to",
    ),
    Source(
        module="compress_lossless",
        file="compress_lossless.json",
        rows=lossless_rows,
        out="",
    ),
    Source(
        module="compress_lossy",
        file="compress_lossy.json",
        rows=lossy_rows,
        full=("--parts", "lossy"),
        out="",
    ),
    Source(
        module="tropical",
        file="tropical.json",
        rows=tropical_rows,
        full=("--parts", "matmul,closure"),
        quick=("--parts", "matmul", "--rounds", "5"),
    ),
    Source(
        module="models",
        file="models.json",
        rows=models_rows,
        full=("--parts", "step"),
        quick=("--parts", "step", "--quick"),
    ),
    Source(
        module="causal_structure",
        file="causal_structure.json",
        rows=structure_rows,
        out="",
    ),
    Source(
        module="causal_optimise",
        file="causal_optimise.json",
        rows=campaign_rows,
        quick=("--count", "1", "--families", "classic", "threshold"),
        out="--to",
    ),
)


def measure(source: Source, *, full: bool, folder: Path) -> tuple[Any, str, str]:
    """Run one benchmark; return its results, its command, and why it failed."""
    arguments = source.full if full else source.quick
    if arguments is None:
        return None, "", "it has no run of a few minutes: --full"
    target = RESULTS / source.file
    command = ["python", "-m", f"benchmarks.{source.module}", *arguments]
    shown = " ".join(command)
    if source.out:
        target = folder / source.file
        command += [source.out, str(target)]
    print(f"{shown} ...", file=sys.stderr, flush=True)
    started = time.time()
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True
    )
    # A file of an earlier day must not pass for the result of a run that failed. Some
    # benchmarks exit with 1 if a bar is missed, so the file decides.
    if not target.exists() or target.stat().st_mtime < started:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return None, shown, f"failed: {lines[-1] if lines else 'no results'}"
    return json.loads(target.read_text()), shown, ""


def read_kept(source: Source) -> tuple[Any, str, str]:
    """The results that the room's own benchmark left."""
    path = RESULTS / source.file
    command = " ".join(["python", "-m", f"benchmarks.{source.module}", *source.full])
    if not path.exists():
        return None, command, f"{path.name} is missing"
    return json.loads(path.read_text()), command, ""


def entry(row: Row, command: str, date: str) -> dict[str, Any]:
    """A row as the JSON file holds it."""
    return dataclasses.asdict(row) | {
        "standing": row.standing,
        "command": command,
        "date": date,
    }


def find_date(data: Any) -> str:
    """The newest date in a file of results."""
    found = []
    if isinstance(data, dict):
        if isinstance(data.get("date"), str):
            found.append(data["date"])
        found += [find_date(value) for value in data.values()]
    return max(found, default="")


def league_table(rows: Iterable[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| room | task | ours | best peer | ahead by | standing |",
        "|---|---|--:|--:|--:|---|",
    ]
    for row in rows:
        factor = f"{row['ahead_by']:.4g}"
        if row["low"] is not None:
            factor += f" ({row['low']:.3g} to {row['high']:.3g})"
        standing = row["standing"]
        if standing == "behind":
            standing = "**behind**"
        lines.append(
            f"| {row['room']} | {row['task']} | {row['ours']:,.4g} {row['quantity']} "
            f"| {name_peer(row)}: {row['theirs']:,.4g} | {factor} | {standing} |"
        )
    return "\n".join(lines)


def name_peer(row: dict[str, Any]) -> str:
    """The best peer of a row, and those that were not run."""
    if row["unmeasured"]:
        return f"{row['peer']} (not run: {', '.join(row['unmeasured'])})"
    return row["peer"]


def describe_run(league: dict[str, Any]) -> str:
    """One line: date, machine and command of the measurement."""
    made = league["made_with"]
    counts = {
        standing: sum(row["standing"] == standing for row in league["rows"])
        for standing in ("ahead", "even", "behind", "cannot tell")
    }
    summary = ", ".join(f"{n} {standing}" for standing, n in counts.items())
    return (
        f"{made['date']}, frugax {made['frugax']}, JAX {made['jax']}, Python "
        f"{made['python']}, {made['system']}; `{league['command']}`: {summary}."
    )


def page_text(league: dict[str, Any]) -> str:
    """The block of docs/league.md: every row, and the missing ones."""
    missing = "".join(
        f"- `{name}` is not in the table: {why}.\n"
        for name, why in league["missing"].items()
    )
    return f"{describe_run(league)}\n\n{league_table(league['rows'])}\n\n{missing}"


def readme_text(league: dict[str, Any]) -> str:
    """The block of the README: each room's best row against a peer, and its worst."""
    lines = [
        "| room | task | best peer | ahead by | standing |",
        "|---|---|---|--:|---|",
    ]
    for room in dict.fromkeys(row["room"] for row in league["rows"]):
        rows = [row for row in league["rows"] if row["room"] == room]
        # A row without its best peers is neither the best nor the worst.
        rows = [row for row in rows if not row["unmeasured"]] or rows
        rows.sort(key=lambda row: -row["ahead_by"])
        # Without the worst row the table would be an advertisement.
        for row in [rows[0], rows[-1]][: len(rows)]:
            standing = row["standing"]
            if standing == "behind":
                standing = "**behind**"
            lines.append(
                f"| `{room}` | {row['task']} | {row['peer']} "
                f"| {row['ahead_by']:.3g} | {standing} |"
            )
    table = "\n".join(lines)
    return f"{table}\n\n{describe_run(league)}\n"


def replace_block(path: Path, text: str) -> None:
    """Replace the text between the markers of a page."""
    before, _, rest = path.read_text().partition(START)
    _, _, after = rest.partition(END)
    write_whole(path, f"{before}{START}\n{text}{END}{after}")


def main() -> None:
    """Run the benchmarks, write the JSON and the page, print the table."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    how = ask.add_mutually_exclusive_group()
    how.add_argument("--full", action="store_true", help="stated figures; hours")
    how.add_argument("--kept", action="store_true", help="run nothing")
    ask.add_argument("--only", help="modules of benchmarks, separated by commas")
    ask.add_argument("--out", type=Path, default=RESULTS / "league.json")
    given = ask.parse_args()
    names = [source.module for source in SOURCES]
    asked = given.only.split(",") if given.only else names
    if unknown := sorted(set(asked) - set(names)):
        ask.error(
            f"no such benchmark: {', '.join(unknown)}; there are {', '.join(names)}."
        )
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for source in [s for s in SOURCES if s.module in asked]:
            if given.kept:
                data, command, why = read_kept(source)
            else:
                data, command, why = measure(
                    source, full=given.full, folder=Path(folder)
                )
            if data is None:
                missing[source.module] = why
                continue
            found = [entry(row, command, find_date(data)) for row in source.rows(data)]
            rows += found
            if not found:
                missing[source.module] = "its results have no peer in them"
    options = "".join(f" --{name}" for name in ("full", "kept") if getattr(given, name))
    if given.only:
        options += f" --only {given.only}"
    league = {
        "command": f"python -m benchmarks.league{options}",
        "made_with": made_with(),
        "missing": missing,
        "rows": rows,
    }
    write_whole(given.out, json.dumps(league, indent=1) + "\n")
    if given.out == RESULTS / "league.json":
        replace_block(PAGE, page_text(league))
        replace_block(README, readme_text(league))
    print(league_table(rows))
    for name, why in missing.items():
        print(f"{name}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
