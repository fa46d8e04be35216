"""Symbolic values: what a layer is given and what it gives back.

A `Connection` stands for an array that is not there yet. Operators and methods on it
make ops of the table; `IOKey` names an input or a result of a model.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

Dim = Any  # an int, a name such as "batch", None, or a symbolic dimension
Shape = tuple[Dim, ...]


class Connection:
    """An array of a model that is being described; has Python's operators.

    Made by calling a layer on other connections, or as an `IOKey`.
    """

    __slots__ = ()
    # NumPy would otherwise take `array + connection` apart element by element.
    __array_ufunc__ = None
    # Makes an op from its name, tensors and attributes; `_op_layer.py` puts it here,
    # since the layer of an op is itself wired by connections.
    _op: ClassVar[Callable[..., "Connection"]]

    def __add__(self, other: Any) -> "Connection":
        return self._op("add", self, other)

    def __radd__(self, other: Any) -> "Connection":
        return self._op("add", other, self)

    def __sub__(self, other: Any) -> "Connection":
        return self._op("subtract", self, other)

    def __rsub__(self, other: Any) -> "Connection":
        return self._op("subtract", other, self)

    def __mul__(self, other: Any) -> "Connection":
        return self._op("multiply", self, other)

    def __rmul__(self, other: Any) -> "Connection":
        return self._op("multiply", other, self)

    def __truediv__(self, other: Any) -> "Connection":
        return self._op("divide", self, other)

    def __rtruediv__(self, other: Any) -> "Connection":
        return self._op("divide", other, self)

    def __floordiv__(self, other: Any) -> "Connection":
        return self._op("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> "Connection":
        return self._op("floor_divide", other, self)

    def __mod__(self, other: Any) -> "Connection":
        return self._op("remainder", self, other)

    def __rmod__(self, other: Any) -> "Connection":
        return self._op("remainder", other, self)

    def __pow__(self, other: Any) -> "Connection":
        return self._op("power", self, other)

    def __rpow__(self, other: Any) -> "Connection":
        return self._op("power", other, self)

    def __matmul__(self, other: Any) -> "Connection":
        return self._op("matmul", self, other)

    def __rmatmul__(self, other: Any) -> "Connection":
        return self._op("matmul", other, self)

    def __neg__(self) -> "Connection":
        return self._op("negative", self)

    def __abs__(self) -> "Connection":
        return self._op("absolute", self)

    def __eq__(self, other: object) -> "Connection":  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._op("equal", self, other)

    def __ne__(self, other: object) -> "Connection":  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._op("not_equal", self, other)

    __hash__ = object.__hash__

    def __lt__(self, other: Any) -> "Connection":
        return self._op("less", self, other)

    def __le__(self, other: Any) -> "Connection":
        return self._op("less_equal", self, other)

    def __gt__(self, other: Any) -> "Connection":
        return self._op("greater", self, other)

    def __ge__(self, other: Any) -> "Connection":
        return self._op("greater_equal", self, other)

    def __and__(self, other: Any) -> "Connection":
        return self._op("logical_and", self, other)

    def __rand__(self, other: Any) -> "Connection":
        return self._op("logical_and", other, self)

    def __or__(self, other: Any) -> "Connection":
        return self._op("logical_or", self, other)

    def __ror__(self, other: Any) -> "Connection":
        return self._op("logical_or", other, self)

    def __invert__(self) -> "Connection":
        return self._op("logical_not", self)

    def __getitem__(self, index: Any) -> "Connection":
        return self._op("getitem", self, index=normalize_index(index))

    def __bool__(self) -> bool:
        raise TypeError(
            "a connection has no value while a model is described, so it cannot be "
            'used in `if`, `and` or `in`; use op("where") or `&` instead.'
        )

    def __iter__(self) -> Any:
        raise TypeError(
            'a connection cannot be iterated; use x[i] or op("split") instead.'
        )

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Sum over `axis`, or over all."""
        return self._op("sum", self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Mean over `axis`, or over all."""
        return self._op("mean", self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Largest along `axis`, or of all."""
        return self._op("max", self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Smallest along `axis`, or of all."""
        return self._op("min", self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> "Connection":
        """The same numbers in another shape; one length may be -1."""
        return self._op("reshape", self, shape=_one_sequence(shape))

    def transpose(self, *axes: Any) -> "Connection":
        """The axes in another order; reversed if none is given."""
        wanted = None if axes in ((), (None,)) else _one_sequence(axes)
        return self._op("transpose", self, axes=wanted)

    def cast(self, dtype: Any) -> "Connection":
        """The same values in another dtype."""
        return self._op("cast", self, dtype=np.dtype(dtype).name)

    def named(self, name: str) -> "Connection":
        """The same value, known as `name` in the model, and one of its outputs."""
        return self._op("identity", self, output=IOKey(name, expose=True))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class IOKey(Connection):
    """A named input of a model, or the name of a result.

    Attributes:
        name: its key in `data`, `params` or the outputs.
        shape: its shape as far as known: ints, names of free dimensions, or None for
            a dimension without a name.
        dtype: its dtype, or `"key"` for a random key; the backend's if not given.
        expose: as the name of a result: make it an output though others read it.
    """

    name: str
    shape: Sequence[Dim] | None = None
    dtype: Any = None
    expose: bool = False

    def __post_init__(self) -> None:
        """Check the name and bring shape and dtype to one form.

        Raises:
            TypeError: the name is no text, or the shape is no sequence.
            ValueError: the name is empty, or has a character with a meaning here.
        """
        if not isinstance(self.name, str):
            raise TypeError(f"IOKey.name must be text, got {self.name!r:.60}.")
        if not self.name or set(self.name) & set("/*"):
            raise ValueError(
                f"IOKey.name must be text without '/' and '*', got {self.name!r}."
            )
        if self.shape is not None:
            if isinstance(self.shape, str) or not isinstance(self.shape, Sequence):
                raise TypeError(
                    f"IOKey {self.name!r}: shape must be a sequence such as "
                    f'("batch", 3), got {self.shape!r}.'
                )
            object.__setattr__(self, "shape", tuple(self.shape))
        if self.dtype is not None and self.dtype != "key":
            object.__setattr__(self, "dtype", np.dtype(self.dtype).name)

    @property
    def is_weight(self) -> bool:
        """Whether it means a weight of a layer by its place, as in `"table.weight"`."""
        return "." in self.name


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Constant(Connection):
    """A number or array written into the model."""

    value: Any

    def __post_init__(self) -> None:
        """Check that it is numbers, and copy an array, which others could change.

        Raises:
            TypeError: it is not.
        """
        if type(self.value) in (bool, int, float):
            return
        if isinstance(self.value, Sequence | np.ndarray | np.generic) or hasattr(
            self.value, "__array__"
        ):
            array = np.array(self.value)
            # Kind V: the narrow floats of ml_dtypes, such as bfloat16.
            if array.dtype.kind in "biufV" and not array.dtype.hasobject:
                array.flags.writeable = False
                object.__setattr__(self, "value", array)
                return
        raise TypeError(
            "a layer is given connections, names of keys, numbers and arrays; got "
            f"{self.value!r:.80}."
        )


def as_connection(value: Any) -> Connection:
    """A connection for a key's name, a number, an array, or a connection itself.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(value, Connection):
        return value
    if isinstance(value, str):
        return IOKey(value)
    return Constant(value)


def normalize_index(index: Any) -> Any:
    """An index of `x[...]` as plain values, as the op `getitem` takes it.

    A slice is ("slice", start, stop, step), `...` is "...", a new axis is None.

    Raises:
        TypeError: it holds anything but integers, slices, `...` and None.
    """
    entries = index if isinstance(index, tuple) else (index,)
    plain: list[Any] = []
    for entry in entries:
        if isinstance(entry, slice):
            plain.append(("slice", entry.start, entry.stop, entry.step))
        elif entry is Ellipsis:
            plain.append("...")
        elif entry is None or (
            isinstance(entry, (int, np.integer)) and not isinstance(entry, bool)
        ):
            plain.append(None if entry is None else int(entry))
        else:
            raise TypeError(
                f"x[{index!r:.40}]: an index is made of integers, slices, `...` and "
                'None; to index by an array use op("take").'
            )
    return tuple(plain)


def _one_sequence(given: tuple[Any, ...]) -> tuple[int, ...]:
    """`reshape(2, 3)` and `reshape((2, 3))` mean the same."""
    if len(given) == 1 and not isinstance(given[0], (int, np.integer)):
        given = tuple(given[0])
    return given
