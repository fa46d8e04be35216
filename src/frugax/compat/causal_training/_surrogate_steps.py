"""Training steps of a surrogate under the guide's names: compiled, or op by op.

The step contains the model. What needs no weight is computed before it in NumPy; the
compiled part has one shape for any names and parent sets, and any number of rows.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from frugax import train
from frugax.causal.surrogate.network import Weights

from ._parent_set_model import (
    EncodedBatch,
    ParentSetModel,
    SurrogateTrainingConfig,
    encode_batch,
    score_parent_sets,
)
from ._training_batch import TrainingBatch

Loss = Callable[[Any, Any, Any], Any]


class SurrogateStep:
    """One step of training, in the guide's call order.

    Metrics are `total_loss` (the mean of the loss over the batch), `gradient_norm` and
    `learning_rate`.
    """

    def __init__(
        self,
        model: ParentSetModel,
        optimizer: optax.GradientTransformation,
        loss_fn: Loss,
        config: SurrogateTrainingConfig | None = None,
        *,
        use_jax_compilation: bool,
        fallback: bool = False,
    ) -> None:
        """Make a step.

        Args:
            model: from `create_parent_set_model`.
            optimizer: from optax.
            loss_fn: `(logits, expert_probs, parent_sets)` of one example, where
                `parent_sets` is 1 for the variables in each set [k, d].
            config: the learning rate to report; the model's own by default.
            use_jax_compilation: whether to compile it, or run it op by op.
            fallback: where JAX cannot compile it, run it op by op, with one warning
                that names the error; the numbers are the same.
        """
        self._optimizer = optimizer
        self._learning_rate = (config or model.config).learning_rate
        self._loss = functools.partial(_mean_loss, loss_fn)
        self._is_compiled, self._fallback = use_jax_compilation, fallback
        self._step = train.make_train_step(
            self._loss,
            optimizer,
            clip=float("inf"),  # only to have the norm reported
            # The guide's call order returns new parameters and lets callers keep the
            # old ones, which donation would delete.
            donate=False,
        )

    @property
    def compiles(self) -> int:
        """Programs compiled so far."""
        return self._step.compiles

    def __call__(
        self,
        params: Weights,
        opt_state: Any,
        parent_sets: Sequence[Sequence[frozenset[str]]],
        variable_orders: Sequence[Sequence[str]],
        target_variables: Sequence[str],
        observational_data: Any,
        expert_probs: Any,
        expert_accuracies: Any = None,
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
            expert_accuracies: [batch]; no loss weighs by them.
            key: accepted for the guide's call; nothing in the model is random.

        Raises:
            ValueError: shapes or names do not fit together.
        """
        del key
        examples = TrainingBatch(
            observational_data=observational_data,
            expert_probs=expert_probs,
            expert_accuracies=expert_accuracies,
            parent_sets=parent_sets,
            variable_orders=variable_orders,
            target_variables=target_variables,
        )
        batch = encode_batch(examples)
        if self._fallback and self._is_compiled:
            self._check_compiles(params, batch)
        run = self._run_compiled if self._is_compiled else self._run_eagerly
        params, opt_state, metrics = run(params, opt_state, batch)
        return (
            params,
            opt_state,
            {
                "total_loss": metrics["loss"],
                "gradient_norm": metrics["gradient_norm"],
                "learning_rate": self._learning_rate,
            },
        )

    def _check_compiles(self, params: Weights, batch: EncodedBatch) -> None:
        """Have steps run op by op if JAX cannot trace the loss; look once."""
        self._fallback = False
        try:
            jax.eval_shape(self._loss, params, batch)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as e:
            self._is_compiled = False
            line = str(e).strip().splitlines()[0]
            warnings.warn(
                f"this loss cannot be compiled and its steps run op by op, which is "
                f"slower: {type(e).__name__}: {line}",
                UserWarning,
                stacklevel=3,
            )

    def _run_compiled(
        self, params: Weights, opt_state: Any, batch: EncodedBatch
    ) -> tuple[Any, Any, dict[str, Any]]:
        # The number of the step is not used, as the guide passes none.
        state = train.TrainState(jnp.zeros((), jnp.int32), params, opt_state)
        state, metrics = self._step(state, batch)
        return state.params, state.opt_state, metrics

    def _run_eagerly(
        self, params: Weights, opt_state: Any, batch: EncodedBatch
    ) -> tuple[Any, Any, dict[str, Any]]:
        # A loop over blocks would be compiled at every call, as it closes over arrays.
        with jax.disable_jit():
            loss, grads = jax.value_and_grad(self._loss)(params, batch)
        updates, opt_state = self._optimizer.update(grads, opt_state, params)
        metrics = {"loss": loss, "gradient_norm": optax.tree.norm(grads)}
        return optax.apply_updates(params, updates), opt_state, metrics


def _mean_loss(loss_fn: Loss, params: Weights, batch: EncodedBatch) -> Any:
    logits = score_parent_sets(params, batch)
    each = (logits, batch.probs, batch.inside)
    try:
        return jax.vmap(loss_fn)(*each).mean()
    except jax.errors.ConcretizationTypeError:
        # A loss that looks at values can still be called for one example at a time,
        # if not inside a compiled step.
        losses = [loss_fn(*one) for one in zip(*each, strict=True)]
        return jnp.stack(losses).mean()


# The guide has a function for each way to run a step: compiled, op by op for looking
# inside, and compiled where JAX can.
create_jax_surrogate_train_step = functools.partial(
    SurrogateStep, use_jax_compilation=True
)
create_surrogate_train_step = functools.partial(
    SurrogateStep, use_jax_compilation=False
)
create_adaptive_train_step = functools.partial(
    SurrogateStep, use_jax_compilation=True, fallback=True
)
