"""Before training: build the model, plan its memory, compile one step."""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import optax

from frugax import compress, train, trees
from frugax.budget import MemoryBudget
from frugax.errors import ConfigError
from frugax.trees import PyTree

from ._config import RunConfig, TrainConfig
from ._observer import Observer
from ._remedies import in_config_terms, memory_remedy, size_remedy
from ._snapshots import Streams
from ._stopwatch import Stopwatch
from ._task import Task, load_task
from ._task_checks import check_batch, check_loss, check_show, evaluate_model


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A run that is ready to train: its step is planned and compiled.

    Attributes:
        task: model, loss and data.
        static: the parts of the model that are not trained.
        state: the initial training state.
        step: the compiled step.
        memory: the memory budget in bytes; None without one.
        unplanned_bytes: bytes of the same step without a plan.
        size: how the fresh weights would fit the size budget; None without one.
        loss_fingerprint: hash of the loss as JAX traces it.
        show: from weights to the streams that the task shows, compiled; or None.
    """

    task: Task
    static: PyTree
    state: train.TrainState
    step: train.TrainStep
    memory: MemoryBudget | None
    unplanned_bytes: int
    size: compress.CompressPlan | None
    loss_fingerprint: str
    show: Callable[[PyTree], Streams] | None

    @property
    def memory_kind(self) -> Literal["temp", "total"]:
        """The bytes that count: those of the budget, otherwise temporaries."""
        if self.memory is None:
            return "temp"
        return self.memory.kind

    def batch(self, step: int) -> PyTree:
        """Return the batch of one step."""
        return _batch_at(self.task, step)

    def evaluate(self, arrays: PyTree) -> dict[str, float]:
        """Evaluate these weights; empty if the task has no `evaluate`."""
        return evaluate_model(self.task, trees.combine(arrays, self.static))


def prepare(
    config: RunConfig, config_folder: Path, stopwatch: Stopwatch, observer: Observer
) -> Prepared:
    """Build the model, plan its memory and compile its step."""
    observer.stage("building the model")
    with stopwatch.measure("building the model"):
        task = load_task(config, config_folder=config_folder)
        arrays, static = split(task, seed=config.seed)
        optimizer = _optimizer(config.train)
        state = train.init_state(arrays, optimizer)
        # Its shapes are the ones that the step is compiled for.
        batch = _batch_at(task, 0)
        check_batch(batch)
    # Evaluated before training: otherwise the missing figure would show after hours,
    # and the budget could not be decided.
    if config.budgets.accuracy_drop is not None:
        figures = evaluate_model(task, trees.combine(arrays, static))
        if "accuracy" not in figures:
            raise ConfigError(
                "budgets.accuracy_drop needs a task whose evaluate returns 'accuracy'; "
                f"this one returns {', '.join(map(repr, figures)) or 'nothing'}."
            )

    # Static parts are closed over, so that the optimiser, donation and checkpoints see
    # trained arrays only.
    def loss(params: PyTree, batch: PyTree) -> Any:
        return task.loss(trees.combine(params, static), batch)

    check_loss(loss, arrays, batch)
    setting, budget = config.budgets.memory, None
    kind: Literal["temp", "total"] = "temp"
    unplanned = train.make_train_step(loss, optimizer)
    with stopwatch.measure("planning and compiling"):
        if setting is not None:
            observer.stage("measuring the step without a plan")
            kind = setting.kind
            # Compiled even for a limit in bytes: the report shows how much the plan
            # saves.
            unplanned.prepare(state, batch)
            budget = setting.to_budget(unplanned.program.bytes_of(kind))
            observer.stage("planning memory")
        step = train.make_train_step(
            loss,
            optimizer,
            budget=budget,
            compile_budget=config.budgets.time and config.budgets.time.compiles,
        )
        if setting is None:
            step.prepare(state, batch)
            unplanned = step
        else:
            remedy = memory_remedy(setting, unplanned.program.bytes_of(kind))
            with in_config_terms("budgets.memory", remedy):
                step.prepare(state, batch)
    size = None
    if config.budgets.size is not None:
        # An infeasible size should fail before training, not after it. Trained weights
        # are not easier to compress than fresh ones, so these are a fair test.
        observer.stage("planning the model file")
        with stopwatch.measure("planning the model file"):
            remedy = size_remedy(config.budgets.size, trees.nbytes(arrays))
            with in_config_terms("budgets.size", remedy):
                size = compress.plan(jax.device_get(arrays), config.budgets.size)
    observer.memory(step.program.bytes_of(kind), budget and budget.limit_bytes)
    # The printed program has every operation with its parameters. The addresses of
    # Python functions in it differ between processes, so they are cut out.
    printed = re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(loss)(arrays, batch)))
    fingerprint = hashlib.sha256(printed.encode()).hexdigest()
    show = None
    if task.show is not None:
        observer.stage("compiling the task's show")
        with stopwatch.measure("planning and compiling"):
            show = _compile_show(task, arrays, static)
    return Prepared(
        task=task,
        static=static,
        state=state,
        step=step,
        memory=budget,
        unplanned_bytes=unplanned.program.bytes_of(kind),
        size=size,
        loss_fingerprint=fingerprint,
        show=show,
    )


def split(task: Task, *, seed: int) -> tuple[PyTree, PyTree]:
    """Split a fresh model into its floating-point arrays and everything else."""
    model = task.init(jax.random.key(seed))
    arrays, static = trees.partition(model, select=train.is_trainable)
    if not jax.tree.leaves(arrays):
        raise ConfigError("task: init returned no floating-point arrays to train.")
    return arrays, static


def _compile_show(
    task: Task, arrays: PyTree, static: PyTree
) -> Callable[[PyTree], Streams]:
    def show(params: PyTree) -> Any:
        assert task.show is not None
        return task.show(trees.combine(params, static))

    names = check_show(show, arrays)
    # Compiled ahead: a snapshot between two steps must not wait for XLA.
    compiled = jax.jit(show).lower(arrays).compile()
    # The first call is slow. It must not count: prices decide how often others follow.
    jax.block_until_ready(compiled(arrays))

    # JAX sorts the keys of a dict; the report keeps the order of the task.
    def show_in_order(params: PyTree) -> Streams:
        streams = compiled(params)
        return {s: {name: streams[s][name] for name in names[s]} for s in names}

    return show_in_order


def _optimizer(config: TrainConfig) -> optax.GradientTransformation:
    rate = config.learning_rate
    if config.schedule == "cosine":
        # Cosine annealing without restarts (Loshchilov & Hutter 2017, ICLR).
        rate = optax.cosine_decay_schedule(rate, config.steps)
    match config.optimizer:
        case "adam":
            return optax.adam(rate)
        case "adamw":
            return optax.adamw(rate, weight_decay=config.weight_decay)
        case "sgd":
            return optax.sgd(rate, momentum=0.9)


def _batch_at(task: Task, step: int) -> PyTree:
    if callable(task.batches):
        return task.batches(step)
    return task.batches[step % len(task.batches)]
