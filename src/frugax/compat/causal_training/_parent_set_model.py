"""The guide's model: scores of listed parent sets of one target for each data set."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from frugax.causal.checks import check_real, check_whole
from frugax.causal.surrogate import MAX_VARIABLES
from frugax.causal.surrogate.evidence import NEVER, compute_evidence, moments
from frugax.causal.surrogate.network import (
    HEADS,
    Weights,
    initial_weights,
    pack_weights,
    set_scores,
    unpack_lazily,
)

from ._training_batch import TrainingBatchJAX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateTrainingConfig:
    """Sizes of the model, and how it is trained.

    Attributes:
        model_hidden_dim: channels of a pair of variables; a multiple of 4.
        model_n_layers: blocks of attention, >= 0.
        learning_rate: of the optimiser; reported beside the losses.
        batch_size: examples in a batch.
        max_epochs: steps on each batch, for training loops to read.
        max_parent_size: parent sets are listed up to this size; the true set always.
    """

    model_hidden_dim: int = 32
    model_n_layers: int = 2
    learning_rate: float = 1e-3
    batch_size: int = 32
    max_epochs: int = 20
    max_parent_size: int = 3

    def __post_init__(self) -> None:
        check_whole("model_hidden_dim", self.model_hidden_dim, HEADS)
        if self.model_hidden_dim % HEADS:
            raise ValueError(
                f"model_hidden_dim must be a multiple of {HEADS}, got "
                f"{self.model_hidden_dim}."
            )
        for name in ("model_n_layers", "max_parent_size"):
            check_whole(name, getattr(self, name), 0)
        for name in ("batch_size", "max_epochs"):
            check_whole(name, getattr(self, name), 1)
        check_real("learning_rate", self.learning_rate)


# A named tuple is a pytree by itself, so a batch passes through jit as it is.
class EncodedBatch(NamedTuple):
    """A batch as the compiled step gets it: arrays of fixed shape, no names.

    Attributes:
        pairs: features of pairs [batch, 12, 12, features].
        mask: variables that are there [batch, 12].
        target: 1 for the target [batch, 12].
        posteriors: log-posterior of each listed set under two simple models
            [batch, k, 2].
        inside: variables in each listed set [batch, k, 12].
        listed: 1 for sets, 0 for padding [batch, k].
    """

    pairs: np.ndarray
    mask: np.ndarray
    target: np.ndarray
    posteriors: np.ndarray
    inside: np.ndarray
    listed: np.ndarray


def encode_batch(
    parent_sets: Sequence[Sequence[frozenset[str]]],
    variable_orders: Sequence[Sequence[str]],
    target_variables: Sequence[str],
    observational_data: Any,
    k: int,
) -> EncodedBatch:
    """Compute everything that needs no weight, in NumPy.

    Args:
        parent_sets: of each example.
        variable_orders: names of each example's variables.
        target_variables: of each example.
        observational_data: [batch, n, d, 4].
        k: how many sets the arrays have room for.

    Raises:
        ValueError: an example has more than 12 variables, or names do not fit together.
    """
    data = np.asarray(observational_data, np.float32)
    batch = len(target_variables)
    if data.ndim != 4 or len(data) != batch or data.shape[3] != 4:
        raise ValueError(
            f"observational_data has shape {data.shape} for {batch} targets: it must "
            "be [batch, rows, variables, 4]; see convert_to_jax_batch."
        )
    width = data.shape[2]
    if not 2 <= width <= MAX_VARIABLES:
        raise ValueError(
            f"observational_data has {width} variables; it may have 2 to "
            f"{MAX_VARIABLES}: `select` those that matter."
        )
    mask = np.zeros((batch, MAX_VARIABLES), np.float32)
    target = np.zeros((batch, MAX_VARIABLES), np.float32)
    inside = np.zeros((batch, k, MAX_VARIABLES), np.float32)
    listed = np.zeros((batch, k), np.float32)
    for i, (order, child) in enumerate(
        zip(variable_orders, target_variables, strict=True)
    ):
        position = {name: v for v, name in enumerate(order)}
        if child not in position:
            raise ValueError(f"target {child!r} is not among {list(order)!r:.200}.")
        mask[i, : len(order)] = 1
        target[i, position[child]] = 1
        listed[i, : len(parent_sets[i])] = 1
        for row, names in enumerate(parent_sets[i]):
            for name in names:
                if name not in position or name == child:
                    raise ValueError(
                        f"{name!r} cannot be a parent of {child!r}: the variables are "
                        f"{list(order)!r:.200}."
                    )
                inside[i, row, position[name]] = 1
    value, intervened, _, present = np.moveaxis(data, 3, 0)
    evidence = compute_evidence(moments(value, intervened, present), mask[:, :width])
    pairs = np.zeros(
        (batch, MAX_VARIABLES, MAX_VARIABLES, evidence.pairs.shape[-1]), np.float32
    )
    pairs[:, :width, :width] = evidence.pairs
    # A child's posterior is a table over all sets of the others, indexed by bits.
    children = target.argmax(1)
    others = [
        np.delete(x[:, :width], c, 1) for x, c in zip(inside, children, strict=True)
    ]
    code = (np.stack(others).astype(int) << np.arange(width - 1)).sum(2)
    at = (np.arange(batch)[:, None], children[:, None], code)
    posteriors = np.stack([evidence.linear[at], evidence.curved[at]], -1)
    return EncodedBatch(
        pairs, mask, target, posteriors * listed[:, :, None], inside, listed
    )


@dataclasses.dataclass(frozen=True)
class ParentSetModel:
    """Scores parent sets; its weights are a dict of one vector.

    Attributes:
        config: sizes.
    """

    config: SurrogateTrainingConfig

    def init(self, key: Any, batch: TrainingBatchJAX | None = None) -> Weights:
        """Weights before training; the same for every batch.

        Args:
            key: a JAX random key.
            batch: accepted for the guide's call; no weight depends on the data.
        """
        del batch
        # NumPy draws the weights, since JAX would compile a program for each shape.
        seed = int(jax.random.bits(key, (), jnp.uint32))
        weights = initial_weights(
            seed, self.config.model_hidden_dim, self.config.model_n_layers
        )
        # All in one row: else the optimiser's part is the longest to compile.
        return {"row": jnp.asarray(pack_weights(weights))}

    def apply(self, params: Weights, batch: TrainingBatchJAX) -> Mapping[str, Any]:
        """Scores of the batch's parent sets.

        Args:
            params: from `init`, or trained.
            batch: from `convert_to_jax_batch`.

        Returns:
            `"parent_set_logits"` [batch, k], about -1e9 where the list of an example
            is shorter, and `"parent_sets"`, the lists.
        """
        encoded = encode_batch(
            batch.parent_sets,
            batch.variable_orders,
            batch.target_variables,
            batch.observational_data,
            batch.expert_probs.shape[1],
        )
        logits = score_parent_sets(params, encoded, self.config)
        return {"parent_set_logits": logits, "parent_sets": batch.parent_sets}


def score_parent_sets(
    params: Weights, batch: EncodedBatch, config: SurrogateTrainingConfig
) -> Any:
    """Scores of listed parent sets [batch, k]; traced by JAX."""
    # For the shapes alone, which the packed row does not have.
    like = initial_weights(0, config.model_hidden_dim, config.model_n_layers)
    weights = unpack_lazily(params["row"], like, jnp)
    logits = set_scores(
        weights,
        batch.pairs,
        batch.mask,
        batch.target,
        batch.inside,
        batch.posteriors,
        jnp,
    )
    # Padding gets no probability, so the losses need no mask.
    return jnp.where(batch.listed > 0, logits, NEVER)


def create_parent_set_model(
    config: SurrogateTrainingConfig | None = None,
) -> ParentSetModel:
    """A model to train.

    Args:
        config: its sizes.
    """
    return ParentSetModel(config or SurrogateTrainingConfig())
