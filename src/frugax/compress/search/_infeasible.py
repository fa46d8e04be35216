"""Refuse a size budget that no file meets: name the smallest file and the way out."""

import math
from collections.abc import Callable
from typing import NoReturn

from frugax.budget import SizeBudget
from frugax.errors import InfeasibleBudgetError

from ..arrays import round_up
from ._draft import Draft
from ._plan import make_plan
from ._source import Source

# The digits of a value that a message offers: few enough to type it as a budget.
_DIGITS = 4


def raise_infeasible(
    draft: Draft,
    limit: int,
    budget: SizeBudget,
    in_size: Draft | None,
    *,
    exact_only: list[Source],
    find_least_max_abs: Callable[[], float | None],
    measure_outputs: Callable[[Draft], float],
) -> NoReturn:
    """Say that no file meets the budget, the best there is, and the way out."""
    # `draft` is the shortest file within the error of the budget, and longer than
    # `limit`; `in_size` is the best file of that size, where an error was asked for.
    # `exact_only` are the tensors that no step can shorten, the longest first.
    sources = draft.sources
    reachable: dict[str, float] = {"bytes": draft.length}
    only_size = budget.is_only_size
    name, kind, least = "", "", None
    if budget.max_abs is not None:
        name, kind, least = "max_abs", "a largest error", find_least_max_abs()
    elif in_size is not None and in_size.length <= limit:
        name, kind, least = "rel_error", "a relative error", in_size.rel_error
        if budget.output_error is not None:
            name, kind = "output_error", "an output error"
            least = measure_outputs(in_size)
        least = round_up(least)
    hint = _suggest(draft, limit, exact_only, only_size=only_size)
    if least is not None:
        reachable[name] = least
        offer = f"allow {kind} of {least:.4g}, the least found in so many bytes"
        hint = f"{offer}, or {hint}" if hint else f"{offer}: {_name_longest(draft)}"
    elif not hint:
        hint = f"allow a larger error: {_name_longest(draft)}"
    asked, best = describe_best_size(
        budget,
        draft.length,
        original_bytes=sum(s.array.nbytes for s in sources),
        weights=sum(s.array.size for s in sources),
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


def _suggest(
    draft: Draft, limit: int, exact_only: list[Source], *, only_size: bool
) -> str:
    """Say what would help besides more bytes, tensors in the way by name.

    Nothing where a larger error would.
    """
    needed = draft.length
    if not draft.tensors:
        return "give a tree with weights in it: this one is empty."
    header = needed - sum(tensor.stored_bytes for tensor in draft.tensors)
    if header > limit:
        return (
            f"compress fewer tensors: without any weight the file takes {header:,} "
            "bytes, for names, shapes and checks."
        )
    if not only_size and sum(source.exact.bytes for source in exact_only) < limit:
        return ""
    named: list[str] = []
    for s in exact_only:
        if needed <= limit:
            break
        needed -= s.exact.bytes
        place = s.name or "(the array)"
        named.append(f"{place!r} ({s.array.dtype.name}, {s.exact.bytes:,} bytes)")
    if needed > limit:  # the rest is too long as well
        return f"compress fewer weights: {_name_longest(draft)}"
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return (
        "convert or take out the tensors that can only be stored exactly "
        f"(docs/compress.md lists the kinds): {', '.join(named[:3])}{more}."
    )


def _name_longest(draft: Draft) -> str:
    longest = max(draft.tensors, key=lambda t: t.stored_bytes)
    name = longest.name or "(the array)"
    return f"{name!r} alone takes {longest.stored_bytes:,} bytes."


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
