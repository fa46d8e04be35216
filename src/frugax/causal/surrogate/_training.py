"""Train a surrogate network on synthetic data, within CPU-seconds or seconds."""

import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from frugax import train
from frugax.budget import Receipt, TimeBudget
from frugax.options import check_integer

from ._surrogate import Surrogate
from ._training_data import CALIBRATION, Tasks, draw_generated, draw_tasks
from .evidence import compute_evidence, moments, other_variables
from .network import Weights, apply_network, initial_weights

# Observational and interventional rows: mostly as in small studies, some larger.
_ROWS = ((64, 64), (64, 64), (64, 64), (30, 30), (100, 20), (200, 100))
# 5 % apart: near its minimum the log loss is flat.
_TEMPERATURES = np.geomspace(0.7, 2.5, 27)
_MIN_PROBABILITY = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateTraining:
    """A trained surrogate and a summary of its training.

    Attributes:
        surrogate: with fitted temperature.
        steps: number of steps taken.
        graphs: number of data sets trained on.
        cpu_seconds: of this process, including data and compiling.
        losses: mean loss over each tenth of the steps.
        receipt: seconds and compiles, from `frugax.train.fit`.
    """

    surrogate: Surrogate
    steps: int
    graphs: int
    cpu_seconds: float
    losses: tuple[float, ...]
    receipt: Receipt


