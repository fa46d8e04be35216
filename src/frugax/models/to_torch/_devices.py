"""Choose devices of the torch backend, by the names that the JAX backend takes too."""

from typing import Any

import torch


def choose_device(device: Any) -> torch.device | None:
    """A device from its name."""
    if device is None:
        return None
    there = devices()
    wanted = str(device)
    kind, colon, number = wanted.partition(":")
    if kind == "gpu":
        # JAX says "gpu" where torch says "cuda", "xpu" or "mps".
        kind = next((d.partition(":")[0] for d in there if d != "cpu"), kind)
    # torch has one CPU device, and "cpu:0" does not compare equal to "cpu".
    full = f"{kind}:{number or 0}" if kind != "cpu" else "cpu"
    ordinal = number.isdigit() or not colon
    if full not in there or not ordinal or (kind == "cpu" and int(number or 0) > 0):
        raise ValueError(
            f"torch has no device {wanted!r} here; there are: {', '.join(there)}. "
            "Install the torch build for it, or choose one of these."
        )
    return torch.device(full)


def devices() -> list[str]:
    """Names of all devices of this machine that torch can use."""
    found = ["cpu"]
    # check_available, because a build with CUDA would otherwise report a GPU on a
    # machine without one.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        count = torch.accelerator.device_count()
        found += [f"{accelerator.type}:{i}" for i in range(count)]
    return found
