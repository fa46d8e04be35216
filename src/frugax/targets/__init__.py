"""Compile for devices that need not be here: GPUs, TPUs and clusters of them.

Start at `Target`, which knows the memory of a device, gives devices for meshes and
compiles for them. Guide: docs/targets.md.
"""

from ._answer_cache import CompiledAnswer, find_caveat
from ._compilers import TargetCompiler, installed_compilers
from ._device_facts import known_devices
from ._rates import AcceleratorRates, CpuRates
from ._target import Target, find_platform, find_target, listen

__all__ = [
    "AcceleratorRates",
    "CompiledAnswer",
    "CpuRates",
    "Target",
    "TargetCompiler",
    "find_caveat",
    "find_platform",
    "find_target",
    "installed_compilers",
    "known_devices",
    "listen",
]
