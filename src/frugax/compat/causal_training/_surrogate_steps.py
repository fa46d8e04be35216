"""Training steps of a surrogate under the guide's names: compiled, or op by op.

The step contains the model. What needs no weight, the evidence, is computed before it
in NumPy; the compiled part has one shape for any number of rows, up to 12 variables,
and any names and parent sets.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from math import comb
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from frugax import train
from frugax.causal.scm import collect_observational_data, generate_scm_for_difficulty
from frugax.causal.surrogate import MAX_VARIABLES
from frugax.causal.surrogate.network import Weights

from ._losses import kl_divergence_loss
from ._parent_set_model import (
    ParentSetModel,
    SurrogateTrainingConfig,
    Told,
    create_parent_set_model,
    scores_of,
    tell,
)
from ._training_batch import convert_to_jax_batch, create_training_batch

Loss = Callable[[Any, Any, Any], Any]


class _Arrays(NamedTuple):
    """The arguments of one step beside its state."""

    told: Told
    probs: Any
    accuracies: Any
    key: Any


class SurrogateStep:
    """One step of training, in the guide's call order.

    Metrics are `total_loss`, `kl_loss` (the mean of the given loss, whatever it is),
    `regularization_loss`, `mean_expert_accuracy`, `gradient_norm`, `learning_rate`.
    """

    def __init__(
        self,
        loss_fn: Loss,
        optimizer: optax.GradientTransformation,
        config: SurrogateTrainingConfig,
        *,
        compiled: bool,
        fallback: bool = False,
    ) -> None:
        """Make a step.

        Args:
            loss_fn: `(logits, expert_probs, parent_sets)` of one example, where
                `parent_sets` is 1 for the variables in each set [k, 12].
            optimizer: from optax.
            config: for the learning rate and the weight decay.
            compiled: whether to compile it.
            fallback: run it in another way, with a warning, where that fails.
        """
        self._config = config
        self._optimizer = optimizer
        self._loss = lambda params, arrays: _total(params, arrays, loss_fn, config)
        # All sets up to the size, and one more for a true set that is larger.
        self._room = 1 + sum(
            comb(MAX_VARIABLES - 1, s) for s in range(config.max_parent_size + 1)
        )
        self._step = None
        if compiled:
            self._step = train.make_train_step(
                self._loss,
                optimizer,
                clip=float("inf"),  # only to have the norm reported
                fallback=fallback,
                # The guide's call order returns new parameters and lets callers keep
                # the old ones, which donation would delete.
                donate=False,
            )

    @property
    def compiles(self) -> int:
        """Programs compiled so far."""
        return 0 if self._step is None else self._step.compiles

    @property
    def compile_seconds(self) -> float:
        """Seconds spent on compiling."""
        return 0.0 if self._step is None else self._step.compile_seconds

    def __call__(
        self,
        params: Weights,
        opt_state: Any,
        parent_sets: Sequence[Sequence[frozenset[str]]],
        variable_orders: Sequence[Sequence[str]],
        target_variables: Sequence[str],
        observational_data: Any,
        expert_probs: Any,
        expert_accuracies: Any,
        key: Any = None,
    ) -> tuple[Weights, Any, dict[str, Any]]:
        """Take a step.

        Args:
            params: from `ParentSetModel.init`.
            opt_state: from `optimizer.init(params)`.
            parent_sets: of each example.
            variable_orders: of each example.
            target_variables: of each example.
            observational_data: [batch, n, d, 4].
            expert_probs: [batch, k].
            expert_accuracies: [batch].
            key: not needed, as nothing in the model is random.

        Raises:
            ValueError: shapes or names do not fit together.
        """
        del key
        probs = np.asarray(expert_probs, np.float32)
        k = probs.shape[1]
        # Room for every set of the configured size, so another list does not compile.
        # Longer lists are rounded up to a power of 2, so that few lengths ever compile.
        room = max(self._room, 2 ** max(k - 1, 0).bit_length() if k > self._room else 0)
        told = tell(
            parent_sets,
            variable_orders,
            target_variables,
            observational_data,
            room,
            self._config,
        )
        arrays = _Arrays(
            told,
            np.pad(probs, ((0, 0), (0, room - k))),
            np.asarray(expert_accuracies, np.float32),
            None,
        )
        if self._step is None:
            return self._eagerly(params, opt_state, arrays)
        # The guide passes parameters and optimiser state apart; the number of the step
        # is not used by any of them.
        state = train.TrainState(jnp.zeros((), jnp.int32), params, opt_state)
        state, metrics = self._step(state, arrays)
        return state.params, state.opt_state, self._named(metrics)

    def _eagerly(
        self, params: Weights, opt_state: Any, arrays: _Arrays
    ) -> tuple[Weights, Any, dict[str, Any]]:
        gradient = jax.value_and_grad(self._loss, has_aux=True)
        # A loop over blocks would be compiled at every call, as it closes over arrays.
        with jax.disable_jit():
            (loss, parts), grads = gradient(params, arrays)
        updates, opt_state = self._optimizer.update(grads, opt_state, params)
        moved: Any = optax.apply_updates(params, updates)
        norm = optax.global_norm(grads)
        return (
            moved,
            opt_state,
            self._named({"loss": loss, "gradient_norm": norm, **parts}),
        )

    def _named(self, metrics: dict[str, Any]) -> dict[str, Any]:
        named = dict(metrics)
        named["total_loss"] = named.pop("loss")
        named["learning_rate"] = self._config.learning_rate
        return named


def _total(
    params: Weights, arrays: _Arrays, loss_fn: Loss, config: SurrogateTrainingConfig
) -> tuple[Any, dict[str, Any]]:
    logits = scores_of(params, arrays.told, config)
    each = (logits, arrays.probs, arrays.told.inside)
    try:
        losses = jax.vmap(loss_fn)(*each)
    except jax.errors.ConcretizationTypeError:
        # A loss that looks at values can still be called for one example at a time,
        # if not inside a compiled step.
        losses = jnp.stack([loss_fn(*one) for one in zip(*each, strict=True)])
    # Added to the loss and not to the update: with Adam this is L2 regularisation and
    # not decoupled weight decay (Loshchilov & Hutter 2019).
    squares = sum(jnp.sum(x * x) for x in jax.tree.leaves(params))
    penalty = 0.5 * config.weight_decay * squares
    loss = losses.mean()
    return loss + penalty, {
        "kl_loss": loss,
        "regularization_loss": penalty,
        "mean_expert_accuracy": jnp.mean(jnp.asarray(arrays.accuracies)),
    }


def create_jax_surrogate_train_step(
    model: ParentSetModel,
    optimizer: optax.GradientTransformation,
    loss_fn: Loss,
    config: SurrogateTrainingConfig | None = None,
) -> SurrogateStep:
    """A compiled step: one program for all batches of one size.

    Args:
        model: from `create_parent_set_model`.
        optimizer: from optax.
        loss_fn: `(logits, expert_probs, parent_sets)`.
        config: the model's own by default.
    """
    return SurrogateStep(loss_fn, optimizer, config or model.config, compiled=True)


def create_surrogate_train_step(
    model: ParentSetModel,
    optimizer: optax.GradientTransformation,
    loss_fn: Loss,
    config: SurrogateTrainingConfig | None = None,
) -> SurrogateStep:
    """The same step, op by op: slower, for looking inside.

    Args:
        model: from `create_parent_set_model`.
        optimizer: from optax.
        loss_fn: `(logits, expert_probs, parent_sets)`.
        config: the model's own by default.
    """
    return SurrogateStep(loss_fn, optimizer, config or model.config, compiled=False)


def create_adaptive_train_step(
    model: ParentSetModel,
    optimizer: optax.GradientTransformation,
    loss_fn: Loss,
    config: SurrogateTrainingConfig | None = None,
    *,
    use_jax_compilation: bool = True,
) -> SurrogateStep:
    """A compiled step, and where JAX cannot compile the loss, the next best way.

    That is told once, by a warning with the error's name; the numbers are the same.

    Args:
        model: from `create_parent_set_model`.
        optimizer: from optax.
        loss_fn: `(logits, expert_probs, parent_sets)`.
        config: the model's own by default.
        use_jax_compilation: False for op by op from the start.
    """
    return SurrogateStep(
        loss_fn,
        optimizer,
        config or model.config,
        compiled=use_jax_compilation,
        fallback=True,
    )


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
            # Problems of different levels have different seeds for up to 1,000 problems
            # a level.
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
                # Kept on the device: float() here would wait for each step before the
                # next is sent.
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
