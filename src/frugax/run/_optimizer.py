"""Build the optimiser and schedule that a config names, and the average of weights."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from frugax import train
from frugax.budget import suggest
from frugax.errors import ConfigError
from frugax.trees import PyTree

from ._config import TrainConfig
from ._fingerprint import program_fingerprint
from ._user_code import user_code

_SCHEDULES = ("constant", "cosine", "linear")
_RATES = ("learning_rate", "max_learning_rate")


class AveragedState(NamedTuple):
    """The state of an optimiser beside a moving average of the weights."""

    inner: PyTree
    average: PyTree
    steps: jax.Array


def build_optimizer(
    config: TrainConfig, own: optax.GradientTransformation | None = None
) -> tuple[optax.GradientTransformationExtraArgs, Callable[[int], float] | None]:
    """Build the optimiser, and the learning rate by step for the report.

    Args:
        config: names the optimiser.
        own: that of a task, in the place of the config's; its rate is not known.

    Raises:
        ConfigError: optax has no such optimiser, or the task has one and the config
            names another.
    """
    rate = None
    if own is None:
        optimizer, rate = _build_named(config)
    else:
        _check_left_out(config)
        optimizer = _with_one_line_errors(own)
    optimizer = optax.with_extra_args_support(optimizer)
    if config.ema is not None:
        optimizer = _average_weights(optimizer, config.ema)
    return optimizer, rate


def _with_one_line_errors(
    own: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    own = optax.with_extra_args_support(own)

    def init(params: PyTree) -> PyTree:
        with user_code("optimizer.init"):
            return own.init(params)

    def update(*args: PyTree, **extra: Any) -> tuple[PyTree, PyTree]:
        with user_code("optimizer.update"):
            return own.update(*args, **extra)

    return optax.GradientTransformationExtraArgs(init, update)


def _check_left_out(config: TrainConfig) -> None:
    """Refuse settings that the task's own optimiser would leave without effect."""
    fields = {field.name: field for field in dataclasses.fields(config)}
    for name in ("optimizer", "learning_rate", "schedule", "warmup", "weight_decay"):
        if getattr(config, name) != fields[name].default:
            raise ConfigError(
                f"train.{name}: the task has an optimizer of its own, which would not "
                "follow it: leave this key out, or give it to the task by its options."
            )


def _build_named(
    config: TrainConfig,
) -> tuple[optax.GradientTransformation, Callable[[int], float]]:
    rate = _build_schedule(config)
    name, options = _split_name(config.optimizer)
    factory = _find(name, "train.optimizer", _optimizers())
    if name == "sgd":
        options = {"momentum": 0.9} | options
    known = inspect.signature(factory).parameters
    if config.weight_decay:
        # An L2 term in the loss differs from weight decay for Adam (Loshchilov &
        # Hutter 2019, ICLR), so no other way is taken silently.
        if "weight_decay" not in known:
            raise ConfigError(
                f"train.weight_decay: the optimizer {name} has no weight decay; use "
                "adamw, lion or another one that has."
            )
        options = {"weight_decay": config.weight_decay} | options
    # A line search finds the rate itself, unless the optimiser's arguments have one.
    if name != "lbfgs":
        key = next(k for k in _RATES if k in known)
        options = {key: rate} | options
        if callable(rate) and "Callable" not in str(known[key].annotation):
            factory = optax.inject_hyperparams(factory)  # it takes no schedule itself
    optimizer = _call(factory, options, f"train.optimizer: optax.{name}")
    schedule: Any = rate if callable(rate) else optax.constant_schedule(rate)

    def rate_at(step: int) -> float:
        # optax's schedules multiply integers by floats, as its optimisers do.
        with jax.numpy_dtype_promotion("standard"):
            return float(schedule(step))

    return optimizer, rate_at


