"""`frugax plan train.py`: the first training step of a script, for each target."""

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from frugax.budget import from_plain
from frugax.errors import ConfigError
from frugax.options import join_first

from ._plan_for_targets import show_plan
from ._plan_options import PlanOptions

if TYPE_CHECKING:
    from frugax.fit import ScriptPlan
    from frugax.targets import Target


def plan_script(command: Sequence[str], options: PlanOptions) -> int:
    """Print the answer for each target.

    Args:
        command: the script and its arguments, or -m, a module and its arguments.
        options: the targets and more.

    Raises:
        ConfigError: an option is wrong, or the script calls no training step.
    """
    from frugax import fit
    from frugax.targets import installed_compilers

    script = command[1] if command[0] == "-m" else command[0]
    if command[0] != "-m" and not Path(script).is_file():
        raise ConfigError(f"{script}: there is no such file.")
    targets, costs = options.read_targets()
    limit = options.read_budget() or fit.DEFAULT_BUDGET
    for target in targets:
        target.in_bytes(limit)  # refused before the script runs
    settings = {
        "budget": options.budget or str(fit.DEFAULT_BUDGET),
        "why": options.why or options.picture is not None,
        "execute": options.execute,
        "step": options.step,
    }
    rows, peaks, problems = [], [], []
    first: ScriptPlan | None = None
    # A script sees as many devices as the target has, and their platform, on which what
    # it does may depend.
    seen = lambda t: (None, "") if t.is_here else (t.num_devices, t.platform)
    missing = {c.platform: c.problem for c in installed_compilers() if c.problem}
    for (count, platform), group in itertools.groupby(targets, seen):
        alike = list(group)
        if platform in missing:  # said before the script runs
            found = fit.ScriptPlan(problem=missing[platform])
        else:
            found = _run(command, alike, settings, count)
        if found.problem:
            problems.append(found.problem)
            rows += [fit.FitRow.without_answer(t.name, found.problem) for t in alike]
            peaks += [None] * len(alike)
        else:
            rows += found.rows
            peaks += found.peaks
            first = first or found
    if first is None:
        raise ConfigError(f"{script}: {problems[0]}.")
    rows = [
        dataclasses.replace(row, price=fit.price_of(target, costs))
        for row, target in zip(rows, targets, strict=True)
    ]
    plan = fit.FitPlan(rows=tuple(rows))
    text = f"{script}: {first.step}\n{plan}"
    if first.others:
        named = join_first(first.others)
        text += (
            f"\nnot planned, as not called before this step: {named}; "
            "--step NAME plans one that takes a gradient"
        )
    return show_plan(script, plan, text, targets, lambda: peaks, options)


def _run(
    command: Sequence[str],
    targets: "Sequence[Target]",
    settings: Mapping[str, object],
    count: int | None,
) -> "ScriptPlan":
    """Run the script once for targets with this number of devices; None: those here."""
    from frugax.capture import call_script
    from frugax.fit import ScriptPlan

    variables: dict[str, str] = {}
    if count is not None:
        variables |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(count)}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        status = call_script(
            command,
            start="frugax.fit:plan_in_script",
            settings={
                **settings,
                "targets": [t.name if count is not None else "here" for t in targets],
                "answer": str(answer),
            },
            variables=variables,
        )
        if answer.is_file():
            return from_plain(ScriptPlan, json.loads(answer.read_text()))
    return ScriptPlan(
        problem=f"it ended with exit status {status}, and did not import JAX"
    )
