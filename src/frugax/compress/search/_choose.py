"""Choose the step of each tensor for a budget, or say why no file can meet it.

The objective is the sum over tensors of squared error times a weight. A tensor's weight
is, by default, 1 over its size (root mean square): plain squared error would silence
tensors whose weights are small, and relative error spends 3 dB on protecting them
(measured on trained residual networks of 6 to 14 times smaller files; half way costs
0.9 dB). That holds within a factor of 16 of the common size; beyond it the relative
error counts, so that no tensor is lost while others are fine.

1. A common scale that meets the budget by estimate is found.
2. Each tensor gets options around it, with bytes and error from real samples, and the
   best choice of one option each is found exactly (a multiple-choice knapsack,
   `frugax.allocate.multiple_choice_knapsack`).
3. The whole is coded, and all steps are scaled by one fine factor until the file
   itself is right.

When the budget is a largest error, all steps are twice that error.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from frugax.budget import SizeBudget
from frugax.errors import InfeasibleBudgetError

from .._arguments import Progress, ProgressStages
from ..arrays import round_up
from ._draft import Draft, limit_bytes
from ._error_weights import error_weights
from ._plan import make_plan
from ._scales import ScaleModel
from ._source import Source
from ._step_search import StepSearch

_LARGER_ERROR = "allow a larger error: "
# The digits of a value that a message offers: few enough to type it as a budget.
_DIGITS = 4


def choose(
    sources: tuple[Source, ...],
    head: Mapping[str, Any],
    budget: SizeBudget,
    *,
    sensitivity: Mapping[str, float] | None,
    progress: Progress,
) -> Draft:
    """Find the file within the budget of the least error, or of the fewest bytes."""
    model = ScaleModel(sources, error_weights(sources, sensitivity))
    search = StepSearch(sources, head, model, ProgressStages(progress))
    limit = limit_bytes(sources, budget)
    only_size = budget.rel_error is None and budget.max_abs is None
    if only_size:
        assert limit is not None  # a budget has a size or an error
        # `exact_bytes` leaves out the header. It comes first, because `exact` codes a
        # whole file, which most budgets have no room for.
        if search.exact_bytes <= limit and search.exact.length <= limit:
            return search.exact
        draft = search.fit_bytes(limit)
    elif budget.max_abs is not None:
        draft = search.fit_max_abs(budget.max_abs)
    else:
        assert budget.rel_error is not None  # the only limit that is left
        draft = search.fit_rel_error(budget.rel_error)
    # The savings of quantising a few weights may be less than its header bytes.
    if any(t.step for t in draft.tensors) and search.exact_bytes < draft.length:
        draft = min(search.exact, draft, key=lambda option: option.length)
    if limit is None or draft.length <= limit:
        return draft
    in_size = None
    if not only_size:
        # The best allocation in a size and the shortest file within an error are two
        # searches: one may find a file that the other misses by a little.
        in_size = search.fit_bytes(limit)
        if in_size.length <= limit and _meets_error(in_size, budget):
            return in_size
    _raise_infeasible(search, draft, limit, budget, in_size)


def _meets_error(draft: Draft, budget: SizeBudget) -> bool:
    return all(
        limit is None or error <= limit
        for error, limit in (
            (draft.rel_error, budget.rel_error),
            (draft.max_abs, budget.max_abs),
        )
    )


def _raise_infeasible(
    search: StepSearch,
    draft: Draft,
    limit: int,
    budget: SizeBudget,
    in_size: Draft | None,
) -> NoReturn:
    """Say that no file meets the budget, the best there is, and the way out."""
    reachable: dict[str, float] = {"bytes": draft.length}
    only_size = budget.rel_error is None and budget.max_abs is None
    hint = _suggest(search, draft, limit, only_size=only_size)
    if budget.rel_error is not None:
        if in_size is not None and in_size.length <= limit:
            reachable["rel_error"] = round_up(in_size.rel_error)
    elif budget.max_abs is not None:
        least = search.min_max_abs(limit, draft, above=budget.max_abs)
        if least is not None:
            reachable["max_abs"] = least
    for name, kind in (("rel_error", "relative"), ("max_abs", "largest")):
        if name not in reachable:
            continue
        offer = f"allow a {kind} error of {reachable[name]:.4g}, the least found"
        if hint.startswith(_LARGER_ERROR):
            hint = f"{offer} in so many bytes: {hint.removeprefix(_LARGER_ERROR)}"
        else:
            hint = f"{offer} in so many bytes, or {hint}"
    asked, best = describe_best_size(
        budget,
        draft.length,
        original_bytes=sum(s.array.nbytes for s in search.sources),
        weights=sum(s.array.size for s in search.sources),
    )
    subject = "the smallest file of these weights"
    if not only_size:
        subject += " that was found within the error"
    raise InfeasibleBudgetError(
        f"{asked}{subject}",
        needed=draft.length,
        limit=limit,
        unit="bytes",
        hint=hint,
        best=make_plan(draft, budget),
        reachable=reachable | best,
        # The file with all levels zero is the shortest of all. The shortest one within
        # an error is the best that a search over estimates found.
        proven=only_size,
    )


def _suggest(search: StepSearch, draft: Draft, limit: int, *, only_size: bool) -> str:
    """Say what would help besides more bytes; name the tensors in the way."""
    needed = draft.length
    if not draft.tensors:
        return "give a tree with weights in it: this one is empty."
    header = needed - sum(tensor.stored_bytes for tensor in draft.tensors)
    if header > limit:
        return (
            f"compress fewer tensors: without any weight the file takes {header:,} "
            "bytes, for names, shapes and checks."
        )
    exact_only = search.list_exact_only()
    binds = max(draft.tensors, key=lambda t: t.stored_bytes)
    longest = (
        f"{binds.name or '(the array)'!r} alone takes {binds.stored_bytes:,} bytes."
    )
    if not only_size and sum(source.exact_bytes for source in exact_only) < limit:
        return f"{_LARGER_ERROR}{longest}"
    named: list[str] = []
    for s in exact_only:
        if needed <= limit:
            break
        needed -= s.exact_bytes
        place = s.name or "(the array)"
        named.append(f"{place!r} ({s.array.dtype.name}, {s.exact_bytes:,} bytes)")
    if needed > limit:  # the rest is too long as well
        return f"compress fewer weights: {longest}"
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return (
        "convert or take out the tensors that can only be stored exactly "
        f"(docs/compress.md lists the kinds): {', '.join(named[:3])}{more}."
    )


def describe_best_size(
    budget: SizeBudget, needed: int, *, original_bytes: int, weights: int
) -> tuple[str, dict[str, float]]:
    """State the smallest file in the unit that the budget was given in.

    >>> asked = SizeBudget("9x")
    >>> describe_best_size(asked, 300, original_bytes=1000, weights=250)
    ('9x smaller is out of reach, the best is 3.333x: ', {'ratio': 3.333})
    """
    if budget.ratio is not None:
        best = _round_reachable(original_bytes / needed, math.floor)
        asked, name, unit = f"{budget.ratio:g}x smaller", "ratio", "x"
    elif budget.bits_per_weight is not None:
        best = 0.0
        if weights:
            best = _round_reachable(8 * needed / weights, math.ceil)
        asked = f"{budget.bits_per_weight:g} bits per weight"
        name, unit = "bits_per_weight", ""
    else:
        return "", {}
    if not best:  # without numbers nothing can be counted
        return f"{asked} leaves no bytes, because there are no weights: ", {}
    return f"{asked} is out of reach, the best is {best:.10g}{unit}: ", {name: best}


def _round_reachable(number: float, rounding: Callable[[float], int]) -> float:
    # Four digits of a number >= 0, rounded to the side that can be reached.
    if not number:
        return 0.0
    places = _DIGITS - 1 - math.floor(math.log10(number))
    return rounding(number * 10.0**places) / 10.0**places
