"""Measure the cost of a described model beside the same one written by hand.

    python -m benchmarks.models [--quick | --rounds N] [--parts step,tiny,build,scan]

`step`: value and gradients of three nets in several hand-written JAX variants, flax
nnx, equinox, torch and frugax. `tiny`: the cost of a call. `build`: from a description
to a program. `scan`: the first step of a deep stack, as a loop and written out.

Steps are judged by the clock on the wall: a user waits for it, and CPU time would
charge threads for waiting. Calls and building run on one thread: they are judged by CPU
time, which others on the machine cannot lengthen. Both are recorded. Each part is
merged into `benchmarks/results/models.json` when it is done; the exit status is 1 if a
bar is broken by more than the control can explain.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import made_with
from benchmarks.remat_cases import load, said
from safetensors.numpy import load_file

from frugax.fileio import write_whole

from . import blocks, tables
from .nets import SIZED, TINY
from .race import ENVIRONMENT, race
from .worker import difference

RESULTS = Path(__file__).parents[1] / "results" / "models.json"
PARTS = ("step", "tiny", "build", "scan")
ROUNDS = {"step": 41, "tiny": 41, "scan": 3}
QUICK = {"step": 7, "tiny": 9, "scan": 1}
BUILD_BLOCKS = 64
SCAN_BLOCKS = 48


def step(rounds: int) -> dict[str, Any]:
    kinds = ("jax", "torch", "torch.compile")
    nets = {n: race(n, ("step",), rounds, kinds=kinds, clock="wall") for n in SIZED}
    return {"clock": "wall", "nets": nets}


def tiny(rounds: int) -> dict[str, Any]:
    # torch.compile takes part only where there is something to compile.
    kinds, labels = ("jax", "torch"), ("forward", "step")
    nets = {n: race(n, labels, rounds, kinds=kinds, clock="cpu") for n in TINY}
    return {"clock": "cpu", "nets": nets}


def build(_: int) -> dict[str, Any]:
    blocks_, ways = str(BUILD_BLOCKS), [w for w in blocks.WAYS if "frugax" in w]
    found = {way: of_blocks("build", blocks_, way) for way in ways}
    return {"blocks": BUILD_BLOCKS, "ways": found}


def scan(rounds: int) -> dict[str, Any]:
    """Medians over rounds; how far gradients are from those of the first way."""
    ways: dict[str, list[dict[str, float]]] = {way: [] for way in blocks.WAYS}
    apart: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for i, way in enumerate(ways):
                said(f"{SCAN_BLOCKS} blocks: {way}")
                file = Path(folder) / f"{i}.safetensors"
                asked = ("first-step", str(SCAN_BLOCKS), way, str(file))
                ways[way].append(of_blocks(*asked))
                wanted = load_file(Path(folder) / "0.safetensors")
                apart[way] = difference(load_file(file), wanted)
    medians = {
        way: {k: statistics.median(t[k] for t in times) for k in times[0]}
        | {"differs_by": apart[way]}
        for way, times in ways.items()
    }
    return {"blocks": SCAN_BLOCKS, "rounds": rounds, "ways": medians}


def of_blocks(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.models.blocks", *arguments]
    ran = subprocess.run(
        command,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def versions() -> dict[str, str]:
    """Of the other contestants."""
    return {k: importlib.metadata.version(k) for k in ("flax", "equinox", "torch")}


MEASURES: dict[str, Callable[[int], dict[str, Any]]] = {
    "step": step,
    "tiny": tiny,
    "build": build,
    "scan": scan,
}


def shown(record: dict[str, Any], *, docs: bool) -> str:
    """Tables and verdicts; for the guide, the short ones."""
    texts: list[str] = []
    for part, found in record.items():
        if part in ("step", "tiny"):
            labels = ("step",) if part == "step" else ("forward", "step")
            if docs:
                texts.append(tables.short(found["nets"], labels, found["clock"]))
            else:
                texts += [
                    tables.raced(found["nets"], w, found["clock"]) for w in labels
                ]
        else:
            table = tables.build_table if part == "build" else tables.scan_table
            texts.append(table(found))
    texts += [v.text for v in verdicts(record)]
    for part, found in record.items():
        of = found["environment"]
        texts.append(
            f"{part}: {of['date']}, {of['cpu']}, {of['system']}, load "
            f"{found['load'][0]:.1f} to {found['load'][1]:.1f}; Python {of['python']}, "
            f"JAX {of['jax']}, flax {of['flax']}, equinox {of['equinox']}, torch "
            f"{of['torch']}; "
            f"`{found['command']}`"
        )
    return "\n\n".join(texts)


def verdicts(record: dict[str, Any]) -> list[tables.Verdict]:
    found: list[tables.Verdict] = []
    if "step" in record:
        found += tables.step_verdicts(record["step"]["nets"])
    if "tiny" in record:
        found += tables.tiny_verdicts(record["tiny"]["nets"])
    if "build" in record:
        found += tables.build_verdicts(record["build"])
    if "scan" in record:
        found += tables.scan_verdicts(record["scan"])
    return found


def main() -> int:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--parts", default=",".join(PARTS))
    ask.add_argument("--quick", action="store_true", help="few rounds: wide intervals")
    ask.add_argument("--rounds", type=int, help="more give narrower intervals")
    ask.add_argument("--show", action="store_true", help="measure nothing anew")
    ask.add_argument("--docs", action="store_true", help="short tables for the guide")
    ask.add_argument("--out", type=Path, default=RESULTS)
    given = ask.parse_args()
    parts = given.parts.split(",")
    unknown = set(parts) - set(PARTS)
    if unknown:
        ask.error(f"no such part: {', '.join(sorted(unknown))}.")
    # The same two CPUs for all, so two threads each, on a machine of any size.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    for part in () if given.show else parts:
        rounds = given.rounds or (QUICK if given.quick else ROUNDS).get(part, 1)
        before = load()
        found = MEASURES[part](rounds)
        about = {
            "environment": made_with() | versions(),
            "command": " ".join(["python -m benchmarks.models", *sys.argv[1:]]),
            "load": [before, load()],
        }
        record |= {part: about | found}
        record = {p: record[p] for p in PARTS if p in record}
        given.out.parent.mkdir(exist_ok=True)
        write_whole(given.out, json.dumps(record, indent=1) + "\n")
    record = {p: record[p] for p in parts if p in record}
    print(shown(record, docs=given.docs))
    return int(any(v.broken for v in verdicts(record)))


if __name__ == "__main__":
    sys.exit(main())
