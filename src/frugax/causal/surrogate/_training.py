"""Train a surrogate on random causal models, within CPU-seconds or seconds."""

import dataclasses
import functools
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from frugax import train
from frugax.budget import Receipt, TimeBudget

from ._loss import surprise, truth
from ._surrogate import Surrogate
from ._tasks import CALIBRATION, TRAINING, Tasks, draw_generated, draw_tasks
from .evidence import evidence, moments
from .network import apply_network, initial_weights, opened, packed, unpacked

# Rows without and with an intervention; most as in small studies, some larger.
_ROWS = ((64, 64), (64, 64), (64, 64), (30, 30), (100, 20), (200, 100))
_TEMPERATURES = np.geomspace(0.7, 2.5, 27)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateTraining:
    """A trained surrogate and how it came about.

    Attributes:
        surrogate: with its temperature fitted.
        steps: that were taken.
        graphs: data sets that were seen.
        cpu_seconds: of this process, drawing data and compiling included.
        losses: mean surprise over each tenth of the steps.
        receipt: of `frugax.train.fit`: seconds and compiles.
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
    """Train a surrogate from nothing.

    Every step sees new random models of 2 to `variables` variables. One program is
    compiled, for all of them. Of the families in `_tasks.py`, `rff` is never seen, and
    `wave` only to fit the temperature.

    Args:
        seed: of weights and data: the same seed gives the same steps.
        steps: to take; the learning rate falls to nothing over them.
        cpu_seconds: stop once this process has used so many more, data and compiling
            included; None for no limit.
        budget: seconds, as for `frugax.train.fit`.
        variables: the most that a training model has, 3 to 12.
        hidden: channels of the network, a multiple of 4.
        blocks: of attention.
        batch: data sets a step.
        learning_rate: the largest.
        prefetch: batches made ahead in a thread.
        layout: a mesh to divide each batch over; see `frugax.train.distributed`.
        progress: called with the step number and its metrics after each step.

    Raises:
        ValueError: a number is out of its range.
    """
    if not 3 <= variables <= 12:
        raise ValueError(f"variables must be in 3..12, got {variables}.")
    for what, number, least in (("steps", steps, 1), ("seed", seed, 0)):
        if number < least:
            raise ValueError(f"{what} must be >= {least}, got {number}.")
    start = time.process_time()
    warm = max(1, min(200, steps // 10))
    rate = functools.partial(_rate, learning_rate, warm, steps)
    first = initial_weights(seed, hidden, blocks)
    step = train.make_train_step(
        lambda row, batch: surprise(opened(row, first, jnp), batch),
        optax.adamw(rate, weight_decay=1e-4),
        clip=1.0,
        compile_budget=1,
        layout=layout,
    )
    seen: list[Any] = []

    def follow(index: int, metrics: Any, _state: Any) -> None:
        seen.append(metrics["loss"])
        if progress is not None:
            progress(index, metrics)

    spent = lambda: (
        cpu_seconds is not None and (time.process_time() - start > cpu_seconds)
    )
    result = train.fit(
        step,
        step.init(packed(first)),
        lambda index: training_batch(seed, index, batch, variables),
        steps=steps,
        budget=budget,
        on_step=follow,
        stop=spent,
        prefetch=prefetch,
    )
    surrogate = Surrogate(unpacked(np.asarray(result.state.params), first))
    losses = np.asarray(seen, np.float32)
    tenths = np.array_split(losses, 10) if len(losses) >= 10 else [losses]
    return SurrogateTraining(
        surrogate=surrogate.with_temperature(fit_temperature(surrogate, seed)),
        steps=result.steps,
        graphs=result.steps * batch,
        cpu_seconds=time.process_time() - start,
        losses=tuple(float(part.mean()) for part in tenths),
        receipt=result.receipt,
    )


def _rate(most: float, warm: int, steps: int, step: Any) -> Any:
    """The learning rate: up in a line, then down as a cosine. Shorter than optax's."""
    down = jnp.clip((step - warm) / max(steps - warm, 1), 0.0, 1.0)
    return most * jnp.minimum(step / warm, 0.5 * (1.0 + jnp.cos(np.pi * down)))


def training_batch(seed: int, index: int, batch: int, width: int) -> dict[str, Any]:
    """The batch of one step, the same each time it is asked for.

    Args:
        seed: of the run.
        index: number of the step.
        batch: data sets.
        width: the most variables.
    """
    observed, experiments = _ROWS[index // 2 % len(_ROWS)]
    rows: dict[str, Any] = {
        "width": width,
        "observed": observed,
        "experiments": experiments,
    }
    if index % 2:
        tasks = draw_generated([seed, index], batch, **rows)
    else:
        tasks = draw_tasks([seed, index], batch, families=TRAINING, vary=True, **rows)
    return as_batch(tasks)


def as_batch(tasks: Tasks) -> dict[str, Any]:
    """Evidence and truth of data sets, as `surprise` wants them.

    Args:
        tasks: the data sets.
    """
    m = moments(tasks.values, tasks.intervened, tasks.present)
    return {"evidence": evidence(m, tasks.mask), "mask": tasks.mask} | truth(tasks)


def fit_temperature(surrogate: Surrogate, seed: int, graphs: int = 300) -> float:
    """The temperature that makes edges of a family not trained on least surprising.

    Args:
        surrogate: whose weights to use.
        seed: of the data.
        graphs: data sets.
    """
    width = 8
    tasks = draw_tasks([seed, 2**31], graphs, width=width, families=CALIBRATION)
    batch = as_batch(tasks)
    losses = []
    for temperature in _TEMPERATURES:
        answer = apply_network(
            surrogate.weights,
            batch["evidence"],
            tasks.mask,
            temperature=float(temperature),
        )
        p = np.clip(answer.edges, 1e-6, 1 - 1e-6)
        log_p = np.where(tasks.graphs > 0, np.log(p), np.log1p(-p))
        losses.append(-(log_p * batch["share_of_pairs"]).sum())
    return float(_TEMPERATURES[int(np.argmin(losses))])
