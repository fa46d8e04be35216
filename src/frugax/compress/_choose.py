"""From a budget to the step of each tensor: options, the best of them, real files.

What is made small is the sum over tensors of squared error times a weight. A tensor's
weight is, by default, 1 over its size (root mean square): plain squared error would
silence tensors whose weights are small, and relative error spends 3 dB on protecting
them (measured on trained residual networks of 6 to 14 times smaller files; half way
costs 0.9 dB). It is so within a factor of 16 of the common size; beyond it relative
error counts, so that no tensor is lost while others are fine. Where the error is all
that counts, equal slopes give each tensor a step of one factor times 1/sqrt(weight),
its *unit*; that is where the search begins.

1. A factor that meets the budget by estimate is found.
2. Each tensor gets options around it, with bytes and error from real samples, and the
   best choice of one option each is found exactly (a multiple-choice knapsack,
   `frugax.allocate.multiple_choice_knapsack`).
3. The whole is coded, and all steps are scaled by one fine factor until the file
   itself is right.

When the budget is a largest error, all steps are twice that error.
"""

from collections.abc import Mapping
from typing import Any

from frugax.budget import SizeBudget

from ._draft import Draft, Progress, limit_of
from ._error_weights import error_weights
from ._infeasible import refuse
from ._progress import Stages
from ._scales import Scales
from ._sources import Source
from ._step_search import StepSearch


def choose(
    sources: tuple[Source, ...],
    head: Mapping[str, Any],
    budget: SizeBudget,
    *,
    sensitivity: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Draft:
    """Find the file that meets the budget with the least error, or with fewest bytes.

    Raises:
        InfeasibleBudgetError: no file is as short as asked, or none within the error.
        ValueError: the sensitivity names no tensor, or is negative.
    """
    weights = error_weights(sources, sensitivity)
    search = StepSearch(sources, head, Scales(sources, weights), Stages(progress))
    limit = limit_of(sources, budget)
    only_size = budget.rel_error is None and budget.max_abs is None
    if only_size:
        assert limit is not None  # a budget has a size or an error
        if search.exact_bytes <= limit:
            exact = search.exact
            if exact.length <= limit:
                return exact
        draft = search.within_bytes(limit)
    elif budget.max_abs is not None:
        draft = search.within_max_abs(budget.max_abs)
    else:
        assert budget.rel_error is not None  # the only one that is left
        draft = search.within_rel_error(budget.rel_error)
    # What a step saves in few weights may be less than it takes in the header.
    stepped = any(tensor.step for tensor in draft.tensors)
    if stepped and search.exact_bytes < draft.length:
        draft = min(search.exact, draft, key=lambda found: found.length)
    if limit is None or draft.length <= limit:
        return draft
    in_size = None
    if not only_size:
        # The best choice in a size and the shortest file found within an error are two
        # searches: what the one finds the other may miss by a little.
        in_size = search.within_bytes(limit)
        if in_size.length <= limit and _errs_within(in_size, budget):
            return in_size
    refuse(search, draft, limit, budget, in_size)


def _errs_within(draft: Draft, budget: SizeBudget) -> bool:
    return all(
        most is None or found <= most
        for found, most in (
            (draft.rel_error, budget.rel_error),
            (draft.max_abs, budget.max_abs),
        )
    )
