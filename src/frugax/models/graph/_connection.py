"""Symbolic values: what a layer is given and what it gives back.

A `Connection` stands for an array that is not there yet. Operators and methods on it
make ops of the table; `IOKey` names an input or a result of a model.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._layer import Call

Dim = Any  # an int, a name such as "batch", None, or a symbolic dimension
Shape = tuple[Dim, ...]


class Connection:
    """An array of a model that is being described; has Python's operators.

    Made by calling a layer on other connections, or as an `IOKey`.
    """

    __slots__ = ()
    # NumPy would otherwise take `array + connection` apart element by element.
    __array_ufunc__ = None

    def __add__(self, other: Any) -> "Connection":
        return _op("add", self, other)

    def __radd__(self, other: Any) -> "Connection":
        return _op("add", other, self)

    def __sub__(self, other: Any) -> "Connection":
        return _op("subtract", self, other)

    def __rsub__(self, other: Any) -> "Connection":
        return _op("subtract", other, self)

    def __mul__(self, other: Any) -> "Connection":
        return _op("multiply", self, other)

    def __rmul__(self, other: Any) -> "Connection":
        return _op("multiply", other, self)

    def __truediv__(self, other: Any) -> "Connection":
        return _op("divide", self, other)

    def __rtruediv__(self, other: Any) -> "Connection":
        return _op("divide", other, self)

    def __floordiv__(self, other: Any) -> "Connection":
        return _op("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> "Connection":
        return _op("floor_divide", other, self)

    def __mod__(self, other: Any) -> "Connection":
        return _op("remainder", self, other)

    def __pow__(self, other: Any) -> "Connection":
        return _op("power", self, other)

    def __rpow__(self, other: Any) -> "Connection":
        return _op("power", other, self)

    def __matmul__(self, other: Any) -> "Connection":
        return _op("matmul", self, other)

    def __rmatmul__(self, other: Any) -> "Connection":
        return _op("matmul", other, self)

    def __neg__(self) -> "Connection":
        return _op("negative", self)

    def __abs__(self) -> "Connection":
        return _op("absolute", self)

    def __lt__(self, other: Any) -> "Connection":
        return _op("less", self, other)

    def __le__(self, other: Any) -> "Connection":
        return _op("less_equal", self, other)

    def __gt__(self, other: Any) -> "Connection":
        return _op("greater", self, other)

    def __ge__(self, other: Any) -> "Connection":
        return _op("greater_equal", self, other)

    def __and__(self, other: Any) -> "Connection":
        return _op("logical_and", self, other)

    def __or__(self, other: Any) -> "Connection":
        return _op("logical_or", self, other)

    def __invert__(self) -> "Connection":
        return _op("logical_not", self)

    def __getitem__(self, index: Any) -> "Connection":
        return _op("getitem", self, index=plain_index(index))

    def __bool__(self) -> bool:
        raise TypeError(
            "a connection has no value while a model is described, so it cannot be "
            'used in `if` or `and`; use op("where") or `&` instead.'
        )

    def __iter__(self) -> Any:
        raise TypeError(
            'a connection cannot be iterated; use x[i] or op("split") instead.'
        )

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Sum over `axis`, or over all."""
        return _op("sum", self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Mean over `axis`, or over all."""
        return _op("mean", self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Largest along `axis`, or of all."""
        return _op("max", self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> "Connection":
        """Smallest along `axis`, or of all."""
        return _op("min", self, axis=axis, keepdims=keepdims)

    def reshape(self, shape: Sequence[int]) -> "Connection":
        """The same numbers in another shape; one length may be -1."""
        return _op("reshape", self, shape=tuple(shape))

    def transpose(self, axes: Sequence[int] | None = None) -> "Connection":
        """The axes in another order; reversed if none is given."""
        return _op("transpose", self, axes=None if axes is None else tuple(axes))

    def cast(self, dtype: Any) -> "Connection":
        """The same values in another dtype."""
        return _op("cast", self, dtype=np.dtype(dtype).name)

    def named(self, name: str) -> "Connection":
        """The same value, known as `name` in the model, and one of its outputs."""
        return _op("identity", self, name_=name)


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
    shape: Shape | None = None
    dtype: str | None = None
    expose: bool = False

    def __post_init__(self) -> None:
        """Check the name and bring shape and dtype to one form.

        Raises:
            TypeError: the name is no text, or the shape is no sequence.
            ValueError: the name is empty.
        """
        if not isinstance(self.name, str):
            raise TypeError(f"IOKey.name must be text, got {self.name!r}.")
        if not self.name:
            raise ValueError("IOKey.name is empty.")
        if self.shape is not None:
            if isinstance(self.shape, str) or not isinstance(self.shape, Sequence):
                raise TypeError(
                    f"IOKey {self.name!r}: shape must be a sequence such as "
                    f'("batch", 3), got {self.shape!r}.'
                )
            object.__setattr__(self, "shape", tuple(self.shape))
        if self.dtype is not None and self.dtype != "key":
            object.__setattr__(self, "dtype", np.dtype(self.dtype).name)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Result(Connection):
    """What one use of a layer gives at one of its output ports."""

    call: "Call"
    port: str


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Constant(Connection):
    """A number or array written into the model."""

    value: Any

    def __post_init__(self) -> None:
        """Check that it is numbers.

        Raises:
            TypeError: it is not.
        """
        if isinstance(self.value, (bool, int, float)):
            return
        array = np.asarray(self.value)
        if array.dtype.kind not in "biufV" or array.dtype.hasobject:
            raise TypeError(
                f"a model's constant must be numbers, got {self.value!r:.80}."
            )
        object.__setattr__(self, "value", array)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WeightOf(Connection):
    """A weight that another use of a layer owns, to be read here too."""

    call: "Call"
    name: str


def weight_of(result: Connection, name: str = "weight") -> Connection:
    """The weight `name` of the layer that gave `result`, to tie another layer to it.

    Args:
        result: what the layer that owns the weight gave.
        name: which of its weights.

    Raises:
        TypeError: `result` is not what a layer gave.

    Example:
        >>> from frugax.models import Embedding, IOKey, Linear, Model
        >>> tokens = IOKey("tokens", shape=("batch", 16), dtype="int32")
        >>> vectors = Embedding(vocabulary=100, dimension=8)(tokens)
        >>> tied = Linear(100, bias=False)(vectors, weight=weight_of(vectors))
        >>> model = Model.create(output=tied)
    """
    if not isinstance(result, Result):
        raise TypeError(
            f"weight_of takes what a layer gave, got {type(result).__name__}."
        )
    return WeightOf(result.call, name)


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


def plain_index(index: Any) -> Any:
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
                f"x[{index!r}]: an index is made of integers, slices, `...` and None; "
                'to index by an array use op("take").'
            )
    return tuple(plain)


def _op(name: str, *tensors: Any, name_: str | None = None, **attrs: Any) -> Connection:
    from ._op_layer import op  # the layer of an op is itself made of connections

    made = op(name, **attrs)(*map(as_connection, tensors))
    assert isinstance(made, Result)
    if name_ is not None:
        made.call.names[made.port] = IOKey(name_, expose=True)
    return made
