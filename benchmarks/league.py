"""The league: each room beside the best peer, in one table and one JSON file.

    python -m benchmarks.league                 # minutes: few rounds, wide intervals
    python -m benchmarks.league --full          # hours: as the rooms' pages state
    python -m benchmarks.league --rows counted  # bytes, flops, errors: on any machine
    python -m benchmarks.league --rows timed    # on a quiet machine
    python -m benchmarks.league --only tropical,train
    python -m benchmarks.league --kept          # assemble the rooms' last results

Runs the rooms' own benchmarks, one after the other, and reads their JSON. A row is the
factor by which frugax is ahead of the best peer in its best form: the peer's time,
bytes or error over ours, so that above 1 is always better. With an interval a row is
`ahead` or `behind` only if the whole interval is; otherwise it is `cannot tell`. Losing
rows stay. Writes `benchmarks/results/league.json` and the tables of the README and of
`docs/league.md` after each benchmark; rows of benchmarks that were not asked for stay
as they are. A run that was stopped goes on where it was: benchmarks that it finished
with this source are not run again (`--again` does).
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import shlex
import signal
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
# Results of short runs, and the seconds that each benchmark took.
KEPT = Path(tempfile.gettempdir()) / "frugax-benchmarks" / "league"
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
        date: when it was measured; "" for the date of the file of results.
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
    date: str = ""

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
        is_timed: whether its rows are times, which need a quiet machine.
        minutes: of its full and its quick run, roughly, on two cores.
    """

    module: str
    file: str
    rows: Callable[[Any], Iterable[Row]]
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None
    out: str = "--out"
    is_timed: bool = True
    minutes: tuple[float, float] = (10, 1)


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
            date=found.get("date", ""),
        )
        yield Row(
            room="remat",
            task=f"{net}: step time at that memory",
            quantity="ms",
            ours=plan["ms"],
            peer="jax.checkpoint on each layer",
            theirs=hand["ms"],
            date=found.get("date", ""),
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
                date=data["torch"]["environment"]["date"],
            )


def by_hand_rows(data: Any) -> Iterator[Row]:
    """Flops of a step in the bytes of loops that checkpoint themselves."""
    for found in data.values():
        for row in found["rows"]:
            ours, theirs = row["ours"], row["theirs"]
            yield Row(
                room="remat",
                task=f"flops in at most the bytes of {row['task']}",
                quantity="of the plain flops",
                ours=1 + ours["extra"],
                peer=row["peer"],
                theirs=1 + theirs["extra"],
                # A plan that needs more bytes is behind, whatever its flops.
                ahead_by=(1 + theirs["extra"]) / (1 + ours["extra"])
                if ours["met"]
                else theirs["bytes"] / ours["bytes"],
                date=found["made_with"]["date"],
            )


