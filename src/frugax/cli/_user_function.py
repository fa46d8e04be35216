"""`frugax plan module:function`: import a user's loss and print its memory plan."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from frugax.budget import MemoryBudget, MemoryShare
from frugax.errors import ConfigError
from frugax.run import user_code

# The arguments of `remat.plan` that a function may return besides the loss.
_OPTIONS = ("argnums", "has_aux", "within", "block_size")
_EXPECTED = (
    "return (loss, example_args), or a dict of remat.plan's arguments: loss, "
    f"example_args and, if you like, {', '.join(_OPTIONS)}"
)


def is_function_name(target: str) -> bool:
    """Whether the text is module:function, and not the name of a file."""
    # File names may have colons, so a file that exists is meant as a file.
    return ":" in target and not Path(target).exists()


def plan_function(
    target: str,
    budget: MemoryBudget | MemoryShare,
    *,
    picture: Path | None,
    frontier: Path | None,
    json: Path | None,
    console: Console,
    progress: Console,
) -> None:
    """Plan the loss that a function returns, and print the plan and its memory."""
    # Checked before anything is compiled, although the picture comes last.
    for option, file in (("--picture", picture), ("--frontier", frontier)):
        if file is not None and file.suffix not in (".svg", ".txt"):
            raise ConfigError(f"{option} {file}: the file must end in .svg or .txt.")
    options = _call_function(target)

    # After the user's own module, which may set up JAX.
    from frugax import remat, train
    from frugax.fileio import write_whole

    train.use_compile_cache()
    loss, args = options.pop("loss"), tuple(options.pop("example_args"))
    guard = user_code("the program", place=target, is_mixed=True)
    with guard, spin("compiling and measuring plans", progress):
        plan = remat.plan(loss, budget, example_args=args, **options)
    console.print(plan.explain(), highlight=False, markup=False, soft_wrap=True)
    with spin("drawing the memory over time", progress):
        drawn = remat.draw_memory(loss, plan, args, within=options.get("within"))
    width = min(max(console.width, 40), 110)
    console.print()
    console.print(
        drawn.text(width=width), highlight=False, markup=False, soft_wrap=True
    )
    if picture is not None:
        drawn.save(picture)
        console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
    if frontier is not None:
        found = plan.frontier()
        console.print()
        console.print(str(found), highlight=False, markup=False, soft_wrap=True)
        found.save(frontier)
        console.print(f"Frontier: {frontier}", highlight=False, soft_wrap=True)
    if json is not None:
        write_whole(json, plan.to_json() + "\n")
        console.print(f"Plan: {json}", highlight=False, soft_wrap=True)


def load_function(target: str) -> Callable[..., Any]:
    """Load a function by its module's name or file."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ConfigError(
            f'{target!r} does not name a function: write "module:function", such as '
            "my_model:loss_and_shapes."
        )
    try:
        module = _import_module(place)
    except SyntaxError as e:  # of the module, or of one that it imports
        where = e.filename or place
        if e.lineno is not None:
            where = f"{where}:{e.lineno}"
        message = f"{where}: {e.msg}"
        if e.text is not None:
            message = f"{message}: {e.text.strip():.80}"
        raise ConfigError(message) from e
    except SystemExit as e:
        raise ConfigError(
            # Scripts without a main guard often end in sys.exit, which would end frugax
            # too.
            f"{place} ended the program when it was imported (SystemExit "
            f"{e.code!s:.200}): put the code of its main program under "
            'if __name__ == "__main__".'
        ) from e
    function = getattr(module, name, None)
    if not callable(function):
        # Imported functions are left out: they are rarely the ones that were meant.
        own = [
            n
            for n, value in vars(module).items()
            if callable(value)
            and getattr(value, "__module__", None) == module.__name__
            and n[0] != "_"
        ]
        near = difflib.get_close_matches(name, own, n=1)
        meant = f"; perhaps you meant {near[0]}" if near else ""
        raise ConfigError(
            f"{place} has no function {name!r}{meant}; it has "
            f"{', '.join(own[:12]) or 'none'}{', ...' * (len(own) > 12)}."
        )
    return function


def _call_function(target: str) -> dict[str, Any]:
    """Call the function at `target` for the arguments of `remat.plan`."""
    function = load_function(target)
    with user_code("the function", place=target):
        result = function()
    if isinstance(result, tuple) and len(result) == 2:
        result = dict(zip(("loss", "example_args"), result, strict=True))
    if not isinstance(result, Mapping):
        raise ConfigError(
            f"{target} returned {_describe(result)}: it must {_EXPECTED}."
        )
    needed = {"loss", "example_args"}
    if not needed <= result.keys() <= needed | {*_OPTIONS}:
        keys = ", ".join(map(str, result)) or "nothing"
        raise ConfigError(f"{target} returned a dict of {keys}: it must {_EXPECTED}.")
    loss, args = result["loss"], result["example_args"]
    if not callable(loss) or not isinstance(args, tuple | list):
        raise ConfigError(
            f"{target} returned {_describe(loss)} and {_describe(args)} as loss and "
            f"example_args: it must {_EXPECTED}, with example_args a tuple."
        )
    return dict(result)


def _import_module(place: str) -> ModuleType:
    """Import a module by its dotted name or by its file."""
    if place.endswith(".py") or "/" in place:
        return _import_file(Path(place))
    # An installed command finds its own folder on the path, not the working folder as
    # `python -m` does.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{place}.".startswith(f"{e.name}."):
            raise  # the user's module exists, but imports a missing one
        raise ConfigError(
            f"module {place!r} was not found in {Path.cwd()} or among the installed "
            "packages."
        ) from e


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file.")
    # A unique name: the user's random.py must not replace Python's.
    name = f"_planned_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(
            f"{file}: this is not a Python file; its name must end in .py."
        )
    # Its folder comes first, as when Python runs a file.
    sys.path.insert(0, str(file.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, because dataclasses look their module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def spin(text: str, console: Console) -> Progress:
    """Show a spinner while the block runs, if the output is a terminal."""
    line = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    line.add_task(text, total=None)
    return line


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"something of type {type(value).__name__}"
