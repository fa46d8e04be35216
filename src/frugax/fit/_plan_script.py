"""Plan the first training step of a script for devices that need not be here."""

import atexit
import contextlib
import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from frugax import measure
from frugax.budget import read_memory_budget, to_json, to_plain
from frugax.capture import (
    PlannedFunction,
    ShapesOfLargeArrays,
    TracedStep,
    UnjittedGradients,
    UnknownValueError,
    devices_of,
    replace_jit,
)
from frugax.errors import CompilerRefusedError, FrugaxError
from frugax.fileio import write_whole
from frugax.targets import Target
from frugax.train.compiles import find_call_site, find_error_site, is_user_file

from ._fit_plan import FitRow
from ._plan_step import answer_step

# Errors of JAX itself where the value of an unknown array decides.
_UNKNOWN = (
    UnknownValueError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptPlan:
    """The answers for the first training step of a script.

    Attributes:
        step: names the step, its line and the line of its call; "" if there is none.
        others: names and lines of functions that the script has jitted, and not called
            before it.
        rows: the answer for each target.
        peaks: for each of them, the arrays at the peak, or None.
        problem: why there is no answer; "" if there is one.
    """

    step: str = ""
    others: tuple[str, ...] = ()
    rows: tuple[FitRow, ...] = ()
    peaks: tuple[measure.PeakMemory | None, ...] = ()
    problem: str = ""


def plan_in_script(settings: dict[str, Any]) -> None:
    """Plan a step of the script that this process runs, and end it there.

    Args:
        settings: `targets`, their names; `step`, the name of the step, None for the
            first; `budget`, the most bytes of one device; `why`,
            whether the arrays at the peak are wanted; `execute`, whether large arrays
            are made; `answer`, the file to write.
    """
    script = _ScriptPlanner(settings)
    # Held by `atexit`: a block that is collected as garbage would end.
    block = contextlib.ExitStack()
    block.enter_context(replace_jit(script.jit, everywhere=True))
    block.enter_context(script.unjitted.noting())
    # Those of one run are of one platform.
    block.enter_context(devices_of(Target(settings["targets"][0])))
    if not settings["execute"]:
        block.enter_context(ShapesOfLargeArrays().current())
    sys.excepthook = script.explain_error
    atexit.register(lambda: (script.finish(), block))


class _ScriptPlanner:
    """Waits for a jitted function that takes a gradient."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._process = os.getpid()
        self._is_written = False
        self._error = ""
        self._jitted: list[PlannedFunction] = []
        self.unjitted = UnjittedGradients()
        self._passed: list[str] = []  # steps that were called, and are not wanted

    def jit(self, fun: Callable[..., Any], options: dict[str, Any]) -> PlannedFunction:
        """Take the place of `jax.jit(fun, **options)`."""
        made = PlannedFunction(
            fun, None, options, needs_gradient=False, on_step=self.plan
        )
        self._jitted.append(made)
        return made

    def plan(self, step: TracedStep) -> None:
        """Plan the step for all targets, write the answers, and end the process.

        The script goes on after a step of another name than the wanted one.
        """
        wanted = self._settings["step"]
        if wanted not in (None, step.name):
            self._passed.append(f"{step.name} ({step.place})")
            return
        called = find_call_site()
        name = f"{step.name} ({step.place}), called at {called}"
        with ShapesOfLargeArrays.suspended():
            try:
                found = self._answer(step, name)
            except FrugaxError as e:
                found = ScriptPlan(problem=_message_of(e).rstrip("."))
            except Exception as e:
                # The script may catch it, and go on as if nothing were wrong.
                sys.excepthook(type(e), e, e.__traceback__)
                found = ScriptPlan(problem=f"{type(e).__name__} in planning {name}")
        self._write(found)
        # What the script does after its first step is not for a step that did not run.
        # The functions of `atexit` end its workers.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _answer(self, step: TracedStep, name: str) -> ScriptPlan:
        rows, peaks = [], []
        for text in self._settings["targets"]:
            target = Target(text)
            sys.stderr.write(f"frugax: {name}: compiling for {target}\n")
            sys.stderr.flush()
            row, peak = answer(
                step, target, self._settings["budget"], why=self._settings["why"]
            )
            rows.append(row)
            peaks.append(peak)
        others = dict.fromkeys(
            f"{function.record.name} ({function.record.place})"
            for function in self._jitted
            if function.record.calls == 0 and _is_users(function.__wrapped__)
        )
        others.pop(f"{step.name} ({step.place})", None)  # jitted in several ways
        return ScriptPlan(
            step=name, others=tuple(others), rows=tuple(rows), peaks=tuple(peaks)
        )

    def explain_error(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Report an error that ends the script; one of an unknown value in one line."""
        if issubclass(kind, KeyboardInterrupt):
            return  # the command says so
        place, what = find_error_site(error), "a value that is not known here"
        if self._settings["execute"] or not isinstance(error, _UNKNOWN):
            sys.__excepthook__(kind, error, trace)
            self._error = (
                f"{place} raised {kind.__name__}, see above, before a jitted function "
                "that takes a gradient was called"
            )
            return
        if isinstance(error, UnknownValueError):
            place, what = error.place, f"the values of {error.shape}"
        self._error = (
            f"{place} needs {what}, since large arrays are not made: give the script a "
            "smaller config, or add --execute to make them"
        )
        if advice := self.unjitted.advice:
            self._error += f"; it takes {advice}"

    def finish(self) -> None:
        """At the end of the script: there was no step."""
        if os.getpid() != self._process or self._is_written:
            return
        script, wanted = self._settings["command"][0], self._settings["step"]
        none = (
            "it ended before it called a function of jax.jit or jax.pmap that takes a "
            f"gradient: jit its step, or name a function to plan, such as {script}:make"
        )
        if advice := self.unjitted.advice:
            none = f"it takes {advice}"
        if self._passed:
            none = f"it called {', '.join(self._passed)}, but no step named {wanted!r}"
        self._write(ScriptPlan(problem=self._error or none))

    def _write(self, found: ScriptPlan) -> None:
        self._is_written = True
        write_whole(Path(self._settings["answer"]), to_json(to_plain(found)))


def answer(
    step: TracedStep, target: Target, budget: str, *, why: bool = False
) -> tuple[FitRow, measure.PeakMemory | None]:
    """The answer for one target, and the arrays at the peak of its program.

    Args:
        step: the step.
        target: the target.
        budget: the most bytes of one device.
        why: whether the arrays at the peak are wanted.
    """
    try:
        with _context_mesh_on(target):
            return _answer(step, target, budget, why=why)
    except (FrugaxError, ValueError) as e:
        refused = isinstance(e, CompilerRefusedError)
        problem = _message_of(e)
        return FitRow.without_answer(target.name, problem, is_refused=refused), None


def _is_users(function: Callable[..., Any]) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and is_user_file(code.co_filename)


def _message_of(error: Exception) -> str:
    """The text of an error, without the command that explains its kind."""
    return str(error.args[0] if error.args else error)


def _context_mesh_on(target: Target) -> contextlib.AbstractContextManager[None]:
    """The mesh that the script has set, on the devices of a target."""
    mesh = jax.sharding.get_mesh()
    if target.is_here or mesh.empty:
        return contextlib.nullcontext()
    moved: Any = target.move(NamedSharding(mesh, PartitionSpec()))
    return jax.set_mesh(moved.mesh)


def _answer(
    step: TracedStep, target: Target, budget: str, *, why: bool
) -> tuple[FitRow, measure.PeakMemory | None]:
    found = answer_step(step.on(target), target, read_memory_budget(budget))
    row, peak = found.row, None
    if not row.fits:
        parts = filter(None, (found.advise_donation(), row.caveat))
        row = dataclasses.replace(row, caveat="; ".join(parts))
    if why:
        try:
            peak = found.find_peak(target)
        except ValueError as e:
            sys.stderr.write(
                f"frugax: {target}: what fills the memory is unknown: {e}\n"
            )
    return row, peak
