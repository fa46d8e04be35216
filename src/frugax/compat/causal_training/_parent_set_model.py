"""The guide's model: scores of listed parent sets of one target for each data set."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from frugax.causal.surrogate import MAX_VARIABLES
from frugax.causal.surrogate.evidence import (
    NEVER,
    Evidence,
    compute_evidence,
    moments,
    other_variables,
)
from frugax.causal.surrogate.network import (
    HEADS,
    Weights,
    apply_network,
    initial_weights,
)
from frugax.options import check_integer, check_number

from ._training_batch import TrainingBatch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateTrainingConfig:
    """Sizes of the model, and how it is trained.

    Attributes:
        model_hidden_dim: channels of a pair of variables; a multiple of 4.
        model_n_layers: blocks of attention, >= 0.
        learning_rate: of the optimiser; reported beside the losses.
        batch_size: examples in a batch.
        max_epochs: steps on each batch, for training loops to read.
    """

    model_hidden_dim: int = 32
    model_n_layers: int = 2
    learning_rate: float = 1e-3
    batch_size: int = 32
    max_epochs: int = 20

    def __post_init__(self) -> None:
        check_integer("model_hidden_dim", self.model_hidden_dim, minimum=HEADS)
        if self.model_hidden_dim % HEADS:
            raise ValueError(
                f"model_hidden_dim must be a multiple of {HEADS}, got "
                f"{self.model_hidden_dim}."
            )
        check_integer("model_n_layers", self.model_n_layers, minimum=0)
        for name in ("batch_size", "max_epochs"):
            check_integer(name, getattr(self, name))
        check_number("learning_rate", self.learning_rate, above=0)


# A named tuple is a pytree by itself, so a batch passes through jit as it is.
class EncodedBatch(NamedTuple):
    """A batch as the compiled step gets it: arrays of fixed shape, no names.

    Attributes:
        evidence: about all parent sets of all variables; it needs no weights.
        mask: variables that are there [batch, d].
        child: the target's position [batch].
        code: the number of each listed set among all sets of the child [batch, k].
        inside: variables in each listed set [batch, k, d].
        listed: 1 for sets, 0 for padding [batch, k].
        probs: the expert's probabilities [batch, k].
    """

    evidence: Evidence
    mask: np.ndarray
    child: np.ndarray
    code: np.ndarray
    inside: np.ndarray
    listed: np.ndarray
    probs: np.ndarray


def encode_batch(examples: TrainingBatch) -> EncodedBatch:
    """Compute everything that needs no weight, in NumPy.

    Raises:
        ValueError: there are more than 12 variables, or names do not fit together.
    """
    data = np.asarray(examples.observational_data, np.float32)
    value, intervened, _, present = np.moveaxis(data, 3, 0)
    batch, width = data.shape[0], data.shape[2]
    if width > MAX_VARIABLES:
        raise ValueError(
            f"observational_data has {width} variables; it may have 2 to "
            f"{MAX_VARIABLES}: `select` those that matter."
        )
    probs = np.asarray(examples.expert_probs, np.float32)
    mask = np.zeros((batch, width), np.float32)
    child = np.zeros(batch, int)
    inside = np.zeros((*probs.shape, width), np.float32)
    listed = np.zeros_like(probs)
    names_of = (
        examples.variable_orders,
        examples.target_variables,
        examples.parent_sets,
    )
    for i, (order, target, sets) in enumerate(zip(*names_of, strict=True)):
        if len(order) > width or len(sets) > probs.shape[1]:
            raise ValueError(
                f"example {i} names {len(order)} variables and {len(sets)} parent "
                f"sets, but its arrays have {width} and {probs.shape[1]}."
            )
        mask[i, : len(order)] = 1
        for name in {target}.union(*sets) - {*order}:
            raise ValueError(f"{name!r} is not among {list(order)!r:.200}.")
        # The network has no score for it, and would give that of the set without it.
        if any(target in names for names in sets):
            raise ValueError(f"example {i} lists {target!r} as a parent of itself.")
        child[i] = list(order).index(target)
        listed[i, : len(sets)] = 1
        for row, names in enumerate(sets):
            inside[i, row] = [name in names for name in order]
    # Sets are numbered by bits of the other variables, as the evidence is.
    others = other_variables(width)[child]
    among = np.take_along_axis(inside, others[:, None], 2).astype(int)
    return EncodedBatch(
        evidence=compute_evidence(moments(value, intervened, present), mask),
        mask=mask,
        child=child,
        code=(among << np.arange(width - 1)).sum(2),
        inside=inside,
        listed=listed,
        probs=probs,
    )


def score_parent_sets(params: Weights, batch: EncodedBatch) -> Any:
    """Scores of listed parent sets [batch, k]; traced by JAX."""
    every = apply_network(params, batch.evidence, batch.mask, xp=jnp).log_sets
    rows = np.arange(len(batch.listed))[:, None]
    # Padding gets no probability, so the losses need no mask.
    return jnp.where(
        batch.listed > 0, every[rows, batch.child[:, None], batch.code], NEVER
    )


@dataclasses.dataclass(frozen=True)
class ParentSetModel:
    """Scores parent sets; its weights are arrays by name.

    Attributes:
        config: sizes.
    """

    config: SurrogateTrainingConfig = SurrogateTrainingConfig()

    def init(self, key: Any, batch: TrainingBatch | None = None) -> Weights:
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
        return jax.tree.map(jnp.asarray, weights)

    def apply(self, params: Weights, batch: TrainingBatch) -> Mapping[str, Any]:
        """Scores of the batch's parent sets.

        Args:
            params: from `init`, or trained.
            batch: from `create_training_batch` or `convert_to_jax_batch`.

        Returns:
            `"parent_set_logits"` [batch, k], about -1e9 where the list of an example
            is shorter, and `"parent_sets"`, the lists.
        """
        logits = score_parent_sets(params, encode_batch(batch))
        return {"parent_set_logits": logits, "parent_sets": batch.parent_sets}


# The guide has a function for it.
create_parent_set_model = ParentSetModel
