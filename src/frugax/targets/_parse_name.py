"""Parse a target's name, such as `h100x8`: its device, memory, hosts and topology."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from frugax.errors import ConfigError

from ._device_facts import DeviceFacts, find_device, nearest_names, read_device

_COUNTED = re.compile(r"(?P<name>.+?)\s*[x*:]\s*(?P<count>\d+)")
_HOSTED = re.compile(r"(?P<a>\d+)\s*[x*]\s*(?P<b>\d+)\s+(?P<name>\S.*)")
_SHAPED = re.compile(r"(?P<name>.+?):(?P<shape>\d+(x\d+)+)")
_FILES = (".yaml", ".yml", ".json")
# XLA makes an object for each device of a topology: minutes for a million of them.
_MOST_DEVICES = 2**17


def parse_name(text: str) -> dict[str, Any]:
    """The attributes of a target, from its name."""
    name, count, shape = text.strip(), 1, ""
    pair: tuple[int, int] | None = None
    if not name.endswith(_FILES):
        if hosted := _HOSTED.fullmatch(name):
            pair = int(hosted["a"]), int(hosted["b"])
            name = hosted["name"]
        elif shaped := _SHAPED.fullmatch(name):
            name, shape = shaped["name"], shaped["shape"]
        elif find_device(name) is None and (counted := _COUNTED.fullmatch(name)):
            name, count = counted["name"], int(counted["count"])
    facts = read_device(Path(name)) if name.endswith(_FILES) else find_device(name)
    if facts is None:
        raise ConfigError(
            f"unknown target {text!r}: perhaps you meant {nearest_names(name)}; "
            "docs/targets.md lists all."
        )
    values: dict[str, Any] = {
        "platform": facts.platform,
        "kind": facts.kind,
        "memory_bytes": facts.memory_bytes,
        "source": facts.source,
        "is_here": False,
        "_facts": facts,
    }
    read_shape = _tpu_shape if facts.platform == "tpu" else _gpu_shape
    found = values | read_shape(text, facts, count, shape, pair)
    if found["num_devices"] > _MOST_DEVICES:
        raise ConfigError(
            f"target {text!r} has {found['num_devices']:,} devices; programs are "
            f"compiled for at most {_MOST_DEVICES:,}."
        )
    return found


def _gpu_shape(
    text: str,
    facts: DeviceFacts,
    count: int,
    shape: str,
    pair: tuple[int, int] | None,
) -> dict[str, Any]:
    if shape:
        raise ConfigError(
            f"target {text!r}: GPUs have no shape; write {facts.name}x8, or "
            f'"4 x 8 {facts.name}" for 4 hosts of 8.'
        )
    if pair is None:
        hosts, per_host = 1, count
        if count > facts.per_host:
            hosts, per_host = count // facts.per_host, facts.per_host
    else:
        hosts, per_host = pair
        # The order does not matter where one number is too large for one host.
        if per_host > facts.per_host >= hosts:
            hosts, per_host = per_host, hosts
        count = hosts * per_host
    if count < 1:
        raise ConfigError(
            f"target {text!r} has no devices; write {facts.name} for one."
        )
    if hosts * per_host != count:
        raise ConfigError(
            f"target {text!r}: {count} devices do not fill hosts of {facts.per_host}; "
            f'write "HOSTS x DEVICES {facts.name}".'
        )
    return {
        "name": facts.name if count == 1 else f"{facts.name}x{count}",
        "num_devices": count,
        "num_hosts": hosts,
        "_topology": f"1x{hosts}x{per_host}",
    }


def _tpu_shape(
    text: str,
    facts: DeviceFacts,
    count: int,
    shape: str,
    pair: tuple[int, int] | None,
) -> dict[str, Any]:
    example = "x".join("4" * facts.dims)
    if pair or count != 1:
        raise ConfigError(
            f"target {text!r}: a TPU is named by the shape of its slice, such as "
            f"{facts.name}:{example}."
        )
    sides = [int(n) for n in shape.split("x")] if shape else [1] * facts.dims
    if len(sides) != facts.dims or min(sides) < 1:
        raise ConfigError(
            f"target {text!r}: a slice of {facts.name} has {facts.dims} sides, such as "
            f"{facts.name}:{example}."
        )
    chips = int(np.prod(sides))
    slice_name = "x".join(map(str, sides))
    return {
        "name": f"{facts.name}:{slice_name}" if shape else facts.name,
        "num_devices": chips * facts.cores,
        "num_hosts": max(chips // 4, 1),
        "_topology": f"{facts.topology}:{slice_name}",
    }
