"""Pack the records of one call into few arrays, which stay on the device until read.

Every output of a program costs its caller about 2 microseconds (measured on a busy
machine). Therefore all small values leave in one array of 32-bit words, which the host
splits again.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._bundle import is_small, join
from ._probe import Probe
from ._results import ProbeResult, name_results

# Larger values leave as outputs of their own, since packing copies.
_MAX_PACKED = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """The place of one array: an offset in the words, or an index of the others."""

    start: int
    packed: bool
    shape: tuple[int, ...]
    dtype: Any

    def read_column(self, words: np.ndarray) -> np.ndarray:
        """Read one number of many calls from their words, `(calls, words)`."""
        wide = _word_type(self.dtype)
        width = wide.itemsize // 4
        part = np.ascontiguousarray(words[:, self.start : self.start + width])
        return part.view(wide)[:, 0].astype(self.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """One record: its probe, the meaning of its mark, and the places of its arrays."""

    name: str
    probe: Probe
    mark_kind: str
    mark: _Place | None
    values: tuple[_Place, ...]
    axes: tuple[str, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class PackedRecords:
    """The results of the probes of one call, by name.

    Attributes:
        words: all small values, as u32; None without any.
        arrays: the other values.
        layout: the place of each value.
    """

    words: Any
    arrays: list[Any]
    # Static: a change of the layout is another pytree structure, and compiles again.
    layout: tuple[_Entry, ...] = dataclasses.field(metadata={"static": True})

    @property
    def probes(self) -> Mapping[str, Probe]:
        """The probe of each record."""
        return _probes(self.layout)

    @property
    def nbytes(self) -> int:
        """The bytes on the device."""
        return sum(x.nbytes for x in self._outputs())

    def is_ready(self) -> bool:
        """Whether the device has computed all values."""
        return all(x.is_ready() for x in self._outputs())

    def fetch(self) -> dict[str, ProbeResult]:
        """Wait for the values; return them as copies in NumPy arrays."""
        words = None
        if self.words is not None:
            # A copy: on CPU `np.asarray` is a view of JAX's buffer and would keep it
            # alive.
            words = np.array(self.words)
        arrays = [np.array(x) for x in self.arrays]
        found: dict[str, ProbeResult] = {}
        for entry in self.layout:
            read = functools.partial(_read, words, arrays)
            mark = None
            if entry.mark is not None:
                mark = read(entry.mark)
            values = tuple(map(read, entry.values))
            found[entry.name] = ProbeResult(
                entry.probe, entry.mark_kind, mark, values, entry.axes
            )
        return found

    def _outputs(self) -> list[Any]:
        if self.words is None:
            return self.arrays
        return [self.words, *self.arrays]


def pack_records(results: Sequence[ProbeResult]) -> PackedRecords:
    """Pack results into few arrays; called inside the program."""
    words: list[jax.Array] = []
    arrays: list[jax.Array] = []
    size = 0

    def put(value: Any, *, may_pack: bool) -> _Place:
        nonlocal size
        value = jnp.asarray(value)
        if not (may_pack and _is_packable(value)):
            arrays.append(value)
            return _Place(len(arrays) - 1, False, value.shape, value.dtype)
        place = _Place(size, True, value.shape, value.dtype)
        words.append(_as_words(value))
        size += words[-1].size
        return place

    layout = []
    for name, result in name_results(results).items():
        mark = None
        if result.mark is not None:
            mark = put(result.mark, may_pack=True)
        # Frames are read rarely: unpacked, they cost nothing until then.
        may_pack = result.probe.kind != "frame"
        values = tuple(put(v, may_pack=may_pack) for v in result.values)
        layout.append(
            _Entry(name, result.probe, result.mark_kind, mark, values, result.axes)
        )
    packed = join(words) if words else None
    return PackedRecords(packed, arrays, tuple(layout))


def _is_packable(value: jax.Array) -> bool:
    if jnp.issubdtype(value.dtype, np.complexfloating):
        return False
    # Sharded values would have to be gathered on one device first.
    return is_small(value, max_size=_MAX_PACKED)


def _word_type(dtype: Any) -> Any:
    """Return a dtype of one or two words that holds every value of `dtype`."""
    if dtype.itemsize >= 4:
        return dtype
    if jnp.issubdtype(dtype, np.floating):
        return np.dtype(np.float32)
    return np.dtype(np.int32)


def _as_words(value: jax.Array) -> jax.Array:
    # Widened first, since a bitcast of 16-bit values would need an even number of them.
    wide = value.astype(_word_type(value.dtype))
    return lax.bitcast_convert_type(wide, jnp.uint32).ravel()


def _read(words: Any, arrays: list[np.ndarray], place: _Place) -> np.ndarray:
    if not place.packed:
        return arrays[place.start]
    wide = _word_type(place.dtype)
    count = math.prod(place.shape) * wide.itemsize // 4
    part = words[place.start : place.start + count].view(wide)
    return part.astype(place.dtype).reshape(place.shape)


# A program returns equal layouts at every call, so the mapping is built once.
@functools.lru_cache(maxsize=256)
def _probes(layout: tuple[_Entry, ...]) -> Mapping[str, Probe]:
    return {entry.name: entry.probe for entry in layout}
