"""Run the commands of the README and of its three tutorials, and record their output.

    python -m benchmarks.first_page

Runs `frugax plan` with empty caches and `frugax run` in a temporary folder, then the
first command of each tutorial as a stranger would, writes
`benchmarks/results/first_page.json`, and puts outputs and times into the README. The
other figures of its text are those of other benchmarks' results;
`scripts/check_readme.py` compares all of them.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import describe_machine
from safetensors.numpy import save_file

from frugax.fileio import write_whole

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "first_page.json"
README = ROOT / "README.md"
PLAN = "frugax plan train.py --target h100,l4 --budget 64MiB"
RUN = "frugax run examples/digits.yaml"
# The first command of each tutorial that the README's clock is about.
FIRST = {
    "first_plan": "frugax plan my_model.py:make --budget 30MiB",
    "first_run": "frugax run wave.yaml",
    "compress": "frugax compress folder/ --size 4bpw",
}
_FILE = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", re.S | re.M)
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


def time_tutorial(name: str) -> float:
    """Write the files that a tutorial shows, and time its first command, in seconds."""
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()
    with tempfile.TemporaryDirectory() as folder:
        for file, text in _FILE.findall(page):
            (Path(folder) / file).write_text(text)
        rng = np.random.default_rng(0)
        (Path(folder) / "folder").mkdir()
        for i in range(2):
            shard = f"model-0000{i + 1}-of-00002.safetensors"
            weights = {f"w{i}": rng.normal(size=(1024, 1024)).astype("float32")}
            save_file(weights, Path(folder) / "folder" / shard)
        started = time.perf_counter()
        run_command(FIRST[name], folder)
        return time.perf_counter() - started


def receipt_in(text: str) -> str:
    """The lines of a receipt, from its heading to its last verdict."""
    lines = [line.rstrip() for line in text.splitlines()]
    rows = [n for n, line in enumerate(lines) if line.endswith(VERDICTS)]
    return "\n".join(lines[rows[0] - 1 : rows[-1] + 1])


def page_text(page: str, found: dict[str, Any]) -> str:
    """The README with the outputs and the dates of these results."""
    made = found["made_with"]
    day = made["date"].split()[0]
    cores = ", two shared CPU cores, "
    blocks = {
        r"(?<=```console\n)\$ frugax plan .*?(?=\n```)": "$ "
        + PLAN
        + "\n"
        + found["plan"]["table"],
        r"(?<=```text\n)budget .*?(?=\n```)": found["run"]["table"],
        r"\d+ s(?= of processor\s+time for the two devices)": (
            f"{found['plan']['cpu_seconds']:.0f} s"
        ),
        rf"JAX [\d.]+, Python [\d.]+{cores}[\d-]+": (
            f"JAX {made['jax']}, Python {made['python']}{cores}{day}"
        ),
    }
    for name, seconds in found["clock"].items():
        # `(?<=...)` needs a fixed width, so the words before the figure are kept apart.
        before = re.search(
            rf"\(docs/tutorials/{name}\.md\)[\w\s]*?in(?= [\d.]+ s)", page
        )
        if before is None:
            raise SystemExit(f"{README.name}: no time beside the tutorial {name}")
        blocks[re.escape(before[0]) + r" [\d.]+ s"] = f"{before[0]} {seconds:.1f} s"
    for pattern, text in blocks.items():
        page, count = re.subn(pattern, lambda _, text=text: text, page, flags=re.S)
        if count != 1:
            raise SystemExit(f"{README.name}: {count} places look like {pattern}")
    return page


def main() -> None:
    """Run the commands, write the JSON and the README."""
    with tempfile.TemporaryDirectory() as folder:
        run_command("frugax init .", folder)
        planned, cpu_seconds = run_command(PLAN, folder)
        ran, _ = run_command(RUN, folder)
    # What the script itself prints comes first.
    start = planned.index("train.py: step")
    table = planned[start:].partition("\nbytes of ")[0]
    found = {
        "plan": {"command": PLAN, "table": table, "cpu_seconds": cpu_seconds},
        "run": {"command": RUN, "table": receipt_in(ran)},
        "clock": {name: time_tutorial(name) for name in FIRST},
        "made_with": describe_machine(),
    }
    write_whole(RESULTS, json.dumps(found, indent=1) + "\n")
    write_whole(README, page_text(README.read_text(), found))
    print(table, found["run"]["table"], sep="\n\n")


if __name__ == "__main__":
    main()
