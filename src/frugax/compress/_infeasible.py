"""Why no file is small enough, and what would help."""

from typing import NoReturn

from frugax.budget import SizeBudget
from frugax.errors import InfeasibleBudgetError

from ._best_ratio import best_ratio
from ._draft import Draft
from ._error import rounded_up
from ._plan import plan_of
from ._step_search import StepSearch

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
            reachable["rel_error"] = rounded_up(in_size.rel_error)
    elif budget.max_abs is not None:
        least = search.least_max_abs(limit, draft, above=budget.max_abs)
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
    asked, best = best_ratio(
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
        best=plan_of(draft, budget),
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
    exact_only = search.exact_only()
    binds = max(draft.tensors, key=lambda t: t.stored_bytes)
    longest = (
        f"{binds.name or '(the array)'!r} alone takes {binds.stored_bytes:,} bytes."
    )
    if not only_size and sum(source.exact_bytes for source in exact_only) < limit:
        return f"{_LARGER}{longest}"
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
        "convert or take out what can only be stored exactly (docs/compress.md says "
        f"what): {', '.join(named[:3])}{more}."
    )
