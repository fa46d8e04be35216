"""`frugax plan module:function`: a memory plan for a user's own loss."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from frugax.budget import MemoryBudget
from frugax.errors import ConfigError

# The arguments of `remat.plan` that a function may return beside the loss.
_OPTIONS = ("argnums", "has_aux", "within", "block_size")
_WANTED = (
    "return (loss, example_args), or a dict of remat.plan's arguments: loss, "
    f"example_args and, if you like, {', '.join(_OPTIONS)}"
)


def names_function(target: str) -> bool:
    """Whether this is written module:function, and not a file's name."""
    return ":" in target and not Path(target).exists()


def plan_function(
    target: str,
    budget: MemoryBudget,
    *,
    picture: Path | None,
    json: Path | None,
    console: Console,
    progress: Console,
) -> None:
    """Plan what a function returns; print the plan, and what it holds over time.

    Args:
        target: module:function, or file.py:function.
        budget: the most memory the gradient, or what is around it, may need.
        picture: where to write the picture; None for nowhere.
        json: where to write the plan; None for nowhere.
        console: for results.
        progress: for what moves while programs compile, if it is a terminal.

    Raises:
        ConfigError: there is no such function, it does not return what can be planned,
            or a file has an ending that cannot be written.
        InfeasibleBudgetError: nothing fits.
    """
    if picture is not None and picture.suffix not in (".svg", ".txt"):
        raise ConfigError(f"--picture {picture}: the file must end in .svg or .txt.")
    asked = _asked(target)

    # After the user's own module, which may set up JAX.
    from frugax import remat, train
    from frugax.fileio import write_whole

    train.use_compile_cache()
    loss, args = asked.pop("loss"), tuple(asked.pop("example_args"))
    with _busy("compiling and measuring plans", progress):
        plan = remat.plan(loss, budget, example_args=args, **asked)
    console.print(plan.explain(), highlight=False, markup=False, soft_wrap=True)
    with _busy("drawing what is held over time", progress):
        drawn = remat.draw_memory(loss, plan, args, within=asked.get("within"))
    width = min(max(console.width, 40), 110)
    console.print()
    console.print(
        drawn.text(width=width), highlight=False, markup=False, soft_wrap=True
    )
    if picture is not None:
        drawn.save(picture)
        console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
    if json is not None:
        write_whole(json, plan.to_json() + "\n")
        console.print(f"Plan: {json}", highlight=False, soft_wrap=True)


def own_function(target: str) -> Callable[..., Any]:
    """A function by its module's name or file.

    Args:
        target: module:function, or file.py:function.

    Raises:
        ConfigError: there is no such function, or its module is no Python or ended the
            program.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ConfigError(
            f'{target!r} names no function: write "module:function", for example '
            "my_model:loss_and_shapes."
        )
    try:
        module = _module(place)
    except SyntaxError as e:  # of the module, or of one that it imports
        line = "" if e.lineno is None else f":{e.lineno}"
        said = "" if e.text is None else f": {e.text.strip():.80}"
        raise ConfigError(f"{e.filename or place}{line}: {e.msg}{said}") from e
    except SystemExit as e:
        raise ConfigError(
            f"{place} ended the program when it was imported (SystemExit "
            f"{e.code!s:.200}): put what it does as a program under "
            'if __name__ == "__main__".'
        ) from e
    function = getattr(module, name, None)
    if not callable(function):
        own = [
            n
            for n, value in vars(module).items()
            if callable(value)
            and getattr(value, "__module__", None) == module.__name__
            and n[0] != "_"
        ]
        raise ConfigError(
            f"{place} has no function {name!r}; it has {', '.join(own) or 'none'}."
        )
    return function


def _asked(target: str) -> dict[str, Any]:
    """The arguments of `remat.plan` that the function at `target` returns.

    Raises:
        ConfigError: there is no such function, or it returns something else.
    """
    function = own_function(target)
    given = function()
    if isinstance(given, tuple) and len(given) == 2:
        given = dict(zip(("loss", "example_args"), given, strict=True))
    if not isinstance(given, Mapping):
        raise ConfigError(f"{target} returned {_kind(given)}: it must {_WANTED}.")
    needed = {"loss", "example_args"}
    if not needed <= given.keys() <= needed | {*_OPTIONS}:
        keys = ", ".join(map(str, given)) or "nothing"
        raise ConfigError(f"{target} returned a dict of {keys}: it must {_WANTED}.")
    loss, args = given["loss"], given["example_args"]
    if not callable(loss) or not isinstance(args, tuple | list):
        raise ConfigError(
            f"{target} returned {_kind(loss)} and {_kind(args)} as loss and "
            f"example_args: it must {_WANTED}, with example_args a tuple."
        )
    return dict(given)


def _module(place: str) -> ModuleType:
    """Import a module by its dotted name or by its file.

    Raises:
        ConfigError: there is no such module.
        ModuleNotFoundError: it imports another that is not there.
    """
    if place.endswith(".py") or "/" in place:
        return _from_file(Path(place))
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{place}.".startswith(f"{e.name}."):
            raise  # the user's module is there, but imports something that is not
        raise ConfigError(
            f"there is no module {place!r} in {Path.cwd()} or among the installed "
            "packages."
        ) from e


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file.")
    # A name of its own: my random.py must not take the place of Python's.
    name = f"_planned_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file}: this is no Python file; its name must end in .py.")
    # Its own folder first, as when Python runs a file.
    sys.path.insert(0, str(file.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _busy(said: str, console: Console) -> Progress:
    """A line that moves while the block runs; nothing where there is no terminal."""
    line = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    line.add_task(said, total=None)
    return line


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"something of type {type(value).__name__}"
