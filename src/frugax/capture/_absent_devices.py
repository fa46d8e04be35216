"""Give a script the devices of a target that is not here, wherever it asks for them.

The script runs on this machine's CPU, with as many devices as the target has. Many ask
which devices these are, to choose a kernel or a dtype, or to end if there is no GPU:
they get the target's answers. JAX and frugax themselves see the CPU.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from frugax.targets import Target

# What asks for the devices of the CPU itself.
_INSIDE = ("jax", "jaxlib", "frugax")
# Names of the platform of GPUs.
_GPU = ("gpu", "cuda")
# Names of the platforms of the open blocks.
_absent: list[str] = []


@contextlib.contextmanager
def devices_of(target: Target) -> Iterator[None]:
    """Answer questions about devices as on a host of the target, inside of the block.

    `jax.devices("gpu")`, `jax.default_backend()`, `platform`, `device_kind` and
    `memory_stats()` of a device are the target's, and `without_backend` knows its name.
    `jax.distributed.initialize()` joins nobody, and settings of JAX's platform have no
    effect.

    Args:
        target: the target; nothing is changed for one that is here.
    """
    if target.is_here:
        yield
        return
    # A script may have set these in the environment before it imported JAX.
    for name, value in (("jax_platforms", "cpu"), ("jax_platform_name", "")):
        jax.config.update(name, value)
    memory = {"bytes_limit": target.memory_bytes, "bytes_in_use": 0}
    device: Any = type(jax.devices()[0])
    names = _GPU if target.platform == "gpu" else (target.platform,)
    with contextlib.ExitStack() as stack:
        replace = lambda *args: stack.enter_context(_replaced(*args))
        for name in ("devices", "local_devices", "device_count", "local_device_count"):
            replace(jax, name, _without_backend(getattr(jax, name), names))
        replace(jax, "default_backend", lambda: target.platform)
        replace(jax.distributed, "initialize", lambda *_, **__: None)
        replace(jax.distributed, "shutdown", lambda: None)
        replace(jax.config, "update", _keep_platform(jax.config.update))
        for name, value in (
            ("platform", target.platform),
            ("device_kind", target.kind),
        ):
            replace(device, name, _seen_outside(vars(device)[name], value))
        replace(device, "memory_stats", lambda _: dict(memory))
        _absent.extend(names)
        stack.callback(lambda: [_absent.remove(name) for name in names])
        yield


def without_backend(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `jax.jit`, less a `backend` that is an absent target's platform."""
    is_absent = options.get("backend") in _absent
    return {n: x for n, x in options.items() if not (is_absent and n == "backend")}


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _without_backend(
    function: Callable[..., Any], names: tuple[str, ...]
) -> Callable[..., Any]:
    leave_out = lambda x: None if isinstance(x, str) and x in names else x

    def call(*args: Any, **kwargs: Any) -> Any:
        named = {name: leave_out(x) for name, x in kwargs.items()}
        return function(*map(leave_out, args), **named)

    return call


def _keep_platform(update: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    def call(name: str, value: Any) -> None:
        if name not in ("jax_platforms", "jax_platform_name"):
            update(name, value)

    return call


def _seen_outside(real: property, value: str) -> Any:
    def get(device: Any) -> str:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        is_inside = asking.partition(".")[0] in _INSIDE
        return real.__get__(device) if is_inside else value

    return property(get)
