"""The gradient of a loss over micro-batches: for losses and steps of others.

A `TrainStep` accumulates by itself. Both use `train.step.accumulate`.
"""

import dataclasses
import sys
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from frugax import remat
from frugax.budget import Receipt, Spend
from frugax.errors import ConfigError
from frugax.jaxprs import LossOfArrays, take_arrays
from frugax.measure import program
from frugax.train.step import (
    PartResult,
    accumulate,
    check_mean,
    first_part,
    is_single_key,
)
from frugax.trees import PyTree

Gradient = Callable[..., Any]


def accumulate_gradient(
    grad: Gradient,
    argnums: int | tuple[int, ...],
    *,
    has_aux: bool,
    batch_argnum: int,
    parts: int,
) -> Gradient:
    """The gradient of a batch from a gradient that is given its parts, in turn.

    Each part has its own random key, see `train.step.accumulate`, also where the key is
    another argument than the batch. Metrics beside the loss are averaged.

    Args:
        grad: returns a value, or (value, metrics), and gradients, of arrays.
        argnums: the arguments that are differentiated.
        has_aux: whether there are metrics.
        batch_argnum: the argument whose rows are divided.
        parts: the number of parts.
    """
    if parts == 1:
        return grad

    def accumulated(*args: Any) -> Any:
        structure: list[Any] = []

        def compute(part: PyTree, _: PyTree) -> PartResult:
            value, grads = grad(*_put_part(args, batch_argnum, part))
            metrics, tree = _name_metrics(value, has_aux=has_aux)
            structure[:] = [tree]
            return PartResult(metrics, {}, grads)

        pick = lambda n: args[n]
        like = pick(argnums) if isinstance(argnums, int) else tuple(map(pick, argnums))
        batch = _take_batch(args, batch_argnum)
        found = accumulate(compute, batch, like=like, parts=parts)
        value = found.metrics.pop("loss")
        if has_aux:
            value = value, structure[0].unflatten(found.metrics.values())
        return value, found.grads

    return accumulated


class AccumulatedGrad:
    """The planned gradient of a loss over micro-batches: `grad(*args)`.

    It is that of the whole batch where the loss is a mean over its rows. The first call
    that is not traced checks this.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        plan: remat.RematPlan,
        *,
        batch_argnum: int,
        parts: int,
        anywhere: bool = False,
    ) -> None:
        self.plan = plan
        self._loss = loss
        self._batch_argnum = batch_argnum
        self._parts = parts
        self._anywhere = anywhere
        self._is_checked = False
        self._steps: dict[Hashable, Gradient] = {}

    def __call__(self, *args: Any) -> tuple[Any, Any]:
        """The loss, with its metrics if it has some, and its gradients.

        Raises:
            ValueError: the batch cannot be divided, or the loss, the shapes or the kind
                of device differ from those of the plan.
            ConfigError: the loss returns more than numbers beside its value.
        """
        step, taken = self._take(args)
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
            return taken.finish(step(*taken.args))
        if not self._is_checked:
            self._check(taken)
            self._is_checked = True
        return taken.finish(jax.jit(step)(*taken.args))

    def report(self, *args: Any) -> Receipt:
        """Compile and measure the program for these arguments, or their shapes."""
        step, taken = self._take(args)
        measured = program(jax.jit(step).lower(*taken.args).compile())
        budget = self.plan.budget
        spend = Spend(
            name=f"{budget.kind} memory",
            unit="bytes",
            limit=budget.limit_bytes,
            predicted=self.plan.predicted,
            measured=measured.bytes_of(budget.kind),
            source="memory_analysis() of the compiled program",
        )
        return Receipt((spend,))

    def _take(self, args: tuple[Any, ...]) -> tuple[Gradient, LossOfArrays]:
        plan = self.plan
        taken = take_arrays(self._loss, args, plan.argnums, has_aux=plan.has_aux)
        if taken.key not in self._steps:
            of_arrays = dataclasses.replace(plan, has_aux=taken.has_aux)
            self._steps[taken.key] = accumulate_gradient(
                remat.apply(taken.loss, of_arrays, anywhere=self._anywhere),
                taken.argnums,
                has_aux=taken.has_aux,
                batch_argnum=self._batch_argnum % len(args),
                parts=self._parts,
            )
        return self._steps[taken.key], taken

    def _check(self, taken: LossOfArrays) -> None:
        at = self._batch_argnum

        def evaluate(args: tuple[Any, ...], part: PyTree) -> PartResult:
            value = taken.loss(*_put_part(args, at, part))
            metrics, _ = _name_metrics(value, has_aux=taken.has_aux)
            return PartResult(metrics, {})

        check_mean(
            evaluate,
            taken.args,
            _take_batch(taken.args, at),
            parts=self._parts,
            most_bytes=self.plan.budget.limit_bytes,
        )


def split_shapes(
    args: tuple[Any, ...], batch_argnum: int, parts: int
) -> tuple[Any, ...]:
    """The shapes of arguments with one part of the batch, where the whole batch lies.

    Raises:
        ConfigError: the batch cannot be divided.
    """
    if parts == 1:
        return args
    whole = args[batch_argnum]
    try:
        part = first_part(whole, parts)
    except ValueError as e:
        raise ConfigError(str(e)) from e
    place = lambda x, w: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=w.sharding)
    found = list(args)
    found[batch_argnum] = jax.tree.map(place, part, whole)
    return tuple(found)


def _take_batch(args: tuple[Any, ...], batch_argnum: int) -> PyTree:
    """The rows, and the random keys in other arguments."""
    keys = [x if is_single_key(x) else None for x in jax.tree.leaves(args)]
    return args[batch_argnum], keys


def _put_part(args: tuple[Any, ...], batch_argnum: int, part: PyTree) -> list[Any]:
    """The arguments with the rows and the keys of one part."""
    rows, keys = part
    leaves, tree = jax.tree.flatten(args)
    pairs = zip(leaves, keys, strict=True)
    found = list(tree.unflatten([x if k is None else k for x, k in pairs]))
    found[batch_argnum] = rows
    return found


def _name_metrics(value: Any, *, has_aux: bool) -> tuple[dict[str, Any], Any]:
    """The loss and its metrics by name, and the tree of the metrics."""
    value, aux = value if has_aux else (value, None)
    nnx: Any = sys.modules.get("flax.nnx")
    is_state = lambda x: nnx is not None and isinstance(x, nnx.State)
    flat, tree = jax.tree_util.tree_flatten_with_path(aux)
    states = [x for x in jax.tree.leaves(aux, is_leaf=is_state) if is_state(x)]
    if jax.tree.leaves(states):
        raise ConfigError(
            "the loss changes variables of a flax nnx module, such as running means or "
            "counts of dropout, which micro-batches of a loss cannot hand on: make a "
            "training step, train.make_train_step(loss, optimizer, accum=...), or take "
            "one micro-batch."
        )
    for path, leaf in flat:
        if jnp.ndim(leaf):
            raise ConfigError(
                f"the loss returns an array of shape {jnp.shape(leaf)} beside its "
                f"value, at aux{jax.tree_util.keystr(path)}, and only numbers can be "
                "averaged over micro-batches: return numbers, or take one micro-batch."
            )
    named = {f"aux{i}": jnp.asarray(leaf) for i, (_, leaf) in enumerate(flat)}
    return {"loss": value, **named}, tree
