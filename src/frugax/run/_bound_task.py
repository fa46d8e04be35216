"""Adapt a task's functions (plain JAX, flax, equinox, Haiku) to the training step.

`init` may return a model; flax variables, whose collections other than `params` are
carried from step to step; or, where `loss` takes three arguments, a pair of model and
carried arrays, as equinox and Haiku have them. flax nnx modules carry their own.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
from jax.tree_util import DictKey, SequenceKey

from frugax import train
from frugax.errors import ConfigError
from frugax.train.processes import gather
from frugax.trees import PyTree, data_to_key, key_to_data

from ._optimizer import averaged_weights
from ._task import Task

_Kind = Literal["model", "pair", "variables"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Mixed:
    """A tree of weights and other values, marked as one whose other values are fixed.

    In a plain dict `frugax.train` takes every number for a weight.
    """

    model: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class BoundTask:
    """A task whose model was built once.

    Attributes:
        task: as the user wrote it.
        kind: what `init` returns.
        model: the fresh model, for `TrainStep.init`.
        carried: arrays that the loss itself changes, or None.
    """

    task: Task
    kind: _Kind
    model: PyTree
    carried: PyTree

    @classmethod
    def build(cls, task: Task, initial: PyTree) -> "BoundTask":
        """Split what `init` returned, real or as shapes."""
        if _is_variables(initial):
            rest = {str(k): v for k, v in initial.items() if k != "params"}
            return cls(task, "variables", initial["params"], rest)
        if num_required(task.loss) < 3:
            return cls(task, "model", _mark_mixed(initial), None)
        if not (isinstance(initial, tuple) and len(initial) == 2):
            raise ConfigError(
                "task: loss takes (model, batch, carried), so init must return a pair "
                f"of model and carried arrays, got a {type(initial).__name__}."
            )
        return cls(task, "pair", _mark_mixed(initial[0]), initial[1])

    def loss(self, model: PyTree, batch: PyTree, carried: PyTree = None) -> Any:
        """Call the user's loss as `make_train_step` expects it."""
        model = _unmark(model)
        if self.kind == "model":
            return self.task.loss(model, batch)
        if self.kind == "variables" and num_required(self.task.loss) < 3:
            out = self.task.loss({"params": model, **carried}, batch)
        else:
            out = self.task.loss(model, batch, carried)
        return self._with_carried(out, carried)

    def loss_of(self, state: train.TrainState) -> Callable[..., Any]:
        """Return the loss as a function of weights, batch and carried arrays."""

        def loss(params: PyTree, batch: PyTree, carried: PyTree) -> Any:
            return self.loss(state._replace(params=params).model, batch, carried)

        return loss

    def _with_carried(self, out: Any, carried: PyTree) -> Any:
        """Complete the result of a loss that changes only some collections, or none."""
        if not isinstance(out, tuple):
            return out, {}, carried
        *first, last = out
        if self.kind == "variables":
            is_update = isinstance(last, Mapping) and 0 < len(last) <= len(carried)
            # flax returns the changed collections alone, from apply(mutable=...).
            if is_update and set(last) <= set(carried):
                last = {**carried, **last}
            elif len(out) == 2:
                return (*out, carried)
        elif len(out) == 2:
            # (loss, carried), as equinox's own examples return; no metrics.
            return first[0], {}, last
        if len(out) == 2:
            first = [first[0], {}]
        return (*first, last)

    def whole(self, state: train.TrainState) -> PyTree:
        """Return the trained model in the form in which `init` returned it."""
        return self.join(state.model, state.carried)

    def gather_weights(self, state: train.TrainState) -> train.TrainState:
        """Return a state with the weights to keep, whole in every process.

        The average of the weights takes their place, and the optimiser's state is left
        out. All processes must call this.
        """
        weights = averaged_weights(state.opt_state, state.params)
        params, carried = gather((weights, state.carried))
        return state._replace(params=params, carried=carried, opt_state=())

    def join(self, model: PyTree, carried: PyTree) -> PyTree:
        """Join model and carried arrays in the form in which `init` returned them."""
        model = _unmark(model)
        if self.kind == "variables":
            return {"params": model, **carried}
        if self.kind == "pair":
            return model, carried
        return model

    def file_tree(self, state: train.TrainState) -> PyTree:
        """Return the arrays that go into the model file; random keys as their data."""
        weights = averaged_weights(state.opt_state, state.params)
        if state.carried is None:
            return weights
        return {"params": weights, "carried": jax.tree.map(key_to_data, state.carried)}

    def with_file_tree(self, state: train.TrainState, tree: PyTree) -> PyTree:
        """Return the whole model with the arrays of a model file."""
        if state.carried is not None:
            stored = tree["carried"]
            carried = jax.tree.map(data_to_key, stored, state.carried)
            state, tree = state._replace(carried=carried), tree["params"]
        return self.whole(state._replace(params=tree))

    def call(self, function: Callable[..., Any], whole: PyTree) -> Any:
        """Call `evaluate` or `show` with the whole model, or with its two parts."""
        if num_required(function) < 2:
            return function(whole)
        if self.kind == "variables":
            return function(whole["params"], {k: whole[k] for k in self.carried})
        if self.kind == "model":
            raise ConfigError(
                "task: evaluate and show take (model): this model has no carried "
                "arrays, which would be a second argument."
            )
        return function(*whole)


def num_required(function: Callable[..., Any]) -> int:
    """Count the positional arguments without a default; 0 if they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0  # some callables, such as compiled ones, have no signature
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


def _is_variables(initial: PyTree) -> bool:
    """Return whether these are flax variables with more than parameters."""
    if not isinstance(initial, Mapping) or "params" not in initial or len(initial) < 2:
        return False
    return all(isinstance(v, Mapping) for v in initial.values())


def _mark_mixed(model: PyTree) -> PyTree:
    flat = jax.tree_util.tree_leaves_with_path(model)
    is_plain = all(
        isinstance(key, DictKey | SequenceKey) for path, _ in flat for key in path
    )
    if is_plain and not all(train.is_trainable(leaf) for _, leaf in flat):
        return _Mixed(model)
    return model


def _unmark(model: PyTree) -> PyTree:
    return model.model if isinstance(model, _Mixed) else model
