"""What a training step costs beyond raw JAX, and whether its promises hold.

    python -m benchmarks.train [--parts overhead,eager,peers,warm,precision,time]

Each part is merged into `benchmarks/results/train.json` as soon as it is done, so they
can be run one by one; the tables printed are of all that is there. Times are taken in
turns and compared within a round, beside a control: the same program against itself.
`time` takes `--runs` times `--seconds` (20 times 30) and comes last.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import train_calls, train_peers, train_runs
from benchmarks.machine import made_with

from frugax.files import write_whole

RESULTS = Path(__file__).parent / "results" / "train.json"

PARTS: dict[str, tuple[Callable[[Any], dict[str, Any]], Callable[[Any], str]]] = {
    "overhead": (
        lambda given: train_calls.overhead(given.rounds or 200),
        train_calls.overhead_table,
    ),
    "eager": (
        lambda given: train_calls.eager(given.rounds or 15),
        train_calls.eager_table,
    ),
    "peers": (
        lambda given: train_peers.peers(given.rounds or 60),
        train_peers.tables,
    ),
    "warm": (
        lambda given: train_runs.warm(given.rounds or 5),
        train_runs.warm_table,
    ),
    "precision": (
        lambda given: train_runs.precision(given.seeds),
        train_runs.precision_table,
    ),
    "time": (
        lambda given: train_runs.within_time(given.runs, given.seconds),
        train_runs.time_table,
    ),
}


def shown(record: dict[str, Any]) -> str:
    """All tables, each with the command that made it and when."""
    texts = [
        f"## {part}: {record[part]['command']}, {record[part]['made_with']['date']}\n\n"
        f"{table(record[part]['found'])}"
        for part, (_, table) in PARTS.items()
        if part in record
    ]
    return "\n\n".join(texts)


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--parts", default=",".join(PARTS))
    ask.add_argument("--rounds", type=int, help="of a part's own number if not given")
    ask.add_argument("--runs", type=int, default=20, help="of the part time")
    ask.add_argument("--seconds", type=float, default=30.0, help="of each such run")
    ask.add_argument("--seeds", type=int, default=5, help="of the part precision")
    ask.add_argument("--out", type=Path, default=RESULTS)
    given = ask.parse_args()
    parts = given.parts.split(",")
    unknown = set(parts) - set(PARTS)
    if unknown:
        ask.error(f"no such part: {', '.join(sorted(unknown))}.")
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    for part in (p for p in PARTS if p in parts):
        print(f"{part} ...", file=sys.stderr, flush=True)
        record[part] = {
            "command": shlex.join(["python", "-m", "benchmarks.train", *sys.argv[1:]]),
            "made_with": made_with(),
            "found": PARTS[part][0](given),
        }
        given.out.parent.mkdir(exist_ok=True)
        write_whole(given.out, json.dumps(record, indent=1) + "\n")
    print(shown(record))


if __name__ == "__main__":
    main()
