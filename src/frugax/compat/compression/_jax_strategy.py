"""Strategy "jax": what a file holds is multiplied out on the device, and proved there.

Searching and entropy coding are NumPy's work, whatever the strategy. What JAX does:
the whole numbers of a tensor go to the device, where one product makes them weights.
Their digest is then compared with the file's, which the NumPy decoder wrote: the two
agree in every bit, or an error is raised.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.compress.arrays import dtype_from_name
from frugax.compress.container import CompressedFile, Record, compute_digest
from frugax.errors import CorruptFileError

from ._jax_devices import Device, JaxDeviceManager
from ._jax_memory import JaxMemoryOptimizer
from ._jax_pool import JaxMemoryPool
from ._jax_programs import JaxCompilationOptimizer


class JaxStrategy:
    """Decodes tensors on JAX's devices.

    Args:
        devices: where.
        pool: counts what is on the device.
        memory: cuts what does not fit.
        programs: keeps what was compiled.
    """

    def __init__(
        self,
        devices: JaxDeviceManager,
        pool: JaxMemoryPool,
        memory: JaxMemoryOptimizer,
        programs: JaxCompilationOptimizer,
    ) -> None:
        self._devices, self._pool = devices, pool
        self._memory, self._programs = memory, programs

    def decoded(self, file: CompressedFile, name: str) -> jax.Array:
        """One tensor of a file, on the device whose turn it is.

        A tensor that holds no whole numbers to multiply is decoded by NumPy and
        copied to the device.

        Args:
            file: the open file.
            name: the tensor's name.

        Raises:
            CorruptFileError: the file is damaged, or JAX made other bits than NumPy.
        """
        record, device = file.record(name), self._devices.next()
        with jax.enable_x64(True):  # or 64-bit weights would lose half of theirs
            integers = file.integers(name)
            if integers is None or record.step is None:
                return jax.device_put(file[name], device)
            made = self._product(integers, record, device)
            if compute_digest(np.asarray(made).reshape(-1)) != record.digest:
                raise CorruptFileError(
                    f"tensor {name!r}: {device} makes other bits of it than NumPy; "
                    "decode it with enable_jax=False, and report this."
                )
            return made

    def is_compiled(self, record: Record) -> bool:
        """Whether a tensor like this can be decoded without compiling."""
        keys = [_key(record, record.shape, d) for d in self._devices.devices]
        return all(key in self._programs for key in keys)

    def _product(
        self, integers: np.ndarray, record: Record, device: Device
    ) -> jax.Array:
        assert record.step is not None  # by `decoded`
        dtype = dtype_from_name(record.dtype)
        wide = dtype.itemsize == 8
        working = np.dtype(np.float64 if wide else np.float32)
        step = jax.device_put(working.type(record.step.size), device)
        whole = integers.astype(np.int64 if wide else np.int32)
        # Levels, the product and the weights, all on the device at once.
        each = 2 * working.itemsize + dtype.itemsize
        pieces = self._memory.pieces(record.size, each)
        # A tensor that fits has its own shape from the start: no program reshapes it.
        parts = [whole[p] for p in pieces] if len(pieces) > 1 else [whole]
        done: list[jax.Array] = []
        for part in parts:
            shaped = part if len(parts) > 1 else part.reshape(record.shape)
            with self._pool.taking(shaped.size * each):
                levels = jax.device_put(shaped, device)
                program = self._programs.program(
                    _key(record, shaped.shape, device),
                    functools.partial(_times, dtype=dtype),
                    levels,
                    step,
                )
                done.append(program(levels, step).block_until_ready())
        if len(done) == 1:
            return done[0]
        return jnp.concatenate(done).reshape(record.shape)


def _times(levels: jax.Array, step: jax.Array, *, dtype: "np.dtype") -> jax.Array:
    """One rounded product, then the weights' dtype: docs/container.md."""
    return (levels.astype(step.dtype) * step).astype(dtype)


def _key(record: Record, shape: tuple[int, ...], device: Device) -> tuple[Any, ...]:
    return record.dtype, shape, device.id
