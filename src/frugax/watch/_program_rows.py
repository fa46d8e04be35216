"""Make `Rows` of the records of a program.

A record is one array or several, with one leading axis for each loop around its probe
and with marks where it may be missing. A row is one step of one stream.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ._rows import Rows
from .probes import ProbeResult

# More devices are kept as one array for each step.
_MAX_DEVICE_CURVES = 64


@functools.lru_cache(maxsize=256)
def number_columns(
    layout: tuple[Any, ...],
) -> dict[str, Callable[[np.ndarray], np.ndarray]] | None:
    """Return readers of the columns of records that are single numbers only.

    Each takes the words of many calls, `(calls, words)`. None if some record is an
    array, may be missing, or is not a number of the training step.
    """
    readers: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    for entry in layout:
        if entry.probe.kind != "scalar" or entry.mark is not None or entry.axes:
            return None
        for field, place in zip(entry.probe.fields, entry.values, strict=True):
            if not place.packed or place.shape:
                return None
            label = entry.name
            if len(entry.values) > 1:
                label = f"{entry.name}/{field}"
            readers[label] = place.read_column
    return readers


def make_rows(step: int, results: Mapping[str, ProbeResult], place: int) -> list[Rows]:
    """Turn the records of one call of a program into rows.

    Args:
        step: the number of the call.
        results: the records on the host, by name.
        place: the training step.

    Returns:
        First one row of the stream "" with all single numbers of the call, then the
        rows of every other record in a stream of its own name.
    """
    numbers: dict[str, np.ndarray] = {}
    batches: list[Rows] = []
    for name, result in results.items():
        made = _select_recorded(name, result)
        if made is None:
            continue
        probe, (columns, is_looped) = result.probe, made
        assert probe.kind != "call"  # never an output
        is_number = not is_looped and not any(c.ndim for c in columns.values())
        if probe.kind == "scalar" and is_number:
            for field, column in columns.items():
                # A single value keeps its name, also beside the count of a loop.
                is_single = len(probe.fields) == 1 and field == result.labels(name)[0]
                numbers[name if is_single else f"{name}/{field}"] = column
            continue
        # The rows of call n follow those of call n - 1. Where the number of rows varies
        # from call to call, `shift_after` keeps the steps increasing.
        count = 1
        if is_looped:
            count = len(next(iter(columns.values())))
        else:
            columns = {field: column[None] for field, column in columns.items()}
        steps = np.arange(step * count, (step + 1) * count, dtype=np.int64)
        batches.append(Rows(probe.kind, name, steps, columns))
    if numbers:
        batches.insert(0, Rows.single("scalar", "", place, numbers))
    return batches


def _select_recorded(
    name: str, result: ProbeResult
) -> tuple[dict[str, np.ndarray], bool] | None:
    """Return the recorded columns and whether their first axis is a loop; or None."""
    axes, mark = result.axes, result.mark
    if mark is not None and not mark.any():
        return None
    loops = axes.count("steps")
    mask: np.ndarray | None = None
    # A mark with no axis but the loops' says which rounds recorded at all; with more
    # axes it belongs to lanes and stays a column.
    if result.mark_kind == "present" and set(axes[: mark.ndim]) <= {"steps"}:
        mask = mark if mark.ndim <= len(axes) else None
    # Of a scan inside the last round of a loop, the count is not one of its rounds.
    is_count = result.mark_kind == "count"
    is_hidden = mask is not None or (is_count and bool(loops) and not mark.ndim)
    columns = result.columns(name, with_mark=not is_hidden)
    if not loops:
        return columns, False
    columns = {field: _steps_first(column, axes) for field, column in columns.items()}
    lead = next(iter(columns.values())).shape[:loops]
    flat = {
        field: column.reshape(-1, *column.shape[loops:])
        for field, column in columns.items()
    }
    if mask is not None:
        shape = mask.shape + (1,) * (loops - mask.ndim)
        chosen = np.broadcast_to(mask.reshape(shape), lead).reshape(-1)
        flat = {field: column[chosen] for field, column in flat.items()}
    if "devices" in axes and result.probe.kind == "scalar":
        flat = _split_devices(flat)
    return flat, True


def _steps_first(column: np.ndarray, axes: tuple[str, ...]) -> np.ndarray:
    """Move the axes of loops to the front, before those of devices and lanes."""
    loops = [i for i, axis in enumerate(axes) if axis == "steps" and i < column.ndim]
    return np.moveaxis(column, loops, range(len(loops)))


def _split_devices(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give each device a curve of its own, such as `loss/0` and `loss/1`."""
    split: dict[str, np.ndarray] = {}
    for field, column in columns.items():
        if column.ndim != 2 or column.shape[1] > _MAX_DEVICE_CURVES:
            split[field] = column
            continue
        for device in range(column.shape[1]):
            split[f"{field}/{device}"] = column[:, device]
    return split
