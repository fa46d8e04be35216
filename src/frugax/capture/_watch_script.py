"""Plan and watch every function that a script jits, and write a receipt at its end."""

import atexit
import contextlib
import dataclasses
import functools
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    Verdict,
    amount,
    format_bytes,
    format_seconds,
    table,
    to_json,
    to_plain,
)
from frugax.errors import OutputError
from frugax.fileio import call_before_sigterm, write_whole

from ._explain import ProgramExplanation
from ._jit import PlannedFunction, read_memory
from ._plan import JitPlan, describe_error
from ._replace_jit import replace_jit
from ._report import CallRecord, JitReport
from ._unjitted_gradients import UnjittedGradients

# Functions and compilations that a receipt names; its JSON has all.
_MAX_LISTED, _MAX_COMPILES = 12, 5
# Share of the largest program's bytes from which on the arrays of a program are listed.
_LARGE_SHARE = 0.1
_NOT_LIMITED = "-"


def watch_script(settings: dict[str, Any]) -> None:
    """Let `fx.jit` take the place of `jax.jit` for the rest of this process.

    Args:
        settings: `command`, the script with its arguments; `memory`, its budget or
            None; `watch`, whether each compilation is told when it happens; `explain`,
            whether the memory of each program is explained; `receipt`, the file to
            write, or None.
    """
    script = ScriptWatch(settings)
    # Held by `atexit`: a block that is collected as garbage would end.
    block = contextlib.ExitStack()
    block.enter_context(replace_jit(script.jit, everywhere=True))
    if settings["memory"] is not None or settings["explain"]:
        block.enter_context(script.unjitted.noting())
    atexit.register(lambda: (script.finish(), block.close()))
    call_before_sigterm(script.finish)
    if settings["explain"]:
        sys.excepthook = functools.partial(_end_of_explaining, script)


def _end_of_explaining(
    script: "ScriptWatch",
    kind: type[BaseException],
    error: BaseException,
    trace: types.TracebackType | None,
) -> None:
    """Show an error of the script as Python does; Ctrl-C ends with a report."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    _tell("Interrupted.")
    script.finish()
    sys.stdout.flush()
    # A compiler's thread may go on, and the end of Python would end it by a signal.
    os._exit(130)


class ScriptWatch:
    """The jitted functions of one script."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._budget = read_memory(settings["memory"])
        self._process = os.getpid()
        # A script may jit a function in each step, and drop it, as it drops those of
        # its `main`: what they did stays, those of one line of source as one.
        self._records: dict[tuple[str, str], CallRecord] = {}
        self._explained: dict[CallRecord, ProgramExplanation] = {}
        self.unjitted = UnjittedGradients()

    def jit(self, fun: Callable[..., Any], options: dict[str, Any]) -> PlannedFunction:
        """Take the place of `jax.jit(fun, **options)`."""
        made = PlannedFunction(fun, self._budget, options, needs_gradient=False)
        made.on_search, made.on_compile = _tell_search, self._note_compile
        key = made.record.name, made.record.place
        made.record = self._records.setdefault(key, made.record)
        return made

    def _note_compile(self, function: PlannedFunction) -> None:
        record = function.record
        function.read_programs()  # it may be gone later
        what = f"frugax: {record.name} ({record.place})"
        if self._settings["watch"]:
            _tell(f"{what} {record.compiles[-1]}")
        if self._settings["explain"] and record.most_demanding is record.programs[-1]:
            try:
                self._explained[record] = function.explain()
            except Exception as e:  # not an error of the script
                _tell(f"{what} cannot be explained: {describe_error(e)}")

    def explanations(self) -> list[ProgramExplanation]:
        """The functions that were called, or lowered ahead of their calls."""
        found = []
        for record in list(self._records.values()):  # a thread may add to it
            if record.calls or record.lowered is not None:
                report = record.report()
                known = self._explained.get(record, ProgramExplanation(report=report))
                found.append(dataclasses.replace(known, report=report))
        # Those that were planned, then those that took the longest time.
        order = lambda e: (e.report.program.plan is None, -_cost(e.report))
        return sorted(found, key=order)

    def finish(self) -> None:
        """Write the receipt, at the end of the process that started the script."""
        if os.getpid() != self._process:
            return  # a child that was forked
        found, settings = self.explanations(), self._settings
        reports = [e.report for e in found]
        if settings["explain"]:
            _tell(describe_memory(found, settings["command"]))
        else:
            _tell(describe(reports, settings["command"], self._budget))
        if self.unjitted.lines:
            _tell(f"not in this report: {self.unjitted.advice}")
        if settings["receipt"] is None:
            return
        document = {
            "command": settings["command"],
            "memory": settings["memory"],
            "functions": [
                to_plain(x) for x in (found if settings["explain"] else reports)
            ],
            "unjitted_gradients": self.unjitted.lines,
        }
        try:
            write_whole(Path(settings["receipt"]), to_json(document, indent=1) + "\n")
        except OutputError as e:
            # The script is done: its exit status stays.
            _tell(f"frugax: {e}")
        else:
            _tell(f"receipt: {settings['receipt']}")


