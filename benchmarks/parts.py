"""Run a benchmark in parts, each stored in one JSON file as soon as it is done."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import made_with

from frugax.fileio import write_whole

Part = tuple[Callable[[Any], dict[str, Any]], Callable[[dict[str, Any]], str]]


def run_parts(
    module: str, parts: Mapping[str, Part], ask: argparse.ArgumentParser
) -> None:
    """Run the parts that the command asks for, print the tables of all that are kept.

    Args:
        module: its name after `python -m`; the results go to the file of the same name.
        parts: by name, a function from the command's options to a result, and one that
            formats it.
        ask: the options of the parts; `--parts` and `--out` are added.
    """
    results = Path(__file__).parent / "results" / f"{module.split('.')[1]}.json"
    ask.add_argument("--parts", default=",".join(parts))
    ask.add_argument("--out", type=Path, default=results)
    given = ask.parse_args()
    asked = given.parts.split(",")
    if unknown := sorted(set(asked) - set(parts)):
        ask.error(f"no such part: {', '.join(unknown)}.")
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    for part in (p for p in parts if p in asked):
        print(f"{part} ...", file=sys.stderr, flush=True)
        record[part] = {
            "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
            "made_with": made_with(),
            "found": parts[part][0](given),
        }
        given.out.parent.mkdir(exist_ok=True)
        write_whole(given.out, json.dumps(record, indent=1) + "\n")
    print(_shown(parts, record))


def _shown(parts: Mapping[str, Part], record: dict[str, Any]) -> str:
    texts = [
        f"## {part}: {record[part]['command']}, {record[part]['made_with']['date']}\n\n"
        f"{show(record[part]['found'])}"
        for part, (_, show) in parts.items()
        if part in record
    ]
    return "\n\n".join(texts)
