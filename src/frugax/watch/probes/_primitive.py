"""The JAX primitive behind every probe, with its transformation rules.

The primitive carries JAX's own debug effect, so no transformation drops it. `collect`
turns it into an output; where nobody collects, it is lowered to one callback.

The parameter `axes` names the first axes of the values, outermost first, before the
user's own: `"steps"` of a loop, `"lanes"` of a `vmap` or `"devices"` of a `shard_map`.
`lanes` is the number of lanes to keep.

A probe that `is_tied` has no effect: it returns its first operand, and lives as long as
that is used.

Operands: the tied value if `is_tied`; the mark unless `mark_kind` is `ALWAYS`; the
values of the probe's fields.
"""

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from frugax.jaxprs import Primitive, debug_effect

from ._probe import Probe

# The meanings of the mark.
ALWAYS = "always"  # without a mark: every value exists
PRESENT = "present"  # a mask of the values that exist; its axes are their first ones
COUNT = "count"  # the values are the last of this many

# `multiple_results`, since a probe has no result and a tied one has one.
watch_p = Primitive("watch")
watch_p.multiple_results = True


def bind(
    probe: Probe,
    values: Sequence[Any],
    *,
    mark: Any = None,
    mark_kind: str = ALWAYS,
    axes: tuple[str, ...] = (),
    lanes: int | None = None,
    tied: Any = None,
) -> Any:
    """Write the operation; return the tied value, if there is one."""
    operands = list(values)
    if mark_kind != ALWAYS:
        operands.insert(0, mark)
    is_tied = tied is not None
    if is_tied:
        operands.insert(0, tied)
    params = {"mark_kind": mark_kind, "axes": axes, "lanes": lanes}
    outs = watch_p.bind(*operands, probe=probe, is_tied=is_tied, **params)
    return outs[0] if is_tied else None


def split_operands(
    operands: Sequence[Any], *, mark_kind: str, is_tied: bool, **_: Any
) -> tuple[list[Any], Any, list[Any]]:
    """Split operands into the tied value if any, the mark or None, and the values."""
    rest = list(operands)
    tied: list[Any] = []
    if is_tied:
        tied.append(rest.pop(0))
    mark = None
    if mark_kind != ALWAYS:
        mark = rest.pop(0)
    return tied, mark, rest


# Cached, since JAX compares sets of effects often while it traces.
@functools.cache
def _callback_effects() -> frozenset[Any]:
    return frozenset({debug_effect()})


@watch_p.def_effectful_abstract_eval
def _abstract(*operands: Any, is_tied: bool, **_: Any) -> tuple[list[Any], Any]:
    if is_tied:
        return [operands[0]], frozenset()
    return [], _callback_effects()


def _call_back(probe: Probe, mark_kind: str, mark: Any, *values: Any) -> None:
    # By name, since the receiver's packages are above this one.
    receiver = importlib.import_module("frugax.watch._callback_receiver")
    receiver.receive(probe, mark_kind, mark, *values)


@watch_p.def_impl
def _run(*operands: Any, probe: Probe, **params: Any) -> list[Any]:
    tied, mark, values = split_operands(operands, **params)
    if not params["is_tied"]:
        _call_back(probe, params["mark_kind"], mark, *values)
    return tied


# Only the tied value has a tangent: a probe itself is not differentiable.
def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    outs = watch_p.bind(*primals, **params)
    return outs, list(tangents[: len(outs)])


def _batch(
    operands: Sequence[Any], mapped: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    """Write one operation for all lanes, with the mapped axis first in every value."""
    sizes = {x.shape[a] for x, a in zip(operands, mapped, strict=True) if a is not None}
    # JAX maps all operands over axes of one size, so exactly one is left.
    (size,) = sizes
    lanes = params["lanes"]
    kept = min(size, lanes or size)
    tied, mark, values = split_operands(operands, **params)
    tied_axis, mark_axis, value_axes = split_operands(mapped, **params)
    is_mapped = [a is not None for a in (mark_axis, *value_axes)]

    def move_first(x: Any, axis: int | None) -> Any:
        if axis is None:
            return jnp.broadcast_to(x, (kept, *x.shape))
        x = jnp.moveaxis(x, axis, 0)
        if kept < size:
            x = lax.slice_in_dim(x, 0, kept)
        return x

    if any(is_mapped):
        values = [move_first(x, a) for x, a in zip(values, value_axes, strict=True)]
        # A scalar mark without a mapped axis holds for all lanes alike, so it stays.
        # Any other must keep its axes equal to the first axes of the values.
        if mark is not None and (mark_axis is not None or mark.ndim):
            mark = move_first(mark, mark_axis)
        params["axes"] = ("lanes", *params["axes"])
    if mark is not None:
        # The mark stands first again, as `split_operands` expects.
        values = [mark, *values]
    outs = watch_p.bind(*tied, *values, **params)
    return outs, list(tied_axis)


def _lower(*operands: Any, probe: Probe, **params: Any) -> list[Any]:
    tied, mark, values = split_operands(operands, **params)
    if params["is_tied"]:
        return tied
    deliver = functools.partial(_call_back, probe, params["mark_kind"])
    if mark is None:
        jax.debug.callback(functools.partial(deliver, None), *values)
        return tied
    # The gate: without a value the host is not called.
    lax.cond(
        jnp.any(mark),  # of a count: not zero
        lambda *args: jax.debug.callback(deliver, *args),
        lambda *args: None,
        mark,
        *values,
    )
    return tied


# No transpose rule is needed: the JVP rule passes the tangent of the tied value around
# the probe.
ad.primitive_jvps[watch_p] = _jvp
batching.primitive_batchers[watch_p] = _batch
mlir.register_lowering(watch_p, mlir.lower_fun(_lower, multiple_results=True))
