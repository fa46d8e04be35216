"""Collect the versions, the device and the date of a run."""

import datetime as dt
import importlib.metadata
import os
import platform

import jax


def describe_environment() -> dict[str, str]:
    """Collect versions, device and date for the receipt and the report."""
    device = jax.devices()[0]
    # The packages whose versions can change the numbers of a run, or the bytes of its
    # files.
    packages = ("frugax", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")
    versions = {name: importlib.metadata.version(name) for name in packages}
    now = dt.datetime.now(dt.UTC)
    return versions | {
        "python": platform.python_version(),
        "device": f"{len(jax.devices())} x {device.device_kind} ({device.platform})",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
    }
