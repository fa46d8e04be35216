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

from ._album import Streams
from ._check import check_batch, check_loss, check_show, evaluation
from ._config import RunConfig, TrainConfig
from ._infeasible import in_config_terms, memory_remedy, size_remedy
from ._observer import Observer
from ._stopwatch import Stopwatch
from ._task import Task, load_task


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """What is ready to train: the step is planned and compiled.

    Attributes:
        task: what is trained.
        static: the parts of the model that are not trained.
        state: the first state.
        step: the compiled step.
        memory: the memory budget in bytes; None without one.
        unplanned_bytes: bytes of the same step without a plan.
        size: how the fresh weights would fit the size budget; None without one.
        loss_fingerprint: of the loss as JAX traces it; another one is another program.
        show: what the task shows of its weights, compiled; None if it shows nothing.
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
        """Which bytes are counted: those of the budget, else temporaries."""
        return "temp" if self.memory is None else self.memory.kind

    def batch(self, step: int) -> PyTree:
        """The batch of one step."""
        return _batch_at(self.task, step)

    def evaluate(self, arrays: PyTree) -> dict[str, float]:
        """What the task says about these weights; empty if it does not evaluate."""
        return evaluation(self.task, trees.combine(arrays, self.static))


def prepare(
    config: RunConfig, config_folder: Path, watch: Stopwatch, observer: Observer
) -> Prepared:
    """Build, plan and compile.

    Raises:
        InfeasibleBudgetError: the memory or the size budget cannot be met.
        ConfigError: the task cannot be made or evaluated as the config wants.
        MissingExtraError: a package for the data is not installed.
    """
    observer.stage("building the model")
    with watch.on("building the model"):
        task = load_task(config, config_folder=config_folder)
        arrays, static = split(task, seed=config.seed)
        optimizer = _optimizer(config.train)
        state = train.init_state(arrays, optimizer)
        batch = _batch_at(task, 0)
        check_batch(batch)
    if config.budgets.accuracy_drop is not None:
        said = evaluation(task, trees.combine(arrays, static))
        if "accuracy" not in said:
            raise ConfigError(
                "budgets.accuracy_drop needs a task whose evaluate gives 'accuracy'; "
                f"it gives {', '.join(map(repr, said)) or 'nothing'}."
            )

    def loss(params: PyTree, batch: PyTree) -> Any:
        return task.loss(trees.combine(params, static), batch)

    check_loss(loss, arrays, batch)
    setting, budget = config.budgets.memory, None
    plain = train.make_train_step(loss, optimizer)
    with watch.on("planning and compiling"):
        if setting is not None:
            observer.stage("measuring the step without a plan")
            plain.prepare(state, batch)
            budget = setting.budget(plain.program.bytes_of(setting.kind))
            observer.stage("planning memory")
        step = train.make_train_step(
            loss,
            optimizer,
            budget=budget,
            compile_budget=config.budgets.time and config.budgets.time.compiles,
        )
        if setting is None:
            step.prepare(state, batch)
        else:
            remedy = memory_remedy(setting, plain.program.bytes_of(setting.kind))
            with in_config_terms("budgets.memory", remedy):
                step.prepare(state, batch)
    size = None
    if config.budgets.size is not None:
        # Found out now and not after the training: a file cannot get small enough.
        # Trained weights are no easier to compress than fresh ones.
        observer.stage("planning the model file")
        with watch.on("planning the model file"):
            remedy = size_remedy(config.budgets.size, trees.nbytes(arrays))
            with in_config_terms("budgets.size", remedy):
                size = compress.plan(jax.device_get(arrays), config.budgets.size)
    kind = setting.kind if setting else "temp"
    unplanned = (plain if setting else step).program.bytes_of(kind)
    observer.memory(
        step.program.bytes_of(kind), None if budget is None else budget.limit_bytes
    )
    # The printed program holds every operation with its parameters; the addresses of
    # Python functions in it differ from process to process.
    printed = re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(loss)(arrays, batch)))
    fingerprint = hashlib.sha256(printed.encode()).hexdigest()
    show = None
    if task.show is not None:
        observer.stage("compiling what is shown")
        with watch.on("planning and compiling"):
            show = _compiled_show(task, arrays, static)
    return Prepared(
        task, static, state, step, budget, unplanned, size, fingerprint, show
    )


def split(task: Task, *, seed: int) -> tuple[PyTree, PyTree]:
    """A fresh model in two: its floating-point arrays, and everything else.

    Raises:
        ConfigError: there is nothing to train in it.
    """
    model = task.init(jax.random.key(seed))
    arrays, static = trees.partition(model, select=train.is_trainable)
    if not jax.tree.leaves(arrays):
        raise ConfigError("task: init returned no floating-point arrays to train.")
    return arrays, static


def _compiled_show(
    task: Task, arrays: PyTree, static: PyTree
) -> Callable[[PyTree], Streams]:
    def show(params: PyTree) -> Any:
        assert task.show is not None
        return task.show(trees.combine(params, static))

    names = check_show(show, arrays)
    compiled = jax.jit(show).lower(arrays).compile()
    # The first call is slow, and what one costs decides how often there is another.
    jax.block_until_ready(compiled(arrays))

    def in_order(params: PyTree) -> Streams:
        given = compiled(params)
        return {s: {name: given[s][name] for name in names[s]} for s in names}

    return in_order


def _optimizer(config: TrainConfig) -> optax.GradientTransformation:
    rate = config.learning_rate
    if config.schedule == "cosine":
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
