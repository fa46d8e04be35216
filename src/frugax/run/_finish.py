"""After training: compress, evaluate the file's weights, write receipt and report."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from frugax import compress, train, trees, watch
from frugax.budget import Receipt, SizeBudget, Spend
from frugax.fileio import write_whole
from frugax.trees import PyTree

from ._config import RunConfig
from ._environment import describe_environment
from ._folder import RunFolder, file_sha256
from ._observer import Observer
from ._outcome import MemoryFacts, ModelFacts, Outcome
from ._page import report_page
from ._prepare import Prepared
from ._remedies import in_config_terms, size_remedy
from ._stopwatch import Stopwatch
from ._trained import read_weights


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


def finish(
    config: RunConfig,
    folder: RunFolder,
    ready: Prepared,
    trained: Trained,
    stopwatch: Stopwatch,
    observer: Observer,
) -> Outcome:
    """Turn a trained state into the run's files."""
    result, watcher = trained.result, trained.watcher
    # Fetched once: compressing and the first evaluation read the same arrays.
    params = jax.device_get(result.state.params)
    observer.stage("compressing the weights")
    with stopwatch.measure("compressing"):
        # Without a size budget the file is exact: an error of zero.
        size = config.budgets.size or SizeBudget(rel_error=0.0)
        with in_config_terms("budgets.size", size_remedy(size, trees.nbytes(params))):
            saved = compress.save(folder.model, params, size)
    observer.stage("evaluating the weights in the file")
    with stopwatch.measure("evaluating"):
        # Both evaluations run here and in the same way, so that the file alone makes
        # the difference.
        before = ready.evaluate(params)
        # Read back from the disk, as users will load it: an error in the file shows
        # here.
        after = ready.evaluate(read_weights(params, folder))

    observer.stage("writing the report")
    spends = [*ready.step.report().spends]
    if config.budgets.overhead is not None:
        spends += [_overhead_spend(s, result) for s in watcher.report().spends]
    if ready.size is not None:
        spends += [_size_spend(s, ready.size) for s in saved.receipt.spends]
    spends += _accuracy_spend(config.budgets.accuracy_drop, before, after)
    spends += _time_spend(config, stopwatch, trained.predicted_seconds)
    records = watch.read(folder.journal)
    evaluations = tuple((e.step, dict(e.values)) for e in result.history)
    outcome = Outcome(
        config=config,
        receipt=Receipt(tuple(spends)),
        steps=int(result.state.step),
        stopped_because=result.stopped_because,
        seconds=stopwatch.spent | {"total": stopwatch.total},
        evaluations=evaluations,
        memory=_memory_facts(ready),
        model=_model_facts(folder, ready, params, saved, before, after),
        notes=(*trained.notes, *_notes(config, result, records)),
        environment=describe_environment(),
    )
    write_whole(folder.report, report_page(outcome, records))
    # The receipt comes last: --resume takes a run that has one for finished.
    write_whole(folder.receipt, outcome.to_json())
    return outcome


def _memory_facts(ready: Prepared) -> MemoryFacts:
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
    )


def _model_facts(
    folder: RunFolder,
    ready: Prepared,
    params: PyTree,
    saved: compress.CompressReport,
    before: dict[str, float],
    after: dict[str, float],
) -> ModelFacts:
    return ModelFacts(
        summary=ready.task.summary,
        weights=sum(int(np.size(leaf)) for _, leaf in trees.named_leaves(params)),
        original_bytes=trees.nbytes(params),
        file_name=folder.model.name,
        file_bytes=folder.model.stat().st_size,
        file_sha256=file_sha256(folder.model),
        rel_error=saved.rel_error,
        tensors=str(saved),
        before=before,
        after=after,
    )


def _overhead_spend(spend: Spend, result: train.FitResult) -> Spend:
    # Without a step the share would be 0 of 0.
    if result.steps:
        return spend
    source = "no training step was taken in this part of the run"
    return dataclasses.replace(spend, measured=None, source=source)


def _size_spend(spend: Spend, planned: compress.CompressPlan) -> Spend:
    """Add the file length that was predicted from the weights before training."""
    if spend.unit != "bytes":
        return spend
    source = f"{spend.source}; predicted from the weights before training"
    return dataclasses.replace(spend, predicted=planned.file_bytes, source=source)


def _accuracy_spend(
    limit: float | None, before: Mapping[str, float], after: Mapping[str, float]
) -> list[Spend]:
    if limit is None:
        return []
    measured, source = None, "the task's evaluate does not return 'accuracy'"
    if "accuracy" in before:
        # Rounding the weights sometimes helps; a gain is not a negative expense.
        measured = max(0.0, before["accuracy"] - after["accuracy"])
        source = "test set: trained weights, then the weights decoded from the file"
    return [
        Spend(
            name="accuracy lost by compression",
            unit="",
            limit=limit,
            measured=measured,
            source=source,
        )
    ]


def _time_spend(
    config: RunConfig, stopwatch: Stopwatch, predicted: float | None
) -> list[Spend]:
    budget = config.budgets.time
    if budget is None or budget.seconds is None:
        return []
    return [
        Spend(
            # Planning and resumed parts included: the promise is about the wall clock.
            name="time of the whole run",
            unit="seconds",
            limit=budget.seconds,
            predicted=predicted,
            measured=stopwatch.total,
            source="wall clock, from the start of the run to writing this receipt",
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
    # Lost records cost a part of the curves, not the model, so the run goes on.
    if len(records) < done:
        lost = "; ".join(sorted({piece.reason for piece in records.lost}))
        notes.append(
            f"The journal holds the metrics of {len(records):,} of {done:,} steps: "
            f"{lost or 'it was removed or cut off'}. The weights are not affected."
        )
    return tuple(notes)
