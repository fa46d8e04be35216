"""`TorchBackend`: the device and precision of models under torch, and eager ops."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from frugax.models._backend import Backend
from frugax.models.dtypes import as_dtype, float32
from frugax.models.graph import Library, ModelGraph, Spec, Weight

from ._devices import choose_device
from ._initial import draw
from ._namespace import TorchNamespace
from ._record import record_shapes, spec_of

# The names include those of `jax.lax.Precision`, so that a program can pass one setting
# to either backend. None leaves torch's own setting alone.
_PRECISIONS = {
    "default": None,
    "medium": "medium",
    "high": "high",
    "highest": "highest",
}


class TorchBackend(Backend):
    """The device and precision of models under torch, and every op as an eager method.

    It has the methods of `JaxBackend`, so that a program runs with either. Nothing
    global is changed: the precision of products is set around this backend's own work
    only, and random numbers come from its own seed, not from torch's.

    Example:
        >>> import frugax as fx
        >>> backend = fx.TorchBackend(dtype=fx.float32)
        >>> backend.matmul(backend.ones(3, 4), backend.ones(4, 5)).shape
        torch.Size([3, 5])
    """

    name = "torch"

    def __init__(
        self,
        dtype: Any = float32,
        *,
        jit: bool = False,
        device: Any = None,
        precision: Any = None,
        debug: bool = False,
        seed: int = 0,
    ) -> None:
        """Choose dtype and device.

        Args:
            dtype: of weights and new tensors: float16, bfloat16, float32 or float64.
            jit: whether models are compiled by `torch.compile` unless `compile` is told
                otherwise. It needs a C++ compiler; where that does not work, a warning
                says why, and models run as they are.
            device: `"cpu"`, `"gpu:0"`, `"cuda:0"`, a `torch.device`; torch's default if
                not given.
            precision: of float32 products: "medium", "high", "highest", or "default"
                for what torch is set to; a `jax.lax.Precision` will do. It matters on
                GPU.
            debug: look for NaN and infinity in what models give, and name the layer.
            seed: of the backend's random numbers.

        Raises:
            ValueError: the dtype, device or precision is not there; those that are
                there are listed.
        """
        super().__init__(dtype, jit=jit, debug=debug, seed=seed)
        self.precision = _precision(precision)
        self.device = choose_device(device)
        self.xp = TorchNamespace(self.dtype, device=self.device)

    # --- what runs --------------------------------------------------------------

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """The torch settings that this backend's work runs under."""
        if self.precision is None:
            yield
            return
        # torch keeps this setting for the whole process, so it is put back, also after
        # an error; a caller's own models must not change speed or digits.
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.precision)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    @property
    def needs_scope(self) -> bool:
        """Whether `scope` changes anything."""
        return self.precision is not None

    @property
    def library(self) -> Library:
        return Library(
            self.xp,
            self.find,
            self.dtype,
            functools.partial(spec_of, xp=self.xp),
            (torch.OutOfMemoryError, MemoryError),
        )

    @property
    def key_spec(self) -> Spec:
        # A random key is an int64 tensor on torch, which has no dtype for keys.
        return Spec((), np.dtype(np.int64))

    def record_shapes(self, graph: ModelGraph, specs: Mapping[str, Spec]) -> ModelGraph:
        return record_shapes(graph, specs, self.find, self.dtype)

    def _as_array(self, value: Any) -> Any:
        return (
            self.xp.asarray(value) if isinstance(value, (np.ndarray, list)) else value
        )

    def _transformations(self, name: str) -> Callable[..., Any]:
        if name != "value_and_grad":
            return getattr(torch.func, name)

        def value_and_grad(function: Any, *args: Any, **named: Any) -> Any:
            both = torch.func.grad_and_value(function, *args, **named)
            return lambda *args, **named: both(*args, **named)[::-1]

        return value_and_grad

    def _library_function(self, name: str) -> Callable[..., Any] | None:
        return getattr(torch, name, getattr(torch.linalg, name, None))

    # --- arrays -----------------------------------------------------------------

    def array(self, data: Any, *, dtype: Any = None) -> torch.Tensor:
        """A tensor of this backend.

        Args:
            data: numbers: a tensor, an array of any library that NumPy can read, or
                nested lists. Only a tensor is shared where nothing needs to be changed.
            dtype: its dtype; if not given, floating numbers take the backend's and
                others keep their own, 64-bit ones as in `JaxBackend`.

        Raises:
            TypeError: `data` are not numbers.
        """
        if dtype is not None:
            dtype = as_dtype(dtype)
        if not isinstance(data, torch.Tensor):
            data = np.array(data)  # a copy: what changes there stays there
            if data.dtype.kind not in "biufcV":
                raise TypeError(
                    f"array: data must be numbers, got {data.dtype}: {data!r:.60}."
                )
            floats = data.dtype.kind in "fV"
        else:
            floats = data.is_floating_point()
        # V is the kind of ml_dtypes' bfloat16 and float8, which NumPy does not count as
        # floats.
        if dtype is None and floats:
            dtype = self.dtype
        return self._place(self.xp.asarray(data, dtype))

    def _place(self, array: torch.Tensor) -> torch.Tensor:
        return array if self.device is None else array.to(self.device)

    # --- random keys ------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Restart the backend's random numbers."""
        self._seed, self._drawn = seed, 0

    def get_random_key(self) -> torch.Tensor:
        """Return a new random key; each call returns a different one."""
        # Keys are counted rather than split, so the key of the n-th call depends on the
        # seed and n alone.
        self._drawn += 1
        return self.xp.fold_in(self.key_of(self._seed), self._drawn)

    def key_of(self, seed: int) -> torch.Tensor:
        # An int64 tensor, the seed of a `torch.Generator`.
        return torch.scalar_tensor(seed, dtype=torch.int64, device=self.device)

    def draw_weights(
        self, key: Any, weights: Mapping[str, Weight]
    ) -> dict[str, torch.Tensor]:
        return draw(key, weights, self.dtype, self.xp)

    def split_key(self, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two keys from one: the first to go on with, the second to use."""
        new, use = self.xp.split_key(key)
        return new, use

    def __repr__(self) -> str:
        return (
            f"TorchBackend(dtype={self.dtype.name}, device={self.device or 'default'})"
        )


def _precision(value: Any) -> str | None:
    if value is None:
        return None
    name = str(getattr(value, "name", value)).lower()
    if name not in _PRECISIONS:
        raise ValueError(
            f"precision must be one of {', '.join(_PRECISIONS)}, got {value!r}."
        )
    return _PRECISIONS[name]
