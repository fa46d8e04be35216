"""Training examples: data, and an expert's answer about one variable's parents."""

import dataclasses
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import jax.numpy as jnp
import numpy as np

from frugax.causal.checks import check_kind, check_whole
from frugax.causal.data import Samples
from frugax.causal.scm import SCM
from frugax.causal.surrogate import (
    MAX_VARIABLES,
    ParentSetPosterior,
    check_samples,
    nearest_variables,
    table_arrays,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainingExample:
    """One data set, and an expert's answer about one variable in it.

    Attributes:
        samples: the data, of 2 to 12 variables.
        expert_posterior: over the parent sets of its target, which are the support.
        expert_accuracy: from 0 to 1.
    """

    samples: Samples
    expert_posterior: ParentSetPosterior
    expert_accuracy: float = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Several examples.

    Attributes:
        examples: at least one.
    """

    examples: Sequence[TrainingExample]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainingBatchJAX:
    """Arrays apart from names: nothing is compiled for a name.

    Attributes:
        observational_data: [batch, n, d, 4]: value, whether it was set, whether this is
            the target, whether there is a value. Shorter and narrower data sets are
            padded with absent values.
        expert_probs: [batch, k]; each row sums to 1.
        expert_accuracies: [batch].
        parent_sets: of each example, as many as it has; the rest of k is padding.
        variable_orders: names of each example's variables.
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


def convert_to_jax_batch(batch: TrainingBatch) -> TrainingBatchJAX:
    """Stack examples of any number of rows, variables and parent sets.

    Args:
        batch: the examples.

    Raises:
        TypeError: `batch` is not a `TrainingBatch`.
        ValueError: it has no examples.
    """
    check_kind("batch", batch, TrainingBatch, "create_training_batch makes one")
    if not batch.examples:
        raise ValueError("the batch has no examples.")
    tables = [e.samples for e in batch.examples]
    posteriors = [e.expert_posterior for e in batch.examples]
    rows, width = max(map(len, tables)), max(len(t.variables) for t in tables)
    # Zeros: the channel of presence is then 0 in the padding.
    data = np.zeros((len(tables), rows, width, 4), np.float32)
    probs = np.zeros((len(tables), max(len(p.probs) for p in posteriors)), np.float32)
    for i, (table, posterior) in enumerate(zip(tables, posteriors, strict=True)):
        values, intervened, present = table_arrays(table)
        is_target = np.zeros_like(values)
        is_target[:, table.index(posterior.target)] = 1
        channels = np.stack([values, intervened, is_target, present], -1)
        data[i, : len(table), : len(table.variables)] = channels
        probs[i, : len(posterior.probs)] = posterior.probs
    accuracies = np.array([e.expert_accuracy for e in batch.examples], np.float32)
    return TrainingBatchJAX(
        observational_data=jnp.asarray(data),
        expert_probs=jnp.asarray(probs),
        expert_accuracies=jnp.asarray(accuracies),
        parent_sets=[list(p.parent_sets) for p in posteriors],
        variable_orders=[list(t.variables) for t in tables],
        target_variables=[p.target for p in posteriors],
    )


def create_training_batch(
    samples: Samples,
    scm: SCM,
    batch_size: int = 32,
    *,
    max_parent_size: int = 3,
    seed: int = 0,
) -> TrainingBatch:
    """Examples of one data set: each variable in turn is the target.

    The expert is the model itself: all probability is on the true parents. From the
    second round on an example has a random three quarters of the rows, so that no two
    are the same. Of more than 12 variables an example has the target, its parents and
    those that are most related to it.

    Args:
        samples: rows of the model's variables.
        scm: where they come from.
        batch_size: how many examples.
        max_parent_size: parent sets are listed up to this size, and the true one.
        seed: of the rows that are left out.

    Raises:
        TypeError: `samples` or `scm` is something else.
        ValueError: `batch_size` is below 1, or a target has more than 11 parents.
    """
    check_samples(samples)
    check_kind("scm", scm, SCM)
    check_whole("batch_size", batch_size, 1)
    rng = np.random.default_rng(seed)
    examples = []
    for index in range(batch_size):
        turn, column = divmod(index, len(samples.variables))
        target = samples.variables[column]
        part = samples
        if turn and len(samples) > 4:
            kept = rng.permutation(len(samples))[: max(4, len(samples) * 3 // 4)]
            part = samples.rows(np.sort(kept))
        # Parents that were not observed cannot be listed, as their names are not in the
        # data.
        parents = frozenset(scm.parents(target)) & set(samples.variables)
        if len(part.variables) > MAX_VARIABLES:
            part = part.select(_related(part, target, parents))
        others = [v for v in part.variables if v != target]
        sizes = range(min(max_parent_size, len(others)) + 1)
        sets = [frozenset(s) for size in sizes for s in combinations(others, size)]
        if parents not in sets:
            sets.append(parents)
        posterior = ParentSetPosterior(
            target=target,
            parent_sets=tuple(sets),
            probs=np.array([float(s == parents) for s in sets]),
        )
        examples.append(TrainingExample(samples=part, expert_posterior=posterior))
    return TrainingBatch(examples)


def _related(samples: Samples, target: str, parents: frozenset[str]) -> list[str]:
    """Choose 12 variables: the target, its parents, and the most related others."""
    if len(parents) >= MAX_VARIABLES:
        raise ValueError(
            f"{target!r} has {len(parents)} parents; the most is {MAX_VARIABLES - 1}."
        )
    near = nearest_variables(*table_arrays(samples))[samples.index(target)]
    ranked = [target, *parents, *(samples.variables[c] for c in near)]
    kept = list(dict.fromkeys(ranked))[:MAX_VARIABLES]
    # In the order of the data, so that the position of a variable does not betray its
    # role.
    return [name for name in samples.variables if name in kept]
