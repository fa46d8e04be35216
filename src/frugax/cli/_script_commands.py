"""The commands that run a person's own script: `frugax exec` and `frugax explain`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from frugax.errors import ConfigError

# The options of `exec` that take a value; the first word that is neither an option nor
# such a value is the script.
_WITH_VALUE = ("--memory", "--receipt")
Command = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT ...")
]


def exec_(
    command: Command,
    /,
    *,
    memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None,
    watch: tyro.conf.FlagCreatePairsOff[bool] = False,
    receipt: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
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
        _check_memory(memory)
    _check_receipt(receipt)
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
    script: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT")],
    arguments: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="-- ARGUMENT ...")
    ] = (),
    /,
    *,
    module: Annotated[
        tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-m"])
    ] = False,
    receipt: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
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

    if not module and not Path(script).is_file():
        raise ConfigError(f"{script}: there is no such file.")
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


def _check_memory(text: str) -> None:
    """Refuse a wrong budget before the script starts, without importing JAX."""
    from frugax.budget import read_memory_budget

    try:
        read_memory_budget(text, name="--memory")
    except ValueError as e:
        raise ConfigError(str(e)) from e


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
