"""Describe the machine and the software of a benchmark, for each of its results."""

import platform
from pathlib import Path
from typing import Any

from frugax.run import describe_environment


def made_with() -> dict[str, Any]:
    """Date, versions, and the processor's name, where the system tells it."""
    return describe_environment() | {"cpu": _cpu_model()}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.processor()
