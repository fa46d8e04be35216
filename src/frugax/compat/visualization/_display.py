"""Show grids, episodes and steps on the host, for the callbacks."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from frugax.fileio import write_whole
from frugax.watch.drawing import log_grid_to_console, step_svg

# As many lanes as pictures and grids show.
_MOST_LANES = 4


def log_grid(
    grid: np.ndarray, mask: np.ndarray | None = None, *, title: str, **options: Any
) -> None:
    """Print a grid. `show_coordinates`, of older callers, is accepted and ignored."""
    # Dropped here as well, since older code calls this function directly.
    options.pop("show_coordinates", None)
    log_grid_to_console(grid, title, mask=mask, **options)


def log_episode_summary(
    episode_num: Any,
    total_steps: Any,
    total_reward: Any,
    final_similarity: Any,
    success: Any,
) -> None:
    """Print how an episode went, one line each; of many lanes the first four.

    Args:
        episode_num: its number, `()` or one for each lane, as all others.
        total_steps: how many steps it had.
        total_reward: the sum of its rewards.
        final_similarity: how close it came, in [0, 1].
        success: whether that was enough.
    """
    given = (episode_num, total_steps, total_reward, final_similarity, success)
    # Under `vmap` some values may be batched and others shared by all lanes.
    lanes = np.broadcast_arrays(*[np.asarray(value) for value in given])
    rows = list(zip(*[array.ravel().tolist() for array in lanes], strict=True))
    for number, steps, reward, similarity, success in rows[:_MOST_LANES]:
        sys.stdout.write(
            f"Episode {number}: {'solved' if success else 'not solved'} after {steps} "
            f"steps, reward {reward:.4g}, similarity {similarity:.1%}\n"
        )
    if len(rows) > _MOST_LANES:
        sys.stdout.write(f"... and {len(rows) - _MOST_LANES} more lanes\n")


def save_step(
    values: Mapping[str, np.ndarray],
    folder: Path,
    numbers: Iterator[int],
    *,
    label: str,
    options: Mapping[str, Any],
) -> None:
    """Draw a step into a file.

    Args:
        values: "before", "after" and, if there are any, "mask", "step" and the parts
            of the action by their names.
        folder: where the file goes.
        numbers: number of the file where "step" is absent.
        label: the title before the number.
        options: of `step_svg`.
    """
    rest = dict(values)
    before, after, mask = rest.pop("before"), rest.pop("after"), rest.pop("mask", None)
    step = rest.pop("step", None)
    # Under `vmap` each lane has a step, and the first of them names the file.
    number = next(numbers) if step is None else int(np.ravel(step)[0])
    action = {
        name.removeprefix("action").strip("."): v.item() if v.dtype.kind == "U" else v
        for name, v in rest.items()
    }
    title = f"{label} {number}"
    svg = step_svg(before, action, after, mask=mask, title=title, **options)
    # Whole or not at all: an image viewer may watch the folder.
    write_whole(folder / f"step_{number:03d}.svg", svg)


def grid_of(state: Any) -> Any:
    """The grid of a state: its `working_grid`, or the state itself."""
    # Compared with None: the truth of an array of several elements is an error.
    found = _part(state, "working_grid")
    return state if found is None else found


def mask_of(state: Any) -> Any:
    """The mask of a state's grid, or None."""
    return _part(state, "working_grid_mask")


def step_of(state: Any) -> Any:
    """The number of steps that a state has seen, or None."""
    return _part(state, "step_count")


def action_of(action: Any) -> dict[str, Any]:
    """The leaves of an action, by name."""
    # A single array has an empty path, hence the dot that is stripped at the end.
    leaves, _ = jax.tree_util.tree_flatten_with_path(action)
    return {
        f"action.{jax.tree_util.keystr(path, simple=True, separator='.')}".rstrip(
            "."
        ): v
        for path, v in leaves
    }


def _part(state: Any, name: str) -> Any:
    # Mappings first: a dict has attributes too, such as `keys`.
    if isinstance(state, Mapping):
        return state.get(name)
    return getattr(state, name, None)
