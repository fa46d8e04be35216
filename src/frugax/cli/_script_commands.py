"""The commands that run a person's own script: `frugax exec` and `frugax explain`."""

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Annotated

from frugax.errors import ConfigError

from ._arguments import Arg, OutFile
from ._consoles import print_note

# The options of `exec` that take a value; the first word that is neither an option nor
# such a value is the script.
_WITH_VALUE = ("--memory", "--budget", "--receipt")


def exec_(
    command: Annotated[tuple[str, ...], Arg("SCRIPT ...")],
    /,
    *,
    memory: Annotated[str | None, Arg("SIZE", ("--budget",))] = None,
    watch: bool = False,
    receipt: OutFile = None,
) -> int:
    """Run a training script as it is, within a memory budget.

    It runs as under python, with fx.jit in the place of jax.jit. At its end a receipt
    follows on stderr: calls, seconds of a step, compilations and their causes, bytes
    with and without the plan. The exit status is the script's.

    For example:

    frugax exec train.py --lr 3e-4

    frugax exec --memory 60% train.py --lr 3e-4

    frugax exec --memory 40GiB --receipt receipt.json -m package.train

    Args:
        command: the script, or -m and a module; then its arguments.
        memory: 40GiB in all, or 60% of its plain temporaries; the most memory of each
            jitted function that takes a gradient. Bytes are those of arguments, results
            and temporaries. By default nothing is planned.
        watch: tell each compilation and its cause when it happens.
        receipt: write the receipt into this JSON file.

    Raises:
        ConfigError: the script is missing, or an option has a wrong value.
    """
    from frugax.capture import run_script

    if not command or list(command) == ["-m"]:
        raise ConfigError("frugax exec: name a script, such as frugax exec train.py.")
    if memory is not None:
        _check_memory(memory, command)
    _check_receipt(receipt)
    if not command[0].startswith("-"):
        _check_script(command[0])
    stated = {
        "--memory": memory is not None,
        "--budget": memory is not None,
        "--receipt": receipt is not None,
        "--watch": watch,
    }
    _tell_own_options_of_script(
        command, {n for n, is_here in stated.items() if is_here}
    )
    run_script(
        command,
        start="frugax.capture:watch_script",
        settings={
            "memory": memory,
            "watch": watch,
            "explain": False,
            "receipt": None if receipt is None else str(receipt.absolute()),
        },
    )


def explain(
    script: str,
    arguments: Annotated[tuple[str, ...], Arg("-- ARGUMENT ...")] = (),
    /,
    *,
    module: Annotated[bool, Arg(aliases=("-m",))] = False,
    receipt: OutFile = None,
) -> int:
    """Run a script as it is, and explain where its memory goes.

    At its end, or after Ctrl-C, follow on stderr for each jitted function: the ten
    largest groups of arrays at the peak with their lines, the arguments that are
    donated and those that could be, and each compilation with its cause. Nothing is
    planned. The exit status is the script's.

    For example:

    frugax explain train.py -- --lr 3e-4

    frugax explain -m package.train

    Args:
        script: the script.
        arguments: its arguments, after two dashes.
        module: the script is the name of a module, as for python -m.
        receipt: write the same as JSON into this file.

    Raises:
        ConfigError: the script is missing, or the file has no folder.
    """
    from frugax.capture import run_script

    if not module:
        _check_script(script)
    _check_receipt(receipt)
    run_script(
        [*["-m"] * module, script, *arguments],
        start="frugax.capture:watch_script",
        settings={
            "memory": None,
            "watch": False,
            "explain": True,
            "receipt": None if receipt is None else str(receipt.absolute()),
        },
    )


def _check_receipt(receipt: Path | None) -> None:
    if receipt is not None and not receipt.absolute().parent.is_dir():
        raise ConfigError(
            f"--receipt {receipt}: there is no folder {receipt.absolute().parent}."
        )


def _check_script(script: str) -> None:
    # Python runs a folder or an archive with a __main__.py as well.
    if not Path(script).exists():
        raise ConfigError(f"{script}: there is no such file.")


def _check_memory(text: str, command: Sequence[str]) -> None:
    """Refuse a wrong budget before the script starts, without importing JAX.

    Args:
        text: the budget.
        command: the words behind it, among which may be the rest of a budget.

    Raises:
        ConfigError: it is not a budget, or not in one word.
    """
    from frugax.budget import read_memory_budget

    for count in (1, 2):
        rest = " ".join(command[:count])
        for whole, written in ((f"{text}{rest}", ""), (f"{text} {rest}", '"')):
            if _is_budget(whole) and not Path(command[0]).exists():
                raise ConfigError(
                    f"--memory {text} {rest}: write it as one word, "
                    f"--memory {written}{whole}{written}."
                )
    try:
        read_memory_budget(text, name="--memory")
    except ValueError as e:
        raise ConfigError(str(e)) from e


def _is_budget(text: str) -> bool:
    from frugax.budget import read_memory_budget

    try:
        read_memory_budget(text, name="--memory")
    except ValueError:
        return False
    return True


def _tell_own_options_of_script(command: Sequence[str], stated: Set[str]) -> None:
    """Say that an option of ours that follows the script is given to the script.

    Args:
        command: the script and its arguments, or -m, a module and its arguments.
        stated: our options that come before it.
    """
    at = 1 if command[0] == "-m" else 0
    script, arguments = command[at], list(command[at + 1 :])
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    for i, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name not in (*_WITH_VALUE, "--watch") or name in stated:
            continue
        value = value or (arguments[i + 1] if i + 1 < len(arguments) else "")
        if name in ("--memory", "--budget") and not _is_budget(value):
            continue  # the script has such an option of its own
        print_note(
            f"{argument} is given to {script}: an option of frugax exec comes before "
            f"the script, as in frugax exec {name} ... {script}"
        )


def mark_script(args: Sequence[str]) -> list[str]:
    """Write "--" before the script of `frugax exec`: the rest is not for frugax."""
    args = list(args)
    if args[:1] != ["exec"]:
        return args
    at = 1
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-m", "--"):
        at += 2 if args[at] in _WITH_VALUE else 1
    if at < len(args) and args[at] != "--":
        args.insert(at, "--")
    return args


COMMANDS: dict[str, Callable[..., int]] = {"exec": exec_, "explain": explain}
