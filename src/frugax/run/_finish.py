"""After training: compress, evaluate what the file holds, write receipt and report."""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from frugax import compress, train, trees, watch
from frugax.budget import Receipt, SizeBudget, Spend
from frugax.files import write_whole
from frugax.typing import PyTree

from ._config import RunConfig
from ._environment import environment
from ._folder import RunFolder
from ._observer import Observer
from ._outcome import MemoryFacts, ModelFacts, Outcome
from ._page import report_page
from ._prepare import Prepared
from ._stopwatch import Stopwatch


def finish(
    config: RunConfig,
    folder: RunFolder,
    ready: Prepared,
    result: train.FitResult,
    watcher: watch.Watcher,
    stopwatch: Stopwatch,
    observer: Observer,
) -> Outcome:
    """Turn a trained state into the run's files.

    Raises:
        InfeasibleBudgetError: the weights cannot be made as small as asked; the
            checkpoints stay, so the run can be resumed with a larger budget.
        OutputError: a file cannot be written.
    """
    params = jax.device_get(result.state.params)
    observer.stage("compressing the weights")
    with stopwatch.on("compressing"):
        # Without a size budget the file is exact: an error of zero.
        size = config.budgets.size or SizeBudget(rel_error=0.0)
        saved = compress.save(folder.model, params, size)
    observer.stage("evaluating what the file holds")
    with stopwatch.on("evaluating"):
        before = ready.evaluate(params)
        after = ready.evaluate(_read_like(params, folder.model))

    observer.stage("writing the report")
    spends = [*ready.step.report().spends]
    if config.budgets.overhead is not None:
        spends += watcher.report().spends
    if config.budgets.size is not None:
        spends += saved.receipt.spends
    spends += _accuracy_spend(config.budgets.accuracy_drop, before, after)
    spends += _time_spend(config, stopwatch)
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
        notes=_notes(config, result),
        environment=environment(),
    )
    write_whole(folder.report, report_page(outcome, watch.read(folder.journal)))
    write_whole(folder.receipt, outcome.to_json())
    return outcome


def _memory_facts(ready: Prepared) -> MemoryFacts:
    program = ready.step.program
    return MemoryFacts(
        unplanned_bytes=ready.unplanned_bytes,
        planned_bytes=program.bytes_of(ready.memory_kind),
        limit_bytes=None if ready.memory is None else ready.memory.limit_bytes,
        kind=ready.memory_kind,
        argument_bytes=program.argument_bytes,
        output_bytes=program.output_bytes,
        temp_bytes=program.temp_bytes,
        alias_bytes=program.alias_bytes,
        plan="" if ready.step.plan is None else str(ready.step.plan),
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
        rel_error=saved.rel_error,
        tensors=str(saved),
        before=before,
        after=after,
    )


def _read_like(params: PyTree, path: Path) -> PyTree:
    """The weights in a model file, in the structure of `params`."""
    with compress.open(path) as file:
        leaves = [
            jax.numpy.asarray(file[name]) for name, _ in trees.named_leaves(params)
        ]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _accuracy_spend(
    limit: float | None, before: Mapping[str, float], after: Mapping[str, float]
) -> list[Spend]:
    if limit is None:
        return []
    known = "accuracy" in before
    return [
        Spend(
            name="accuracy lost by compression",
            unit="",
            limit=limit,
            measured=max(0.0, before["accuracy"] - after["accuracy"])
            if known
            else None,
            source="test set: trained weights, then the weights decoded from the file"
            if known
            else "the task's evaluate gives no 'accuracy'",
        )
    ]


def _time_spend(config: RunConfig, stopwatch: Stopwatch) -> list[Spend]:
    budget = config.budgets.time
    if budget is None or budget.seconds is None:
        return []
    return [
        Spend(
            name="time of the whole run",
            unit="seconds",
            limit=budget.seconds,
            measured=stopwatch.total,
            source="wall clock, from the start of the run to writing this receipt",
        )
    ]


def _notes(config: RunConfig, result: train.FitResult) -> tuple[str, ...]:
    done = int(result.state.step)
    if done >= config.train.steps:
        return ()
    why = {"time": "the time budget was used up"}.get(
        result.stopped_because, result.stopped_because
    )
    return (f"Training stopped after {done:,} of {config.train.steps:,} steps: {why}.",)
