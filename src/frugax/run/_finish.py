"""The last stage of a run: compress, evaluate the file, write receipt and report."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from frugax import compress, train, trees, watch
from frugax.budget import Receipt, SizeBudget, Spend, SpendName, Verdict
from frugax.errors import OutputError
from frugax.fileio import write_whole
from frugax.train.processes import run_on_first
from frugax.trees import PyTree

from ._config import RunConfig
from ._context import RunContext
from ._environment import describe_environment
from ._fingerprint import hash_tree
from ._folder import RunFolder, file_sha256
from ._ledger import Part
from ._observer import Stage
from ._outcome import MemoryFacts, ModelFacts, Outcome, StepTimeFacts
from ._page import report_page
from ._paired import PairedDifference, examples_that_tell, paired_difference
from ._prepare import SEARCH_SHARE, Checked, Prepared, file_sensitivity
from ._remedies import in_config_terms, size_remedy
from ._task_checks import Figures
from ._trained import read_weights

TIME_SOURCE = "wall clock, from the start of the process to writing this receipt"
_RATE_POINTS = 200  # of the learning rate that the report draws


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of a run's training.

    Attributes:
        result: returned by `fit`.
        watcher: recorded the metrics.
        predicted_seconds: expected wall time of the whole run; None without a
            prediction.
        notes: shortcomings so far, one sentence each.
    """

    result: train.FitResult
    watcher: watch.Watcher
    predicted_seconds: float | None
    notes: tuple[str, ...]


def finish(folder: RunFolder, ready: Prepared, trained: Trained) -> Outcome:
    """Turn a trained state into the run's files; the first process writes them.

    Raises:
        InfeasibleBudgetError: the weights cannot be made as small as asked; the
            checkpoints stay, so the run can be resumed with a larger budget.
        OutputError: a file cannot be written.
    """
    state, notes = _choose_state(folder, trained.result.state)
    # One process has to hold all weights to compress them.
    state = ready.checked.bound.gather_weights(state)
    trained = dataclasses.replace(trained, notes=(*trained.notes, *notes))
    with run_on_first("end of the run") as is_first:
        if is_first:
            try:
                return _write_files(folder, ready, trained, state)
            except FileNotFoundError as e:
                raise OutputError(
                    f"{folder.path}: files of this run were removed while it ran ({e})."
                ) from e
    # The others learn it from the file, as figures such as times are the first's own.
    return Outcome.from_json(folder.receipt.read_text(encoding="utf-8"))


