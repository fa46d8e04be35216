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

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from frugax.budget import SizeBudget
from frugax.errors import InfeasibleBudgetError

from .._arguments import ProgressStages
from ..arrays._error import round_up
from ._draft import Draft, Progress, limit_bytes
from ._error_weights import error_weights
from ._plan import make_plan
from ._scales import ScaleModel
from ._source import Source
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
    search = StepSearch(
        sources, head, ScaleModel(sources, weights), ProgressStages(progress)
    )
    limit = limit_bytes(sources, budget)
    only_size = budget.rel_error is None and budget.max_abs is None
    if only_size:
        assert limit is not None  # a budget has a size or an error
        if search.exact_bytes <= limit:
            exact = search.exact
            if exact.length <= limit:
                return exact
        draft = search.fit_bytes(limit)
    elif budget.max_abs is not None:
        draft = search.fit_max_abs(budget.max_abs)
    else:
        assert budget.rel_error is not None  # the only one that is left
        draft = search.fit_rel_error(budget.rel_error)
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
        in_size = search.fit_bytes(limit)
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


_LARGER = "allow a larger error: "


def refuse(
    search: StepSearch,
    draft: Draft,
    limit: int,
    budget: SizeBudget,
    in_size: Draft | None,
) -> NoReturn:
    """Say that no file is within the budget, what can be reached, and what would help.

    Args:
        search: that found no file.
        draft: the shortest file within the error, if there is one in the budget.
        limit: the longest file allowed; shorter than the draft.
        budget: what was asked for.
        in_size: the best file found of the size; None if no error was asked for.

    Raises:
        InfeasibleBudgetError: always.
    """
    reachable: dict[str, float] = {"bytes": draft.length}
    only_size = budget.rel_error is None and budget.max_abs is None
    instead = hint(search, draft, limit, only_size=only_size)
    if budget.rel_error is not None:
        if in_size is not None and in_size.length <= limit:
            reachable["rel_error"] = round_up(in_size.rel_error)
    elif budget.max_abs is not None:
        least = search.min_max_abs(limit, draft, above=budget.max_abs)
        if least is not None:
            reachable["max_abs"] = least
    for name, said in (("rel_error", "relative"), ("max_abs", "largest")):
        if name in reachable:
            offer = f"allow a {said} error of {reachable[name]:.4g}, the least found"
            instead = (
                f"{offer} in so many bytes: {instead.removeprefix(_LARGER)}"
                if instead.startswith(_LARGER)
                else f"{offer} in so many bytes, or {instead}"
            )
    asked, best = describe_best_size(
        budget,
        draft.length,
        original_bytes=sum(s.array.nbytes for s in search.sources),
        weights=sum(s.array.size for s in search.sources),
    )
    raise InfeasibleBudgetError(
        f"{asked}the smallest file of these weights"
        + ("" if only_size else " that was found within the error"),
        needed=draft.length,
        limit=limit,
        unit="bytes",
        hint=instead,
        best=make_plan(draft, budget),
        reachable=reachable | best,
        proven=only_size,
    )


def hint(search: StepSearch, draft: Draft, limit: int, *, only_size: bool) -> str:
    """What would help besides more bytes; names the tensors that are in the way."""
    needed = draft.length
    if not draft.tensors:
        return "give a tree with weights in it: this one has none."
    header = needed - sum(tensor.stored_bytes for tensor in draft.tensors)
    if header > limit:
        return (
            f"compress fewer tensors: without any weight the file takes {header:,} "
            "bytes, for names, shapes and checks."
        )
    list_exact_only = search.list_exact_only()
    binds = max(draft.tensors, key=lambda t: t.stored_bytes)
    longest = (
        f"{binds.name or '(the array)'!r} alone takes {binds.stored_bytes:,} bytes."
    )
    if not only_size and sum(source.exact_bytes for source in list_exact_only) < limit:
        return f"{_LARGER}{longest}"
    named: list[str] = []
    for s in list_exact_only:
        if needed <= limit:
            break
        needed -= s.exact_bytes
        place = s.name or "(the array)"
        named.append(f"{place!r} ({s.array.dtype.name}, {s.exact_bytes:,} bytes)")
    if needed > limit:  # the rest is too long as well
        return f"compress fewer weights: {longest}"
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return (
        "convert or take out what can only be stored exactly (docs/compress.md says "
        f"what): {', '.join(named[:3])}{more}."
    )


_DIGITS = 4


def describe_best_size(
    budget: SizeBudget, needed: int, *, original_bytes: int, weights: int
) -> tuple[str, dict[str, float]]:
    """What a ratio, or bits per weight, would have to be.

    Args:
        budget: what was asked for.
        needed: bytes of the smallest file.
        original_bytes: of the weights as they are.
        weights: how many numbers they hold.

    Returns:
        The beginning of a message, and the best value by the name of its limit, rounded
        so that it can be reached; nothing where the budget is in bytes.

    >>> asked = SizeBudget("9x")
    >>> describe_best_size(asked, 300, original_bytes=1000, weights=250)
    ('9x smaller is out of reach, the best is 3.333x: ', {'ratio': 3.333})
    """
    if budget.ratio is not None:
        best = _rounded(original_bytes / needed, math.floor)
        said, name, unit = f"{budget.ratio:g}x smaller", "ratio", "x"
    elif budget.bits_per_weight is not None:
        best = _rounded(8 * needed / weights, math.ceil) if weights else 0.0
        said = f"{budget.bits_per_weight:g} bits per weight"
        name, unit = "bits_per_weight", ""
    else:
        return "", {}
    if not best:  # there are no numbers to count from
        return f"{said} leaves no bytes, for the weights have none: ", {}
    return f"{said} is out of reach, the best is {best:.10g}{unit}: ", {name: best}


def _rounded(number: float, way: Callable[[float], int]) -> float:
    """Four digits of a number >= 0, away from what cannot be reached."""
    if not number:
        return 0.0
    places = _DIGITS - 1 - math.floor(math.log10(number))
    return way(number * 10.0**places) / 10.0**places
