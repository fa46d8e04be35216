"""`Backend`: base class of `JaxBackend` and `TorchBackend`, which runs ops eagerly."""

import contextlib
import functools
import keyword
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from .dtypes import as_dtype, as_float, to_numpy
from .graph import Library, ModelGraph, Spec, Weight
from .ops import ALIASES, OPS, Op, custom_op, find

# Transformations of functions of arrays, with the arguments of JAX.
_TRANSFORMS = ("grad", "value_and_grad", "vjp", "jvp", "vmap", "jacrev", "jacfwd")


class Backend:
    """Base class of `JaxBackend` and `TorchBackend`, which wrap their libraries.

    Attributes:
        dtype: the dtype of weights and new arrays.
        jit: whether models are compiled; the default of `compile(jit=)`.
        debug: whether models look for NaN and infinity.
        xp: the namespace that ops run in.
        custom_ops: ops that were registered on this backend, by name.
    """

    name: ClassVar[str]

    def __init__(self, dtype: Any, *, jit: bool, debug: bool, seed: int) -> None:
        """Set the common attributes; a subclass sets `xp` before.

        Raises:
            ValueError: models cannot run in that dtype.
        """
        self.dtype = as_float(dtype)
        self.jit, self.debug = jit, debug
        self.custom_ops: dict[str, Op] = {}
        self.set_seed(seed)

    xp: Any
    pi, e, inf, nan = math.pi, math.e, math.inf, math.nan

    # --- differences between libraries ----------------------------------------------

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """A context with the settings of the library that this backend needs."""
        raise NotImplementedError

    @property
    def needs_scope(self) -> bool:
        """Whether `scope` changes anything."""
        raise NotImplementedError

    def set_seed(self, seed: int) -> None:
        """Seed the random numbers of the backend."""
        raise NotImplementedError

    def get_random_key(self) -> Any:
        """A fresh random key; every call returns another one."""
        raise NotImplementedError

    def key_of(self, seed: int) -> Any:
        """The random key of a seed."""
        raise NotImplementedError

    def draw_weights(self, key: Any, weights: Mapping[str, Weight]) -> dict[str, Any]:
        """Draw the initial values of weights by key."""
        raise NotImplementedError

    @property
    def library(self) -> Library:
        """The functions of this backend's library that running a program needs."""
        raise NotImplementedError

    @property
    def key_spec(self) -> Spec:
        """Shape and dtype of a random key."""
        raise NotImplementedError

    def record_shapes(self, graph: ModelGraph, specs: Mapping[str, Spec]) -> ModelGraph:
        """Walk through a program without numbers; see `graph.record`.

        Args:
            graph: the program.
            specs: shape and dtype of each input; a free length is the text of its name.

        Raises:
            ShapeError: a layer cannot take its inputs.
        """
        raise NotImplementedError

    def _as_array(self, value: Any) -> Any:
        raise NotImplementedError

    # On the device of the backend; JAX's also splits it over a mesh.
    _place: Callable[..., Any]

    def place_weight(self, array: np.ndarray) -> Any:
        """A weight as an array of this backend, as `randomize_params` lays it out."""
        return self.array(array, dtype=array.dtype)

    # --- ops --------------------------------------------------------------------

    def find(self, name: str) -> Op:
        """Look an op up by name: a custom op of this backend, or one of the table.

        Raises:
            KeyError: there is no such op.
        """
        return find(name, self.custom_ops)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Copying and pickling ask for dunders before `__init__` has run.
        if name.startswith("_") or "custom_ops" not in self.__dict__:
            raise AttributeError(name)
        if name in _TRANSFORMS:
            return functools.partial(self._transform, name)
        try:
            op = self.find(name)
        except KeyError as e:
            function = self._library_function(name)
            if not callable(function) or isinstance(function, type):
                raise AttributeError(f"{type(self).__name__}: {e.args[0]}") from None
            return functools.partial(self._run_in_scope, function)
        return functools.partial(self._run_op, op)

    def __dir__(self) -> list[str]:
        known = {*OPS, *ALIASES, *_TRANSFORMS, *self.custom_ops}
        return sorted({*super().__dir__(), *known})

    def _run_in_scope(
        self, function: Callable[..., Any], *args: Any, **named: Any
    ) -> Any:
        with self.scope():
            return function(*args, **named)

    def _transform(self, name: str, function: Any, *args: Any, **named: Any) -> Any:
        """A transformation of the library, with the settings of this backend."""
        with self.scope():
            made = self._transformations(name)(function, *args, **named)
        if not callable(made):
            return made

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            with self.scope():
                return made(*args, **named)

        return call

    def _transformations(self, name: str) -> Callable[..., Any]:
        raise NotImplementedError

    def _library_function(self, name: str) -> Callable[..., Any] | None:
        """The library's own function of a name that is not an op; None for none."""
        raise NotImplementedError

    def to_numpy(self, value: Any) -> np.ndarray:
        """The array on the host, without gradients."""
        return to_numpy(value)

    def _run_op(self, op: Op, *args: Any, **named: Any) -> Any:
        tensors, attributes = op.bind(args, named)
        with self.scope():
            return op(self.xp, *map(self._as_array, tensors), **attributes)

    def register_op(self, name: str) -> Callable[[Callable[..., Any]], Any]:
        """Decorate a function to make it an op of this backend.

        Args:
            name: the name of the op, for `frugax.op(name)` and `backend.name(...)`; it
                replaces an op of the table with that name on this backend.

        Raises:
            ValueError: the name is not an identifier, or is an attribute of the
                backend.

        Example:
            >>> import frugax as fx
            >>> backend = fx.JaxBackend()
            >>> @backend.register_op("double")
            ... def double(x):
            ...     return x + x
            >>> float(backend.double(backend.ones(())))
            2.0
        """
        if keyword.iskeyword(name) or hasattr(type(self), name) or name in vars(self):
            raise ValueError(
                f"an op cannot be called {name!r}: backend.{name} exists already."
            )

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.custom_ops[name] = custom_op(name, function)
            return function

        return register

    # --- arrays -----------------------------------------------------------------

    def asarray(self, data: Any, dtype: Any = None) -> Any:
        """The same as `array`, by its name in the array API standard."""
        return self.array(data, dtype=dtype)

    def zeros(self, *lengths: Any, shape: Any = (), **placed: Any) -> Any:
        """Zeros of this shape; keywords as in `ones`."""
        return self.full(lengths or shape, 0, **placed)

    def ones(self, *lengths: Any, shape: Any = (), **placed: Any) -> Any:
        """Ones of this shape.

        Args:
            *lengths: lengths, or one sequence of them.
            shape: the same by name.
            dtype: the dtype; the backend's if not given.
            **placed: on JAX `device_mesh`, the shape of a mesh of devices over which
                the array is laid out; `tensor_split`, for each axis of the mesh the
                dimension that it splits, or None. Without it the first dimensions are
                split.

        Raises:
            ValueError: the mesh does not divide a length, or there are too few devices.
        """
        return self.full(lengths or shape, 1, **placed)

    def full(
        self,
        shape: Any,
        value: Any = None,
        *,
        fill_value: Any = None,
        dtype: Any = None,
        **placed: Any,
    ) -> Any:
        """One value everywhere, `fill_value` in NumPy; keywords as in `ones`."""
        if value is None:
            value = fill_value
        with self.scope():
            array = self.xp.full(parse_shape((shape,)), value, self._dtype(dtype))
            return self._place(array, **placed)

    def arange(self, *bounds: Any, dtype: Any = None, **placed: Any) -> Any:
        """Numbers from `start` to `stop` in steps, like `numpy.arange`."""
        names = ("start", "stop", "step")
        named = {k: placed.pop(k) for k in names if k in placed}
        if named:
            if len(bounds) == 1 and "stop" not in named:
                bounds = (0, *bounds)
            found = {"start": 0, "step": 1, **dict(zip(names, bounds, strict=False))}
            bounds = tuple((found | named)[k] for k in names)
        with self.scope():
            if dtype is not None:
                dtype = as_dtype(dtype)
            return self._place(self.xp.arange(*bounds, dtype=dtype), **placed)

    def randn(self, *shape: Any, dtype: Any = None, **placed: Any) -> Any:
        """Normal random numbers of mean 0 and deviation 1; keywords as in `ones`."""
        with self.scope():
            key = self.get_random_key()
            array = self.xp.random_normal(key, parse_shape(shape), self._dtype(dtype))
            return self._place(array, **placed)

    def rand(self, *shape: Any, dtype: Any = None, **placed: Any) -> Any:
        """Uniform random numbers in [0, 1); keywords as in `ones`."""
        with self.scope():
            key = self.get_random_key()
            dtype = self._dtype(dtype)
            array = self.xp.random_uniform(key, parse_shape(shape), 0, 1, dtype)
            return self._place(array, **placed)

    def randint(self, low: int, high: int, *shape: Any, **placed: Any) -> Any:
        """Random integers in [low, high); keywords as in `ones`."""
        with self.scope():
            key = self.get_random_key()
            dtype = self.xp.int_dtype
            array = self.xp.random_integers(key, parse_shape(shape), low, high, dtype)
            return self._place(array, **placed)

    def multinomial(
        self,
        probabilities: Any,
        num_samples: int,
        replacement: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        """Numbers of classes (..., num_samples), drawn by their probabilities.

        Raises:
            ValueError: there are fewer classes, and none may be drawn twice.
        """
        # 16 bits do not tell many classes apart.
        wide = "float64" if self.dtype.itemsize == 8 else "float32"
        probabilities = self.cast(probabilities, wide)
        if not replacement:
            classes = probabilities.shape[-1]
            if num_samples > classes:
                raise ValueError(
                    f"multinomial: {num_samples} of {classes} classes cannot be drawn "
                    "without replacement; give replacement=True."
                )
            # The classes with the largest noisy logarithms, in order, are draws without
            # replacement (Efraimidis & Spirakis 2006): log p - log of an exponential
            # one.
            uniform = self.rand(*probabilities.shape, dtype=wide)
            waits = self.negative(self.log1p(self.negative(uniform)))
            return self.top_k(self.log(probabilities) - self.log(waits), num_samples)[1]
        shares = probabilities / self.sum(probabilities, -1, keepdims=True)
        ends = self.expand_dims(self.cumsum(shares, -1), -2)
        drawn = self.rand(*probabilities.shape[:-1], num_samples, 1, dtype=wide)
        # Inverse transform sampling: the first class whose cumulated share exceeds it.
        # The last end is left out, as rounding may leave it below 1.
        return self.sum(self.greater_equal(drawn, ends)[..., :-1], -1)

    def _dtype(self, dtype: Any) -> np.dtype:
        if dtype is None:
            return self.dtype
        return as_dtype(dtype)


def leaves(value: Any) -> list[Any]:
    """The values in dictionaries, tuples and lists."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, (tuple, list)):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def parse_shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Make a shape of lengths, or of one sequence of them."""
    while len(given) == 1 and isinstance(given[0], (tuple, list)):
        given = tuple(given[0])
    for length in given:
        if not isinstance(length, (int, np.integer)) or length < 0:
            raise ValueError(f"a shape is made of integers >= 0, got {given!r:.60}.")
    return tuple(map(int, given))
