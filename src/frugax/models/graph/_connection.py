"""`Connection`: a symbolic array with Python's operators, which wires layers together.

Its operators add ops of the table to the model; an `IOKey` names an input or output.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

Dim = Any  # an int, a name such as "batch", None, or a symbolic dimension
Shape = tuple[Dim, ...]


_Operator = Callable[["Connection", Any], "Connection"]


def _operator(name: str) -> tuple[_Operator, _Operator]:
    """The methods of an operator that is an op, with the connection left and right."""
    return (
        lambda self, other: self._op(name, self, other),
        lambda self, other: self._op(name, other, self),
    )


class Connection:
    """A symbolic array of a model, with Python's operators.

    Each op of the table whose first input is an array is a method too: `x.exp()`,
    `x.sum(axis=0)`, `x.reshape(2, -1)`. Calling a layer on connections returns
    a connection; an `IOKey` is one too.
    """

    __slots__ = ()
    # NumPy would otherwise take `array + connection` apart element by element.
    __array_ufunc__ = None
    # Adds an op by its name, tensors and attributes. `_primitive.py` sets it: the layer
    # of an op is itself wired by connections, so an import here would be a cycle.
    _op: ClassVar[Callable[..., "Connection"]]
    # Whether it is computed from shapes alone, and so known without any data; and
    # whether it is then a whole shape, not one length.
    is_length: ClassVar[Any]
    is_vector: ClassVar[Any]

    if TYPE_CHECKING:  # `_primitive.py` adds a method for each op of the table

        def __getattr__(self, name: str) -> Callable[..., "Connection"]: ...

    # A shape is joined to another, as tuples are: `x.shape[:-1] + (2, 3)`.
    def __add__(self, other: Any) -> "Connection":
        if self.is_vector and (isinstance(other, tuple) or is_shape(other)):
            return self._op("concat", self, other)
        return self._op("add", self, other)

    def __radd__(self, other: Any) -> "Connection":
        if self.is_vector and isinstance(other, tuple):
            return self._op("concat", other, self)
        return self._op("add", other, self)

    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide")
    __mod__, __rmod__ = _operator("remainder")
    __pow__, __rpow__ = _operator("power")
    __matmul__, __rmatmul__ = _operator("matmul")
    __lshift__, __rlshift__ = _operator("left_shift")
    __rshift__, __rrshift__ = _operator("right_shift")
    # `&`, `|`, `^` and `~` are logical and not bitwise, because Python's `and`, `or`
    # and `not` cannot be overloaded; bits have their ops by name.
    __and__, __rand__ = _operator("logical_and")
    __or__, __ror__ = _operator("logical_or")
    __xor__, __rxor__ = _operator("logical_xor")
    __lt__, __gt__ = _operator("less")[0], _operator("greater")[0]
    __le__, __ge__ = _operator("less_equal")[0], _operator("greater_equal")[0]

    def __round__(self, decimals: int = 0) -> "Connection":
        return self._op("round", self, decimals=decimals)

    def __neg__(self) -> "Connection":
        return self._op("negative", self)

    def __abs__(self) -> "Connection":
        return self._op("absolute", self)

    def __eq__(self, other: object) -> "Connection":  # pyrefly: ignore[bad-override]
        return self._op("equal", self, other)

    def __ne__(self, other: object) -> "Connection":  # pyrefly: ignore[bad-override]
        return self._op("not_equal", self, other)

    # `==` builds an op, so connections are hashed and looked up by identity.
    __hash__ = object.__hash__

    def __pos__(self) -> "Connection":
        return self

    def __invert__(self) -> "Connection":
        return self._op("logical_not", self)

    def __getitem__(self, index: Any) -> "Connection":
        entries = list(index) if isinstance(index, tuple) else [index]
        arrays = [i for i, e in enumerate(entries) if is_index_array(e)]
        tensors = [as_connection(entries[i]) for i in arrays]
        others = [e for i, e in enumerate(entries) if i not in arrays]
        if len(arrays) == 1 and all(
            isinstance(e, slice) and e == slice(None) for e in others
        ):
            return self._op("take", self, tensors[0], axis=arrays[0])
        for number, i in enumerate(arrays):
            entries[i] = ("array", number)
        plain = normalize_index(tuple(entries))
        if arrays:
            return self._op("index_by_arrays", self, *tensors, index=plain)
        return self._op("getitem", self, index=plain)

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

    @property
    def shape(self) -> "Connection":
        """The lengths of its axes, for arithmetic and for attributes of other ops.

        Example:
            >>> from frugax.models import IOKey, Model
            >>> x = IOKey("x", shape=("batch", 4, 6))
            >>> model = Model.create(flat=x.reshape(x.shape[0], -1) / x.shape[2])
        """
        return self._op("shape", self)

    @property
    def T(self) -> "Connection":
        """The axes in reverse order."""
        return self._op("transpose", self)

    @property
    def mT(self) -> "Connection":
        """The last two axes swapped."""
        return self._op("swapaxes", self)

    def cast(self, dtype: Any) -> "Connection":
        """The same values in another dtype."""
        # A name and not a dtype: attributes are literals, so that models can be saved
        # and compared.
        return self._op("cast", self, dtype=np.dtype(dtype).name)

    def named(self, name: str) -> "Connection":
        """The same value, known as `name` in the model, and one of its outputs."""
        return self._op("identity", self, output=IOKey(name, expose=True))


@dataclasses.dataclass(frozen=True, slots=True, eq=False, init=False)
class IOKey(Connection):
    """A named input of a model, or the name of an output.

    Attributes:
        name: its key in `data`, `params` or the outputs.
        known_shape: its shape as far as stated (the argument `shape`): ints, names of
            free dimensions, or None for a free dimension without a name.
        dtype: its dtype, or `"key"` for a random key; the backend's if not given.
        expose: for the name of an output: make it an output of the model even where
            other layers read it.
        trainable: whether it is a parameter, of the stated shape, and not an input.
    """

    name: str
    known_shape: tuple[Dim, ...] | None
    dtype: str | None
    expose: bool
    trainable: bool

    def __init__(
        self,
        name: str,
        shape: Sequence[Dim] | None = None,
        dtype: Any = None,
        expose: bool = False,  # noqa: FBT001, FBT002 - the fourth field of a record
        *,
        trainable: bool = False,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"IOKey.name must be text, got {name!r:.60}.")
        # "/" separates paths from ports in the keys of values, and "*" marks the
        # weights of a loop.
        if not name or set(name) & set("/*"):
            raise ValueError(
                f"IOKey.name must be text without '/' and '*', got {name!r}."
            )
        if shape is not None:
            if isinstance(shape, str) or not isinstance(shape, Sequence):
                raise TypeError(
                    f"IOKey {name!r}: shape must be a sequence such as "
                    f'("batch", 3), got {shape!r}.'
                )
            shape = tuple(shape)
        is_stated = shape is not None and all(isinstance(n, int) for n in shape)
        if trainable and not is_stated:
            raise ValueError(
                f"IOKey {name!r} is trainable, so its shape must be stated in "
                f"numbers, got {shape!r}."
            )
        if dtype is not None and dtype != "key":
            dtype = np.dtype(dtype).name
        for field, value in zip(
            self.__match_args__, (name, shape, dtype, expose, trainable), strict=True
        ):
            object.__setattr__(self, field, value)

    @property
    def is_weight(self) -> bool:
        """Whether it names a weight of a layer by its path, as in `"table.weight"`."""
        return "." in self.name and not self.trainable


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
                # Constants are hashed by their bytes, so they must not
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
        TypeError: it holds anything but integers, slices, `...` and None, and places
            of arrays, ("array", i).
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
        elif (
            entry is None
            or isinstance(entry, tuple)
            or (isinstance(entry, Connection) and entry.is_length)
        ):
            plain.append(entry)
        # A bool is an int to Python, but `x[True]` adds an axis in NumPy.
        elif isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
            plain.append(int(entry))
        else:
            raise TypeError(
                f"x[{index!r:.40}]: an index is made of integers, slices, `...`, None "
                "and arrays of integers; with a mask the shape would depend on data, "
                'so use op("where").'
            )
    return tuple(plain)


def is_shape(value: Any) -> bool:
    """Whether it is a connection that holds a whole shape."""
    return isinstance(value, Connection) and value.is_vector


def is_index_array(entry: Any) -> bool:
    """Whether an entry of an index is an array of integers, given or computed."""
    if isinstance(entry, (list, np.ndarray)):
        return np.asarray(entry).dtype.kind in "iu"
    return isinstance(entry, Connection) and not entry.is_length
