"""A tree of weights within a budget: planned, coded, decoded again, reported."""

import os
from collections.abc import Mapping
from typing import Any

from frugax.budget import SizeBudget, check_budget
from frugax.fileio import atomic_write
from frugax.trees import PyTree, describe

from ._arguments import check_path, check_progress
from ._report import CompressReport, measured, report_of
from .arrays._leaves import check_not_input, named_arrays, unwrap_modules
from .search._choose import choose
from .search._draft import Draft, Progress, limit_bytes, make_draft
from .search._layered import LayeredSource
from .search._plan import CompressPlan, make_plan
from .search._source import Source


def plan(
    tree: PyTree,
    budget: SizeBudget,
    *,
    sensitivity: Mapping[str, float] | None = None,
    progressive: bool = False,
    metadata: Mapping[str, str] | None = None,
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
        progressive: code tensors in layers, the highest binary digits first, so that
            `frugax.compress.open(path, budget=...)` can stop after any of them. With
            `SizeBudget(max_abs=0)` the last layer makes all weights exact.
        metadata: words to stand beside the weights, by key, in the file and in a
            `.safetensors` file made of it; `frugax.compress.load_metadata` reads them.
        progress: called with the share that is done, in [0, 1], and what is being
            done, now and then; what it raises ends the work.

    Returns:
        The plan; `compress(tree, budget, plan=plan)` carries it out.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked;
            `needed` is the length of the smallest.
        TypeError: a leaf is no array, or of a dtype that no file can hold; the
            progress is no function, or the metadata are not text.
        ValueError: two leaves share a name, the tree has over 100 levels, or the
            sensitivity is not one number >= 0 for each float tensor.

    >>> weights = {"w": np.random.default_rng(0).normal(size=(64, 64))}
    >>> found = plan(weights, SizeBudget(ratio=8))
    >>> found.tensors[0].codec, found.file_bytes <= 64 * 64 * 8 / 8
    ('trellis', True)
    """
    check_budget(budget, SizeBudget)
    sources, head = _sources(tree, metadata, progressive=progressive)
    told = _rising(progress)
    draft = choose(sources, head, budget, sensitivity=sensitivity, progress=told)
    _ended(told)
    return make_plan(draft, budget)


def compress(
    tree: PyTree,
    budget: SizeBudget,
    *,
    plan: CompressPlan | None = None,
    sensitivity: Mapping[str, float] | None = None,
    progressive: bool = False,
    metadata: Mapping[str, str] | None = None,
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
        progressive: as `plan` takes it; a plan has said so already, and is refused
            if it is not for a progressive file.
        metadata: as `plan` takes it.
        progress: as `plan` takes it.

    Returns:
        The file's bytes; the same ones for the same weights.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked.
        TypeError: a leaf is no array, or of a dtype that no file can hold; the plan
            is none, the progress no function, or the metadata are not text.
        ValueError: the plan is for other weights or another budget.

    >>> import frugax
    >>> weights = {"w": np.arange(6.0).reshape(2, 3), "layers": [np.zeros(3)]}
    >>> data = compress(weights, SizeBudget(max_abs=0))
    >>> frugax.compress.decompress(data)["w"]
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    told = _rising(progress)
    draft = _draft(
        tree, budget, plan, sensitivity, told, metadata, progressive=progressive
    )
    measured(draft)
    _ended(told)
    return draft.data()


def save(
    path: str | os.PathLike[str],
    tree: PyTree,
    budget: SizeBudget,
    *,
    plan: CompressPlan | None = None,
    sensitivity: Mapping[str, float] | None = None,
    progressive: bool = False,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> CompressReport:
    """Write a tree of weights as one `.fxz` file within the budget, or not at all.

    A model need not fit in memory: with arrays over a mapped file, which
    `frugax.compress.load_weights` gives for `.safetensors`, one tensor at a time is in
    it. What is coded stands in the folder for temporary files until it is whole.

    Args:
        path: where the file will stand; one that is there is replaced, once the new
            one is whole.
        tree: what `frugax.compress.plan` takes; it is only read.
        budget: bytes of the whole file, or the error allowed, or both.
        plan: what `frugax.compress.plan` gave for this tree and budget, perhaps with
            earlier values; the report then has what it predicted.
        sensitivity: as `frugax.compress.plan` takes it, where no plan is given.
        progressive: as `frugax.compress.plan` takes it; a plan has said so already,
            and is refused if it is not for a progressive file.
        metadata: as `frugax.compress.plan` takes it.
        progress: as `frugax.compress.plan` takes it.

    Returns:
        The report: file bytes and errors, measured on the decoded file. Without a
        plan what is predicted is what is measured: searching codes these very weights.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked.
        OutputError: the file could not be written.
        TypeError: a leaf is no array, or of a dtype that no file can hold; the plan
            is none, the progress no function, or the metadata are not text.
        ValueError: the plan is for other weights or another budget, or `path` is the
            mapped file that a tensor is read from.
    """
    told = _rising(progress)
    check_path(path)
    check_not_input(path, tree)
    draft = _draft(
        tree, budget, plan, sensitivity, told, metadata, progressive=progressive
    )
    tensors = measured(draft)
    with atomic_write(path) as file:
        draft.copy_to(file.write)
    _ended(told)
    return report_of(draft, tensors, budget, plan, file_bytes=os.stat(path).st_size)


def _sources(
    tree: PyTree, metadata: Mapping[str, str] | None, *, progressive: bool
) -> tuple[tuple[Source, ...], dict[str, Any]]:
    """The tensors, and what the header says beside them.

    Raises:
        TypeError: the metadata are not text.
    """
    for key, value in (metadata or {}).items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(
                f"metadata must be text by key, got {key!r}: {value!r:.60}."
            )
    plain = unwrap_modules(tree)
    kind = LayeredSource if progressive else Source
    found = tuple(kind(name, array) for name, array in named_arrays(plain).items())
    head = {"structure": describe(plain)}
    return found, head | ({"metadata": dict(metadata)} if metadata else {})


def _rising(progress: Progress | None) -> Progress | None:
    """Never backwards: a second file begins where the first one ended."""
    check_progress(progress)
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
    metadata: Mapping[str, str] | None,
    *,
    progressive: bool,
) -> Draft:
    check_budget(budget, SizeBudget)
    # Callers are checked at run time, whatever their annotations promise.
    if not isinstance(plan, CompressPlan | None):
        raise TypeError(
            f"plan must be what frugax.compress.plan gave, got {plan!r:.60}."
        )
    if plan is not None:
        if progressive and not plan.progressive:
            raise ValueError(
                "the plan is for a file that is not progressive: plan with "
                "progressive=True, or leave that out here."
            )
        progressive = plan.progressive
    sources, head = _sources(tree, metadata, progressive=progressive)
    if plan is None:
        return choose(sources, head, budget, sensitivity=sensitivity, progress=progress)
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
    # Planes without an error have a last layer that is exact, as no step makes it.
    steps = {t.name: t.step if t.max_abs else None for t in plan.tensors}
    codecs = {t.name: t.codec for t in plan.tensors}
    draft = make_draft(
        sources,
        head,
        lambda source: steps[source.name],
        codec=lambda source: codecs[source.name],
        progress=progress,
    )
    limit = limit_bytes(sources, budget)
    for name, found, most in (
        ("file bytes", draft.length, limit),
        ("relative error", draft.rel_error, budget.rel_error),
        ("largest error", draft.max_abs, budget.max_abs),
    ):
        if most is not None and found > most:
            raise ValueError(
                f"the plan was made for other values: with these it gives {found:g} "
                f"{name}, over {most:g}. Plan anew."
            )
    return draft
