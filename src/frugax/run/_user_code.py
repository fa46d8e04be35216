"""Load the user's own functions; turn their exceptions into errors of one line."""

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from frugax.budget import suggest
from frugax.errors import ConfigError, FrugaxError
from frugax.train.compiles import find_error_site

_OWN = Path(__file__).parent.parent


@contextlib.contextmanager
def user_code(
    what: str, *, place: str = "task", is_mixed: bool = False
) -> Iterator[None]:
    """Turn an error of the user's own code into one line with its place.

    Args:
        what: the function that is called.
        place: of the function, for the message.
        is_mixed: whether much of frugax's own code runs in the block, too: then an
            error in which no line of the user's has a part stays as it is.

    Raises:
        ConfigError: the block raised an error.
        FrugaxError: the block raised one, which says what to do itself.
    """
    try:
        yield
    # Also SystemExit: sys.exit() there would end the run as if it had succeeded.
    except BaseException as e:
        if isinstance(e, FrugaxError | KeyboardInterrupt):
            raise
        site = find_error_site(e, installed=False)
        line = "" if site == "?" else f" at {site}"
        message = f"{what} raised {type(e).__name__}{line}: {_message(e)}"
        if not line and _is_complaint(e):
            message = _message(e)
        elif not line and is_mixed:
            raise
        raise ConfigError(f"{place}: {message}") from e


def load_function(
    target: str, *, folder: Path | None = None, place: str = ""
) -> Callable[..., Any]:
    """Load a function by the name of its module, or by its file.

    Args:
        target: such as "my_model:task" or "train/my_model.py:task".
        folder: searched for the module before the working folder and the packages.
        place: of the name, for messages; by default the name itself.

    Raises:
        ConfigError: there is no such function, or its module raises an error.
    """
    place = place or target
    module_name, _, name = target.rpartition(":")
    if not module_name or not name:
        raise ConfigError(
            f'{target!r} does not name a function: write "module:function", such as '
            "my_model:task."
        )
    with user_code(f"importing {module_name}", place=place):
        try:
            if module_name.endswith(".py") or "/" in module_name:
                module = _import_file(Path(module_name), place)
            else:
                folders = [] if folder is None else [folder.resolve()]
                module = _import_module(module_name, [*folders, Path.cwd()], place)
        except SystemExit as e:
            # Scripts without a main guard often end in sys.exit.
            raise ConfigError(
                f"{place}: {module_name} ended the program when it was imported "
                f"(SystemExit {e.code!s:.200}): put the code of its main program under "
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
        raise ConfigError(
            f"{place}: {module_name} has no function {name!r}.{suggest(name, own)} It "
            f"has {', '.join(own[:12]) or 'none'}{', ...' * (len(own) > 12)}."
        )
    return function


def _import_module(name: str, folders: list[Path], place: str) -> ModuleType:
    # An installed command finds its own folder on the path, not the working folder as
    # `python -m` does.
    for folder in reversed(folders):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{name}.".startswith(f"{e.name}."):
            raise  # the user's module exists, but imports a missing one
        files = {file.stem for folder in folders for file in folder.glob("*.py")}
        raise ConfigError(
            f"{place}: module {name!r} was not found in "
            f"{', in '.join(map(str, folders))} or among the installed packages."
            f"{suggest(name, files)}"
        ) from e


def _import_file(file: Path, place: str) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file.")
    # A unique name: the user's random.py must not replace Python's.
    name = f"_planned_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{place}: the name of a Python file must end in .py.")
    # Its folder comes first, as when Python runs a file.
    sys.path.insert(0, str(file.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, because dataclasses look their module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _message(error: BaseException) -> str:
    lines: list[str] = []
    with contextlib.suppress(Exception):  # the text is the user's own code, too
        lines = str(error).strip().splitlines()
    if not lines:  # as that of a MemoryError, which is about the machine
        return "no message"
    if "Traceback (most recent call last)" in lines[0]:
        return lines[-1][:300]  # of a callback: XLA quotes the whole traceback
    return lines[0][:300]


def _is_complaint(error: BaseException) -> bool:
    """Whether frugax itself raised the error, about an argument."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    is_raised = _OWN in Path(frame.filename).parents and "raise " in (frame.line or "")
    return is_raised and isinstance(error, TypeError | ValueError)