def trace_update(
    optimizer: optax.GradientTransformationExtraArgs, state: train.TrainState
) -> str:
    """Trace an update of the weights, and return the hash of its program.

    Raises:
        ConfigError: the optimiser cannot use its arguments.
    """

    def update(params: PyTree, opt_state: PyTree) -> PyTree:
        # A line search calls the loss; which one it is has a fingerprint of its own.
        value_fn = lambda p: sum(x.sum() for x in jax.tree.leaves(p))
        # As in the training step: optax's own Adam needs it.
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(
                params, opt_state, params, value=0.0, grad=params, value_fn=value_fn
            )[0]

    # optax checks few arguments itself: `b1: high` fails only where it is used.
    with user_code("optax with these arguments", place="train.optimizer"):
        return program_fingerprint(update, state.params, state.opt_state)


def averaged_weights(opt_state: PyTree, params: PyTree) -> PyTree:
    """Return the moving average of the weights; without one, the weights."""
    if isinstance(opt_state, AveragedState):
        return opt_state.average
    return params


def _build_schedule(config: TrainConfig) -> Any:
    name, options = _split_name(config.schedule)
    steps = config.steps - config.warmup
    match name:
        case "constant":
            rate = config.learning_rate
        case "cosine":
            # Cosine annealing without restarts (Loshchilov & Hutter 2017, ICLR).
            rate = optax.cosine_decay_schedule(config.learning_rate, steps)
        case "linear":
            rate = optax.linear_schedule(config.learning_rate, 0.0, steps)
        case _:
            factory = _find(name, "train.schedule", _schedules(), *_SCHEDULES)
            known = inspect.signature(factory).parameters
            for key in ("init_value", "peak_value", "value"):
                if key in known:
                    options = {key: config.learning_rate} | options
                    break
            rate = _call(factory, options, f"train.schedule: optax.{name}")
    if not config.warmup:
        return rate
    rising = optax.linear_schedule(0.0, config.learning_rate, config.warmup)
    after: Any = rate if callable(rate) else optax.constant_schedule(rate)
    return optax.join_schedules([rising, after], [config.warmup])


def _split_name(value: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(value, str):
        return value, {}
    options = dict(value)
    return options.pop("name"), options


def _find(
    name: str, key: str, known: Mapping[str, Callable[..., Any]], *others: str
) -> Callable[..., Any]:
    if name not in known:
        hint = suggest(name, [*others, *known])
        raise ConfigError(f"{key}: optax has no {name!r}.{hint}")
    return known[name]


def _optimizers() -> dict[str, Callable[..., Any]]:
    found = {**vars(contrib), **vars(optax)}
    # The transformations that optimisers are chained from take no learning rate.
    return {
        name: value
        for name, value in found.items()
        if (inspect.isfunction(value) or isinstance(value, functools.partial))
        and not name.startswith(("_", "scale_by"))
        and any(rate in inspect.signature(value).parameters for rate in _RATES)
    }


def _schedules() -> dict[str, Callable[..., Any]]:
    found = vars(optax.schedules).items()
    return {n: f for n, f in found if inspect.isfunction(f) and "inject" not in n}


def _call(factory: Callable[..., Any], options: Mapping[str, Any], what: str) -> Any:
    signature = inspect.signature(factory)
    try:
        signature.bind(**options)
    except TypeError as e:
        known = list(signature.parameters)
        unknown = next((o for o in options if o not in known), "")
        raise ConfigError(f"{what}: {e}.{suggest(unknown, known)}") from e
    try:
        return factory(**options)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{what}: {e}") from e


def _average_weights(
    inner: optax.GradientTransformationExtraArgs, decay: float
) -> optax.GradientTransformationExtraArgs:
    """Keep an exponential moving average of the weights beside an optimiser's state."""

    def init(params: PyTree) -> AveragedState:
        return AveragedState(inner.init(params), params, jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree, state: Any, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, AveragedState]:
        updates, new = inner.update(updates, state.inner, params, **extra)
        steps = state.steps + 1
        # A shorter memory in the first steps: otherwise the untrained weights would
        # stay in the average for long (the rule of TensorFlow's moving average).
        kept = jnp.minimum(decay, (1 + steps) / (10 + steps))
        average = jax.tree.map(
            lambda a, p, u: (kept * a + (1 - kept) * (p + u)).astype(a.dtype),
            state.average, params, updates,
        )  # fmt: skip
        return updates, AveragedState(new, average, steps)

    return optax.GradientTransformationExtraArgs(init, update)
