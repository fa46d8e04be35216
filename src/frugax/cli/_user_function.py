"""`frugax plan module:function`: import a user's loss and print its memory plan."""

import inspect
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from frugax.budget import MemoryBudget
from frugax.errors import ConfigError
from frugax.run import load_function, user_code

from ._consoles import console, errors, say
from ._plan_options import PlanOptions

# The arguments of `remat.plan` that a function may return besides the loss.
_OPTIONS = ("argnums", "has_aux", "within", "block_size")


def is_function_name(target: str) -> bool:
    """Whether the text is module:function, and not the name of a file."""
    # File names may have colons, so a file that exists is meant as a file.
    return ":" in target and not Path(target).exists()


def plan_function(subject: str, result: object, choices: PlanOptions) -> None:
    """Plan the loss that a function has returned; print the plan and its memory."""
    if choices.budget is None:
        raise ConfigError(
            f"state how much memory {subject} may need: frugax plan {subject} --budget "
            "2GiB, or 50% of what it needs without a plan."
        )
    try:
        headroom = choices.headroom or 0.0
        budget = MemoryBudget(choices.budget, kind=choices.kind, headroom_frac=headroom)
    except ValueError as e:
        raise ConfigError(f"frugax plan: {e}") from e
    options = read_program(subject, result, _OPTIONS)

    # After the user's own module, which may set up JAX.
    from frugax import remat, train
    from frugax.fileio import write_whole

    train.use_compile_cache()
    loss, args = options.pop("fn"), tuple(options.pop("args"))
    guard = user_code("the program", place=subject, is_mixed=True)
    with guard, spin("compiling and measuring plans"):
        plan = remat.plan(loss, budget, example_args=args, **options)
    say(plan.explain())
    with spin("drawing the memory over time"):
        drawn = remat.draw_memory(loss, plan, args, within=options.get("within"))
    width = min(max(console.width, 40), 110)
    say(f"\n{drawn.text(width=width)}")
    if choices.picture is not None:
        drawn.save(choices.picture)
        say(f"Picture: {choices.picture}")
    if choices.frontier is not None:
        found = plan.frontier()
        found.save(choices.frontier)
        say(f"\n{found}\nFrontier: {choices.frontier}")
    if choices.json is not None:
        write_whole(choices.json, plan.to_json() + "\n")
        say(f"Plan: {choices.json}")


def call_function(subject: str) -> Any:
    """Load a user's function, and call it without arguments."""
    function = load_function(subject)
    parameters = inspect.signature(function).parameters.values()
    if any(
        p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        for p in parameters
    ):
        raise ConfigError(f"{subject} needs arguments, but is called without any.")
    with user_code("the function", place=subject):
        return function()


def read_program(
    subject: str, result: object, known: Collection[str]
) -> dict[str, Any]:
    """Read the program that a user's function returned.

    Args:
        subject: the function.
        result: (loss or step, arguments), or a mapping with these and options.
        known: the options that there are.

    Returns:
        `fn`, `args` and the options that were stated.

    Raises:
        ConfigError: the result is something else.
    """
    expected = (
        "it must return (function, arguments), or a dict with fn (or loss), args (or "
        f"example_args) and, if you like, {', '.join(known)}."
    )
    if isinstance(result, tuple) and len(result) == 2:
        result = dict(zip(("fn", "args"), result, strict=True))
    if not isinstance(result, Mapping):
        raise ConfigError(f"{subject} returned {_describe(result)}: {expected}")
    names = {"loss": "fn", "example_args": "args"}
    found = {names.get(key, key): value for key, value in result.items()}
    if missing := {"fn", "args"} - found.keys():
        raise ConfigError(f"{subject} returned no {min(missing)}: {expected}")
    if unknown := found.keys() - {"fn", "args", *known}:
        raise ConfigError(f"{subject} returned an unknown {min(unknown)!r}: {expected}")
    if not callable(found["fn"]) or not isinstance(found["args"], tuple | list):
        what = f"{_describe(found['fn'])} and {_describe(found['args'])}"
        raise ConfigError(f"{subject} returned {what}: {expected}")
    return found


def spin(text: str) -> Progress:
    """Show a spinner while the block runs, if the output is a terminal."""
    line = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=errors,
        disable=not errors.is_terminal,
        transient=True,
    )
    line.add_task(text, total=None)
    return line


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"something of type {type(value).__name__}"
