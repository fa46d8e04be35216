"""Check the parts of a run's receipt that need no compiling: keys, config, training."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from frugax import train
from frugax.budget import from_plain, to_plain
from frugax.errors import ConfigError

from ._config import RunConfig, load_config
from ._config_keys import flatten_keys
from ._environment import describe_environment
from ._folder import RunFolder
from ._outcome import MemoryFacts, ModelFacts, Outcome
from ._receipt_check import FigureCheck, cannot_tell, compare, compare_numbers

MEASURED_ONCE = "it was measured once, in that run."
WRITTEN_ONCE = "it was written down in that run, and nothing derives it."
# Another version of these, or another device, compiles another program.
SAME_PROGRAM = ("frugax", "jax", "jaxlib", "device")
_OF_THE_RUN = ("command", "git commit")
# Of `fit`; an interrupted run has no receipt, and none stops it from outside.
_REASONS = ("steps", "past", "time", "early")
_HISTORY = ("stopped_because", "seconds", "evaluations", "notes", "environment")


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping of a receipt; empty if it is something else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def check_keys(data: Mapping[str, Any], why: str) -> Iterator[FigureCheck]:
    """Find keys that a receipt of this version does not have.

    Args:
        data: the receipt.
        why: another version wrote it, which may have further keys; empty if not.
    """
    known: dict[str, set[str]] = {
        part: {field.name for field in dataclasses.fields(cls)}
        for part, cls in {
            "": Outcome,
            "memory": MemoryFacts,
            "model": ModelFacts,
        }.items()
    }
    known[""] = known[""] - {"receipt"} | {"verdict", "spends"}
    known["environment"] = {*describe_environment(), *_OF_THE_RUN}
    for part, names in known.items():
        found = as_mapping(data.get(part)) if part else data
        if part == "environment" and found and not why:
            for name in sorted(names - found.keys()):
                yield compare(f"{part}: {name}", "missing", "a key of every run")
        for name in sorted(found.keys() - names):
            figure, stated = f"{part}: {name}".removeprefix(": "), str(found[name])
            if why:
                yield cannot_tell(
                    figure, stated, f"this version has no such key; {why}"
                )
            else:
                yield compare(figure, stated, "no such key")


def check_config_file(folder: RunFolder, config: RunConfig) -> Iterator[FigureCheck]:
    """Compare the config in a receipt with the file beside it, key by key."""
    name = folder.config.name
    if not folder.config.is_file():
        return
    try:
        there = flatten_keys(to_plain(load_config(folder.config)))
    except ConfigError as e:
        yield compare(name, "a config", str(e))
        return
    stated = flatten_keys(to_plain(config))
    wrong = [key for key in stated | there if stated.get(key) != there.get(key)]
    for key in wrong:
        yield compare(f"{name}: {key}", stated.get(key, "-"), there.get(key, "-"))
    if not wrong:
        yield compare(name, "the same keys", "the same keys")


def check_training(
    folder: RunFolder, config: RunConfig, data: Mapping[str, Any]
) -> Iterator[FigureCheck]:
    """Compare the steps with the checkpoint, and name what was measured once."""
    steps, limit, kept = data.get("steps"), config.train.steps, find_checkpoint(folder)
    if type(steps) is not int or not 0 <= steps <= limit:
        yield compare("steps", str(steps), f"at most {limit}")
    elif kept is None:
        yield cannot_tell("steps", str(steps), "no checkpoint is in the folder.")
    else:
        yield compare_numbers("steps", steps, kept[1], str)
    hints = typing.get_type_hints(Outcome)
    for name in _HISTORY:
        stated = data.get(name)
        try:
            found: Any = from_plain(hints[name], stated, at=name, null_is_nan=True)
        except ValueError as e:
            yield compare(name, str(stated), str(e))
            continue
        reason = MEASURED_ONCE
        if name in ("notes", "environment"):
            reason = WRITTEN_ONCE
        # The best state may be that of an earlier step.
        if name == "stopped_because" and found not in _REASONS:
            yield compare(name, found, f"one of {', '.join(_REASONS)}")
        elif name == "seconds" and "total" not in found:
            yield compare(f"{name}: total", "missing", "a key of every run")
        elif found == "steps" and steps != limit and config.train.keep != "best":
            yield compare(name, found, f"not after {steps} of {limit} steps")
        elif name != "evaluations" or {step for step, _ in found} - {0, steps}:
            yield cannot_tell(name, "-", reason, is_deterministic=False)


def check_evaluations(
    data: Mapping[str, Any], derived: Mapping[int, Mapping[str, float]]
) -> Iterator[FigureCheck]:
    """Compare the evaluations of the steps whose states are known."""
    rows = [row for row in data.get("evaluations") or () if len(row) == 2]
    # A resumed run has the evaluations of its last part only.
    is_resumed = "before the resume" in as_mapping(data.get("seconds"))
    for step, figures in derived.items():
        found = [as_mapping(there) for at, there in rows if at == step]
        if not found and not is_resumed:
            found = [{}]
        for there in found:
            for name in {**figures, **there}:
                figure = f"evaluation of step {step}: {name}"
                yield compare_numbers(figure, there.get(name), figures.get(name), str)


def find_checkpoint(folder: RunFolder) -> tuple[Path, int] | None:
    """Return folder and step of the state that was compressed; None if it is gone."""
    # Of a run that keeps the best state, that one is compressed, otherwise the last.
    for path in (folder.best, folder.checkpoints):
        if steps := train.Checkpoints(path).steps():
            return path, steps[-1]
    return None
