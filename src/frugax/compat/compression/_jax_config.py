"""What of a configuration JAX itself has to be told, and for how long."""

import contextlib
from typing import Any

import jax

from ._system import SystemConfiguration


class JaxConfigAdapter:
    """Turns a `SystemConfiguration` into JAX's own settings.

    Nothing is set for the whole process: 64 bits are switched on for the length of a
    block. JAX reserves a GPU's memory when it starts, by
    `XLA_PYTHON_CLIENT_MEM_FRACTION`; `jax_memory_fraction` is the coordinator's own
    share, which its memory pool keeps.

    Args:
        config: the configuration.
    """

    def __init__(self, config: SystemConfiguration) -> None:
        self._config = config

    @property
    def platform(self) -> str | None:
        """The platform to ask JAX for; None for its own choice."""
        backend = self._config.jax_backend
        return None if backend == "auto" else backend

    @property
    def settings(self) -> dict[str, Any]:
        """JAX's names and the values they have inside `applied`."""
        return {
            "jax_platform_name": self.platform,
            "jax_enable_x64": self._config.jax_enable_x64,
        }

    def applied(self) -> contextlib.AbstractContextManager[Any]:
        """A block in which numbers have the configured width."""
        return jax.enable_x64(self._config.jax_enable_x64)
