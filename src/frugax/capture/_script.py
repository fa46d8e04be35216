"""Run a person's script under `python`, with frugax called as soon as it imports JAX.

The script is run by a new Python in this process's place, so its exit status, streams,
signals, `sys.argv` and `__main__` are those of `python script.py`. Python finds our
`sitecustomize` first, as with `opentelemetry-instrument`.
"""

import atexit
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
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
) -> NoReturn:
    """Become `python command`, and call a function once the script has imported JAX.

    Args:
        command: the script and its arguments, or -m, a module and its arguments.
        start: the function, as "module:name"; it is called with the settings.
        settings: its arguments, as JSON can hold them; with `memory` or `receipt`
            given, a note says that the script has not imported JAX.
    """
    is_asked = any(settings[name] is not None for name in ("memory", "receipt"))
    settings = {**settings, "needs_jax": is_asked}
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

    Its stdout goes to this process's stderr.

    Args:
        command: as for `run_script`.
        start: as for `run_script`.
        settings: as for `run_script`.
        variables: further environment variables.

    Returns:
        Its exit status.
    """
    settings = {**settings, "needs_jax": False}
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
    atexit.register(_end_as_interrupted)
    if settings.pop("needs_jax"):
        atexit.register(_tell_without_jax)
    hide_absent_plugins()
    module, _, name = settings.pop("start").partition(":")

    def start() -> None:
        getattr(importlib.import_module(module), name)(settings)

    sys.meta_path.insert(0, _AfterImport("jax", start))


def _end_as_interrupted() -> None:
    """End by the signal of Ctrl-C after all else, as Python does.

    A compiler's thread may go on, and the end of the interpreter would crash in it.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _tell_without_jax() -> None:
    if "jax" not in sys.modules:
        sys.stderr.write(
            "frugax: the script did not import JAX, so nothing was limited or watched, "
            "and there is no receipt\n"
        )


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
