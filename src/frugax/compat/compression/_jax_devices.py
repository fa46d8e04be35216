"""The guide's classes around JAX's devices: settings, memory, programs, transfers."""

import contextlib
import itertools
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from frugax import tropical
from frugax.errors import ConfigError

from ._settings import SystemConfiguration

# JAX's own name for it is a variable to type checkers.
Device: TypeAlias = Any
Kind: TypeAlias = Literal["max", "min"]
# Below this a piece is all overhead: the pool's limit is then exceeded for its length.
_MIN_PIECE = 1 << 16


class JaxConfigAdapter:
    """Scoped JAX settings derived from a `SystemConfiguration`.

    Nothing is set for the whole process: 64 bits are switched on for the length of a
    block. JAX reserves a GPU's memory when it starts, by
    `XLA_PYTHON_CLIENT_MEM_FRACTION`; `jax_memory_fraction` is the coordinator's own
    share, which its memory pool keeps.
    """

    def __init__(self, config: SystemConfiguration) -> None:
        self._config = config

    @property
    def platform(self) -> str | None:
        """The platform to ask JAX for; None for its own choice."""
        backend = self._config.jax_backend
        if backend == "auto":
            return None
        return backend

    @property
    def settings(self) -> dict[str, Any]:
        """JAX's names and their values inside `applied`."""
        return {
            "jax_platform_name": self.platform,
            "jax_enable_x64": self._config.jax_enable_x64,
        }

    def applied(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which numbers have the configured width."""
        return jax.enable_x64(self._config.jax_enable_x64)


class JaxDeviceManager:
    """The devices in use, handed out in turn.

    Attributes:
        devices: the devices, at least one.

    Args:
        platform: "cpu", "gpu" or "tpu"; None for JAX's own choice.
        count: how many devices to use.
    """

    devices: tuple[Device, ...]

    def __init__(self, platform: str | None, count: int) -> None:
        """Look for the devices."""
        try:
            found = jax.devices(platform)
        except RuntimeError as e:
            have = ", ".join(sorted({d.platform for d in jax.devices()}))
            raise ConfigError(
                f"jax_backend is {platform!r}, and JAX finds only {have} here: "
                'install JAX for it (for GPUs: pip install "jax[cuda12]"), or leave it '
                'at "auto".'
            ) from e
        if len(found) < count:
            raise ConfigError(
                f"jax_parallel_devices is {count}, and JAX finds {len(found)} here "
                f"({found[0].platform}): ask for at most {len(found)}."
            )
        self.devices = tuple(found[:count])
        self._turns = itertools.cycle(self.devices)

    @property
    def backend(self) -> str:
        """The platform in use."""
        return self.devices[0].platform

    def next(self) -> Device:
        """Return the device whose turn it is."""
        return next(self._turns)


class JaxMemoryPool:
    """Counts the bytes that the coordinator keeps on a device, within a share of it.

    XLA allocates by itself; a pool can only count, tell the free bytes, and pass on the
    device's own statistics. JAX on CPU has none (`memory_stats()` is None): there the
    machine's memory is the whole, and only the count is known.

    Attributes:
        limit_bytes: the share that may be taken.
        in_use_bytes: the bytes taken now.
        most_bytes: the largest number of bytes taken so far.

    Args:
        device: the device.
        fraction: the share of its memory; in (0, 1].
    """

    def __init__(self, device: Device, fraction: float) -> None:
        self._device = device
        stats = device.memory_stats() or {}
        whole = stats.get("bytes_limit")
        if whole is None:
            whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.limit_bytes = int(fraction * whole)
        self.in_use_bytes = 0
        self.most_bytes = 0

    @property
    def free_bytes(self) -> int:
        """The rest of the share."""
        return max(0, self.limit_bytes - self.in_use_bytes)

    @property
    def device_bytes(self) -> int | None:
        """Bytes of all arrays in the process, as the device says; None on CPU."""
        stats = self._device.memory_stats()
        if stats is None:
            return None
        return int(stats["bytes_in_use"])

    @contextlib.contextmanager
    def taking(self, nbytes: int) -> Iterator[None]:
        """Count bytes as taken while a block runs."""
        self.in_use_bytes += nbytes
        # The peak is kept because the bytes are given back before anybody could read
        # them.
        self.most_bytes = max(self.most_bytes, self.in_use_bytes)
        try:
            yield
        finally:
            self.in_use_bytes -= nbytes


class JaxMemoryOptimizer:
    """Cuts flat work into pieces that fit the free bytes of the pool."""

    def __init__(self, pool: JaxMemoryPool) -> None:
        self._pool = pool

    def pieces(self, size: int, bytes_each: int) -> list[slice]:
        """Return slices that cover `size` numbers, each within the pool's free bytes.

        Args:
            size: how many numbers.
            bytes_each: bytes that one number takes on the device, with its result and
                intermediate values.
        """
        most = max(_MIN_PIECE, self._pool.free_bytes // bytes_each)
        return [slice(i, min(i + most, size)) for i in range(0, size, most)]


class JaxCompilationOptimizer:
    """Keeps the programs that were used last, and counts hits and misses.

    Programs are compiled ahead of their first call, so that a hit is a hit: JAX's own
    cache of `jit` has no size and counts nothing.

    Attributes:
        hits: requests for programs that were kept.
        misses: requests for programs that had to be compiled.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def program(
        self, key: Hashable, fn: Callable[..., Any], *args: jax.Array
    ) -> Callable[..., Any]:
        """Return the compiled form of a function for arguments like these.

        Args:
            key: distinguishes this program from others: a name, shapes, the device.
            fn: the function to compile.
            *args: examples, on the device where it will run.
        """
        if key in self._kept:
            self.hits += 1
            # An OrderedDict in the order of last use; the first entry is dropped.
            self._kept.move_to_end(key)
            return self._kept[key]
        self.misses += 1
        # Compiled for these shapes and this device only, so the key has to contain
        # both.
        compiled = jax.jit(fn).lower(*args).compile()
        self._kept[key] = compiled
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return compiled


class JaxTropicalBridge:
    """Converts arrays between torch and JAX by DLPack, without a copy where it can."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def to_jax(self, value: Any) -> jax.Array:
        """Return the same numbers as a JAX array on the device, 64-bit ones included.

        A torch tensor on the same device may share its memory with the array: leave
        it as it is while the array is in use.

        Args:
            value: a torch tensor, NumPy array or JAX array.
        """
        torch = sys.modules.get("torch")
        # Without x64, JAX makes 32 bits of 64 without a word.
        with jax.enable_x64(True):
            if torch is not None and isinstance(value, torch.Tensor):
                from ._torch import ready_for_dlpack

                ready = ready_for_dlpack(value, self._device.platform)
                value = jax.dlpack.from_dlpack(ready)
            return jax.device_put(value, self._device)

    def to_torch(self, array: jax.Array, *, copy: bool = True) -> Any:
        """Return the same numbers as a torch tensor.

        Args:
            array: the array.
            copy: a tensor of its own. Without a copy, writing into the tensor would
                change the array, which JAX takes for constant.
        """
        from ._torch import from_dlpack

        return from_dlpack(array, copy=copy)

    def like(self, array: jax.Array, value: Any) -> Any:
        """Return the array in the library of another value."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self.to_torch(array)
        # np.asarray waits for the device and may share memory with the array on CPU.
        if isinstance(value, np.ndarray):
            return np.asarray(array)
        return array

    def try_it(self) -> bool:
        """Hand a torch tensor to JAX and back.

        Returns:
            Whether both shared its memory.

        Raises:
            RuntimeError: it came back changed.
        """
        from ._torch import sample_tensor

        tensor = sample_tensor()
        back = self.to_torch(self.to_jax(tensor), copy=False)
        # Values that need 64 bits: a bridge that halves them would pass with small
        # integers.
        if back.cpu().tolist() != tensor.tolist():
            raise RuntimeError("a tensor comes back from JAX changed: report this.")
        return back.data_ptr() == tensor.data_ptr()


class TropicalJAXEngine:
    """`frugax.tropical` on the coordinator's device, for arrays of any library."""

    def __init__(self, bridge: JaxTropicalBridge, settings: JaxConfigAdapter) -> None:
        self._bridge, self._settings = bridge, settings

    def matmul(self, a: Any, b: Any, *, kind: Kind = "max") -> Any:
        """Return the tropical matrix product `(n, m)` of `(n, k)` and `(k, m)`."""
        return self._run(lambda x, y: tropical.matmul(x, y, kind=kind), a, b)

    def closure(self, d: Any, *, kind: Kind = "min") -> Any:
        """Return the best walks of any length, `(n, n)`; see `tropical.closure`."""
        return self._run(lambda x: tropical.closure(x, kind=kind), d)

    def polynomial(
        self,
        coefficients: Any,
        exponents: Any,
        points: Any,
        *,
        kind: Kind = "max",
    ) -> Any:
        """Return the best monomial at each point; see `tropical.polynomial`."""
        return self._run(
            lambda c, e, p: tropical.polynomial(c, e, p, kind=kind),
            coefficients,
            exponents,
            points,
        )

    def _run(self, operation: Callable[..., Any], *values: Any) -> Any:
        # Results come back in the library of the first argument.
        arrays = [self._bridge.to_jax(value) for value in values]
        # Only the operation runs in the configured width. The transfer before it keeps
        # all bits, and casts nothing.
        with self._settings.applied():
            return self._bridge.like(operation(*arrays), values[0])
