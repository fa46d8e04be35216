"""Look up a device by name (`h100`) or file: its memory, and facts for the compiler."""

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from frugax.configs import read_mapping, read_text
from frugax.errors import ConfigError

_XLA = "openxla/xla, xla/backends/gpu/target_config/specs/{}.txtpb"
_DATA_SHEET = "NVIDIA's data sheet and CUDA's table of compute capabilities"
_TPU = "libtpu, which states it when a program needs more"
_GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One kind of device.

    Attributes:
        name: its name in a target.
        platform: `"gpu"` or `"tpu"`.
        memory_bytes: bytes of one device that a program can use.
        per_host: devices in one host.
        source: the origin of the facts.
        kind: the device's own name for itself.
        gpu: for a GPU, fields of XLA's description of it.
        topology: for a TPU, its generation in the name of a topology.
        dims: for a TPU, axes of a topology.
        chip_config: for a TPU, how the cores of a chip are used; "" for the usual way.
        cores: for a TPU, devices in one chip.
    """

    name: str
    platform: Literal["gpu", "tpu"]
    memory_bytes: int
    per_host: int
    source: str
    kind: str
    gpu: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    topology: str = ""
    dims: int = 2
    chip_config: str = ""
    cores: int = 1

    def describe_gpu(self) -> str:
        """The text of XLA's `GpuTargetConfigProto` for this device."""
        facts = self.gpu
        major, minor = divmod(round(facts["compute_capability"] * 10), 10)
        fields = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": int(facts["shared_memory_per_core"]),
            "threads_per_core_limit": int(facts["threads_per_core"]),
            "core_count": int(facts["cores"]),
            "fpus_per_core": int(facts["fpus_per_core"]),
            "block_dim_limit_x": 2147483647,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": int(facts["bandwidth"]),
            "l2_cache_size": int(facts["l2_cache"]),
            "clock_rate_ghz": facts["clock_ghz"],
            "device_memory_size": self.memory_bytes,
            "shared_memory_per_block_optin": int(facts["shared_memory_per_block"]),
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        lines = [f"  {name}: {value}" for name, value in fields.items()]
        capability = f"  cuda_compute_capability {{ major: {major} minor: {minor} }}"
        return "\n".join(
            [
                "gpu_device_info {",
                *lines,
                capability,
                "}",
                'platform_name: "CUDA"',
                # The version of cuDNN decides which convolutions XLA may choose.
                "dnn_version_info { major: 9 minor: 8 }",
                f'device_description_str: "{self.kind}"',
                "",
            ]
        )


_GPU_FIELDS = (
    "compute_capability",
    "cores",
    "fpus_per_core",
    "shared_memory_per_core",
    "shared_memory_per_block",
    "threads_per_core",
    "l2_cache",
    "bandwidth",
    "clock_ghz",
)


# The others may have a fraction.
_WHOLE = {"memory_bytes", "per_host", *_GPU_FIELDS} - {
    "compute_capability",
    "bandwidth",
    "clock_ghz",
}


def _gpu(
    name: str, kind: str, memory: int, source: str, *facts: float, per_host: int = 8
) -> DeviceFacts:
    return DeviceFacts(
        name=name,
        platform="gpu",
        memory_bytes=memory,
        per_host=per_host,
        source=_XLA.format(source) if source else _DATA_SHEET,
        kind=kind,
        gpu=dict(zip(_GPU_FIELDS, facts, strict=True)),
    )


def _tpu(
    name: str,
    kind: str,
    usable_gib: float,
    dims: int,
    cores: int = 1,
    *,
    topology: str = "",
    chip_config: str = "",
) -> DeviceFacts:
    return DeviceFacts(
        name=name,
        platform="tpu",
        memory_bytes=int(usable_gib * _GIB),
        per_host=4 * cores,
        source=_TPU,
        kind=kind,
        dims=dims,
        cores=cores,
        topology=topology or name.removeprefix("tpu-"),
        chip_config=chip_config,
    )


