"""How much memory the coordinator's own tensors may take on a device."""

import contextlib
import os
from collections.abc import Iterator

from ._jax_devices import Device


class JaxMemoryPool:
    """Counts the bytes that the coordinator keeps on a device, within a share of it.

    XLA allocates by itself; what a pool can do is count, say how much is left, and
    report what the device says. JAX on CPU says nothing (`memory_stats()` is None):
    there the machine's memory is the whole, and only the count is known.

    Attributes:
        limit_bytes: the share that may be taken.
        in_use_bytes: what is taken now.
        most_bytes: what was taken at most.

    Args:
        device: the device.
        fraction: the share of its memory; in (0, 1].
    """

    def __init__(self, device: Device, fraction: float) -> None:
        self._device = device
        stats = device.memory_stats()
        whole = stats.get("bytes_limit") if stats else None
        if whole is None:
            whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.limit_bytes = int(fraction * whole)
        self.in_use_bytes = 0
        self.most_bytes = 0

    @property
    def free_bytes(self) -> int:
        """What is left of the share."""
        return max(0, self.limit_bytes - self.in_use_bytes)

    @property
    def device_bytes(self) -> int | None:
        """What the device says that all arrays in the process take; None on CPU."""
        stats = self._device.memory_stats()
        return None if stats is None else int(stats["bytes_in_use"])

    @contextlib.contextmanager
    def taking(self, nbytes: int) -> Iterator[None]:
        """Count bytes as taken while a block runs."""
        self.in_use_bytes += nbytes
        self.most_bytes = max(self.most_bytes, self.in_use_bytes)
        try:
            yield
        finally:
            self.in_use_bytes -= nbytes
