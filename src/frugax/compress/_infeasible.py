"""Why no file is small enough, and what would help."""

from ._draft import Draft
from ._step_search import StepSearch


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
        return f"allow a larger error: {longest}"
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
