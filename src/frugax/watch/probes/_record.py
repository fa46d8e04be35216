"""`record`, `frame`, `summarise`: record numbers, arrays, summaries in jitted code."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._collect import count_numbers
from ._primitive import ALWAYS, PRESENT, bind
from ._probe import Kind, Probe, check_storable, check_values

# Streams that a watched run writes itself.
_OWN_STREAMS = {"watch": "watching itself", "system": "processor and memory"}


def record(
    name: str, value: Any, *, when: Any = None, lanes: int | None = None
) -> None:
    """Record numbers at every step.

    Under `watch.jit`, `watch.scan` and `collect` they leave the program as outputs.
    Elsewhere they leave by a callback, which costs the program its fast calls and its
    place in the compile cache.

    Args:
        name: the name of the record.
        value: a number, or a pytree of them; each of shape `()`.
        when: a bool of shape `()`: record a value only where it is True. Under `vmap`
            this stays a gate, unlike a `lax.cond` around the call.
        lanes: under `vmap`, keep this many of the first lanes; >= 1.

    Raises:
        TypeError: a value is not a real number, or `when` is not a bool.
        ValueError: a value is an array, or `lanes` is below 1.

    Example:
        >>> from frugax.watch.probes import collect, record
        >>> def loss(x):
        ...     record("largest", x.max())
        ...     return (x**2).sum()
        >>> value, records = collect(loss)(jnp.ones(3))
        >>> float(value), float(records["largest"])
        (3.0, 1.0)
    """
    for leaf in jax.tree.leaves(value):
        if getattr(leaf, "shape", ()) != ():
            raise ValueError(
                f"record {name!r} must be a number, got shape {leaf.shape}: reduce "
                "it, or record it with `frame`."
            )
    _emit(name, "scalar", value, when, lanes)


def summarise(
    name: str, value: Any, *, when: Any = None, lanes: int | None = None
) -> None:
    """Record values that must never be lost, such as the summary of an episode.

    Args:
        name: the name of the record.
        value: an array, or a pytree of them.
        when: as for `record`.
        lanes: as for `record`.

    Raises:
        TypeError: a value is not an array of numbers, or `when` is not a bool.
        ValueError: `lanes` is below 1, or a value is over 1 GiB.
    """
    _emit(name, "summary", value, when, lanes)


def frame(name: str, array: Any, *, when: Any = None, lanes: int | None = None) -> None:
    """Record an array, as often as the budget affords.

    Args:
        name: the name of the frames.
        array: any array, or a pytree of them.
        when: as for `record`.
        lanes: as for `record`; recommended for arrays.

    Raises:
        TypeError: a value is not an array of numbers, or `when` is not a bool.
        ValueError: `lanes` is below 1, or a value is over 1 GiB.
    """
    _emit(name, "frame", array, when, lanes)


def emit(
    probe: Probe, *values: Any, when: Any = None, lanes: int | None = None
) -> None:
    """Record values with a probe of your own.

    Args:
        probe: see `Probe.of`.
        values: one for each of its fields, in their order.
        when: as for `record`.
        lanes: as for `record`.

    Raises:
        TypeError: a value is not an array of numbers, or `when` is not a bool.
        ValueError: the number of values is not that of the fields, `lanes` is below 1,
            or a value is over 1 GiB.
    """
    if len(values) != len(probe.fields):
        raise ValueError(
            f"probe {probe.name!r} has {len(probe.fields)} fields, got "
            f"{len(values)} values."
        )
    check_values(probe.name, values, probe.fields)
    if lanes is not None and (isinstance(lanes, bool) or lanes < 1):
        raise ValueError(f"lanes of {probe.name!r} must be >= 1, got {lanes!r}.")
    # Before the shapes are checked: Python numbers get the dtype that JAX gives them.
    arrays = list(map(jnp.asarray, values))
    # Values of "call" probes go to a function and not to the journal.
    if probe.kind != "call":
        if probe.name in _OWN_STREAMS:
            raise ValueError(
                f"a probe cannot be named {probe.name!r}: that stream has the records "
                f"of {_OWN_STREAMS[probe.name]}; choose another name."
            )
        for field, array in zip(probe.fields, arrays, strict=True):
            check_storable(probe.name, field, array.shape, array.dtype)
    if probe.kind == "scalar":
        count_numbers(probe.name, len(arrays))
    if when is None:
        bind(probe, arrays, mark_kind=ALWAYS, lanes=lanes)
        return
    gate = jnp.asarray(when)
    if gate.dtype != jnp.bool_ or gate.shape != ():
        raise TypeError(
            f"when of {probe.name!r} must be one bool, got {gate.dtype} of shape "
            f"{gate.shape}."
        )
    bind(probe, arrays, mark=gate, mark_kind=PRESENT, lanes=lanes)


def _emit(name: str, kind: Kind, value: Any, when: Any, lanes: int | None) -> None:
    probe = Probe.of(name, kind, None, value)
    values: Sequence[Any] = jax.tree.leaves(value)
    emit(probe, *values, when=when, lanes=lanes)
