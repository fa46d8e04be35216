"""The `frugax` command: reads the arguments, turns known errors into one line.

Exit codes: 0 all budgets kept; 1 a budget broken or not decidable; 2 bad input; 70 an
error in the user's own code, or a bug of ours, with its traceback; 130 interrupted.
"""

import sys
import traceback
from collections.abc import Sequence

import tyro

from frugax.errors import FrugaxError

from . import _commands

_ABOUT = """JAX under a budget: state what you can afford; get a result and a receipt.

Try: frugax run examples/digits.yaml
"""


def main(args: Sequence[str] | None = None) -> None:
    """Run the `frugax` command and exit.

    Args:
        args: the arguments after the command's name; None for the process's own.

    Raises:
        SystemExit: always, with the exit code.
    """
    commands = {
        name: getattr(_commands, name)
        for name in (
            "run",
            "plan",
            "launch",
            "compress",
            "decompress",
            "verify",
            "doctor",
        )
    }
    given = list(sys.argv[1:] if args is None else args)
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            commands, prog="frugax", description=_ABOUT, args=given or ["--help"]
        )
    except FrugaxError as e:
        _commands.errors.print(
            f"[bold red]frugax:[/bold red] {_plain(e)}", soft_wrap=True, highlight=False
        )
        code = 2
    except KeyboardInterrupt:
        _commands.errors.print("Interrupted.")
        code = 130
    except Exception:  # anything else: shown whole, with an exit code of its own
        traceback.print_exc()
        code = 70
    raise SystemExit(code)


def _plain(error: FrugaxError) -> str:
    from rich.markup import escape

    return escape(" ".join(str(error).split()))
