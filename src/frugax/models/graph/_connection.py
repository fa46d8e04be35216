"""Symbolic arrays that layers are wired with.

A `Connection` stands for an array that does not exist yet. Its operators and methods
add ops of the table to the model; an `IOKey` names an input or an output.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

Dim = Any  # an int, a name such as "batch", None, or a symbolic dimension
Shape = tuple[Dim, ...]


class Connection:
    """A symbolic array of a model, with Python's operators.

    Calling a layer on connections returns a connection; an `IOKey` is one too.
    """

    __slots__ = ()
    # NumPy would otherwise take `array + connection` apart element by element.
    __array_ufunc__ = None
    # Adds an op by its name, tensors and attributes. `_primitive.py` sets it: the layer
    # of an op is itself wired by connections, so an import here would be a cycle.
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

    # `==` builds an op, so connections are hashed and looked up by identity.
    __hash__ = object.__hash__

    def __lt__(self, other: Any) -> "Connection":
        return self._op("less", self, other)

    def __le__(self, other: Any) -> "Connection":
        return self._op("less_equal", self, other)

    def __gt__(self, other: Any) -> "Connection":
        return self._op("greater", self, other)

    def __ge__(self, other: Any) -> "Connection":
        return self._op("greater_equal", self, other)

    # `&`, `|` and `~` are logical and not bitwise, because Python's `and`, `or` and
    # `not` cannot be overloaded; bits have their ops by name.
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

    # Without this, Python takes every object for true, and an `if` in a model would
    # silently choose one branch for ever.
    def __bool__(self) -> bool:
        raise TypeError(
            "a connection has no value while a model is described, so it cannot be "
            'used in `if`, `and` or `in`; use op("where") or `&` instead.'
        )

    # Without this, Python falls back to x[0], x[1], ... which never raises IndexError
    # here: a loop over a connection would not end.
    def __iter__(self) -> Any:
        raise TypeError(
            'a connection cannot be iterated; use x[i] or op("split") instead.'
        )

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Sum over `axis`, or over all axes."""
        return self._op("sum", self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Mean over `axis`, or over all axes."""
        return self._op("mean", self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Largest entry along `axis`, or of the whole array."""
        return self._op("max", self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Smallest entry along `axis`, or of the whole array."""
        return self._op("min", self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> "Connection":
        """The same entries in another shape; one length may be -1."""
        return self._op("reshape", self, shape=_as_sequence(shape))

    def transpose(self, *axes: Any) -> "Connection":
        """The axes in another order; reversed if none is given."""
        if axes in ((), (None,)):
            return self._op("transpose", self, axes=None)
        return self._op("transpose", self, axes=_as_sequence(axes))

    def cast(self, dtype: Any) -> "Connection":
        """The same values in another dtype."""
        # A name and not a dtype: attributes are literals, so that models can be saved
        # and compared.
        return self._op("cast", self, dtype=np.dtype(dtype).name)

    def named(self, name: str) -> "Connection":
        """The same value, known as `name` in the model, and one of its outputs."""
        return self._op("identity", self, output=IOKey(name, expose=True))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class IOKey(Connection):
    """A named input of a model, or the name of an output.

    Attributes:
        name: its key in `data`, `params` or the outputs.
        shape: its shape as far as known: ints, names of free dimensions, or None for
            a free dimension without a name.
        dtype: its dtype, or `"key"` for a random key; the backend's if not given.
        expose: for the name of an output: make it an output of the model even where
            other layers read it.
    """

    name: str
    shape: Sequence[Dim] | None = None
    dtype: Any = None
    expose: bool = False

    def __post_init__(self) -> None:
        """Check the name, and normalise shape and dtype."""
        if not isinstance(self.name, str):
            raise TypeError(f"IOKey.name must be text, got {self.name!r:.60}.")
        # "/" separates paths from ports in the keys of values, and "*" marks the
        # weights of a loop.
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
            # The dataclass is frozen, so its own __post_init__ has to go round its
            # __setattr__.
            object.__setattr__(self, "shape", tuple(self.shape))
        if self.dtype is not None and self.dtype != "key":
            object.__setattr__(self, "dtype", np.dtype(self.dtype).name)

    @property
    def is_weight(self) -> bool:
        """Whether it names a weight of a layer by its path, as in `"table.weight"`."""
        return "." in self.name


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Constant(Connection):
    """A number or array written into the model."""

    value: Any

    def __post_init__(self) -> None:
        """Check the type, and copy arrays, which the caller could change later."""
        # By exact type: np.float64 is a subclass of float, but a strong dtype and not a
        # weak one, so it becomes an array below.
        if type(self.value) in (bool, int, float):
            return
        if isinstance(self.value, Sequence | np.ndarray | np.generic) or hasattr(
            self.value, "__array__"
        ):
            array = np.array(self.value)
            # Kind V holds the narrow floats of ml_dtypes, such as bfloat16.
            if array.dtype.kind in "biufV" and not array.dtype.hasobject:
                # Constants are folded and hashed by their bytes, so they must not
                # change.
                array.flags.writeable = False
                object.__setattr__(self, "value", array)
                return
        raise TypeError(
            "a layer takes connections, names of keys, numbers and arrays; got "
            f"{self.value!r:.80}."
        )


def as_connection(value: Any) -> Connection:
    """Turn the name of a key, a number or an array into a connection."""
    if isinstance(value, Connection):
        return value
    if isinstance(value, str):
        return IOKey(value)
    return Constant(value)


def normalize_index(index: Any) -> Any:
    """Write the index of `x[...]` as the plain values that the op `getitem` takes.

    A slice is ("slice", start, stop, step), `...` is "...", a new axis is None.

    Raises:
        TypeError: it holds anything but integers, slices, `...` and None.
    """
    entries = index
    if not isinstance(index, tuple):
        entries = (index,)
    plain: list[Any] = []
    for entry in entries:
        if isinstance(entry, slice):
            plain.append(("slice", entry.start, entry.stop, entry.step))
        elif entry is Ellipsis:
            plain.append("...")
        elif entry is None:
            plain.append(None)
        # A bool is an int to Python, but `x[True]` adds an axis in NumPy.
        elif isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
            plain.append(int(entry))
        else:
            raise TypeError(
                f"x[{index!r:.40}]: an index is made of integers, slices, `...` and "
                'None; to index by an array use op("take").'
            )
    return tuple(plain)


def _as_sequence(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Unpack a single sequence: `reshape(2, 3)` and `reshape((2, 3))` are the same."""
    if len(given) == 1 and not isinstance(given[0], (int, np.integer)):
        given = tuple(given[0])
    return given
