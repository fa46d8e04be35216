"""The commands of the tutorials run, on the files that the tutorials show."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_FILE = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", re.S | re.M)
# Of Python, JAX and XLA, which a reader would have to ignore.
_NOISE = re.compile(r"Traceback|\w*Warning: .*|^[IWE]\d{4} .*|absl::.*", re.M)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.S | re.M)


def commands_of(page):
    return [
        line
        for block in _COMMANDS.findall(page.read_text())
        for line in block.splitlines()
    ]


def run_command(line, folder):
    program, *arguments = shlex.split(line)
    assert program == "frugax"
    # As with the extra cuda-targets: JAX finds the plug-in for GPUs.
    compilers = str(Path(sys.prefix) / "compilers")
    return subprocess.run(
        [sys.executable, "-m", "frugax.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": compilers},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_tutorial_leads_to_the_next():
    order = ["first_plan", "first_run", "your_loop", "compress", "watch", "campaign"]
    assert {page.stem for page in PAGES} == set(order)
    for name, following in itertools.pairwise(order):
        text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()
        assert re.search(r"Next:\s\[", text)
        assert f"]({following}.md)." in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands_of(p)], ids=lambda p: p.stem
)
def test_the_commands_of_a_tutorial_run(page, tmp_path):
    for name, text in _FILE.findall(page.read_text()):
        (tmp_path / name).write_text(text)
    for line in commands_of(page):
        done = run_command(line, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert _NOISE.findall(done.stdout + done.stderr) == []
