"""The benchmarks of `frugax.compress`, one after the other, each a process of its own.

    python -m benchmarks.compress
    python -m benchmarks.compress lossless streaming

Each writes its own file of results; see the head of `benchmarks/compress_*.py`.
"""

import argparse
import subprocess
import sys

PARTS = ("lossless", "lossy", "streaming")


def main() -> None:
    """Run the benchmarks that are named, by default all."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    ask.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parts = ask.parse_args().parts or PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        ask.error(f"no such part: {', '.join(unknown)}.")
    for part in parts:
        command = [sys.executable, "-m", f"benchmarks.compress_{part}"]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
