"""A tree of weights within a budget: planned, coded, decoded again, reported."""

import math
import os
from collections.abc import Mapping

from frugax.budget import Receipt, SizeBudget, Spend, check_budget
from frugax.errors import CorruptFileError
from frugax.files import write_whole
from frugax.trees import describe
from frugax.typing import PyTree

from ._arrays import arrays_of, unwrapped
from ._choose import Draft, Progress, choose, draft_of, limit_of
from ._error import Error, relative
from ._file import CompressedFile
from ._plan import CompressPlan, plan_of
from ._report import CompressReport, TensorReport, gap_to_bound_db
from ._sources import Source
from ._stream import write_exact

_EXACT = SizeBudget(max_abs=0)


def plan(
    tree: PyTree,
    budget: SizeBudget,
    *,
    sensitivity: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> CompressPlan:
    """Choose a codec and a step for every tensor so that the file meets the budget.

    With a size, the file is as close below it as can be, and as exact; a tree that
    fits without loss stays exact. With an error, the file is the smallest within it.
    With both, it is the smallest within the error, and must fit the size.

    Args:
        tree: a pytree of NumPy, JAX or torch arrays, a state dict, or a torch module;
            it is only read.
        budget: bytes of the whole file, or the error allowed, or both. Errors count
            finite float tensors; whole numbers and tensors with NaN or infinity in
            them are always exact.
        sensitivity: what a squared error of each float tensor is worth, by name, in
            any one unit; `frugax.compress.sensitivity_of` measures it on your data.
            By default 1 over the tensor's root mean square.
        progress: called with the share that is done, in [0, 1], and what is being
            done, now and then; what it raises ends the work.

    Returns:
        The plan; `compress(tree, budget, plan=plan)` carries it out.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked;
            `needed` is the length of the smallest.
        TypeError: a leaf is no array, or of a dtype that no file can hold.
        ValueError: two leaves share a name, the tree has over 100 levels, or the
            sensitivity is not one number >= 0 for each float tensor.

    >>> weights = {"w": np.random.default_rng(0).normal(size=(64, 64))}
    >>> found = plan(weights, SizeBudget(ratio=8))
    >>> found.tensors[0].codec, found.file_bytes <= 64 * 64 * 8 / 8
    ('trellis', True)
    """
    check_budget(budget, SizeBudget)
    sources, structure = _sources(tree)
    told = _rising(progress)
    draft = choose(sources, structure, budget, sensitivity=sensitivity, progress=told)
    _ended(told)
    return plan_of(draft, budget)


def compress(
    tree: PyTree,
    budget: SizeBudget,
    *,
    plan: CompressPlan | None = None,
    sensitivity: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> bytes:
    """Code a tree of weights into the bytes of one file, within the budget.

    The bytes are decoded and compared with the tree before they are returned.

    Args:
        tree: what `frugax.compress.plan` takes; it is only read.
        budget: bytes of the whole file, or the error allowed, or both.
        plan: what `frugax.compress.plan` gave for this tree and budget, to save the
            search; by default it is searched for.
        sensitivity: as `plan` takes it, where none is given.
        progress: as `plan` takes it.

    Returns:
        The file's bytes; the same ones for the same weights.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked.
        TypeError: a leaf is no array, or of a dtype that no file can hold.
        ValueError: the plan is for other weights or another budget.

    >>> import frugax
    >>> weights = {"w": np.arange(6.0).reshape(2, 3), "layers": [np.zeros(3)]}
    >>> data = compress(weights, SizeBudget(max_abs=0))
    >>> frugax.compress.decompress(data)["w"]
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    told = _rising(progress)
    draft = _draft(tree, budget, plan, sensitivity, told)
    _measure(draft)
    _ended(told)
    return draft.data


def save(
    path: str | os.PathLike[str],
    tree: PyTree,
    budget: SizeBudget,
    *,
    plan: CompressPlan | None = None,
    sensitivity: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> CompressReport:
    """Write a tree of weights as one `.fxz` file within the budget, or not at all.

    Args:
        path: where the file will stand.
        tree: what `frugax.compress.plan` takes; it is only read.
        budget: bytes of the whole file, or the error allowed, or both.
        plan: what `frugax.compress.plan` gave for this tree and budget, perhaps with
            earlier values; the report then has what it predicted.
        sensitivity: as `frugax.compress.plan` takes it, where no plan is given.
        progress: as `frugax.compress.plan` takes it.

    Returns:
        The report: file bytes and errors, measured on the decoded file. Without a
        plan what is predicted is what is measured: searching codes these very weights.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked.
        OutputError: the file could not be written.
        TypeError: a leaf is no array, or of a dtype that no file can hold.
        ValueError: the plan is for other weights or another budget.
    """
    if plan is None and budget == _EXACT:
        return _save_exact(path, tree, _rising(progress))
    told = _rising(progress)
    draft = _draft(tree, budget, plan, sensitivity, told)
    errors = _measure(draft)
    write_whole(path, draft.data)
    _ended(told)
    return _report(draft, errors, budget, plan, file_bytes=os.stat(path).st_size)


def _save_exact(
    path: str | os.PathLike[str], tree: PyTree, progress: Progress | None
) -> CompressReport:
    """Nothing to choose: the file is written tensor by tensor."""
    plain = unwrapped(tree)
    structure = describe(plain)
    header, file_bytes = write_exact(path, arrays_of(plain), structure, progress)
    none = Spend(
        name="largest error",
        unit="",
        limit=0.0,
        predicted=0.0,
        measured=0.0,
        source="decoded from the file; predicted by coding these very weights",
    )
    return CompressReport(
        budget=_EXACT,
        receipt=Receipt((none,)),
        tensors=tuple(
            TensorReport(
                name=record.name,
                dtype=record.dtype,
                shape=record.shape,
                codec=record.codec,
                bytes=record.stored_bytes,
                original_bytes=record.nbytes,
                rel_error=0.0,
                max_abs=0.0,
                bound_gap_db=None,
            )
            for record in header.tensors
        ),
        file_bytes=file_bytes,
        original_bytes=sum(record.nbytes for record in header.tensors),
        rel_error=0.0,
        max_abs=0.0,
        bound_gap_db=None,
    )


def _sources(tree: PyTree) -> tuple[tuple[Source, ...], object]:
    plain = unwrapped(tree)
    arrays = arrays_of(plain)
    return tuple(Source(n, a) for n, a in arrays.items()), describe(plain)


def _rising(progress: Progress | None) -> Progress | None:
    """Never backwards: a second file begins where the first one ended."""
    if progress is None:
        return None
    most = 0.0

    def told(done: float, what: str) -> None:
        nonlocal most
        most = max(most, done)
        progress(most, what)

    return told


def _ended(progress: Progress | None) -> None:
    if progress is not None:
        progress(1.0, "done")


def _draft(
    tree: PyTree,
    budget: SizeBudget,
    plan: CompressPlan | None,
    sensitivity: Mapping[str, float] | None,
    progress: Progress | None,
) -> Draft:
    check_budget(budget, SizeBudget)
    sources, structure = _sources(tree)
    if plan is None:
        return choose(
            sources, structure, budget, sensitivity=sensitivity, progress=progress
        )
    if sensitivity is not None:
        raise ValueError("a plan has used its sensitivity already: leave one out.")
    if plan.budget != budget:
        raise ValueError(f"the plan is for {plan.budget}, not for {budget}.")
    have = {s.name: (s.array.dtype.name, s.array.shape) for s in sources}
    planned = {t.name: (t.dtype, t.shape) for t in plan.tensors}
    for name in have.keys() | planned.keys():
        if have.get(name) != planned.get(name):
            raise ValueError(
                f"the plan is for other weights: it has {name!r} as "
                f"{planned.get(name)}, the tree as {have.get(name)}."
            )
    steps = {t.name: t.step for t in plan.tensors}
    codecs = {t.name: t.codec for t in plan.tensors}
    draft = draft_of(
        sources,
        structure,
        lambda source: steps[source.name],
        codec=lambda source: codecs[source.name],
        progress=progress,
    )
    limit = limit_of(sources, budget)
    for name, found, most in (
        ("file bytes", len(draft.data), limit),
        ("relative error", draft.rel_error, budget.rel_error),
        ("largest error", draft.max_abs, budget.max_abs),
    ):
        if most is not None and found > most:
            raise ValueError(
                f"the plan was made for other values: with these it gives {found:g} "
                f"{name}, over {most:g}. Plan anew."
            )
    return draft


def _measure(draft: Draft) -> Mapping[str, Error]:
    """Decode the file and measure it against the originals.

    Raises:
        CorruptFileError: the file does not hold what was meant: a bug, never seen.
    """
    errors: dict[str, Error] = {}
    with CompressedFile(draft.data, place="the file just made") as file:
        file.check()
        made = {
            source.name: (source, tensor)
            for source, tensor in zip(draft.sources, draft.tensors, strict=True)
        }
        for name, decoded in file.decoded():
            # Digests are compared while decoding: exact tensors need no second look.
            source, tensor = made[name]
            exact = tensor.record.step is None
            error = Error() if exact else Error.between(decoded, source.array)
            same = math.isclose(error.energy, tensor.error.energy, rel_tol=1e-9)
            if not same or error.largest != tensor.error.largest:
                raise CorruptFileError(f"tensor {name!r} does not come back.")
            errors[name] = error
    return errors


def _report(
    draft: Draft,
    errors: Mapping[str, Error],
    budget: SizeBudget,
    plan: CompressPlan | None,
    *,
    file_bytes: int,
) -> CompressReport:
    tensors: list[TensorReport] = []
    gaps: list[tuple[float, int]] = []
    for source, tensor in zip(draft.sources, draft.tensors, strict=True):
        error = errors[source.name]
        rel_error = relative(error.energy, source.energy)
        stored = sum(map(len, tensor.blocks))
        gap = None
        if rel_error:
            gap = gap_to_bound_db(
                rel_error=rel_error, stored_bytes=stored, size=source.array.size
            )
            gaps.append((gap, source.array.size))
        tensors.append(
            TensorReport(
                name=source.name,
                dtype=tensor.record.dtype,
                shape=tensor.record.shape,
                codec=tensor.record.codec,
                bytes=stored,
                original_bytes=source.array.nbytes,
                rel_error=rel_error,
                max_abs=error.largest,
                bound_gap_db=gap,
            )
        )
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
    weights = sum(size for _, size in gaps)
    return CompressReport(
        budget=budget,
        receipt=Receipt(spends),
        tensors=tuple(tensors),
        file_bytes=file_bytes,
        original_bytes=sum(source.array.nbytes for source in draft.sources),
        rel_error=draft.rel_error,
        max_abs=draft.max_abs,
        bound_gap_db=sum(g * n for g, n in gaps) / weights if weights else None,
        allocation_gap=plan.allocation_gap,
    )
