"""The results of a probe in the form that users see, with missing values marked.

Most probes produce a value whenever the program runs. Those in a branch or a `while`
loop also say which values exist.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..journal import number_name
from ._probe import Probe


class MaskedValues(NamedTuple):
    """Values of which some may be missing, as from one branch of a `cond`.

    Attributes:
        values: the values; 0 where a value is missing.
        present: booleans, True where there is a value; their axes are the first axes
            of the values.
    """

    values: Any
    present: Any


class LastValues(NamedTuple):
    """The last values of many, from a `while` loop.

    Attributes:
        values: the last values; 0 before the first value.
        count: how many values were produced.
    """

    values: Any
    count: Any


_STATIC = {"static": True}  # part of the structure of a pytree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """A probe and its values; a pytree, whose leaves may also be shapes alone.

    Attributes:
        probe: the probe.
        mark_kind: the meaning of the mark, one of those in `_primitive`.
        mark: an array, or None.
        values: the values of the probe's fields, in their order.
        axes: the meaning of the first axes of the values, outermost first: `"steps"`,
            `"lanes"` or `"devices"`; the user's own axes follow.
        lanes: the number of lanes to keep under an outer `vmap`; None for all.
    """

    probe: Probe = dataclasses.field(metadata=_STATIC)
    mark_kind: str = dataclasses.field(metadata=_STATIC)
    mark: Any
    values: tuple[Any, ...]
    axes: tuple[str, ...] = dataclasses.field(default=(), metadata=_STATIC)
    lanes: int | None = dataclasses.field(default=None, metadata=_STATIC)

    def stacked(self, axis: str) -> "ProbeResult":
        """Return the result once its arrays have this axis before the others."""
        return dataclasses.replace(self, axes=(axis, *self.axes))

    def labels(self, name: str) -> tuple[str, ...]:
        """Return the names of its fields in a record of this name."""
        fields = self.probe.fields
        return fields if len(fields) > 1 else (next(iter(fields), "") or name,)

    def mark_label(self, name: str) -> str:
        """Return the name of its mark: "present" or "count", unless a field has it."""
        return number_name(self.mark_kind, self.labels(name))

    def columns(self, name: str, *, with_mark: bool = True) -> dict[str, np.ndarray]:
        """Return its arrays on the host by the names of its fields.

        With the mark, arrays of lanes of which some have no record are masked.

        Args:
            name: the name of the record, which is that of a single value.
            with_mark: whether an array that says which values are present, or the
                number of rounds of a `while` loop, is a column as well.
        """
        found = dict(zip(self.labels(name), map(np.asarray, self.values), strict=True))
        is_count = self.mark_kind == "count"
        if with_mark and self.mark is not None and (is_count or self.mark.ndim):
            mark = np.asarray(self.mark)
            if mark.ndim:
                found = {
                    field: _mask_missing(column, mark > 0, is_blank=is_count)
                    for field, column in found.items()
                }
            found[self.mark_label(name)] = mark
        return found

    def blank(self) -> "ProbeResult":
        """Return zeros that are marked as missing, for a part that does not run."""
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self)


def _mask_missing(
    array: np.ndarray, present: np.ndarray, *, is_blank: bool
) -> np.ndarray:
    """Mask the values of absent lanes, where nothing was recorded.

    Those of a loop that never ran are zeros, and become NaN for readers who do not
    look at the mask; whole numbers become float64.
    """
    wide = present.reshape(*present.shape, *[1] * (array.ndim - present.ndim))
    if is_blank:
        if array.dtype.kind in "biu":
            array = array.astype(np.float64)
        array = np.where(wide, array, np.array(np.nan, array.dtype))
    return np.ma.array(array, mask=np.broadcast_to(~wide, array.shape))


def to_value(result: ProbeResult) -> Any:
    """Return an array, or a dict of arrays by field, together with its mark."""
    fields = result.probe.fields
    value: Any = dict(zip(fields, result.values, strict=True))
    if len(fields) == 1:
        value = result.values[0]
    match result.mark_kind:
        case "present":
            return MaskedValues(value, result.mark)
        case "count":
            return LastValues(value, result.mark)
        case _:
            return value


def name_results(results: Sequence[ProbeResult]) -> dict[str, ProbeResult]:
    """Give each result a unique name: `name`, then `name.2`, `name.3` and so on."""
    named: dict[str, ProbeResult] = {}
    own_names = {result.probe.name for result in results}
    for result in results:
        name, number = result.probe.name, 1
        while name in named:
            number += 1
            candidate = f"{result.probe.name}.{number}"
            # A probe that is itself called `name.2` keeps that name.
            if candidate not in own_names:
                name = candidate
        named[name] = result
    return named
