"""Collect the versions, the device, the date and the git commit for a run's receipt."""

import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import jax

import frugax


def describe_environment(config_folder: Path | None = None) -> dict[str, str]:
    """Collect versions, device and date; with a folder its commit and the command."""
    device = jax.devices()[0]
    # The packages whose versions can change the numbers of a run, or the bytes of its
    # files.
    packages = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")
    versions = {"frugax": frugax.__version__}
    versions |= {name: importlib.metadata.version(name) for name in packages}
    now = dt.datetime.now(dt.UTC)
    own: dict[str, str] = {}
    if config_folder is not None:
        own["command"] = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
        own["git commit"] = _describe_git(config_folder) or "not in a repository"
    machine = {
        "python": platform.python_version(),
        "device": f"{len(jax.devices())} x {device.device_kind} ({device.platform})",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
    }
    return versions | machine | own


def _describe_git(folder: Path) -> str:
    """Return the commit of a folder's repository, `-dirty` if changed; or ""."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode != 0:
        return ""
    return done.stdout.strip()
