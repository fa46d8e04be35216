"""`Task`: the model, loss and data of a run, built in or by the user's own function.

A task is four functions. They may be plain JAX, equinox or flax: whatever `init`
returns, its floating-point arrays are trained and the rest stays unchanged.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from frugax import train
from frugax.budget import suggest
from frugax.errors import ConfigError
from frugax.trees import PyTree

from ._config import DataConfig, ModelConfig, RunConfig
from ._data import Images, epoch_batches, load_images
from ._example_batches import batch_examples
from ._user_code import load_function, user_code


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A model, its loss and its data.

    Attributes:
        init: from a `jax.random` key to a model: any pytree, or a module of equinox or
            flax nnx; or flax variables; or a pair of model and carried arrays, which
            the loss changes itself.
        loss: from `(model, batch)` to a scalar, or to a scalar and a dict of scalar
            metrics. With carried arrays from `(model, batch, carried)`, and the new
            ones come last in its result. See docs/run.md, Your own model.
        batches: from the step's index to a batch (a pytree of arrays, the same shapes
            every time); or a list of batches, or anything with a length and items,
            that is repeated; or an iterator whose position can be saved, as those of
            grain. Other iterators are refused: a resumed run must be able to ask for
            step 1,000 first.
        evaluate: from a model to a dict of figures, each a number, or an array with
            one number for each example, whose mean is the figure: only then the
            receipt can give the interval of a change. `"accuracy"` is shown first and
            may be limited by `accuracy_drop`. None skips evaluation.
        apply: from `(model, inputs)` to outputs; not needed for training, but handy
            after `load_trained`.
        summary: one line about the model and data, for the report.
        show: from a model to streams worth watching: a dict of dicts of arrays, traced
            by JAX. It is called during training as often as the overhead budget
            allows, and its results go to the journal. The report draws arrays whose
            last two axes are a grid side by side, by name, and tabulates numbers.
        batch_size: then `batches` is a data set of single examples, such as one of
            torch or Hugging Face, from which batches of this many are drawn.
        optimizer: any optimiser of optax, such as a chain with masks or a schedule, in
            the place of the one that the config names; `clip` and `ema` still apply.
    """

    init: Callable[[jax.Array], PyTree]
    loss: Callable[..., Any]
    batches: Any
    evaluate: Callable[..., Mapping[str, Any]] | None = None
    apply: Callable[[PyTree, Any], Any] | None = None
    summary: str = ""
    show: Callable[..., Mapping[str, Mapping[str, Any]]] | None = None
    batch_size: int | None = None
    optimizer: optax.GradientTransformation | None = None


def load_task(config: RunConfig, *, config_folder: Path) -> Task:
    """Build the task that a config names.

    Args:
        config: the run's config.
        config_folder: the folder of its file, searched first for the user's module;
            then come the working folder and the installed packages.

    Raises:
        ConfigError: the user's function is missing or does not return a task, or the
            batch is larger than the data.
        MissingExtraError: the data set's package is not installed.
    """
    if config.task is not None:
        return _own_task(config.task, config.options, config_folder, config.seed)
    assert config.data is not None  # RunConfig has checked both
    assert config.model is not None
    data = load_images(config.data, seed=config.seed)
    return _image_task(config.data, config.model, data, seed=config.seed)


def _image_task(
    data_config: DataConfig, model_config: ModelConfig, data: Images, *, seed: int
) -> Task:
    # Tasks of the user's own do not wait for `frugax.models`.
    from frugax import models

    width, depth, classes = model_config.width, model_config.depth, data.classes
    match model_config.name:
        case "residual_mlp":
            body = models.ResidualMLP(width=width, depth=depth, classes=classes)
            model = models.Model(models.Flatten(), body)
        case "mlp":
            body = models.MLP(hidden_sizes=(width,) * depth, output_size=classes)
            model = models.Model(models.Flatten(), body)
        case "convnet":
            model = models.ConvNet(channels=(width,) * depth, classes=classes)
    backend = models.JaxBackend()
    # Unrolled: the memory plan then has every block to choose from.
    net = models.compile(
        model,
        backend,
        shapes={"input": ("batch", *data.train_x.shape[1:])},
        scan_from=None,
    )
    try:
        batches = epoch_batches(data, batch=data_config.batch, seed=seed)
    except ValueError as e:
        raise ConfigError(f"data.{e}") from e

    def apply(params: PyTree, x: jax.Array) -> jax.Array:
        return net.pure(params, {"input": x})["output"]

    def loss(params: PyTree, batch: PyTree) -> tuple[jax.Array, dict[str, jax.Array]]:
        logits = apply(params, batch["x"])
        accuracy = backend.accuracy(logits, batch["y"])
        return backend.cross_entropy(logits, batch["y"]), {"accuracy": accuracy}

    test_x, test_y = jnp.asarray(data.test_x), jnp.asarray(data.test_y)

    # Op by op, models as small as these spend their time on dispatch.
    @jax.jit
    def measure(params: PyTree) -> dict[str, jax.Array]:
        logits = apply(params, test_x)
        return {
            "accuracy": jnp.argmax(logits, axis=-1) == test_y,
            "loss": backend.cross_entropy(logits, test_y),
        }

    summary = (
        f"{model_config.name} of width {width}, depth {depth}, on {data_config.name}: "
        f"{len(data.train_x):,} training and {len(data.test_x):,} test images"
    )
    return Task(net.randomize_params, loss, batches, measure, apply, summary)


