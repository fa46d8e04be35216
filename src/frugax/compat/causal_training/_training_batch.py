"""Training examples: data, and an expert's answer about one variable's parents."""

import dataclasses
from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Any

import jax.numpy as jnp
import numpy as np

from frugax.causal.data import Samples
from frugax.causal.scm import SCM
from frugax.causal.surrogate import (
    MAX_VARIABLES,
    check_samples,
    related_columns,
    table_arrays,
)
from frugax.options import check_instance, check_integer

# Parent sets are listed up to this size; the true set always.
MAX_PARENT_SIZE = 3


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainingBatch:
    """Examples, arrays apart from names: nothing is compiled for a name.

    Attributes:
        observational_data: [batch, n, d, 4]: value, whether it was set, whether this is
            the target, whether there is a value.
        expert_probs: [batch, k]; each row sums to 1. In a batch of
            `create_training_batch`, k has room for all sets of up to three parents and
            a larger true one, so that it is the same for all data of as many variables.
        expert_accuracies: [batch].
        parent_sets: of each example, as many as it has; the rest of k is padding.
        variable_orders: names of each example's variables, 2 to 12.
        target_variables: of each example.
    """

    observational_data: Any
    expert_probs: Any
    expert_accuracies: Any
    parent_sets: Sequence[Sequence[frozenset[str]]]
    variable_orders: Sequence[Sequence[str]]
    target_variables: Sequence[str]

    @property
    def batch_size(self) -> int:
        """How many examples."""
        return len(self.target_variables)


# The guide's name for a batch with arrays of JAX.
TrainingBatchJAX = TrainingBatch


def convert_to_jax_batch(batch: TrainingBatch) -> TrainingBatchJAX:
    """Move the arrays of a batch to JAX.

    Args:
        batch: from `create_training_batch`.
    """
    names = ("observational_data", "expert_probs", "expert_accuracies")
    arrays: dict[str, Any] = {name: jnp.asarray(getattr(batch, name)) for name in names}
    return dataclasses.replace(batch, **arrays)


def create_training_batch(
    samples: Samples, scm: SCM, batch_size: int = 32, *, seed: int = 0
) -> TrainingBatch:
    """Examples of one data set: each variable in turn is the target.

    The expert is the model itself: all probability is on the true parents. From the
    second round on the rows of an example are drawn with replacement, so that no two
    are the same. Of more than 12 variables an example has the target, its parents and
    those that are most related to it.

    Args:
        samples: rows of the model's variables.
        scm: where they come from.
        batch_size: how many examples.
        seed: of the rows that are drawn.

    Raises:
        TypeError: `samples` or `scm` is something else.
        ValueError: `batch_size` is below 1, or a target has more than 11 parents.
    """
    check_samples(samples)
    check_instance("scm", scm, SCM)
    check_integer("batch_size", batch_size)
    rng, rows = np.random.default_rng(seed), len(samples)
    # All sets up to the usual size, and the true one if it is larger.
    others_count = min(len(samples.variables), MAX_VARIABLES) - 1
    room = 1 + sum(comb(others_count, size) for size in range(MAX_PARENT_SIZE + 1))
    data: list[np.ndarray] = []
    orders: list[list[str]] = []
    listed: list[list[frozenset[str]]] = []
    targets = [samples.variables[i % len(samples.variables)] for i in range(batch_size)]
    for index, target in enumerate(targets):
        part = samples
        if index >= len(samples.variables):
            part = samples.rows(np.sort(rng.integers(rows, size=rows)))
        # Parents that were not observed cannot be listed, as their names are not in the
        # data.
        parents = frozenset(scm.parents(target)) & set(samples.variables)
        if len(parents) >= MAX_VARIABLES:
            raise ValueError(
                f"{target!r} has {len(parents)} parents; the most is "
                f"{MAX_VARIABLES - 1}."
            )
        if len(part.variables) > MAX_VARIABLES:
            columns = related_columns(part, target, parents)
            part = part.select([part.variables[column] for column in columns])
        values, intervened, present = table_arrays(part)
        is_target = np.zeros_like(values)
        is_target[:, part.index(target)] = 1
        data.append(np.stack([values, intervened, is_target, present], -1))
        orders.append(list(part.variables))
        others = [v for v in part.variables if v != target]
        sizes = range(min(MAX_PARENT_SIZE, len(others)) + 1)
        sets = [frozenset(s) for size in sizes for s in combinations(others, size)]
        # The true set first, where it is found in all lists.
        listed.append([parents, *(s for s in sets if s != parents)])
    probs = np.zeros((batch_size, room), np.float32)
    probs[:, 0] = 1
    return TrainingBatch(
        observational_data=np.stack(data),
        expert_probs=probs,
        expert_accuracies=np.ones(batch_size, np.float32),
        parent_sets=listed,
        variable_orders=orders,
        target_variables=targets,
    )
