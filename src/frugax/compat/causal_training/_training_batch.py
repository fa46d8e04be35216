"""Training examples: data, a target, and an expert's answer about its parents."""

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

CHANNELS = ("value", "intervened", "target", "present")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainingExample:
    """One data set, and an expert's answer about one variable in it.

    Attributes:
        observational_data: float32 [n, d, 4]: value, whether it was set, whether this
            is the target, whether there is a value.
        target_variable: whose parents are asked for.
        variable_order: names of the d variables.
        expert_posterior: over the target's parent sets; they are the support.
        expert_accuracy: from 0 to 1.
        problem_difficulty: a word for reports.
    """

    observational_data: np.ndarray
    target_variable: str
    variable_order: tuple[str, ...]
    expert_posterior: ParentSetPosterior
    expert_accuracy: float = 1.0
    problem_difficulty: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Several examples.

    Attributes:
        examples: at least one.
    """

    examples: Sequence[TrainingExample]

    @property
    def batch_size(self) -> int:
        """How many examples."""
        return len(self.examples)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainingBatchJAX:
    """Arrays apart from names: nothing is compiled for a name.

    Attributes:
        observational_data: [batch, n, d, 4]; shorter and narrower data sets are padded
            with absent values.
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
    examples = list(batch.examples)
    if not examples:
        raise ValueError("the batch has no examples.")
    shapes = np.array([e.observational_data.shape for e in examples])
    # Zeros: the channel `present` is then 0 in the padding, which the model takes for
    # absent.
    data = np.zeros((len(examples), *shapes.max(0)), np.float32)
    most = max(len(e.expert_posterior.probs) for e in examples)
    probs = np.zeros((len(examples), most), np.float32)
    for i, e in enumerate(examples):
        n, d, channels = e.observational_data.shape
        data[i, :n, :d, :channels] = e.observational_data
        probs[i, : len(e.expert_posterior.probs)] = e.expert_posterior.probs
    return TrainingBatchJAX(
        observational_data=jnp.asarray(data),
        expert_probs=jnp.asarray(probs),
        expert_accuracies=jnp.asarray(
            np.array([e.expert_accuracy for e in examples], np.float32)
        ),
        parent_sets=[list(e.expert_posterior.parent_sets) for e in examples],
        variable_orders=[list(e.variable_order) for e in examples],
        target_variables=[e.target_variable for e in examples],
    )


def create_training_batch(
    samples: Samples,
    scm: SCM,
    batch_size: int = 32,
    *,
    max_parent_size: int = 3,
    seed: int = 0,
    difficulty: str = "",
) -> TrainingBatch:
    """Examples of one data set: each variable in turn is the target.

    The expert is the model itself: all probability is on the true parents. From the
    second round on an example has a random three quarters of the rows, so that no two
    are the same. Of more than 12 variables an example has the target, its parents and
    those that move most with it.

    Args:
        samples: rows of the model's variables.
        scm: where they come from.
        batch_size: how many examples.
        max_parent_size: parent sets are listed up to this size, and the true one.
        seed: of the rows that are left out.
        difficulty: a word for reports.

    Raises:
        TypeError: `samples` or `scm` is something else.
        ValueError: `batch_size` is below 1, or a target has more than 11 parents.
    """
    check_samples(samples)
    check_kind("scm", scm, SCM)
    check_whole("batch_size", batch_size, 1)
    rng = np.random.default_rng(seed)
    names = list(samples.variables)
    examples = []
    for index in range(batch_size):
        turn, place = divmod(index, len(names))
        target = names[place]
        rows = np.arange(len(samples))
        if turn and len(rows) > 4:
            rows = np.sort(rng.permutation(rows)[: max(4, len(rows) * 3 // 4)])
        # Parents that were not observed cannot be listed, as their names are not in the
        # data.
        parents = [p for p in scm.parents(target) if p in names]
        part = samples.rows(rows)
        if len(names) > MAX_VARIABLES:
            part = part.select(_around(part, target, parents))
        examples.append(
            _example(part, target, frozenset(parents), max_parent_size, difficulty)
        )
    return TrainingBatch(examples)


def _around(samples: Samples, target: str, parents: Sequence[str]) -> list[str]:
    if len(parents) >= MAX_VARIABLES:
        raise ValueError(
            f"{target!r} has {len(parents)} parents; the most is {MAX_VARIABLES - 1}."
        )
    column = samples.index(target)
    near = nearest_variables(*table_arrays(samples))[column]
    # The target and its parents always stay, or the true set could not be listed.
    kept = [target, *parents]
    for c in near:
        name = samples.variables[c]
        if name not in kept and len(kept) < MAX_VARIABLES:
            kept.append(name)
    # In the order of the data, so that the position of a variable does not betray its
    # role.
    return [name for name in samples.variables if name in kept]


def _example(
    samples: Samples,
    target: str,
    parents: frozenset[str],
    max_parent_size: int,
    difficulty: str,
) -> TrainingExample:
    values, intervened, present = table_arrays(samples)
    is_target = np.zeros_like(values)
    is_target[:, samples.index(target)] = 1
    sets = sets_up_to([v for v in samples.variables if v != target], max_parent_size)
    if parents not in sets:
        sets.append(parents)
    probs = np.array([float(s == parents) for s in sets])
    return TrainingExample(
        observational_data=np.stack([values, intervened, is_target, present], -1),
        target_variable=target,
        variable_order=samples.variables,
        expert_posterior=ParentSetPosterior(
            target=target, parent_sets=tuple(sets), probs=probs
        ),
        problem_difficulty=difficulty,
    )


def sets_up_to(names: Sequence[str], size: int) -> list[frozenset[str]]:
    """All sets of names up to a size, small ones first."""
    return [
        frozenset(chosen)
        for count in range(min(size, len(names)) + 1)
        for chosen in combinations(names, count)
    ]
