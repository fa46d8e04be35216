"""Arrays from torch to JAX and back, without a copy where both can share memory."""

import sys
from typing import Any

import jax
import numpy as np

from ._jax_devices import Device


class JaxTropicalBridge:
    """Hands arrays over by DLPack.

    Args:
        device: where JAX wants its arrays.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def to_jax(self, value: Any) -> jax.Array:
        """The same numbers as a JAX array on the device, 64-bit ones included.

        A torch tensor on the same device may share its memory with the array: leave
        it as it is while the array is in use.

        Args:
            value: a torch tensor, NumPy array or JAX array.
        """
        torch = sys.modules.get("torch")
        # Without it JAX would make 32 bits of 64 and say nothing.
        with jax.enable_x64(True):
            if torch is not None and isinstance(value, torch.Tensor):
                from ._torch import ready_for_dlpack

                ready = ready_for_dlpack(value, self._device.platform)
                value = jax.dlpack.from_dlpack(ready)
            return jax.device_put(value, self._device)

    def to_torch(self, array: jax.Array, *, copy: bool = True) -> Any:
        """The same numbers as a torch tensor.

        Args:
            array: the array.
            copy: a tensor of its own. Without a copy, writing into the tensor would
                change the array, which JAX takes for constant.
        """
        from ._torch import from_dlpack

        return from_dlpack(array, copy=copy)

    def like(self, array: jax.Array, value: Any) -> Any:
        """The array in the library of another value."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self.to_torch(array)
        return np.asarray(array) if isinstance(value, np.ndarray) else array

    def try_it(self) -> bool:
        """Hand a torch tensor to JAX and back; `frugax doctor` does.

        Returns:
            Whether both shared its memory.

        Raises:
            RuntimeError: it came back changed.
        """
        from ._torch import sample

        tensor = sample()
        back = self.to_torch(self.to_jax(tensor), copy=False)
        if back.cpu().tolist() != tensor.tolist():
            raise RuntimeError("a tensor comes back from JAX changed: report this.")
        return back.data_ptr() == tensor.data_ptr()
