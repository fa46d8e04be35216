"""Set what JAX and XLA read from the environment before a command loads them."""

import glob
import importlib.metadata
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

# The option of all commands that shows XLA's log lines.
VERBOSE = "--verbose"
# Plug-ins that look for a device of their own as JAX starts, and where Linux has it;
# as in jax/_src/hardware_utils.py, and with the paths of Cloud TPUs.
_DEVICES = {
    "xla_cuda12": ("/dev/nvidia[0-9]*", "/dev/dxg"),
    "xla_cuda13": ("/dev/nvidia[0-9]*", "/dev/dxg"),
    "libtpu": ("/dev/accel*", "/dev/vfio/[0-9]*"),
}


def set_up_jax(args: Sequence[str]) -> list[str]:
    """Keep XLA's logs and plug-ins without a device out of the terminal.

    What the user has set wins, and a script has the terminal and the environment that
    it has under python.

    Args:
        args: of the command line.

    Returns:
        The arguments without `--verbose`.
    """
    if args[:1] == ["exec"]:
        return list(args)
    if args[:1] in (["plan"], ["explain"]):
        # JAX's cache on disk takes programs for equal that differ in their lines alone,
        # and these commands name lines.
        os.environ.setdefault("JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY", "1")
    is_verbose, rest = split_verbose(list(args))
    if is_verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")
    else:
        # The compiler logs, for example, that it is slow, beside our own answer.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not _may_have_accelerator():
        # Otherwise JAX prints the traceback of each plug-in without its device, such
        # as those that belong to the compilers of targets.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        # Their libraries log that there is no driver whenever they are loaded, so JAX
        # is given an empty plug-in; `frugax.targets` loads the real one to compile.
        hidden: dict[str, Any] = sys.modules
        for version in ("12", "13"):
            empty = types.ModuleType(f"jax_plugins.xla_cuda{version}")
            vars(empty)["initialize"] = lambda: None
            hidden.setdefault(empty.__name__, empty)
            hidden.setdefault(f"jax_cuda{version}_plugin", None)
    return rest


def split_verbose(args: list[str]) -> tuple[bool, list[str]]:
    """Split the option off; what follows a script or `--` belongs to that program."""
    if args[:1] == [VERBOSE]:
        return True, args[1:]
    own = args
    if args[:1] in (["exec"], ["launch"]):
        own = args[:1]
    elif "--" in args:
        own = args[: args.index("--")]
    rest = [arg for arg in own if arg != VERBOSE]
    return len(rest) < len(own), rest + args[len(own) :]


def _may_have_accelerator() -> bool:
    """Whether one of JAX's plug-ins may find a device here; True where unknown."""
    if sys.platform != "linux":
        return True
    found = importlib.metadata.entry_points(group="jax_plugins")
    plugins = {plugin.name for plugin in found} | {"libtpu"}
    if plugins - _DEVICES.keys():
        return True
    return any(glob.glob(path) for name in plugins for path in _DEVICES[name])
