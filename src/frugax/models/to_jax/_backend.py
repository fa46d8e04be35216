"""`JaxBackend`: the device and precision of models under JAX, and eager ops."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Shaped

from frugax.models._backend import Backend
from frugax.models.dtypes import as_dtype, float32
from frugax.models.graph import Library, ModelGraph, Spec, Weight

from ._devices import choose_device, make_mesh, sharding_of
from ._initial import draw, split_weight
from ._namespace import JaxNamespace
from ._record import library_of, record_shapes


class JaxBackend(Backend):
    """The device and precision of models under JAX, and every op as an eager method.

    Any op of `frugax.models.ops.OPS` is a method: `backend.add(a, b)`,
    `backend.softmax(x, axis=-1)`. Nothing global changes: 64-bit numbers
    are enabled around this backend's own work only.

    Example:
        >>> import frugax as fx
        >>> backend = fx.JaxBackend(dtype=fx.float32)
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
            jit: whether XLA compiles models by default; `compile` can override it.
            device: `"cpu"`, `"gpu:0"`, a `jax.Device`; JAX's default if not given.
            device_mesh: shape of a mesh of devices, such as `(2,)` or `(2, 2)`, with
                at most as many devices as exist.
            precision: of products: a `jax.lax.Precision` or its name; more is slower
                and matters on GPU and TPU.
            debug: check the outputs of models for NaN and infinity, and name the layer.
            platform: `"cpu"`, `"gpu"` or `"tpu"`; the same as a device without number.
            seed: of the backend's random numbers.

        Raises:
            ValueError: the dtype, device, mesh or precision does not exist; the
                message lists those that do.
        """
        super().__init__(dtype, jit=jit, debug=debug, seed=seed)
        self.precision = _precision(precision)
        if device_mesh is not None and device is not None:
            raise ValueError(
                "give device or device_mesh, not both; a mesh takes the platform's "
                "first devices."
            )
        self.device = choose_device(device, platform)
        self.mesh = make_mesh(device_mesh, platform)
        self.xp = JaxNamespace(self.dtype, precision=self.precision)

    @contextlib.contextmanager
    def scope(self) -> Any:
        """Apply the JAX settings for this backend's work."""
        with contextlib.ExitStack() as stack:
            # The setting belongs to the thread and to this block. Switched on at
            # import, as by `jax.config`, it would change the dtypes of the caller's own
            # programs.
            if self.dtype.itemsize == 8:
                stack.enter_context(jax.enable_x64(True))
            if self.device is not None:
                stack.enter_context(jax.default_device(self.device))
            yield

    @property
    def needs_scope(self) -> bool:
        """Whether `scope` changes anything."""
        # Models ask once and skip the context manager at every call, because entering
        # it would dominate the cost of a call of a small model.
        return self.dtype.itemsize == 8 or self.device is not None

    @property
    def library(self) -> Library:
        return library_of(self.xp, self.find)

    @property
    def key_spec(self) -> Spec:
        # The dtype of keys depends on jax_default_prng_impl; eval_shape asks for it
        # without computing a key.
        return Spec((), jax.eval_shape(lambda: jax.random.key(0)).dtype)

    def record_shapes(self, graph: ModelGraph, specs: Mapping[str, Spec]) -> ModelGraph:
        return record_shapes(graph, specs, self.library)

    def _as_array(self, value: Any) -> Any:
        if isinstance(value, (np.ndarray, list)):
            return jnp.asarray(value)
        return value

    def _transformations(self, name: str) -> Callable[..., Any]:
        return getattr(jax, name)

    def _library_function(self, name: str) -> Callable[..., Any] | None:
        function = getattr(jnp, name, getattr(jnp.linalg, name, None))
        if function is None:
            return None

        def call(*args: Any, **named: Any) -> Any:
            # Without the demands of the caller's settings, as ops are.
            with (
                jax.numpy_rank_promotion("allow"),
                jax.numpy_dtype_promotion("standard"),
            ):
                return function(*args, **named)

        return call

    def array(
        self,
        data: Any,
        *,
        dtype: Any = None,
        device_mesh: Sequence[int] | None = None,
        tensor_split: Sequence[int | None] | None = None,
    ) -> Shaped[Array, "..."]:
        """Make an array of this backend.

        Args:
            data: numbers: an array of any library that NumPy can read, or nested lists.
            dtype: of the array; by default floating-point numbers take the backend's
                dtype and others keep theirs.
            device_mesh: the mesh to distribute the array over, as in `ones`.
            tensor_split: as in `ones`.

        Raises:
            TypeError: `data` are not numbers.
            ValueError: the mesh cannot split the array this way.
        """
        with self.scope():
            if not isinstance(data, jax.Array):
                data = np.asarray(data)
                # V is NumPy's kind for dtypes of other packages: bfloat16 and float8 of
                # ml_dtypes have it, as they are not NumPy's own.
                if data.dtype.kind not in "biufcV":
                    raise TypeError(
                        f"array: data must be numbers, got {data.dtype}: {data!r:.60}."
                    )
            # jnp's issubdtype: for NumPy's, bfloat16 is not a floating dtype.
            if dtype is None and jnp.issubdtype(data.dtype, jnp.floating):
                dtype = self.dtype
            if dtype is not None:
                dtype = as_dtype(dtype)
            # jnp.asarray may share NumPy's memory, which the caller can change later,
            # so NumPy arrays are copied.
            array = jnp.array(data, dtype, copy=not isinstance(data, jax.Array))
            return self._place(array, device_mesh, tensor_split)

    def _place(
        self,
        array: Array,
        device_mesh: Sequence[int] | None = None,
        tensor_split: Sequence[int | None] | None = None,
    ) -> Array:
        if device_mesh is None and tensor_split is None:
            if self.device is None:
                return array
            return jax.device_put(array, self.device)
        sharding = sharding_of(array.shape, self.mesh, device_mesh, tensor_split)
        return jax.device_put(array, sharding)

    def place_weight(self, array: np.ndarray) -> Array:
        if self.mesh is None:
            return super().place_weight(array)
        # As drawn ones: a training step sees the same layout either way, and is not
        # compiled a second time.
        with self.scope():
            return jax.device_put(array, split_weight(array.shape, self.mesh))

    def set_seed(self, seed: int) -> None:
        """Restart the backend's random numbers."""
        self._key = self.key_of(seed)

    def key_of(self, seed: int) -> PRNGKeyArray:
        return jax.random.key(seed)

    def draw_weights(self, key: Any, weights: Mapping[str, Weight]) -> dict[str, Array]:
        return draw(key, weights, self.dtype, self.mesh)

    def get_random_key(self) -> PRNGKeyArray:
        """Return a new random key; each call returns a different one."""
        self._key, fresh = jax.random.split(self._key)
        return fresh

    def split_key(self, key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
        """Split a key in two: the first to split again, the second to use."""
        new, use = jax.random.split(key)
        return new, use

    def __repr__(self) -> str:
        where: Any = self.mesh
        if where is None:
            where = self.device or "default"
        return f"JaxBackend(dtype={self.dtype.name}, device={where})"


def _precision(value: Any) -> jax.lax.Precision | None:
    if value is None or isinstance(value, jax.lax.Precision):
        return value
    try:
        return jax.lax.Precision[str(value).upper()]
    except KeyError:
        known = ", ".join(p.name.lower() for p in jax.lax.Precision)
        raise ValueError(f"precision must be one of {known}, got {value!r}.") from None
