"""`plan`, `apply`, `compress`, `save`: encode weights as an `.fxz` file in a budget."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import overload

from frugax.budget import SizeBudget, check_budget
from frugax.trees import PyTree

from ._arguments import Progress, check_path
from ._buckets import file_length, write_file
from ._report import CompressedBytes, CompressReport, make_report, measure_tensors
from .arrays import (
    check_not_input,
    warn_of_not_finite,
)
from .codecs import Form, Step, find_form, step_below
from .search import (
    Calibration,
    CompressPlan,
    Draft,
    EncodeRequest,
    Sensitivity,
    Source,
    Work,
    choose,
    code_by_columns,
    limit_bytes,
    make_plan,
    scale_rows,
)

# Files that are coded at most to fit other values into the size of a plan, and the
# share of the size from which on one is good enough.
_MAX_REFITS = 5
_CLOSE_REFIT = 0.98
# A plan is for tensors of at most this many times the size that they had, or one over
# it: by so much their relative errors differ from the planned ones.
_SAME_SIZE = 1.25


def plan(
    tree: PyTree,
    budget: SizeBudget,
    *,
    sensitivity: Sensitivity = None,
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
            finite float tensors; integers and tensors with NaN or infinity in them are
            always exact, the latter with a warning.
        sensitivity: the weight of a squared error of each float tensor, by name, in
            any one unit; `frugax.compress.sensitivity_of` measures it on your data. A
            `Calibration` from `frugax.compress.calibrate` also sets the steps of rows
            or columns, and lets their errors make up for each other.
            `"equal"` minimises the plain squared error. `"default"` does nearly so,
            with finer steps for biases, norms and tensors of tiny weights, and steps of
            rows in embedding tables; `"rows"` also has these in other tensors
            (docs/compress.md).
        metadata: text by key to store beside the weights, also in a `.safetensors` file
            made of the file; `frugax.compress.load_metadata` reads it.
        progress: called now and then with the share that is done, in [0, 1], and the
            name of the work; an exception that it raises ends the work.

    Returns:
        The plan; `apply(tree, plan)` carries it out.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked;
            `needed` is the length of the smallest.
        TypeError: a leaf is not an array, or has a dtype that a file cannot hold;
            `progress` is not a function, or the metadata are not text.
        UnsupportedFileError: integers stand beside their steps, as in files of
            quantised models, and the budget allows an error.
        ValueError: two leaves share a name, the tree has over 100 levels, or the
            sensitivity is not one number >= 0 for each float tensor.

    >>> weights = {"w": np.random.default_rng(0).normal(size=(64, 64))}
    >>> found = plan(weights, SizeBudget(ratio=8))
    >>> found.tensors[0].codec, found.file_bytes <= 64 * 64 * 8 / 8
    ('trellis', True)
    """
    check_budget(budget, SizeBudget)
    work = Work.read(tree, sensitivity, metadata, progress)
    draft = choose(work, budget)
    work.progress.finish()
    warn_of_not_finite(draft.sources, stack_level=2)
    # The coded draft is dropped: a plan keeps steps and codecs, and `apply` codes
    # again.
    return make_plan(draft, budget, work.calibration)


