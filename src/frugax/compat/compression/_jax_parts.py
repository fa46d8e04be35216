"""The nine named parts of the guide, built from one configuration."""

from typing import Any

from ._jax_bridge import JaxTropicalBridge
from ._jax_config import JaxConfigAdapter
from ._jax_devices import JaxDeviceManager
from ._jax_engine import TropicalJAXEngine
from ._jax_memory import JaxMemoryOptimizer
from ._jax_monitor import JAXPerformanceMonitor
from ._jax_pool import JaxMemoryPool
from ._jax_programs import JaxCompilationOptimizer
from ._jax_strategy import JaxStrategy
from ._monitor import MonitorConfig
from ._system import SystemConfiguration


def jax_parts(
    config: SystemConfiguration, monitor: MonitorConfig | None
) -> dict[str, Any]:
    """Every part by the guide's name for it.

    Raises:
        ConfigError: JAX has no such device, or too few.
    """
    adapter = JaxConfigAdapter(config)
    devices = JaxDeviceManager(adapter.platform, config.jax_parallel_devices)
    pool = JaxMemoryPool(devices.devices[0], config.jax_memory_fraction)
    memory = JaxMemoryOptimizer(pool)
    programs = JaxCompilationOptimizer(config.jax_compilation_cache_size)
    bridge = JaxTropicalBridge(devices.devices[0])
    return {
        "jax_config_adapter": adapter,
        "jax_device_manager": devices,
        "jax_memory_pool": pool,
        "jax_memory_optimizer": memory,
        "jax_compilation_optimizer": programs,
        "jax_tropical_engine": TropicalJAXEngine(bridge, adapter),
        "jax_tropical_bridge": bridge,
        "jax_strategy": JaxStrategy(devices, pool, memory, programs),
        "jax_performance_monitor": JAXPerformanceMonitor(programs, pool, monitor),
    }