def _own_task(
    name: str, options: Mapping[str, Any], config_folder: Path, seed: int
) -> Task:
    function = load_function(name, folder=config_folder, place="task")
    _check_options(function, options, name)
    with user_code(name):
        result = function(**options)
    return _as_task(result, name, seed)


def _check_options(
    function: Callable[..., Any], options: Mapping[str, Any], name: str
) -> None:
    """Name an option that the user's function does not accept, or lacks."""
    signature = inspect.signature(function)
    try:
        # Bound and not called: building the task may load data for minutes.
        signature.bind(**options)
    except TypeError as e:
        known = [
            p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD
        ]
        unknown = next((o for o in options if o not in known), "")
        hint = suggest(unknown, known)
        raise ConfigError(
            f"options do not fit {name}{signature}: {e}.{hint} Options are its "
            "keyword arguments."
        ) from e


def _as_task(result: Any, name: str, seed: int) -> Task:
    expected = (
        "return frugax.run.Task(init=..., loss=..., batches=..., evaluate=...) or a "
        "tuple (init, loss, batches) or (init, loss, batches, evaluate)."
    )
    if isinstance(result, tuple) and len(result) in (3, 4):
        result = Task(*result)
    if not isinstance(result, Task):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns beside the error
            expected = "write `def` in place of `async def`."
        raise ConfigError(
            f"task: {name} returned a {type(result).__name__}; {expected}"
        )
    # Carried arrays come last where a function takes them.
    arguments = {
        "init": ["key"],
        "loss": ["model", "batch", "carried"],
        "evaluate": ["model", "carried"],
        "show": ["model", "carried"],
    }
    for part, names in arguments.items():
        function = getattr(result, part)
        if function is None and part in ("evaluate", "show"):
            continue
        if not callable(function):
            raise ConfigError(
                f"task: {name}: {part} must be a function, got a "
                f"{type(function).__name__}; {expected}"
            )
        _check_arguments(function, names, f"task: {name}: {part}")
    own = result.optimizer
    # Not by its class: that of `optax.MultiSteps` is another.
    if own is not None and not (hasattr(own, "init") and hasattr(own, "update")):
        raise ConfigError(
            f"task: {name}: optimizer must be an optimiser of optax, such as "
            f"optax.adam(1e-3), got {own!r:.60} (type {type(own).__name__})."
        )
    batches = result.batches
    if result.batch_size is not None:
        batches = batch_examples(batches, batch=result.batch_size, seed=seed)
    if callable(batches):
        _check_arguments(batches, ["step"], f"task: {name}: batches")
    else:
        try:
            train.index_batches(batches)
        except (TypeError, ValueError) as e:
            hint = ""
            if hasattr(batches, "dataset") and hasattr(batches, "batch_size"):
                size = batches.batch_size
                hint = f" Or its data set: Task(batches=x.dataset, batch_size={size})."
            raise ConfigError(f"task: {name}: {e}{hint}") from e
    summary = result.summary or name
    return dataclasses.replace(result, batches=batches, summary=summary)


def _check_arguments(function: Callable[..., Any], names: list[str], what: str) -> None:
    """Check a function's arguments before JAX calls it with them."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some callables, such as compiled ones, have no signature
    for count in (len(names), len(names) - 1):
        with contextlib.suppress(TypeError):
            signature.bind(*names[:count])
            return
        if names[-1] != "carried":
            break
    wanted = f"({', '.join(n for n in names if n != 'carried')})"
    if "carried" in names:
        wanted += f" or ({', '.join(names)})"
    raise ConfigError(f"{what} must take {wanted}, but it takes {signature}.")
