"""Which devices JAX has for the coordinator, and whose turn it is."""

import itertools
from typing import Any, TypeAlias

import jax

from frugax.errors import ConfigError

# JAX's own name for it is a variable to type checkers.
Device: TypeAlias = Any


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
        """Look for the devices.

        Raises:
            ConfigError: there is no such device, or there are too few.
        """
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
        """The platform that is in use."""
        return self.devices[0].platform

    def next(self) -> Device:
        """The device whose turn it is."""
        return next(self._turns)
