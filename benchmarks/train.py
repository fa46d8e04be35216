"""Measure the cost of a training step beyond raw JAX, and whether its promises hold.

    python -m benchmarks.train [--parts overhead,eager,peers,warm,precision,time]

Each part is merged into `benchmarks/results/train.json` as soon as it is done, so parts
can be run one by one; the printed tables cover all parts in that file. Programs take
turns, and times are compared within a round, beside a control: the same program against
itself. `time` runs for `--runs` times `--seconds` (20 times 30) and comes last.
"""

import argparse

from benchmarks import train_calls, train_peers, train_runs
from benchmarks.parts import Part, run_parts

PARTS: dict[str, Part] = {
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


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--rounds", type=int, help="of a part's own number if not given")
    ask.add_argument("--runs", type=int, default=20, help="of the part time")
    ask.add_argument("--seconds", type=float, default=30.0, help="of each such run")
    ask.add_argument("--seeds", type=int, default=5, help="of the part precision")
    run_parts("benchmarks.train", PARTS, ask)


if __name__ == "__main__":
    main()
