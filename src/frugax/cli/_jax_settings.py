"""Set what JAX and XLA read from the environment before a command loads them."""

import os
from collections.abc import Sequence

from frugax.capture import hide_absent_plugins

# The option of all commands that shows XLA's log lines.
VERBOSE = "--verbose"


def set_up_jax(args: Sequence[str]) -> list[str]:
    """Keep XLA's logs and plug-ins without a device out of the terminal.

    Settings of the user win, and a script has the terminal and the environment that
    it has under python.

    Args:
        args: of the command line.

    Returns:
        The arguments without `--verbose`.
    """
    if args[:1] == ["exec"]:
        return list(args)
    if args[:1] in (["plan"], ["explain"]):
        # JAX's cache on disk takes programs for equal that differ in their lines alone,
        # and these commands name lines.
        os.environ.setdefault("JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY", "1")
    is_verbose, rest = split_verbose(list(args))
    if is_verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")
    else:
        # The compiler logs, for example, that it is slow, beside our own answer.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    hide_absent_plugins()
    return rest


def split_verbose(args: list[str]) -> tuple[bool, list[str]]:
    """Split the option off; what follows a script or `--` belongs to that program."""
    if args[:1] == [VERBOSE]:
        return True, args[1:]
    own = args
    if args[:1] in (["exec"], ["launch"]):
        own = args[:1]
    elif "--" in args:
        own = args[: args.index("--")]
    rest = [arg for arg in own if arg != VERBOSE]
    return len(rest) < len(own), rest + args[len(own) :]
