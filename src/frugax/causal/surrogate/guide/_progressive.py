"""Progressive learning: the guide's loop over difficulties, with one compile."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import optax

from ...scm import collect_observational_data, generate_scm_for_difficulty
from .._row import Weights
from ._batch import convert_to_jax_batch, create_training_batch
from ._config import SurrogateTrainingConfig
from ._losses import kl_divergence_loss
from ._model import create_parent_set_model
from ._steps import create_jax_surrogate_train_step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """How one difficulty went.

    Attributes:
        difficulty: its name.
        first_loss: at its first step.
        last_loss: at its last.
        seconds: wall clock.
        compiles: of the step so far.
    """

    difficulty: str
    first_loss: float
    last_loss: float
    seconds: float
    compiles: int


def progressive_learning(
    config: SurrogateTrainingConfig | None = None,
    difficulties: Sequence[str] = ("easy", "medium", "hard"),
    *,
    problems: int = 4,
    rows: int = 64,
    seed: int = 0,
    params: Weights | None = None,
) -> tuple[Weights, tuple[Stage, ...]]:
    """Train on easy problems first, then on harder ones.

    Args:
        config: sizes; `max_epochs` is how many steps each problem's batch is used for.
        difficulties: for `generate_scm_for_difficulty`, in this order.
        problems: models drawn for each difficulty.
        rows: of each data set.
        seed: of weights, models and data.
        params: weights to go on from.

    Returns:
        The weights, and a line for each difficulty.
    """
    import jax

    config = config or SurrogateTrainingConfig()
    model = create_parent_set_model(config)
    optimizer = optax.adam(config.learning_rate)
    step = create_jax_surrogate_train_step(model, optimizer, kl_divergence_loss, config)
    params = model.init(jax.random.key(seed)) if params is None else params
    state = optimizer.init(params)
    stages = []
    for level, difficulty in enumerate(difficulties):
        start = time.perf_counter()
        losses: list[Any] = []
        for problem in range(problems):
            number = seed + 1000 * level + problem
            scm = generate_scm_for_difficulty(difficulty, seed=number)
            samples = collect_observational_data(scm, rows, seed=number)
            b = convert_to_jax_batch(
                create_training_batch(
                    samples,
                    scm,
                    config.batch_size,
                    max_parent_size=config.max_parent_size,
                    seed=number,
                )
            )
            for _ in range(config.max_epochs):
                params, state, metrics = step(
                    params,
                    state,
                    b.parent_sets,
                    b.variable_orders,
                    b.target_variables,
                    b.observational_data,
                    b.expert_probs,
                    b.expert_accuracies,
                )
                losses.append(metrics["total_loss"])
        stages.append(
            Stage(
                difficulty=difficulty,
                first_loss=float(losses[0]),
                last_loss=float(losses[-1]),
                seconds=time.perf_counter() - start,
                compiles=step.compiles,
            )
        )
    return params, tuple(stages)
