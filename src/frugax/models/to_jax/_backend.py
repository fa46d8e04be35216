"""A JAX backend: arrays, ops at once, random numbers, devices."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Shaped

from frugax.models.dtypes import as_dtype, as_float, float32
from frugax.models.graph import OpLayer, op as op_layer
from frugax.models.ops import OPS, Op, find, own_op

from ._devices import choose_device, make_mesh, sharding_of
from ._namespace import JaxNamespace


class JaxBackend:
    """Where and in which precision models run under JAX; also every op at once.

    Any op of `frugax.models.ops.OPS` is a method: `backend.add(a, b)`,
    `backend.softmax(x, axis=-1)`. Nothing global is changed: 64-bit numbers are
    switched on around this backend's own work only.

    Example:
        >>> import frugax as ml
        >>> backend = ml.JaxBackend(dtype=ml.float32)
        >>> backend.matmul(backend.ones(3, 4), backend.ones(4, 5)).shape
        (3, 5)
    """

    name = "jax"

    def __init__(
        self,
        dtype: Any = float32,
        *,
        jit: bool = True,
        device: Any = None,
        device_mesh: Sequence[int] | None = None,
        precision: Any = None,
        debug: bool = False,
        platform: str | None = None,
        seed: int = 0,
    ) -> None:
        """Choose dtype and devices.

        Args:
            dtype: of weights and new arrays: float16, bfloat16, float32 or float64.
            jit: whether models are compiled by XLA unless `compile` says otherwise.
            device: `"cpu"`, `"gpu:0"`, a `jax.Device`; JAX's default if not given.
            device_mesh: shape of a mesh of devices, such as `(2,)` or `(2, 2)`; any
                number of devices up to those there are.
            precision: of products: a `jax.lax.Precision` or its name; more is slower
                and matters on GPU and TPU.
            debug: look for NaN and infinity in what models give, and name the layer.
            platform: `"cpu"`, `"gpu"` or `"tpu"`; the same as a device without number.
            seed: of the backend's random numbers.

        Raises:
            ValueError: the dtype, device, mesh or precision is not there; those that
                are there are listed.
        """
        self.dtype = as_float(dtype)
        self.jit, self.debug = jit, debug
        self.precision = _precision(precision)
        if device_mesh is not None and device is not None:
            raise ValueError(
                "give device or device_mesh, not both; a mesh takes the platform's "
                "first devices."
            )
        self.device = choose_device(device, platform)
        self.mesh = make_mesh(device_mesh, platform)
        self.xp = JaxNamespace(self.dtype, precision=self.precision)
        self.own: dict[str, Op] = {}
        self.set_seed(seed)

    # --- what runs --------------------------------------------------------------

    @contextlib.contextmanager
    def scope(self) -> Any:
        """The JAX settings that this backend's work runs under."""
        with contextlib.ExitStack() as stack:
            if self.dtype.itemsize == 8:
                stack.enter_context(jax.enable_x64(True))
            if self.device is not None:
                stack.enter_context(jax.default_device(self.device))
            yield

    @property
    def needs_scope(self) -> bool:
        """Whether `scope` changes anything."""
        return self.dtype.itemsize == 8 or self.device is not None

    def find(self, name: str) -> Op:
        """The op of a name: one registered here, or the table's.

        Raises:
            KeyError: there is none.
        """
        return find(name, self.own)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or "own" not in self.__dict__:
            raise AttributeError(name)
        try:
            op = self.find(name)
        except KeyError as e:
            raise AttributeError(f"JaxBackend: {e.args[0]}") from None
        return functools.partial(self._at_once, op)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *OPS, *self.own})

    def _at_once(self, op: Op, *tensors: Any, **attributes: Any) -> Any:
        if op.variadic and len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
            tensors = tuple(tensors[0])
        positional = len(op.inputs)
        if not op.variadic and len(tensors) > positional:
            names = [n for n in op.attributes if n not in attributes]
            attributes |= dict(zip(names, tensors[positional:], strict=False))
            tensors = tensors[:positional]
        for port in [n for n in attributes if n in op.inputs]:
            at = op.inputs.index(port)
            tensors = (*tensors, *[None] * (at + 1 - len(tensors)))
            tensors = (*tensors[:at], attributes.pop(port), *tensors[at + 1 :])
        with self.scope():
            return op(self.xp, *map(self._as_array, tensors), **attributes)

    @staticmethod
    def _as_array(value: Any) -> Any:
        return jnp.asarray(value) if isinstance(value, (np.ndarray, list)) else value

    def register_op(self, name: str) -> Callable[[Callable[..., Any]], Any]:
        """A decorator: the function becomes an op of this backend.

        Args:
            name: the op's name, for `frugax.op(name)` and `backend.name(...)`; a
                table op of that name is replaced on this backend.

        Raises:
            ValueError: the name is no identifier.

        Example:
            >>> backend = JaxBackend()
            >>> @backend.register_op("double")
            ... def double(x):
            ...     return x + x
            >>> float(backend.double(backend.ones(())))
            2.0
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.own[name] = own_op(name, function)
            return function

        return register

    @property
    def ops(self) -> "OpLayers":
        """Ops as layers: `backend.ops.gelu(input="hidden", output="active")`."""
        return OpLayers()

    # --- arrays -----------------------------------------------------------------

    def array(
        self,
        data: Any,
        *,
        dtype: Any = None,
        device_mesh: Sequence[int] | None = None,
        tensor_split: Sequence[int | None] | None = None,
    ) -> Shaped[Array, "..."]:
        """An array of this backend.

        Args:
            data: numbers: an array of any library that NumPy can read, or nested lists.
            dtype: its dtype; if not given, floating numbers take the backend's and
                others keep their own.
            device_mesh: the mesh to lay it out over, as in `ones`.
            tensor_split: as in `ones`.

        Raises:
            TypeError: the data are no numbers.
            ValueError: the array cannot be split so.
        """
        with self.scope():
            if not isinstance(data, jax.Array):
                data = np.asarray(data)
                if data.dtype.kind not in "biufcV":
                    raise TypeError(
                        f"array: these are no numbers but {data.dtype}: {data!r:.60}."
                    )
            if dtype is None and jnp.issubdtype(data.dtype, jnp.floating):
                dtype = self.dtype
            made = jnp.asarray(data, dtype=None if dtype is None else as_dtype(dtype))
            return self._placed(made, device_mesh, tensor_split)

    def zeros(self, *shape: Any, dtype: Any = None, **placed: Any) -> Any:
        """Zeros of this shape; keywords as in `ones`."""
        return self.full(_shape(shape), 0, dtype=dtype, **placed)

    def ones(self, *shape: Any, dtype: Any = None, **placed: Any) -> Any:
        """Ones of this shape.

        Args:
            shape: lengths, or one sequence of them.
            dtype: the backend's if not given.
            placed: `device_mesh`, the shape of a mesh of devices to lay the array out
                over; `tensor_split`, for each axis of the mesh the dimension that it
                splits, or None. Without it the first dimensions are split.

        Raises:
            ValueError: a length cannot be split so, or there are too few devices.
        """
        return self.full(_shape(shape), 1, dtype=dtype, **placed)

    def full(
        self,
        shape: Sequence[int],
        value: float,
        *,
        dtype: Any = None,
        device_mesh: Sequence[int] | None = None,
        tensor_split: Sequence[int | None] | None = None,
    ) -> Shaped[Array, "..."]:
        """One value everywhere; keywords as in `ones`."""
        with self.scope():
            made = jnp.full(_shape((shape,)), value, self._dtype(dtype))
            return self._placed(made, device_mesh, tensor_split)

    def arange(self, *bounds: Any, dtype: Any = None, **placed: Any) -> Any:
        """Numbers from `start` to `stop` in steps, as `numpy.arange`."""
        with self.scope():
            made = jnp.arange(*bounds, dtype=None if dtype is None else as_dtype(dtype))
            return self._placed(made, **placed)

    def randn(self, *shape: Any, dtype: Any = None, **placed: Any) -> Any:
        """Normal random numbers of mean 0 and deviation 1; keywords as in `ones`."""
        with self.scope():
            key = self.get_random_key()
            made = jax.random.normal(key, _shape(shape), self._dtype(dtype))
            return self._placed(made, **placed)

    def rand(self, *shape: Any, dtype: Any = None, **placed: Any) -> Any:
        """Uniform random numbers in [0, 1); keywords as in `ones`."""
        with self.scope():
            key = self.get_random_key()
            made = jax.random.uniform(key, _shape(shape), self._dtype(dtype))
            return self._placed(made, **placed)

    def randint(self, low: int, high: int, *shape: Any, **placed: Any) -> Any:
        """Random integers in [low, high), int32; keywords as in `ones`."""
        with self.scope():
            key = self.get_random_key()
            made = jax.random.randint(key, _shape(shape), low, high, jnp.int32)
            return self._placed(made, **placed)

    def _dtype(self, dtype: Any) -> np.dtype:
        return self.dtype if dtype is None else as_dtype(dtype)

    def _placed(
        self,
        made: Array,
        device_mesh: Sequence[int] | None = None,
        tensor_split: Sequence[int | None] | None = None,
    ) -> Array:
        if device_mesh is None and tensor_split is None:
            return made if self.device is None else jax.device_put(made, self.device)
        sharding = sharding_of(made.shape, self.mesh, device_mesh, tensor_split)
        return jax.device_put(made, sharding)

    # --- random keys ------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Start the backend's random numbers anew."""
        self._key = jax.random.key(seed)

    def get_random_key(self) -> PRNGKeyArray:
        """A fresh random key; every call gives another."""
        self._key, fresh = jax.random.split(self._key)
        return fresh

    def split_key(self, key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
        """Two keys from one: the first to go on with, the second to use."""
        new, use = jax.random.split(key)
        return new, use

    def __repr__(self) -> str:
        where = self.mesh if self.mesh is not None else (self.device or "default")
        return f"JaxBackend(dtype={self.dtype.name}, device={where})"


class OpLayers:
    """Every op as a layer, by name."""

    def __getattr__(self, name: str) -> OpLayer:
        if name.startswith("__"):
            raise AttributeError(name)
        return op_layer(name)


def _shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    if len(given) == 1 and isinstance(given[0], (tuple, list)):
        given = tuple(given[0])
    for length in given:
        if not isinstance(length, (int, np.integer)) or length < 0:
            raise ValueError(f"a shape is made of integers >= 0, got {given!r:.60}.")
    return tuple(map(int, given))


def _precision(value: Any) -> jax.lax.Precision | None:
    if value is None or isinstance(value, jax.lax.Precision):
        return value
    try:
        return jax.lax.Precision[str(value).upper()]
    except KeyError:
        known = ", ".join(p.name.lower() for p in jax.lax.Precision)
        raise ValueError(f"precision must be one of {known}, got {value!r}.") from None
