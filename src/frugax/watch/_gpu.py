"""Read the load and power of NVIDIA GPUs from the driver's own library (NVML)."""

import contextlib
import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: percent of the last second."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class GpuDriver:
    """The driver's library, opened once."""

    def __init__(self) -> None:
        self._library: Any = None
        # No driver, or one that is too old.
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(_LIBRARY)
            if not library.nvmlInit_v2():
                self._library = library

    def metrics(self) -> dict[str, float]:
        """Return load and power by GPU; empty without a driver.

        Source: NVML API reference, nvmlDeviceGetUtilizationRates and
        nvmlDeviceGetPowerUsage.
        """
        library = self._library
        found: dict[str, float] = {}
        count = ctypes.c_uint()
        if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return found
        for number in range(count.value):
            device, rates = ctypes.c_void_p(), _Utilization()
            if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
                continue
            # A call returns 0, or the number of an error, such as "not supported".
            if not library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates)):
                found[f"gpu {number} load, percent"] = float(rates.gpu)
            power_mw = ctypes.c_uint()
            if not library.nvmlDeviceGetPowerUsage(device, ctypes.byref(power_mw)):
                found[f"gpu {number} power, W"] = power_mw.value / 1000
        return found
