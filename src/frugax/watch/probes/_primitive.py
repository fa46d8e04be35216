"""The operation that stands for "watch this" in a traced program, and its rules.

It carries JAX's own debug effect, so no transformation drops it. `collect` turns it
into an output; where nobody collects it is lowered to one callback.

Its parameter `axes` says what the first axes of the values are, outermost first, before
those that the user gave: `"steps"` of a loop, `"lanes"` of a `vmap`, `"devices"` of a
`shard_map`, `"ring"`. `lanes` is the most lanes to keep.

Operands: the tied value if `how` is `TIED`; the mark unless `mark` is `ALWAYS`; the
values of the probe's fields.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir

from frugax.jaxprs import Primitive, debug_effect

from ._delivery import deliver
from ._probe import Probe

# What the mark says about the values.
ALWAYS = "always"  # there is none: the values were made
PRESENT = "present"  # where it is true they were made; its axes are their first ones
COUNT = "count"  # they are the last ones, made so many times

# What becomes of a probe that nobody collects.
CALLED = "called"  # a callback
HUSHED = "hushed"  # nothing: the operation has no effect, and may be removed
TIED = "tied"  # nothing: it gives its first operand back, and lives as long as that

watch_p = Primitive("watch")
watch_p.multiple_results = True
stride_p = Primitive("watch_stride")


def bind(
    probe: Probe,
    values: Sequence[Any],
    *,
    mark: Any = None,
    meaning: str = ALWAYS,
    axes: tuple[str, ...] = (),
    lanes: int | None = None,
    how: str = CALLED,
    tied: Any = None,
) -> Any:
    """Write the operation; gives the tied value back, if there is one."""
    operands = [
        *([tied] if how == TIED else []),
        *([mark] if meaning != ALWAYS else []),
        *values,
    ]
    params = {"mark": meaning, "axes": axes, "lanes": lanes, "how": how}
    outs = watch_p.bind(*operands, probe=probe, **params)
    return outs[0] if how == TIED else None


def split(
    operands: Sequence[Any], *, mark: str, how: str, **_: Any
) -> tuple[list[Any], Any, list[Any]]:
    """The tied value, at most one; the mark or None; the values."""
    rest = list(operands)
    tied = [rest.pop(0)] if how == TIED else []
    return tied, rest.pop(0) if mark != ALWAYS else None, rest


@functools.cache
def _effects(how: str) -> frozenset[Any]:
    return frozenset({debug_effect()} if how == CALLED else ())


@watch_p.def_effectful_abstract_eval
def _abstract(*operands: Any, how: str, **_: Any) -> tuple[list[Any], Any]:
    return list(operands[:1]) if how == TIED else [], _effects(how)


@watch_p.def_impl
def _run(*operands: Any, probe: Probe, **params: Any) -> list[Any]:
    tied, mark, values = split(operands, **params)
    if params["how"] == CALLED:
        deliver(probe, params["mark"], mark, *values)
    return tied


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    outs = watch_p.bind(*primals, **params)
    return outs, list(tangents[: len(outs)])


def _batch(
    operands: Sequence[Any], mapped: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    """One operation for all lanes, the mapped axis in front of every value."""
    sizes = {x.shape[a] for x, a in zip(operands, mapped, strict=True) if a is not None}
    (size,) = sizes
    lanes = params["lanes"]
    kept = size if lanes is None else min(size, lanes)
    tied, mark, values = split(operands, **params)
    tied_axis, mark_axis, value_axes = split(mapped, **params)
    moved = [a is not None for a in (mark_axis, *value_axes)]

    def in_front(x: Any, axis: int | None) -> Any:
        if axis is None:
            return jnp.broadcast_to(x, (kept, *x.shape))
        x = jnp.moveaxis(x, axis, 0)
        return x if kept == size else lax.slice_in_dim(x, 0, kept)

    if any(moved):
        values = [in_front(x, a) for x, a in zip(values, value_axes, strict=True)]
        # The axes of a mark are the first ones of the values: none is none of them.
        if mark is not None and (mark_axis is not None or mark.ndim):
            mark = in_front(mark, mark_axis)
        params["axes"] = ("lanes", *params["axes"])
    marked = [] if mark is None else [mark]
    outs = watch_p.bind(*tied, *marked, *values, **params)
    return outs, list(tied_axis)


def _lower(*operands: Any, probe: Probe, **params: Any) -> list[Any]:
    tied, mark, values = split(operands, **params)
    if params["how"] != CALLED:
        return tied
    told = functools.partial(deliver, probe, params["mark"])
    if mark is None:
        jax.debug.callback(functools.partial(told, None), *values)
        return tied
    # The gate: where nothing was made, nobody is called.
    made = jnp.any(mark) if mark.dtype == jnp.bool_ else jnp.any(mark > 0)
    lax.cond(
        made,
        lambda *args: jax.debug.callback(told, *args),
        lambda *args: None,
        mark,
        *values,
    )
    return tied


ad.primitive_jvps[watch_p] = _jvp
batching.primitive_batchers[watch_p] = _batch
mlir.register_lowering(watch_p, mlir.lower_fun(_lower, multiple_results=True))


def ambient_stride() -> jax.Array:
    """The stride that whoever collects has set, as a value of the program; else 1."""
    return stride_p.bind()


def _one() -> jax.Array:
    return jnp.ones((), jnp.uint32)


stride_p.def_abstract_eval(lambda: ShapedArray((), jnp.uint32))
stride_p.def_impl(_one)
mlir.register_lowering(stride_p, mlir.lower_fun(_one, multiple_results=False))
