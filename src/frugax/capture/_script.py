"""Run a person's script under `python`, with frugax called as soon as it imports JAX.

The script is run by a new Python in this process's place, so its exit status, streams,
signals, `sys.argv` and `__main__` are those of `python script.py`. Python finds our
`sitecustomize` first, as with `opentelemetry-instrument`.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ._absent_plugins import hide_absent_plugins

_BOOTSTRAP = Path(__file__).parent / "bootstrap"


def run_script(
    command: Sequence[str],
    *,
    start: str,
    settings: Mapping[str, Any],
    hide_plugins: bool = False,
) -> NoReturn:
    """Become `python command`, and call a function once the script has imported JAX.

    Args:
        command: the script and its arguments, or -m, a module and its arguments.
        start: the function, as "module:name"; it is called with the settings.
        settings: what it needs, as JSON can hold it.
        hide_plugins: whether JAX starts without the plug-ins of devices that are not
            here, see `hide_absent_plugins`.
    """
    settings = {**settings, "hide_plugins": hide_plugins}
    sys.stdout.flush()
    sys.stderr.flush()
    environment = _environment(command, start, settings)
    os.execve(sys.executable, [sys.executable, *command], environment)


def call_script(
    command: Sequence[str],
    *,
    start: str,
    settings: Mapping[str, Any],
    variables: Mapping[str, str],
) -> int:
    """Run `python command` as `run_script` does, as a child process.

    Its stdout goes to this process's stderr, and plug-ins are hidden.

    Args:
        command: as for `run_script`.
        start: as for `run_script`.
        settings: as for `run_script`.
        variables: further environment variables.

    Returns:
        Its exit status.
    """
    settings = {**settings, "hide_plugins": True}
    environment = _environment(command, start, settings) | dict(variables)
    sys.stderr.flush()
    return subprocess.run(
        [sys.executable, *command], env=environment, stdout=2, check=False
    ).returncode


def _environment(
    command: Sequence[str], start: str, settings: Mapping[str, Any]
) -> dict[str, str]:
    environment = dict(os.environ)
    environment["FRUGAX_SCRIPT"] = json.dumps(
        {"start": start, "command": list(command), **settings}
    )
    before = environment.get("PYTHONPATH")
    if before is not None:
        environment["FRUGAX_SCRIPT_PYTHONPATH"] = before
    paths = [str(_BOOTSTRAP), *([before] if before else [])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def start_in_script(text: str) -> None:
    """Wait for the import of JAX, then call the function that `run_script` names."""
    settings = json.loads(text)
    if settings.pop("hide_plugins"):
        hide_absent_plugins()
    module, _, name = settings.pop("start").partition(":")

    def start() -> None:
        getattr(importlib.import_module(module), name)(settings)

    sys.meta_path.insert(0, _AfterImport("jax", start))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once, after a module was imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of that module, whose loader calls the function."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                self._then()

            loader.exec_module = exec_module
        return spec
