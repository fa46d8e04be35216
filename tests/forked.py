"""The `frugax` command, and code, in processes that need not import JAX anew.

Importing takes four seconds each time, what most of these tests run takes one. A server
imports once, starts no threads, and every command is a fork of it. No run-time type
checker is at work there. Where the process itself is not tested, `inline` runs a
command in this one, with JAX started and programs compiled already.
"""

import contextlib
import functools
import importlib
import io
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

_CODE = "-c"


@functools.cache
def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    # How wide a text may be is read where a module is imported.
    os.environ["COLUMNS"] = "100"
    context.set_forkserver_preload(
        ["forked", "frugax.cli", "frugax.run", "orbax.checkpoint"]
    )
    return context


class Command:
    """A command that runs; as much of `subprocess.Popen` as these tests need."""

    def __init__(
        self, *args: object, cwd: Any = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out = [Path(self._folder.name) / name for name in ("out", "err")]
        self._process = _server().Process(
            target=_run, args=([*map(str, args)], str(cwd or "."), env or {}, self._out)
        )
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def wait(self) -> CompletedProcess[str]:
        """Its output and its exit code, once it has ended."""
        self._process.join()
        out, err = (p.read_text() if p.exists() else "" for p in self._out)
        self._folder.cleanup()
        return CompletedProcess([], self._process.exitcode, out, err)


def frugax(
    *args: object, cwd: Any = None, env: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run one command to its end."""
    return Command(*args, cwd=cwd, env=env).wait()


def inline(*args: object, cwd: Any = None) -> CompletedProcess[str]:
    """Run one command to its end in this process; it must not set a limit of time.

    The clock of such a limit starts with the process.
    """
    from unittest import mock

    from frugax.cli import main

    folder, modules, path = Path(cwd or ".").resolve(), set(sys.modules), sys.path[:]
    out, err = io.StringIO(), io.StringIO()
    importlib.invalidate_caches()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, COLUMNS="100"),
        # The tests' cache of programs must not change.
        mock.patch("frugax.train.use_compile_cache"),
    ):
        try:
            main([*map(str, args)])
        except SystemExit as e:
            code = e.code
    sys.path[:] = path
    # The user's own modules would be found again.
    for name in set(sys.modules) - modules if cwd else ():
        file = getattr(sys.modules[name], "__file__", None) or ""
        if Path(file).is_relative_to(folder):
            del sys.modules[name]
    assert isinstance(code, int)
    return CompletedProcess([], code, out.getvalue(), err.getvalue())


def python(code: str, *args: object) -> CompletedProcess[str]:
    """Run some code to its end, with arguments in `sys.argv[1:]`."""
    return Command(_CODE, code, *args).wait()


def _run(args: list[str], cwd: str, env: Mapping[str, str], out: list[Path]) -> None:
    for stream, path in zip((sys.stdout, sys.stderr), out, strict=True):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(cwd)
    os.environ.update(env)
    sys.path.insert(0, "")
    if args[:1] == [_CODE]:
        _, code, *args = args
        sys.argv[:] = ["-c", *args]
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
        return
    sys.argv[:] = ["frugax", *args]
    from frugax.cli import main

    main()
