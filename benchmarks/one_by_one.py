"""Run the benchmarks of a room one after the other, each in its own process."""

import argparse
import subprocess
import sys
from collections.abc import Sequence


def run(room: str, parts: Sequence[str], what: str) -> None:
    """Run the parts that the command line names, by default all, up to an error.

    Args:
        room: `PART` is the module `benchmarks.ROOM_PART`.
        parts: their names.
        what: for `--help`.
    """
    ask = argparse.ArgumentParser(description=what)
    ask.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    chosen = ask.parse_args().parts or parts
    if unknown := sorted(set(chosen) - set(parts)):
        ask.error(f"no such part: {', '.join(unknown)}.")
    for part in chosen:
        subprocess.run([sys.executable, "-m", f"benchmarks.{room}_{part}"], check=True)