# In the order of `_GPU_FIELDS`.
# fmt: off
_DEVICES = (
    _gpu("v100", "Tesla V100-SXM2-16GB", 16935682048, "v100",
         7.0, 80, 64, 98304, 98304, 2048, 6291456, 898.048e9, 1.53),
    _gpu("a100-40", "NVIDIA A100-SXM4-40GB", 42331013120, "a100_sxm_40",
         8.0, 108, 64, 167936, 166912, 2048, 41943040, 1555.2e9, 1.41),
    _gpu("a100-80", "NVIDIA A100-SXM4-80GB", 85100068864, "a100_sxm_80",
         8.0, 108, 64, 167936, 166912, 2048, 41943040, 2039.04e9, 1.41),
    _gpu("a6000", "NVIDIA RTX A6000", 51041271808, "a6000",
         8.6, 84, 128, 102400, 101376, 1536, 6291456, 768.096e9, 1.8),
    _gpu("a10g", "NVIDIA A10G", 23609475072, "",
         8.6, 80, 128, 102400, 101376, 1536, 6291456, 600e9, 1.71),
    _gpu("l4", "NVIDIA L4", 23580639232, "",
         8.9, 58, 128, 102400, 101376, 1536, 50331648, 300e9, 2.04),
    _gpu("rtx-4090", "NVIDIA GeForce RTX 4090", 25393692672, "",
         8.9, 128, 128, 102400, 101376, 1536, 75497472, 1008e9, 2.52),
    _gpu("h100", "NVIDIA H100 80GB HBM3", 84942979072, "h100_sxm",
         9.0, 132, 128, 233472, 232448, 2048, 52428800, 3352.32e9, 1.98),
    _gpu("h100-pcie", "NVIDIA H100 PCIe", 84942979072, "h100_pcie",
         9.0, 114, 128, 233472, 232448, 2048, 52428800, 2039.04e9, 1.755),
    _gpu("h200", "NVIDIA H200", 151397597184, "h200",
         9.0, 132, 128, 233472, 232448, 2048, 52428800, 4800e9, 1.98),
    _gpu("b200", "NVIDIA B200", 191514411008, "b200",
         10.0, 148, 128, 233472, 232448, 2048, 132644864, 7672.32e9, 1.965),
    _tpu("tpu-v3", "TPU v3", 15.48, 2, 2),
    _tpu("tpu-v4", "TPU v4", 30.75, 3, chip_config="megacore"),
    _tpu("tpu-v5e", "TPU v5 lite", 15.75, 2),
    _tpu("tpu-v5p", "TPU v5", 95.74, 3),
    _tpu("tpu-v6e", "TPU v6 lite", 31.25, 2),
    _tpu("tpu-v7x", "TPU7x", 94.75, 3, 2, topology="tpu7x"),
)
# fmt: on
_BY_NAME = {facts.name: facts for facts in _DEVICES}
_OTHER_NAMES = {
    "a100": "a100-80",
    "a100-40gb": "a100-40",
    "a100-80gb": "a100-80",
    "h100-sxm": "h100",
    "rtx4090": "rtx-4090",
    "4090": "rtx-4090",
    "tpu7x": "tpu-v7x",
    "tpu-v7": "tpu-v7x",
    **{f.name.removeprefix("tpu-"): f.name for f in _DEVICES if f.platform == "tpu"},
}


def known_devices() -> tuple[DeviceFacts, ...]:
    """All kinds of devices that have a name."""
    return _DEVICES


def find_device(name: str) -> DeviceFacts | None:
    """The device of this name, or None."""
    key = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    return _BY_NAME.get(_OTHER_NAMES.get(key, key))


def nearest_names(name: str) -> str:
    """Names of devices like a name that no device has, for an error message."""
    names = [*_BY_NAME, *_OTHER_NAMES]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return " or ".join(near or ["h100", "a100-80", "tpu-v5e:4x4"])


def read_device(file: Path) -> DeviceFacts:
    """Read a device's description from a YAML or JSON file.

    With `like`, such as `like: h100`, facts that the file leaves out are those of a
    known GPU.

    Raises:
        ConfigError: the file does not exist, or a key is wrong, missing or unknown.
    """
    data, lines = read_mapping(read_text(file), str(file))
    expected = {"name", "memory_bytes", *_GPU_FIELDS}
    optional = {"per_host", "kind", "like"}
    for key in data:
        if key not in expected | optional:
            near = difflib.get_close_matches(str(key), [*expected, *optional], n=1)
            meant = f"; perhaps you meant {near[0]!r}" if near else ""
            raise ConfigError(f"{file}:{lines[key]}: unknown key {key!r}{meant}.")
    if (known := data.pop("like", None)) is not None:
        facts = find_device(str(known))
        if facts is None or facts.platform != "gpu":
            raise ConfigError(
                f"{file}: like must name a GPU, such as h100 or l4, got {known!r:.80}."
            )
        own = {"memory_bytes": facts.memory_bytes, "per_host": facts.per_host}
        data = {**facts.gpu, **own, **data}
    if missing := sorted(expected - data.keys()):
        raise ConfigError(
            f"{file}: missing {', '.join(missing)}; `like: h100` takes them from a "
            "known GPU."
        )
    for key in data.keys() - {"name", "kind"}:
        value = data[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            shown = json.dumps(value, default=str)
            raise ConfigError(
                f"{file}: {key} must be a finite number > 0, got {shown:.80}."
            )
        if key in _WHOLE and value != int(value):
            raise ConfigError(f"{file}: {key} must be a whole number, got {value}.")
    return DeviceFacts(
        name=str(data["name"]),
        platform="gpu",
        memory_bytes=int(data["memory_bytes"]),
        per_host=int(data.get("per_host", 8)),
        source=str(file),
        kind=str(data.get("kind", data["name"])).replace('"', ""),
        gpu={key: float(data[key]) for key in _GPU_FIELDS},
    )