@overload
def apply(
    tree: PyTree,
    plan: CompressPlan,
    *,
    path: None = None,
    sensitivity: Calibration | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> CompressedBytes: ...
@overload
def apply(
    tree: PyTree,
    plan: CompressPlan,
    *,
    path: str | os.PathLike[str],
    sensitivity: Calibration | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> CompressReport: ...
def apply(
    tree: PyTree,
    plan: CompressPlan,
    *,
    path: str | os.PathLike[str] | None = None,
    sensitivity: Calibration | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> CompressedBytes | CompressReport:
    """Carry out a plan: code the tree as planned, without a search.

    Args:
        tree: the tree that was planned, perhaps with somewhat other values since:
            those of a tensor may be up to a quarter larger or smaller.
        plan: a plan from `frugax.compress.plan`.
        path: the file to write; by default the bytes are returned.
        sensitivity: the calibration that the plan was made with; for no other plan.
        metadata: as `frugax.compress.plan` takes it.
        progress: as `frugax.compress.plan` takes it.

    Returns:
        The bytes, or with `path` the report. Both have a `receipt`, in which predicted
        values are the plan's.

    Raises:
        OutputError: the file could not be written.
        TypeError: `plan` is not a `CompressPlan`, a leaf is not an array, or the
            metadata are not text.
        ValueError: the plan is for other weights, or these values break its budget.

    >>> weights = {"w": np.random.default_rng(0).normal(size=(64, 64))}
    >>> data = apply(weights, plan(weights, SizeBudget(ratio=8)))
    >>> str(data.receipt.verdict)
    'kept'
    """
    # Callers are checked at run time, whatever their annotations say.
    if not isinstance(plan, CompressPlan):
        raise TypeError(
            f"plan must be a plan from frugax.compress.plan, got {plan!r:.60}."
        )
    carry_out = compress if path is None else functools.partial(save, path)
    return carry_out(
        tree,
        plan,
        sensitivity=sensitivity,
        metadata=metadata,
        progress=progress,
    )


def compress(
    tree: PyTree,
    budget_or_plan: SizeBudget | CompressPlan,
    *,
    sensitivity: Sensitivity = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> CompressedBytes:
    """Code a tree of weights into the bytes of one file, within the budget.

    The bytes are decoded and compared with the tree before they are returned.

    Args:
        tree: as `frugax.compress.plan` takes it; it is only read.
        budget_or_plan: bytes of the whole file, or the error allowed, or both; or a
            plan for this tree, which saves the search.
        sensitivity: as `plan` takes it; a plan has used its own
            already, but needs its calibration again.
        metadata: as `plan` takes it.
        progress: as `plan` takes it.

    Returns:
        The file's bytes, the same ones for the same weights; `receipt` has each limit
        beside the measured value, and `report` every tensor.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked.
        TypeError: a leaf is not an array, or has a dtype that a file cannot hold;
            `budget_or_plan` is neither, `progress` is not a function, or the metadata
            are not text.
        ValueError: the plan is for other weights.

    >>> import frugax as fx
    >>> weights = {"w": np.arange(6.0).reshape(2, 3), "layers": [np.zeros(3)]}
    >>> data = compress(weights, SizeBudget(max_abs=0))
    >>> fx.compress.decompress(data)["w"]
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    _check_task(budget_or_plan)
    work = Work.read(tree, sensitivity, metadata, progress)
    draft, budget, plan = _make_draft(work, budget_or_plan)
    warn_of_not_finite(draft.sources, stack_level=2)
    # The bytes are decoded and compared first: weights must not be lost to a faulty
    # codec.
    tensors = measure_tensors(draft)
    work.progress.finish()
    report = make_report(
        draft, tensors, budget, plan, work.calibration, file_bytes=draft.length
    )
    return CompressedBytes(draft.data(), report)


def save(
    path: str | os.PathLike[str],
    tree: PyTree,
    budget_or_plan: SizeBudget | CompressPlan,
    *,
    sensitivity: Sensitivity = None,
    refit: bool = False,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> CompressReport:
    """Write a tree of weights as one `.fxz` file within the budget, or not at all.

    A model need not fit in memory: with arrays over a mapped file, which
    `frugax.compress.load_weights` gives for `.safetensors`, one tensor at a time is in
    it. Coded tensors stand in the folder for temporary files until the file is whole.

    Args:
        path: the file to write; an existing one is replaced, once the new one is whole.
            It may be the address of one in a bucket (`gs://`, `s3://`).
        tree: as `frugax.compress.plan` takes it; it is only read.
        budget_or_plan: bytes of the whole file, or the error allowed, or both; or a
            plan for this tree, perhaps with earlier values, whose predictions the
            report then has.
        sensitivity: as `frugax.compress.plan` takes it; a plan has used its own
            already.
        refit: with a plan, scale the step of each tensor as its weights have grown, and
            all by one factor until these values fill its size. That takes a fraction of
            the time of a search.
        metadata: as `frugax.compress.plan` takes it.
        progress: as `frugax.compress.plan` takes it.

    Returns:
        The report: file bytes and errors, measured on the decoded file. Without a plan
        the predicted values are the measured ones: searching codes these very weights.

    Raises:
        InfeasibleBudgetError: no file is as small as asked, within the error asked.
        OutputError: the file could not be written.
        TypeError: a leaf is not an array, or has a dtype that a file cannot hold;
            `budget_or_plan` is neither, `progress` is not a function, or the metadata
            are not text.
        ValueError: the plan is for other weights, or `path` is the mapped file that a
            tensor is read from.
    """
    check_path(path)
    _check_task(budget_or_plan)
    # Lossy weights in place of the only originals could never be undone.
    check_not_input(path, tree)
    work = Work.read(tree, sensitivity, metadata, progress)
    draft, budget, plan = _make_draft(work, budget_or_plan, refit=refit)
    warn_of_not_finite(draft.sources, stack_level=2)
    # Before an existing file at `path` is replaced, and while a failure can still leave
    # it.
    tensors = measure_tensors(draft)
    with write_file(path) as file:
        draft.copy_to(file.write)
    work.progress.finish()
    # Of the file on disk and not of the draft: that is the one the receipt is about.
    file_bytes = file_length(path)
    return make_report(
        draft, tensors, budget, plan, work.calibration, file_bytes=file_bytes
    )


def _check_task(budget_or_plan: SizeBudget | CompressPlan) -> None:
    # Before the tree is read, which may take long.
    if not isinstance(budget_or_plan, CompressPlan):
        check_budget(budget_or_plan, SizeBudget)


def _make_draft(
    work: Work, budget_or_plan: SizeBudget | CompressPlan, *, refit: bool = False
) -> tuple[Draft, SizeBudget, CompressPlan | None]:
    # Search for a file within a budget, or carry out a plan.
    if not isinstance(budget_or_plan, CompressPlan):
        return choose(work, budget_or_plan), budget_or_plan, None
    plan = budget_or_plan
    requests = _follow(plan, work)
    if not refit:
        _check_size_of_weights(plan, requests)
    return _carry_out(plan, requests, work, refit=refit), plan.budget, plan


def _check_calibration(plan: CompressPlan, work: Work) -> Calibration | None:
    """Return the calibration that a plan needs again; None if it needs none."""
    sensitivity = work.sensitivity
    if plan.calibration is None:
        if plan.budget.output_error is not None and work.calibration is sensitivity:
            return work.calibration  # to measure outputs with; None: nobody can tell
        if sensitivity is not None:
            raise ValueError("a plan has used its sensitivity already: leave one out.")
        return None
    if not isinstance(sensitivity, Calibration):
        raise ValueError(
            "the plan was made with a calibration, which is not part of it: give the "
            "same one again, sensitivity=calibration."
        )
    if sensitivity.digest != plan.calibration:
        raise ValueError(
            f"the plan was made with another calibration: {plan.calibration}, not "
            f"{sensitivity.digest}."
        )
    return sensitivity


def _follow(plan: CompressPlan, work: Work) -> tuple[EncodeRequest, ...]:
    """Return how a plan codes each tensor; refuse tensors that it was not made for."""
    calibration = _check_calibration(plan, work)
    given: dict[str, tuple[str, tuple[int, ...], str]] = {}
    for source in work.sources:
        kind = source.array.dtype.name, source.array.shape
        given[source.name] = *kind, ""
        given |= {name: (*kind, f"tied to {source.name}") for _, name in source.ties}
    expected = {
        t.name: (t.dtype, t.shape, t.codec_text if t.tied else "") for t in plan.tensors
    }
    for name in given.keys() | expected.keys():
        if given.get(name) != expected.get(name):
            raise ValueError(
                f"the plan is for other weights: it has {name!r} as "
                f"{expected.get(name)}, the tree as {given.get(name)}."
            )
    steps = {t.name: t.step for t in plan.tensors}
    forms = {t.name: find_form(t.codec) for t in plan.tensors}

    def scale(source: Source) -> Source:
        form = forms[source.name] or Form()
        if form.scaled and calibration is not None:
            return calibration.scale(source)
        if form.columns:
            return code_by_columns(source)
        return scale_rows(source) if form.scaled else source

    return tuple(
        EncodeRequest(scale(s), steps[s.name], forms[s.name]) for s in work.sources
    )


def _check_size_of_weights(
    plan: CompressPlan, requests: Sequence[EncodeRequest]
) -> None:
    """Refuse values that the steps of a plan are too coarse or too fine for."""
    planned = {t.name: t.rms for t in plan.tensors}
    for request in requests:
        source = request.source
        # Without a step, or with zeros alone, it is exact whatever the values.
        if request.step is None or not source.energy:
            continue
        ratio = source.rms / planned[source.name]
        if not 1 / _SAME_SIZE <= ratio <= _SAME_SIZE:
            raise ValueError(
                f"the plan was made for other values: {source.name or 'the array'!r} "
                f"has a root mean square of {source.rms:.4g} here, and had "
                f"{planned[source.name]:.4g}. Plan anew, or save with refit=True."
            )


def _carry_out(
    plan: CompressPlan,
    requests: tuple[EncodeRequest, ...],
    work: Work,
    *,
    refit: bool,
) -> Draft:
    by_name = {request.source.name: request for request in requests}
    scaled = tuple(request.source for request in requests)
    work = dataclasses.replace(work, sources=scaled)
    planned = {t.name: t for t in plan.tensors}

    def make(shift: float) -> Draft:
        def step_of(source: Source) -> Step | None:
            step = by_name[source.name].step
            if step is None or not (refit and source.energy):
                return step
            grown = source.rms / planned[source.name].rms
            return step_below(step.size * grown * 2.0**shift) or step

        form = lambda source: by_name[source.name].form
        return work.draft(step_of, form=form, progress=work.progress)

    draft = make(0.0)
    # Weights that were trained since the plan may take more bytes at the same steps.
    most_bytes = limit_bytes(work.sources, plan.budget)
    if refit and most_bytes is not None:
        draft = _refit(draft, most_bytes, plan, make)
    for name, measured, limit in (
        ("file bytes", draft.length, most_bytes),
        ("relative error", draft.rel_error, plan.budget.rel_error),
        ("largest error", draft.max_abs, plan.budget.max_abs),
    ):
        if limit is not None and measured > limit:
            raise ValueError(
                f"the plan was made for other values: with these it gives {measured:g} "
                f"{name}, over {limit:g}. Plan anew."
            )
    return draft


def _refit(
    draft: Draft, limit: int, plan: CompressPlan, make: Callable[[float], Draft]
) -> Draft:
    """Return the longest file in the limit with all steps scaled by one factor.

    Of those that were tried; the given draft if none fits.
    """
    weights = sum(t.own_size for t in plan.tensors if t.step is not None)
    fitting: Draft | None = None
    shift = 0.0  # in powers of two
    for _ in range(_MAX_REFITS if weights else 0):
        if draft.length <= limit and (fitting is None or draft.length > fitting.length):
            fitting = draft
        if _CLOSE_REFIT * limit <= draft.length <= limit:
            break
        # A step twice as large takes one bit less for each number.
        middle = (1 + _CLOSE_REFIT) / 2 * limit
        shift += 8 * (draft.length - middle) / weights
        draft = make(shift)
    if fitting is None or fitting.length < draft.length <= limit:
        return draft
    return fitting
