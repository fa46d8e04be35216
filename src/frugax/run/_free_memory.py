"""The free memory of the first device, to refuse a training state too large for it."""

from pathlib import Path

import jax


def free_device_bytes() -> int | None:
    """Return the bytes that the first device could still allocate; None if unknown."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    # On CPU JAX takes memory as the system gives it.
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    return min([free, *_cgroup_free_bytes()])


def _cgroup_free_bytes() -> list[int]:
    """Return the bytes that a container may still allocate, if it has a limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        # File pages count as used, but are given back when memory is needed.
        stat = (folder / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return []
    if not limit.isdigit():
        return []
    cached = sum(
        int(line.split()[1])
        for line in stat.splitlines()
        if line.startswith(("active_file", "inactive_file"))
    )
    return [int(limit) - used + cached]
