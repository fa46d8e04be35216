"""A file in the making decoded again, compared with its originals, and reported."""

import math

from frugax.budget import Receipt, SizeBudget, Spend
from frugax.errors import CorruptFileError

from ._draft import Draft, limit_of
from ._error import Error, relative
from ._mapped import let_go
from ._plan import CompressPlan, plan_of
from ._report import CompressReport, TensorReport


def measured(draft: Draft) -> tuple[TensorReport, ...]:
    """Decode the file and measure it against the originals.

    Raises:
        CorruptFileError: the file does not hold what was meant: a bug, never seen.
    """
    found: list[TensorReport] = []
    with draft.opened() as file:
        file.check()
        sources = {source.name: source for source in draft.sources}
        meant = dict(zip(sources, draft.errors, strict=True))
        errors = dict.fromkeys(sources, Error())
        for name, at, part in file.pieces():
            # Digests are compared while decoding: exact tensors need no second look.
            original = sources[name].array.reshape(-1)[at : at + part.size]
            if meant[name].largest:
                errors[name] += Error.between(part, original)
            let_go(original)
        for name, error in errors.items():
            same = math.isclose(error.energy, meant[name].energy, rel_tol=1e-9)
            if not same or error.largest != meant[name].largest:
                raise CorruptFileError(f"tensor {name!r} does not come back.")
            rel_error = relative(error.energy, sources[name].energy)
            record = file.record(name)
            found.append(
                TensorReport.of(record, rel_error=rel_error, max_abs=error.largest)
            )
    return tuple(found)


def report_of(
    draft: Draft,
    tensors: tuple[TensorReport, ...],
    budget: SizeBudget,
    plan: CompressPlan | None,
    *,
    file_bytes: int,
) -> CompressReport:
    """The report of a file that was written.

    Args:
        draft: what was written.
        tensors: what `measured` has found.
        budget: what was asked for.
        plan: that was carried out; None if it was searched for on these weights.
        file_bytes: the length of the file.
    """
    before = "by coding these very weights" if plan is None else "by the plan"
    plan = plan or plan_of(draft, budget)
    rows = [
        ("file", "bytes", limit_of(draft.sources, budget), plan.file_bytes, file_bytes),
        ("relative error", "", budget.rel_error, plan.rel_error, draft.rel_error),
        ("largest error", "", budget.max_abs, plan.max_abs, draft.max_abs),
    ]
    spends = tuple(
        Spend(
            name=name,
            unit=unit,
            limit=limit,
            predicted=predicted,
            measured=measured,
            source=("length of the file" if unit else "decoded from the file")
            + f"; predicted {before}",
        )
        for name, unit, limit, predicted, measured in rows
        if limit is not None
    )
    return CompressReport(
        budget=budget,
        receipt=Receipt(spends),
        tensors=tensors,
        file_bytes=file_bytes,
        original_bytes=sum(source.array.nbytes for source in draft.sources),
        rel_error=draft.rel_error,
        max_abs=draft.max_abs,
        allocation_gap=plan.allocation_gap,
    )