def policy_rows(data: Any) -> Iterator[Row]:
    """Flops of a step in the bytes of the stock policy that is hardest to beat."""
    for target, nets in data.get("targets", {}).items():
        for net, found in nets.items():
            beside = {
                policy: (1 + rival["extra"]) / (1 + rival["ours"]["extra"])
                if rival["ours"]["met"]
                else rival["bytes"] / rival["ours"]["bytes"]
                for policy, rival in found["rivals"].items()
                if rival.get("ours")
            }
            if not beside:
                continue
            policy = min(beside, key=lambda name: beside[name])
            rival = found["rivals"][policy]
            yield Row(
                room="remat",
                task=f"{net} on {target}: flops in the bytes of a stock policy",
                quantity="of the plain flops",
                ours=1 + rival["ours"]["extra"],
                peer=policy,
                theirs=1 + rival["extra"],
                ahead_by=beside[policy],
                date=found.get("date", ""),
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


def watch_peer_rows(data: Any) -> Iterator[Row]:
    """Steps of a loop that keeps two numbers each, and of a scan that shows itself."""
    tasks = {"log": "step of a Python loop", "progress": "step of a scan"}
    for part, task in tasks.items():
        for size, found in data.get(part, {}).get("found", {}).items():
            for peer, figures in found.items():
                if "of_ours" not in figures or peer.startswith("unwatched"):
                    continue
                ratio, low, high = figures["of_ours"]
                yield Row(
                    room="watch",
                    task=f"{task} that keeps two numbers ({size} net)",
                    quantity="us of processor time",
                    ours=found["frugax"]["us"],
                    peer=f"{peer}, progress alone" if part == "progress" else peer,
                    theirs=figures["us"],
                    ahead_by=ratio,
                    low=low,
                    high=high,
                    date=data[part]["made_with"]["date"],
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


def calibrated_rows(data: Any) -> Iterator[Row]:
    """Errors of embeddings in the bytes of GPTQ, HQQ and NF4.

    GPTQ is calibrated, and so is the file beside it; beside the others it is not.
    """
    for part in data.values():
        rows = part["found"].get("rows", {})
        for peer, found in rows.items():
            rule = "calibrated" if peer.startswith("GPTQ") else "default"
            ours = rows.get(f"{int(found['bytes']):,} bytes, {rule}")
            if ours is None or " bytes, " in peer:
                continue
            for test in ("other docstrings", "180 sentences"):
                yield Row(
                    room="compress",
                    task=f"MiniLM in the bytes of a peer, {rule}: {test}",
                    quantity="1 - cosine",
                    ours=ours[test],
                    peer=peer,
                    theirs=found[test],
                    ahead_by=found[test] / ours[test],
                    date=part["made_with"]["date"],
                )


def table_rows(data: Any) -> Iterator[Row]:
    """Change of outputs of trained nets in the bytes of GGUF, NF4, HQQ and GPTQ."""
    for net, found in data.items():
        for peer, cell in found["cells"].items():
            rule = "calibrated" if peer.startswith("GPTQ") else "default"
            # The decibels are of energies.
            ours, theirs = (10 ** (cell[who][0] / 20) for who in (rule, "peer"))
            yield Row(
                room="compress",
                task=f"{net} in the bytes of a peer, {rule}: change of outputs",
                quantity="of their size",
                ours=ours,
                peer=peer,
                theirs=theirs,
                ahead_by=theirs / ours,
                date=found["date"],
            )
        exact = found["exact"]
        peers = [name for name in ("zipnn", "zstd") if name in exact]
        best = min(peers, key=lambda name: exact[name])
        yield Row(
            room="compress",
            task=f"{net}, lossless",
            quantity="bytes",
            ours=exact["frugax"],
            peer=best,
            theirs=exact[best],
            ahead_by=exact[best] / exact["frugax"],
            date=found["date"],
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
    others = ("made with", "random", "observations only")  # not methods
    runs = {name: found for name, found in data.items() if name not in others}
    problems = sorted(set.intersection(*(set(found) for found in runs.values())))
    regret = {
        name: np.array([found[problem]["regret"][-1] for problem in problems])
        for name, found in runs.items()
    }
    ours = regret.pop("campaign", None)
    if ours is None or not regret or not problems:
        return
    unmeasured = tuple(name for name in CAMPAIGN_PEERS if name not in runs)
    families = {problem.rsplit(" ", 1)[0] for problem in problems}
    # Families differ in difficulty by far more than the methods do, so problems are
    # drawn again, with each method's regret on the same ones.
    drawn = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
    for peer in sorted(regret, key=lambda name: float(regret[name].mean())):
        ratios = regret[peer][drawn].mean(1) / np.maximum(ours[drawn].mean(1), 1e-12)
        low, high = np.quantile(ratios, [0.025, 0.975])
        yield Row(
            room="causal",
            task=f"campaigns on {len(problems)} problems of {len(families)} families",
            quantity="mean regret",
            ours=float(ours.mean()),
            peer=peer,
            theirs=float(regret[peer].mean()),
            ahead_by=float(regret[peer].mean() / max(ours.mean(), 1e-12)),
            low=float(low),
            high=float(high),
            cases=len(problems),
            unmeasured=unmeasured,
        )
        if unmeasured:
            return  # the others are no better, and the best is not known


# The rivals that docs/causal_campaign.md compares with; GP-UCB alone is not the best.
CAMPAIGN_PEERS = ("gp-ucb, shared", "cbo, true graph", "mcbo, true graph", "botorch")


SOURCES = (
    Source(
        module="remat",
        file="remat.json",
        rows=remat_rows,
        full=("--parts", "time,torch"),
        quick=("--parts", "time", "--nets", "mlp24", "--rounds", "3"),
        minutes=(60, 1),
    ),
    Source(
        module="remat_by_hand",
        file="remat_by_hand.json",
        rows=by_hand_rows,
        quick=("--nets", "ode,diffrax"),
        is_timed=False,
        minutes=(2, 1),
    ),
    Source(
        module="remat_policies",
        file="remat_policies.json",
        rows=policy_rows,
        quick=("--nets", "mlp,gru"),
        is_timed=False,
        minutes=(20, 3),
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
        minutes=(4, 1),
    ),
    Source(
        module="watch_peers",
        file="watch_peers.json",
        rows=watch_peer_rows,
        full=("--seconds", "60"),
        quick=("--seconds", "15"),
        minutes=(3, 1),
    ),
    Source(
        module="watch_storage",
        file="watch_storage.json",
        rows=storage_rows,
        quick=(),
        out="--to",
        is_timed=False,
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
        is_timed=False,
        minutes=(30, 0),
    ),
    Source(
        module="compress_calibrated",
        file="compress_calibrated.json",
        rows=calibrated_rows,
        full=("--parts", "minilm"),
        is_timed=False,
        minutes=(60, 0),
    ),
    Source(
        module="compress_table",
        file="compress_table.json",
        rows=table_rows,
        is_timed=False,
        minutes=(15, 0),
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
        is_timed=False,
        minutes=(60, 0),
    ),
    Source(
        module="causal_optimise",
        file="causal_optimise.json",
        rows=campaign_rows,
        quick=("--count", "1", "--families", "classic", "threshold"),
        out="--to",
        is_timed=False,
        minutes=(120, 2),
    ),
)


def measure(source: Source, *, full: bool, again: bool = False) -> tuple[Any, str, str]:
    """Run one benchmark; return its results, its command, and why it failed.

    One that was finished by this command and with this source is not run again.
    """
    arguments = source.full if full else source.quick
    if arguments is None:
        return None, "", "it has no run of a few minutes: --full"
    folder = KEPT / ("full" if full else "quick")
    folder.mkdir(parents=True, exist_ok=True)
    target = RESULTS / source.file
    command = ["python", "-m", f"benchmarks.{source.module}", *arguments]
    shown = " ".join(command)
    if source.out:
        # A full run is the one that the rooms' pages state.
        target = target if full else folder / source.file
        command += [source.out, str(target)]
    stamp = folder / f"{source.module}.stamp"
    print_of = fingerprint(source, command)
    if not again and target.exists() and read_stamp(stamp).get("print") == print_of:
        print(f"{shown}: done before", file=sys.stderr, flush=True)
        return json.loads(target.read_text()), shown, ""
    started = time.time()
    last = wait_for([sys.executable, *command[1:]], folder / f"{source.module}.log")
    # A file of an earlier day must not pass for the result of a run that failed. Some
    # benchmarks exit with 1 if a bar is missed, so the file decides.
    if not target.exists() or target.stat().st_mtime < started:
        return None, shown, f"failed: {last or 'no results'}"
    facts = {"print": print_of, "seconds": time.time() - started}
    write_whole(stamp, json.dumps(facts))
    return json.loads(target.read_text()), shown, ""


def wait_for(command: list[str], log: Path) -> str:
    """Run a command, say twice a minute what it does, and return its last line."""
    with log.open("w+b") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        started, last = time.time(), ""
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                lines = log.read_text(errors="replace").splitlines()
                last = next((x for x in reversed(lines) if x.strip()), "")[:100]
                if process.returncode is not None:
                    return last
                took = f"{time.time() - started:.0f} s"
                print(f"  {took}: {last}", file=sys.stderr, flush=True)
        finally:
            process.kill()  # after Ctrl-C
            process.wait()


def fingerprint(source: Source, command: list[str]) -> str:
    """Hash the command, the room's benchmarks and the package.

    Any change of them is measured anew.
    """
    found = hashlib.sha256(repr(command[1:]).encode())
    room = source.module.partition("_")[0]
    files = [
        *(ROOT / "benchmarks").glob(f"{room}*.py"),
        *(ROOT / "benchmarks").glob(f"{room}/*.py"),
        *(ROOT / "src" / "frugax").rglob("*.py"),
    ]
    for file in sorted(files):
        found.update(file.read_bytes())
    return found.hexdigest()


def read_stamp(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def expect_seconds(source: Source, *, full: bool) -> float:
    """How long its last run took, otherwise its usual time."""
    stamp = KEPT / ("full" if full else "quick") / f"{source.module}.stamp"
    usual = 60 * source.minutes[0 if full else 1]
    return float(read_stamp(stamp).get("seconds", usual))


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
        "date": row.date or date,
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
    """The rows as Markdown, a table for each room."""
    lines: list[str] = []
    room = ""
    for row in rows:
        if row["room"] != room:
            room = row["room"]
            lines += [
                f"\n## `{room}`\n",
                "| task | ours | best peer | ahead by | standing | measured |",
                "|---|--:|--:|--:|---|---|",
            ]
        factor = f"{row['ahead_by']:.4g}"
        if row["low"] is not None:
            factor += f" ({row['low']:.3g} to {row['high']:.3g})"
        standing = row["standing"]
        if standing == "behind":
            standing = "**behind**"
        lines.append(
            f"| {row['task']} | {row['ours']:,.4g} {row['quantity']} "
            f"| {name_peer(row)}: {row['theirs']:,.4g} | {factor} | {standing} "
            f"| {row['date'].partition(' ')[0]} |"
        )
    return "\n".join(lines).strip()


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


def assemble(
    league: dict[str, Any], results: dict[str, tuple[Any, str, str]], command: str
) -> dict[str, Any]:
    """Replace the rows of some benchmarks; those of the others stay."""
    rows = {source.module: [] for source in SOURCES}
    for row in league.get("rows", []):
        rows.setdefault(module_of(row["command"]), []).append(row)
    missing = dict(league.get("missing", {}))
    for source in SOURCES:
        if source.module not in results:
            continue
        data, shown, why = results[source.module]
        missing.pop(source.module, None)
        if data is None:
            # The rows of an earlier run are dated, and better than none.
            if not rows[source.module]:
                missing[source.module] = why
            continue
        date = find_date(data)
        rows[source.module] = [entry(row, shown, date) for row in source.rows(data)]
        if not rows[source.module]:
            missing[source.module] = "its results have no peer in them"
    modules = [source.module for source in SOURCES]
    return {
        "command": command,
        "made_with": made_with(),
        "missing": {name: missing[name] for name in modules if name in missing},
        "rows": [row for name in modules for row in rows[name]],
    }


def module_of(command: str) -> str:
    return command.split()[2].removeprefix("benchmarks.")


def main() -> None:
    """Run the benchmarks, write the JSON and the pages, print the table."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    how = ask.add_mutually_exclusive_group()
    how.add_argument("--full", action="store_true", help="stated figures; hours")
    how.add_argument("--kept", action="store_true", help="run nothing")
    ask.add_argument("--again", action="store_true", help="run finished ones again")
    ask.add_argument("--rows", choices=("counted", "timed"), help="by default both")
    ask.add_argument("--only", help="modules of benchmarks, separated by commas")
    ask.add_argument("--out", type=Path, default=RESULTS / "league.json")
    given = ask.parse_args()
    # As after Ctrl-C, the benchmark that is running ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [source.module for source in SOURCES]
    asked = given.only.split(",") if given.only else names
    if unknown := sorted(set(asked) - set(names)):
        ask.error(
            f"no such benchmark: {', '.join(unknown)}; there are {', '.join(names)}."
        )
    sources = [
        source
        for source in SOURCES
        if source.module in asked
        and given.rows in (None, "timed" if source.is_timed else "counted")
    ]
    command = shlex.join(["python", "-m", "benchmarks.league", *sys.argv[1:]])
    league = json.loads(given.out.read_text()) if given.out.exists() else {}
    for number, source in enumerate(sources, 1):
        if given.kept:
            found = read_kept(source)
        else:
            left = sum(
                expect_seconds(s, full=given.full) for s in sources[number - 1 :]
            )
            print(
                f"{number} of {len(sources)}, {source.module}; "
                f"about {left / 60:.0f} min left",
                file=sys.stderr,
                flush=True,
            )
            found = measure(source, full=given.full, again=given.again)
        # Written each time, so that a run that is stopped has not been for nothing.
        league = assemble(league, {source.module: found}, command)
        write_whole(given.out, json.dumps(league, indent=1) + "\n")
        if given.out == RESULTS / "league.json":
            replace_block(PAGE, page_text(league))
            replace_block(README, readme_text(league))
    print(league_table(league["rows"]))
    for name, why in league["missing"].items():
        print(f"{name}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
