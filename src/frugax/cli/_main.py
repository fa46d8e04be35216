"""The `frugax` command: reads the arguments, turns known errors into one line.

Exit codes: 0 all budgets kept; 1 a budget broken or not decidable; 2 bad input; 70 an
error in the user's own code, or a bug of ours, with its traceback; 130 interrupted;
141 nobody read the output to its end.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from frugax.errors import FrugaxError

from . import _causal_commands, _commands, _watch_commands, _weights_commands
from ._consoles import errors
from ._parsed import parsed

_ABOUT = """JAX under a budget: state what you can afford; get a result and a receipt.

Try: frugax run examples/digits.yaml
"""

_ABOUT_WATCH = """See into a run, while it goes on or afterwards.

Try: frugax watch serve runs/digits
"""

_ABOUT_CAUSAL = """Find good interventions in few experiments.

Try: frugax causal run examples/campaign.yaml
"""

# Commands that have commands of their own.
_GROUPS = {
    "watch": (_watch_commands.COMMANDS, _ABOUT_WATCH),
    "causal": (_causal_commands.COMMANDS, _ABOUT_CAUSAL),
}


def main(args: Sequence[str] | None = None) -> None:
    """Run the `frugax` command and exit.

    Args:
        args: the arguments after the command's name; None for the process's own.

    Raises:
        SystemExit: always, with the exit code.
    """
    given = list(sys.argv[1:] if args is None else args)
    try:
        if given and given[0] in _GROUPS:
            commands, about = _GROUPS[given[0]]
            prog, given = f"frugax {given[0]}", given[1:]
        else:
            commands, about, prog = _commands_by_name(), _ABOUT, "frugax"
        code = parsed(commands, given or ["--help"], prog=prog, about=about)()
    except FrugaxError as e:
        errors.print(
            f"[bold red]frugax:[/bold red] {_plain(e)}", soft_wrap=True, highlight=False
        )
        code = 2
    except BrokenPipeError:  # `frugax ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        code = 130
    except Exception:  # anything else: shown whole, with an exit code of its own
        traceback.print_exc()
        code = 70
    raise SystemExit(code)


def _commands_by_name() -> dict[str, Callable[..., int]]:
    return {
        **{name: getattr(_commands, name) for name in ("run", "plan", "launch")},
        **_weights_commands.COMMANDS,
        "doctor": _commands.doctor,
        # These have commands of their own; here they stand for the help.
        "watch": _watch,
        "causal": _causal,
    }


def _watch() -> int:
    """See into a run: `frugax watch --help` lists what there is.

    Raises:
        AssertionError: always: `main` reads what follows `watch` itself.
    """
    raise AssertionError("main reads what follows `watch` itself")


def _causal() -> int:
    """Find good interventions: `frugax causal --help` lists what there is.

    Raises:
        AssertionError: always: `main` reads what follows `causal` itself.
    """
    raise AssertionError("main reads what follows `causal` itself")


def _plain(error: FrugaxError) -> str:
    from rich.markup import escape

    return escape(" ".join(str(error).split()))