def _write_files(
    folder: RunFolder, ready: Prepared, trained: Trained, state: train.TrainState
) -> Outcome:
    result, watcher, checked = trained.result, trained.watcher, ready.checked
    config, ledger = checked.run.config, checked.run.ledger
    observer = checked.run.observer
    # Fetched once: compressing and the first evaluation read the same arrays.
    tree = jax.device_get(checked.bound.file_tree(state))
    observer.stage(Stage.COMPRESSING)
    # Warnings of a library belong to the notes of a run.
    with (
        ledger.measure(Part.COMPRESSING),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        saved = _compress(checked.run, folder, ready.size, tree)
    observer.stage(Stage.EVALUATING_FILE)
    with ledger.measure(Part.EVALUATING):
        # The last evaluation of training is reused if it was of these weights.
        before = checked.evaluator(state)
        # Read back from the disk, as users will load it: an error in the file shows
        # here.
        decoded = read_weights(tree, folder)
        whole = checked.bound.with_file_tree(state, decoded)
        after = checked.evaluator.evaluate(whole)
    told = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    notes = [*trained.notes, *(text[:1].upper() + text[1:] for text in told)]
    if nan_names := _names_with_nan(tree):
        notes.append(f"{_list_nan(nan_names)}: figures of this model may mean nothing.")
    differences = compare_figures(before, after)

    observer.stage(Stage.REPORTING)
    spends = [*ready.step.report().spends]
    if config.budgets.overhead is not None:
        spends += [_overhead_spend(s, result) for s in watcher.report().spends]
    if ready.size is not None:
        spends += size_receipt(saved, ready.size).spends
    limit = config.budgets.accuracy_drop
    if limit is not None:
        spends.append(accuracy_spend(limit, before, after, tree, decoded))
    spends += time_spends(
        config, predicted=trained.predicted_seconds, measured=ledger.total
    )
    records = watch.read(folder.journal)
    outcome = Outcome(
        config=config,
        receipt=Receipt(tuple(spends)),
        steps=int(state.step),
        stopped_because=result.stopped_because,
        seconds={**ledger.spent, "total": ledger.total},
        evaluations=tuple((e.step, dict(e.values)) for e in result.history),
        memory=memory_facts(ready),
        step_time=StepTimeFacts(
            predicted=ready.step_time, measured=result.step_seconds
        ),
        model=ModelFacts(
            summary=checked.task.summary,
            weights=sum(int(np.size(leaf)) for _, leaf in trees.named_leaves(tree)),
            original_bytes=trees.nbytes(tree),
            file_name=folder.model.name,
            file_bytes=folder.model.stat().st_size,
            file_sha256=file_sha256(folder.model),
            rel_error=saved.rel_error,
            tensors=saved.tensor_summary,
            before=before.values,
            after=after.values,
            noise={name: d.noise for name, d in differences.items()},
        ),
        notes=(*notes, *_notes(config, result, records)),
        environment=describe_environment(checked.run.config_folder),
        learning_rates=sample_rates(checked),
    )
    receipt = outcome.to_json()
    # Drawn from the receipt, so that drawing it again gives the same page.
    write_whole(folder.report, report_page(Outcome.from_json(receipt), records))
    # The receipt comes last: --resume takes a run that has one for finished.
    write_whole(folder.receipt, receipt)
    return outcome


def _choose_state(
    folder: RunFolder, final: train.TrainState
) -> tuple[train.TrainState, list[str]]:
    """Return the best state if one was kept, otherwise the last."""
    best = train.Checkpoints(folder.best, keep=1)
    step = best.latest_intact_step()
    if step is None:
        return final, []
    state, extra = best.restore(like=final, step=step)
    figure = f"{extra['metric']} {extra['value']:.4g}"
    return state, [f"The model is the best one, of step {step:,} ({figure})."]


def _compress(
    run: RunContext,
    folder: RunFolder,
    planned: compress.CompressPlan | None,
    tree: PyTree,
) -> compress.CompressReport:
    # Without a size budget the file is exact: an error of zero.
    size = run.config.budgets.size or SizeBudget(rel_error=0.0)
    # The search again would take about as long as before training. Where that time is
    # gone, the plan for the fresh weights is fitted to the trained ones, if it can be.
    search_s = SEARCH_SHARE * run.ledger.spent.get(Part.PLANNING_FILE, 0.0)
    if planned is not None and run.ledger.allowance_s(Part.COMPRESSING) < search_s:
        with contextlib.suppress(ValueError):
            return compress.save(folder.model, tree, planned, refit=True)
    with in_config_terms("budgets.size", size_remedy(size, trees.nbytes(tree))):
        return compress.save(
            folder.model, tree, size, sensitivity=file_sensitivity(tree)
        )


def sample_rates(checked: Checked) -> tuple[tuple[int, float], ...]:
    """Sample the learning rate at steps from first to last; empty if none is known."""
    if checked.rate is None:
        return ()
    last = checked.run.config.train.steps - 1
    steps = np.unique(np.linspace(0, last, _RATE_POINTS, dtype=int))
    return tuple((step, checked.rate(step)) for step in steps.tolist())


def memory_facts(ready: Prepared) -> MemoryFacts:
    """Count the bytes and flops of the compiled step."""
    program = ready.step.program
    limit = None
    if ready.memory is not None:
        limit = ready.memory.limit_bytes
    return MemoryFacts(
        unplanned_bytes=ready.unplanned_bytes,
        planned_bytes=program.bytes_of(ready.memory_kind),
        limit_bytes=limit,
        kind=ready.memory_kind,
        argument_bytes=program.argument_bytes,
        output_bytes=program.output_bytes,
        temp_bytes=program.temp_bytes,
        alias_bytes=program.alias_bytes,
        plan=str(ready.step.plan or ""),
        flops=program.flops,
    )


def _overhead_spend(spend: Spend, result: train.FitResult) -> Spend:
    # Without a step the share would be 0 of 0.
    if result.steps:
        return spend
    source = "no training step was taken in this part of the run"
    return dataclasses.replace(spend, measured=None, source=source)


def size_receipt(
    saved: compress.CompressReport, planned: compress.CompressPlan
) -> Receipt:
    """Hold a model file against its budget, and against the plan before training."""
    return saved.hold_against(planned, predicted="from the weights before training")


def compare_figures(before: Figures, after: Figures) -> dict[str, PairedDifference]:
    """Compare two models on the same examples, for each figure of single examples."""
    found: dict[str, PairedDifference] = {}
    for name, examples in before.examples.items():
        others = after.examples.get(name, np.empty(0))
        is_finite = np.isfinite(examples).all() and np.isfinite(others).all()
        if len(others) == len(examples) > 1 and is_finite:
            found[name] = paired_difference(examples, others)
    return found


def accuracy_spend(
    limit: float, before: Figures, after: Figures, tree: PyTree, decoded: PyTree
) -> Spend:
    """Return the accuracy lost by compression, beside its budget.

    Args:
        limit: the budget.
        before: evaluation of the trained weights.
        after: evaluation of those in the file.
        tree: the arrays that were compressed.
        decoded: the same, from the file.
    """
    source = "test set: trained weights, then the weights decoded from the file"
    lost = before.values["accuracy"] - after.values["accuracy"]
    spend = Spend(
        name=SpendName.ACCURACY,
        unit="",
        limit=limit,
        # Rounding the weights sometimes helps; a gain is not a negative expense. The
        # comparison keeps NaN, which `max` might drop.
        measured=0.0 if lost < 0 else lost,
        source=source,
    )
    if not math.isfinite(lost):
        problem = f"evaluate returns {before.values['accuracy']:g} as accuracy"
        if math.isfinite(before.values["accuracy"]):
            problem = "evaluate returns NaN for the weights in the file"
        return dataclasses.replace(spend, measured=None, problems=f"{problem}.")
    # A comparison with NaN is False, and argmax still names a class.
    if nan_names := _names_with_nan(tree):
        problem = f"{_list_nan(nan_names)}, so accuracy may mean nothing."
        return dataclasses.replace(spend, measured=None, problems=problem)
    if hash_tree(tree) == hash_tree(decoded):
        exact = f"{source}; the file holds the same weights, bit for bit"
        return dataclasses.replace(spend, source=exact)
    difference = compare_figures(before, after).get("accuracy")
    if difference is None:
        return dataclasses.replace(
            spend,
            measured=None,
            problems="one number has no interval: let evaluate return accuracy as an "
            "array with 1 for each right answer and 0 for each wrong one.",
        )
    spend = dataclasses.replace(
        spend,
        noise=difference.noise,
        source=f"{source}; {difference.method}, 95% sure on either side",
    )
    if spend.verdict is not Verdict.CANNOT_TELL:
        return spend
    enough = examples_that_tell(difference, limit)
    remedy = "no number of examples would tell, the change is too near the limit."
    if enough is not None:
        remedy = f"about {enough:,} would tell, or a limit of {difference.high:.2g}."
    problem = f"{difference.num_examples:,} test examples are too few: {remedy}"
    return dataclasses.replace(spend, problems=problem)


def time_spends(
    config: RunConfig,
    *,
    predicted: float | None,
    measured: float | None = None,
    source: str = TIME_SOURCE,
) -> list[Spend]:
    """Return the wall time beside its budget; nothing without one."""
    budget = config.budgets.time
    if budget is None or budget.seconds is None:
        return []
    return [
        Spend(
            # Planning and resumed parts included: the budget is about the wall clock.
            name=SpendName.TIME,
            unit="seconds",
            limit=budget.seconds,
            predicted=predicted,
            measured=measured,
            source=source,
        )
    ]


def _notes(
    config: RunConfig, result: train.FitResult, records: watch.Records
) -> tuple[str, ...]:
    notes, done = [], int(result.state.step)
    if done < config.train.steps:
        why = {"time": "the time budget was used up"}.get(
            result.stopped_because, result.stopped_because
        )
        notes.append(
            f"Training stopped after {done:,} of {config.train.steps:,} steps: {why}."
        )
    if result.skipped:
        notes.append(
            f"The loss of {result.skipped:,} steps was infinite or NaN; the weights "
            "stayed finite."
        )
    # Lost records cost a part of the curves, not the model, so the run goes on.
    if len(records) < done:
        reasons = sorted({piece.reason for piece in records.lost})
        if _was_thinned(records):
            reasons.append("others were left out to keep the overhead budget")
        lost = "; ".join(reasons)
        notes.append(
            f"The journal holds the metrics of {len(records):,} of {done:,} steps: "
            f"{lost or 'it was removed or cut off'}. The weights are not affected."
        )
    return tuple(notes)


# Weights are never NaN here, as no checkpoint is saved then; carried arrays may be.
def _names_with_nan(tree: PyTree) -> list[str]:
    return [
        name
        for name, leaf in trees.named_leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and jnp.isnan(leaf).any()
    ]


def _list_nan(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more arrays" if len(names) > 3 else ""
    return f"NaN is in {', '.join(names[:3])}{more}, which the loss changed"


def _was_thinned(records: watch.Records) -> bool:
    status = records.streams.get("watch")
    if status is None or "stride" not in status:
        return False
    return bool(status["stride"].max() > 1)