def _cost(report: JitReport) -> float:
    compiled = sum(c.seconds for c in report.compiles)
    return compiled + report.calls * (report.step_seconds or 0.0)


def _tell_search(record: CallRecord, plain: JitPlan, seconds: float) -> None:
    # The script is silent meanwhile.
    what, needs = f"{record.name} ({record.place})", format_bytes(plain.unplanned_bytes)
    at_most = f"planning, for up to {format_seconds(seconds)}"
    _tell(f"frugax: {what} needs {needs}, its limit is {plain.budget}: {at_most}")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def describe(
    reports: Sequence[JitReport],
    command: Sequence[str],
    budget: MemoryBudget | MemoryShare | None = None,
) -> str:
    """The receipt of a script, as text.

    Args:
        reports: its functions, the most important first.
        command: the script and its arguments.
        budget: the limit of each function that takes a gradient; None if there is none.
    """
    title = f"frugax: receipt of {' '.join(command)}"
    if not reports:
        none = "it called no function of jax.jit or jax.pmap"
        if budget is not None:
            none += ", so nothing was limited"
        return f"{title}: {none}"
    listed = reports[:_MAX_LISTED]
    timed = any(r.program.step_time is not None for r in listed)
    head = ["function", "calls", "each", *["predicted"] * timed]
    head += ["compiles", "memory", "plain", "verdict"]
    rows, notes = [], [] if budget is None else [f"limit: {budget}"]
    if timed:
        notes.append(
            "each: from one call to the next, which need not wait for its results; "
            "predicted: one run, on its own"
        )
    for r in listed:
        plan, needed = r.program.plan, r.program.bytes
        rows.append(
            [
                f"{r.name} ({r.place})",
                f"{r.calls:,}",
                "-" if r.step_seconds is None else format_seconds(r.step_seconds),
                *[r.step_time_text] * timed,
                str(len(r.compiles)),
                "-" if needed is None else format_bytes(needed),
                "-" if plan is None else format_bytes(plan.unplanned_bytes),
                _verdict(r),
            ]
        )
        if plan is not None and plan.gradients:
            note = f"{r.name}: limit {plan.budget}, "
            note += plan.extra_text
            if r.programs > 1:
                note += f", the largest of {r.programs} programs"
            if plan.cut_after_s is not None:
                note += f"; planning ended after {format_seconds(plan.cut_after_s)}"
            notes.append(note)
        notes += [f"{r.name}: {problem}" for problem in r.problems]
        if len(r.compiles) > 1:
            notes += [f"{r.name} {c}" for c in r.compiles[:_MAX_COMPILES]]
            if (more := len(r.compiles) - _MAX_COMPILES) > 0:
                notes.append(f"{r.name} was compiled {amount(more, 'more times')}")
    if budget is not None and any(row[-1] == _NOT_LIMITED for row in rows):
        notes.append(f"{_NOT_LIMITED}: takes no gradient, so nothing limits it")
    if (more := len(reports) - _MAX_LISTED) > 0:
        notes.append(f"called, too: {amount(more, 'more functions')}")
    return "\n".join([title, table(head, rows), *notes])


def _verdict(report: JitReport) -> str:
    if report.receipt is not None:
        return report.receipt.spends[0].verdict.value
    if report.program.plan is not None or not report.has_ended:
        return Verdict.CANNOT_TELL.value
    return "not planned" if report.program.unplanned else _NOT_LIMITED


def describe_memory(
    explanations: Sequence[ProgramExplanation], command: Sequence[str]
) -> str:
    """The memory, the donation and the compilations of a script's functions, as text.

    Args:
        explanations: its functions.
        command: the script and its arguments.
    """
    title = f"frugax: memory of {' '.join(command)}"
    if not explanations:
        return f"{title}: it called no jitted function"
    largest = sorted(explanations, key=lambda e: -e.bytes)
    parts = [title]
    for explanation in largest[:_MAX_LISTED]:
        # Of small programs, the calls and compilations are enough.
        is_large = explanation.bytes >= _LARGE_SHARE * largest[0].bytes
        parts.append(f"\n{explanation if is_large else explanation.report}")
    if (more := len(largest) - _MAX_LISTED) > 0:
        parts.append(f"\ncalled, too: {amount(more, 'more functions')}")
    return "\n".join(parts)
