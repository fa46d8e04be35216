"""The entry point of `frugax`: parse arguments, run a command, set the exit code.

Exit codes: 0 all budgets kept; 1 a budget broken or not decidable; 2 bad input; 70 an
error in the user's own code, or a bug of ours, with its traceback; 75 another process
of the run is gone; 130 interrupted; 141 the output was closed early.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import frugax
from frugax.errors import ConfigError, FrugaxError, OutputError

from . import (
    _causal_commands,
    _commands,
    _script_commands,
    _watch_commands,
    _weights_commands,
)
from ._commands import EXIT_PEER_LOST, is_joined
from ._consoles import errors, print_error, say, show_own_warnings_as_lines
from ._explain_error import explain_error
from ._jax_settings import set_up_jax
from ._parse import parse

_ABOUT = """JAX under a budget: state your limits; get a result and a receipt.
For example: frugax init, then frugax plan train.py
--verbose shows the log lines of XLA's compilers, too.
"""

_ABOUT_WATCH = """Look into a run, while it trains or afterwards.
For example: frugax watch serve runs/digits
"""

_ABOUT_CAUSAL = """Find good interventions in few experiments.
For example: frugax causal run examples/campaign.yaml
"""

# Commands that have commands of their own.
_GROUPS = {
    "watch": (_watch_commands.COMMANDS, _ABOUT_WATCH),
    "causal": (_causal_commands.COMMANDS, _ABOUT_CAUSAL),
}


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the `frugax` command and exit."""
    is_own_process = args is None
    if is_own_process:
        show_own_warnings_as_lines()
    args = set_up_jax(sys.argv[1:] if args is None else args)
    is_run = list(args[:1]) == ["run"]
    has_failed = False
    try:
        if list(args) == ["--version"]:
            say(f"frugax {frugax.__version__}")
            raise SystemExit(0)
        commands, about, prog = _commands_by_name(), _ABOUT, "frugax"
        # The help and the errors of a group are about its own commands only.
        if args and args[0] in _GROUPS:
            commands, about = _GROUPS[args[0]]
            prog, args = f"frugax {args[0]}", args[1:]
        args = _script_commands.mark_script(args)
        code = parse(commands, args or ["--help"], prog=prog, about=about)()
    except FrugaxError as e:
        print_error(e)
        code, has_failed = 2, True
    except BrokenPipeError:  # `frugax ... | head` closes it early
        _discard_output()
        code = 141  # 128 + 13
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        code = 130
    except Exception as e:  # anything else is shown in full, with its own exit code
        has_failed = True
        if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT):
            if e.filename is None:
                _discard_output()
            what = e.filename or "the output"
            problem = f"{what} cannot be written: {e.strerror}; free some space."
            print_error(OutputError(problem))
            code = 2
        elif _is_of_interrupt(e):
            errors.print("Interrupted.")
            code, has_failed = 130, False
        elif _is_peer_lost(e):
            print_error(FrugaxError("another process of this run is gone."))
            code = EXIT_PEER_LOST
        elif _is_of_jax_start(e):
            given = [f"{k}={v}" for k, v in os.environ.items() if k.startswith("JAX_")]
            cause = (str(e) or type(e).__name__).splitlines()[0]
            print_error(
                ConfigError(f"JAX does not start with {' '.join(given)}: {cause}")
            )
            code = 2
        else:
            traceback.print_exc()
            # The traceback is for us or for the author of the loss; 70 is EX_SOFTWARE
            # of sysexits.
            code = 70
    # Other processes wait for this one to take its leave, unless it has failed.
    is_awaited = is_joined() and not has_failed
    if is_own_process and (is_run or code == 130) and not is_awaited:
        # With JAX loaded the end of the interpreter takes seconds on a busy machine,
        # and counts against the budget of time. All files of a run are closed by now.
        # After Ctrl-C a compiler's thread may go on, and would end with an abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _discard_output() -> None:
    """Send what Python flushes at its exit nowhere: a second failure is a traceback.

    Python's documentation of SIGPIPE advises this.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_of_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C is behind it: extension modules give it as another error."""
    cause = error.__cause__
    return isinstance(cause, KeyboardInterrupt) or (
        cause is not None and _is_of_interrupt(cause)
    )


def _is_of_jax_start(error: Exception) -> bool:
    """Whether JAX has refused its own settings, or found no device that they name."""
    file = traceback.extract_tb(error.__traceback__)[-1].filename
    return Path(file).parts[-3:] in (
        ("jax", "_src", "xla_bridge.py"),
        ("jax", "_src", "config.py"),
    )


def _is_peer_lost(error: Exception) -> bool:
    if not is_joined():
        return False
    from frugax.train.processes import is_peer_lost

    return is_peer_lost(error)


def _commands_by_name() -> dict[str, Callable[..., int]]:
    return {
        **{
            name: getattr(_commands, name)
            for name in ("init", "run", "plan", "compare", "launch")
        },
        **_script_commands.COMMANDS,
        **_weights_commands.COMMANDS,
        "verify-receipt": _commands.verify_receipt,
        "doctor": _commands.doctor,
        "explain-error": explain_error,
        # `main` handles these groups itself; here they appear in the help.
        "watch": _watch,
        "causal": _causal,
    }


def _watch() -> int:
    """Look into a run: frugax watch --help lists the commands."""
    return main(["watch", "--help"])


def _causal() -> int:
    """Find good interventions: frugax causal --help lists commands."""
    return main(["causal", "--help"])
