"""Hide JAX's plug-ins whose device is not here, before JAX is imported."""

import glob
import importlib.metadata
import importlib.util
import os
import pkgutil
import sys
import types
from collections.abc import Set
from typing import Any

# Plug-ins that look for a device of their own as JAX starts, and where Linux has it;
# as in jax/_src/hardware_utils.py, and with the paths of Cloud TPUs.
_DEVICES = {
    "xla_cuda12": ("/dev/nvidia[0-9]*", "/dev/dxg"),
    "xla_cuda13": ("/dev/nvidia[0-9]*", "/dev/dxg"),
    "libtpu": ("/dev/accel*", "/dev/vfio/[0-9]*"),
}


def hide_absent_plugins() -> None:
    """Start JAX on the CPU and without its plug-ins, if no device of one is here.

    Otherwise JAX prints the traceback of each plug-in without its device, such as those
    that belong to the compilers of targets. What the user has set wins, and with
    TF_CPP_MIN_LOG_LEVEL=0, which asks for all log lines, nothing is hidden.
    """
    plugins = _find_plugins()
    if not plugins or _may_have_device(plugins):
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    # Their libraries log that there is no driver whenever they are loaded, so JAX
    # is given an empty plug-in; `frugax.targets` loads the real one to compile.
    hidden: dict[str, Any] = sys.modules
    for version in ("12", "13"):
        empty = types.ModuleType(f"jax_plugins.xla_cuda{version}")
        vars(empty)["initialize"] = lambda: None
        hidden.setdefault(empty.__name__, empty)
        hidden.setdefault(f"jax_cuda{version}_plugin", None)


def _find_plugins() -> set[str]:
    """The names of JAX's plug-ins that are installed, found as JAX finds them."""
    found = {p.name for p in importlib.metadata.entry_points(group="jax_plugins")}
    if importlib.util.find_spec("libtpu") is not None:
        found.add("libtpu")
    if (package := importlib.util.find_spec("jax_plugins")) is not None:
        folders = package.submodule_search_locations
        found |= {module.name for module in pkgutil.iter_modules(folders)}
    return found


def _may_have_device(plugins: Set[str]) -> bool:
    """Whether one of these plug-ins may find a device here; True where unknown."""
    if sys.platform != "linux" or plugins - _DEVICES.keys():
        return True
    return any(glob.glob(path) for name in plugins for path in _DEVICES[name])