def train_surrogate(
    *,
    seed: int,
    steps: int = 2000,
    cpu_seconds: float | None = None,
    budget: TimeBudget | None = None,
    variables: int = 8,
    hidden: int = 24,
    blocks: int = 2,
    batch: int = 64,
    learning_rate: float = 3e-3,
    prefetch: int = 0,
    layout: train.distributed.Layout | None = None,
    progress: Any = None,
) -> SurrogateTraining:
    """Train a surrogate on random causal models.

    Every step uses new random models of 2 to `variables` variables; one compiled
    program serves all of them. The mechanism family `rff` is held out, and `wave` is
    used only to fit the temperature.

    Args:
        seed: of weights and data; the same seed gives the same steps.
        steps: number of steps; the learning rate decays to 0 over them.
        cpu_seconds: stop after this process has used this much more CPU time,
            including data and compiling; None for no limit.
        budget: wall-clock limit, as for `frugax.train.fit`.
        variables: most variables of a training model, 3 to 12.
        hidden: channels of the network, a multiple of 4.
        blocks: number of attention blocks.
        batch: data sets in each step.
        learning_rate: the largest.
        prefetch: batches prepared ahead in a thread.
        layout: a mesh to divide each batch over; see `frugax.train.distributed`.
        progress: called with the step number and its metrics after each step.

    Raises:
        ValueError: a number is out of its range.
    """
    if not 3 <= variables <= 12:
        raise ValueError(f"variables must be in 3..12, got {variables}.")
    check_integer("steps", steps)
    check_integer("seed", seed, minimum=0)
    # Process time, because other users' work changes the wall time of a shared machine.
    start = time.process_time()
    # Adam's first steps rest on few gradients; a warm-up keeps them small (Liu et al.
    # 2020, ICLR, "On the variance of the adaptive learning rate").
    warm = max(1, min(200, steps // 10))
    schedule = functools.partial(_learning_rate, learning_rate, warm, steps)
    first = initial_weights(seed, hidden, blocks)
    step = train.make_train_step(
        log_loss,
        # Of one vector: the updates of each array by itself take as long to compile as
        # the rest of the step.
        optax.flatten(optax.adamw(schedule, weight_decay=1e-4)),
        clip=1.0,
        # A second compilation would mean that the shapes of batches differ.
        compile_budget=1,
        layout=layout,
    )
    step_losses: list[Any] = []

    def on_step(index: int, metrics: Any, _state: Any) -> None:
        step_losses.append(metrics["loss"])
        if progress is not None:
            progress(index, metrics)

    def out_of_time() -> bool:
        used = time.process_time() - start
        return cpu_seconds is not None and used > cpu_seconds

    result = train.fit(
        step,
        step.init(first),
        lambda index: training_batch(seed, index, batch, variables),
        steps=steps,
        budget=budget,
        on_step=on_step,
        stop=out_of_time,
        prefetch=prefetch,
    )
    surrogate = Surrogate(jax.tree.map(np.asarray, result.state.params))
    losses = np.asarray(step_losses, np.float32)
    tenths = [losses]
    if len(losses) >= 10:
        tenths = np.array_split(losses, 10)
    return SurrogateTraining(
        surrogate=surrogate.with_temperature(fit_temperature(surrogate, seed)),
        steps=result.steps,
        graphs=result.steps * batch,
        cpu_seconds=time.process_time() - start,
        losses=tuple(float(part.mean()) for part in tenths),
        receipt=result.receipt,
    )


def _learning_rate(most: float, warm: int, steps: int, step: Any) -> Any:
    """Linear warm-up, then cosine decay; compiles to a shorter program than optax's."""
    down = jnp.clip((step - warm) / max(steps - warm, 1), 0.0, 1.0)
    return most * jnp.minimum(step / warm, 0.5 * (1.0 + jnp.cos(np.pi * down)))


def training_batch(seed: int, index: int, batch: int, width: int) -> dict[str, Any]:
    """Generate the batch of step `index`, reproducibly."""
    # Each generator, of even and of odd steps, passes through all pairs of row counts.
    observed, experiments = _ROWS[index // 2 % len(_ROWS)]
    # Seeded by the step and not by a running stream: batches prepared ahead in a
    # thread, or after a restart, are the same.
    draw = draw_generated if index % 2 else draw_tasks
    tasks = draw(
        [seed, index], batch, width=width, observed=observed, experiments=experiments
    )
    return as_batch(tasks)


def as_batch(tasks: Tasks) -> dict[str, Any]:
    """Compute the evidence and the labels of data sets, for `log_loss`."""
    mask = tasks.mask
    sums = moments(tasks.values, tasks.intervened, tasks.present)
    pairs = mask[:, :, None] * mask[:, None] * (1 - np.eye(mask.shape[1]))
    return {
        "evidence": compute_evidence(sums, mask),
        "mask": mask,
        "graphs": tasks.graphs,
        "sets": set_index(tasks.graphs),
        "share_of_sets": (mask / mask.sum()).astype(np.float32),
        "share_of_pairs": (pairs / max(pairs.sum(), 1)).astype(np.float32),
    }


def fit_temperature(surrogate: Surrogate, seed: int, graphs: int = 300) -> float:
    """Fit the temperature to the log loss of edges of a family not trained on.

    References:
        Guo et al. 2017, ICML, "On calibration of modern neural networks".
    """
    # No training step has this index, so these data were not trained on.
    tasks = draw_tasks([seed, 2**31], graphs, width=8, families=CALIBRATION)
    batch = as_batch(tasks)
    losses = []
    for temperature in _TEMPERATURES:
        prediction = apply_network(
            surrogate.weights,
            batch["evidence"],
            batch["mask"],
            temperature=float(temperature),
        )
        # One confident error would otherwise decide the temperature.
        p = np.clip(prediction.edges, 1e-6, 1 - 1e-6)
        log_p = np.where(batch["graphs"] > 0, np.log(p), np.log1p(-p))
        losses.append(-(log_p * batch["share_of_pairs"]).sum())
    return float(_TEMPERATURES[int(np.argmin(losses))])


def set_index(
    graphs: Float[np.ndarray, "batch width width"],
) -> Int[np.ndarray, "batch width"]:
    """Return the bit mask of each child's true parent set, as in `set_members`."""
    width = graphs.shape[1]
    parents = graphs[:, other_variables(width), np.arange(width)[:, None]]
    return (parents * (1 << np.arange(width - 1))).sum(-1).astype(np.int32)


def log_loss(weights: Weights, batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Compute the mean log loss of parent sets, plus twice that of edges.

    Both are strictly proper scoring rules: only the true probabilities minimize them.

    References:
        Gneiting & Raftery 2007, JASA 102:359-378 (proper scoring rules).
    """
    prediction = apply_network(weights, batch["evidence"], batch["mask"], xp=jnp)
    # A comparison and a sum compile faster than a gather and its gradient.
    every = jnp.arange(prediction.log_sets.shape[-1], dtype=jnp.int32)
    chosen = every[None, None] == batch["sets"][..., None]
    chosen = jnp.where(chosen, prediction.log_sets, 0.0).sum(-1)
    # Clipped: one misleading data set must not dominate the batch.
    sets = -(jnp.maximum(chosen, -30.0) * batch["share_of_sets"]).sum()
    p = jnp.clip(prediction.edges, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    graphs = batch["graphs"]
    log_p = graphs * jnp.log(p) + (1 - graphs) * jnp.log1p(-p)
    edges = -(log_p * batch["share_of_pairs"]).sum()
    return sets + 2 * edges, {"sets": sets, "edges": edges}
