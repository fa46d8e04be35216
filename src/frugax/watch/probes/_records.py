"""The records of one call: arrays on the device until somebody wants to see them.

Every output of a program costs its caller some 2 microseconds (on a busy machine).
So all small values leave in one array of 32-bit words, and are cut apart on the host.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._bundle import is_small
from ._made import Made, by_name, value_of
from ._probe import Probe

# Values of more elements than that leave by themselves: packing copies.
_MOST_PACKED = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where one array is: from `start` on in the words, or among the others."""

    start: int
    packed: bool
    shape: tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """One record: its probe, what its mark means, and where its arrays are."""

    name: str
    probe: Probe
    meaning: str
    mark: _Place | None
    values: tuple[_Place, ...]
    axes: tuple[str, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Records(Mapping[str, Any]):
    """What the probes of one call gave, by name.

    To iterate over the names is free. To read a value waits for the device and copies
    all of them to the host, once.

    Attributes:
        words: all that is small, as u32; None if there is nothing.
        arrays: the others.
        layout: what is where.
    """

    words: Any
    arrays: list[Any]
    layout: tuple[_Entry, ...] = dataclasses.field(metadata={"static": True})

    @property
    def probes(self) -> Mapping[str, Probe]:
        """The probe of each record."""
        return _probes(self.layout)

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """What the first axes of each are, outermost first; the user's come after.

        `"steps"` of a scan, `"lanes"` of a `vmap`, `"devices"` of a `shard_map`, the
        rows of a `"ring"`.
        """
        return {entry.name: entry.axes for entry in self.layout}

    @property
    def rounds(self) -> Mapping[str, int]:
        """How many leading axes of each are steps of a loop."""
        return {entry.name: _leading_steps(entry.axes) for entry in self.layout}

    @property
    def nbytes(self) -> int:
        """What it holds on the device, in bytes."""
        return sum(x.nbytes for x in self._held())

    def is_ready(self) -> bool:
        """Whether the device has made all of it."""
        return all(x.is_ready() for x in self._held())

    def copy_to_host_async(self) -> None:
        """Begin to copy, so that `fetch` waits less."""
        for x in self._held():
            x.copy_to_host_async()

    def fetch(self) -> dict[str, Any]:
        """All values as NumPy arrays; what the caller does to them is its own affair.

        They are in the form in which `collect` gives them.
        """
        words = None if self.words is None else np.array(self.words)
        arrays = [np.array(x) for x in self.arrays]
        found: dict[str, Any] = {}
        for entry in self.layout:
            read = functools.partial(_read, words, arrays)
            mark = None if entry.mark is None else read(entry.mark)
            values = list(map(read, entry.values))
            found[entry.name] = value_of(
                Made(entry.probe, entry.meaning, mark, values, entry.axes)
            )
        return found

    @functools.cached_property
    def _fetched(self) -> dict[str, Any]:
        return self.fetch()

    def __getitem__(self, name: str) -> Any:
        if name not in self.probes:
            raise KeyError(name)
        return self._fetched[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.probes)

    def __len__(self) -> int:
        return len(self.layout)

    def _held(self) -> list[Any]:
        return self.arrays if self.words is None else [self.words, *self.arrays]


def pack(all_made: Sequence[Made]) -> Records:
    """The records as few arrays; called where they are made, in the program."""
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
    for name, made in by_name(all_made).items():
        small = made.probe.kind != "frame"
        layout.append(
            _Entry(
                name,
                made.probe,
                made.meaning,
                None if made.mark is None else put(made.mark, may_pack=True),
                tuple(put(v, may_pack=small) for v in made.values),
                made.axes,
            )
        )
    return Records(jnp.concatenate(words) if words else None, arrays, tuple(layout))


def _is_packable(value: jax.Array) -> bool:
    if jnp.issubdtype(value.dtype, np.complexfloating):
        return False
    # What is spread over devices would have to be brought together first.
    return is_small(value, _MOST_PACKED)


def _word_type(dtype: Any) -> Any:
    """A type of one or two words that holds every value of this one."""
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if jnp.issubdtype(dtype, np.floating) else np.int32)


def _as_words(value: jax.Array) -> jax.Array:
    wide = value.astype(_word_type(value.dtype))
    return lax.bitcast_convert_type(wide, jnp.uint32).ravel()


def _read(words: Any, arrays: list[np.ndarray], place: _Place) -> np.ndarray:
    if not place.packed:
        return arrays[place.start]
    wide = _word_type(place.dtype)
    count = math.prod(place.shape) * wide.itemsize // 4
    part = words[place.start : place.start + count].view(wide)
    return part.astype(place.dtype).reshape(place.shape)


@functools.lru_cache(maxsize=256)
def _probes(layout: tuple[_Entry, ...]) -> Mapping[str, Probe]:
    return {entry.name: entry.probe for entry in layout}


def _leading_steps(axes: tuple[str, ...]) -> int:
    others = [i for i, axis in enumerate(axes) if axis != "steps"]
    return others[0] if others else len(axes)
