"""Run the two commands that the README shows, and record their output.

    python -m benchmarks.first_page

Runs `frugax plan` with empty caches and `frugax run` in a temporary folder, writes
`benchmarks/results/first_page.json`, and puts both outputs into the README. The other
figures of its text are those of the rooms' results; `tests/test_first_page.py` compares
all of them.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import made_with

from frugax.fileio import write_whole

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "first_page.json"
README = ROOT / "README.md"
PLAN = "frugax plan examples/plan_llama.py:small --target h100,l4 --budget 4GiB"
RUN = "frugax run examples/digits.yaml"
VERDICTS = ("  kept", "  broken", "  cannot tell")


def run_command(command: str, folder: str) -> tuple[str, float]:
    """Run a command with empty caches; return its output and its processor seconds."""
    words = command.replace("examples/", f"{ROOT}/examples/").split()[1:]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "frugax.cli", *words],
        cwd=folder,
        env=os.environ | {"XDG_CACHE_HOME": folder, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, used


def receipt_in(text: str) -> str:
    """The lines of a receipt, from its heading to its last verdict."""
    lines = [line.rstrip() for line in text.splitlines()]
    rows = [n for n, line in enumerate(lines) if line.endswith(VERDICTS)]
    return "\n".join(lines[rows[0] - 1 : rows[-1] + 1])


def page_text(page: str, found: dict[str, Any]) -> str:
    """The README with the outputs and the dates of these results."""
    made = found["made_with"]
    facts = f"JAX {made['jax']}, {found['plan']['cpu_seconds']:.0f} s of processor time"
    day = made["date"].split()[0]
    blocks = {
        r"(?<=```console\n)\$ frugax plan .*?(?=\n```)": "$ "
        + PLAN
        + "\n"
        + found["plan"]["table"],
        r"(?<=```text\n)budget .*?(?=\n```)": found["run"]["table"],
        r"JAX [\d.]+, \d+ s of processor\s+time, [\d-]+": f"{facts}, {day}",
        r"two shared CPU cores, JAX [\d.]+, [\d-]+": "two shared CPU cores, JAX "
        + f"{made['jax']}, {day}",
    }
    for pattern, text in blocks.items():
        page, count = re.subn(pattern, lambda _, text=text: text, page, flags=re.S)
        if count != 1:
            raise SystemExit(f"{README.name}: {count} places look like {pattern}")
    return page


def main() -> None:
    """Run both commands, write the JSON and the README."""
    with tempfile.TemporaryDirectory() as folder:
        planned, cpu_seconds = run_command(PLAN, folder)
        ran, _ = run_command(RUN, folder)
    table = planned.partition("\nbytes of ")[0]
    found = {
        "plan": {"command": PLAN, "table": table, "cpu_seconds": cpu_seconds},
        "run": {"command": RUN, "table": receipt_in(ran)},
        "made_with": made_with(),
    }
    write_whole(RESULTS, json.dumps(found, indent=1) + "\n")
    write_whole(README, page_text(README.read_text(), found))
    print(table, found["run"]["table"], sep="\n\n")


if __name__ == "__main__":
    main()
