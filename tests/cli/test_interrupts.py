"""Ctrl-C ends a command with exit code 130 and no traceback, while it loads, too."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, time

class Finalized:
    def __del__(self):
        raise KeyboardInterrupt

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            {interrupt}

sys.meta_path.insert(0, Interrupting())
from frugax.cli import main
sys.argv[1:] = {args!r}
main()
"""
DIRECT = "raise KeyboardInterrupt"
# As extension modules do, jaxlib's among them.
WRAPPED = "raise ImportError('while initializing') from KeyboardInterrupt()"
# Python itself would print it and go on.
DROPPED = "Finalized(); [time.sleep(0.01) for _ in range(1000)]"
PLAN = ["plan", "run.yaml", "--target", "cpu"]


@pytest.mark.parametrize(
    ("module", "interrupt", "args"),
    [
        ("argparse", DIRECT, ["--version"]),
        ("rich.console", DIRECT, ["--version"]),
        ("frugax.cli._main", DIRECT, ["--version"]),
        ("jax", DIRECT, PLAN),
        ("jax", WRAPPED, PLAN),
        ("jaxlib.xla_client", WRAPPED, PLAN),
        ("jax", DROPPED, PLAN),
    ],
)
def test_an_interrupt_while_modules_load_has_no_traceback(module, interrupt, args):
    program = PROGRAM.format(module=module, interrupt=interrupt, args=args)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "Interrupted.\n"
    assert done.stdout == ""


def test_an_error_that_no_interrupt_caused_keeps_its_traceback():
    interrupt = "raise ImportError('no interrupt')"
    program = PROGRAM.format(module="jax", interrupt=interrupt, args=PLAN)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 70
    assert "no interrupt" in done.stderr
