"""How fast a device multiplies, reads its memory and sends: published, or measured."""

import dataclasses
from collections.abc import Mapping

from ._device_facts import DeviceFacts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRates:
    """The published peaks of one GPU or of one core of a TPU.

    Attributes:
        products: flops a second of matrix products, by XLA's name of the dtype.
        arithmetic: other operations on float32 a second; 0 if unknown.
        memory: bytes a second from and to the device's memory.
        link: bytes a second that it sends to others of its host or slice.
        start_seconds: time to start one kernel.
    """

    products: Mapping[str, float]
    arithmetic: float
    memory: float
    link: float
    start_seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """Rates of small float32 programs on all cores of this machine, by second.

    Attributes:
        products: flops of a large matrix product.
        small_products: flops of a matrix product that runs on one core.
        convolutions: flops of a convolution with a small kernel.
        kernel_gradients: flops of the gradient of such a kernel.
        transcendentals: hyperbolic tangents.
        memory: bytes of a pass over arrays that stay in the last cache.
        transposes: bytes of a pass that reads columns and writes rows.
        fresh_memory: bytes of memory that the system gives and fills with zeros.
        start_seconds: time of a matrix product that is too small to take any.
    """

    products: float
    small_products: float
    convolutions: float
    kernel_gradients: float
    transcendentals: float
    memory: float
    transposes: float
    fresh_memory: float
    start_seconds: float


_T = 1e12
# Flops a second without sparsity in 16 bits, in float32 (as TF32, JAX's default on
# these GPUs; V100 has none), in 8 bits (0: none) and in float64; bytes a second to
# others, one way. NVIDIA's data sheets of each.
_GPUS = {
    "v100": (125 * _T, 15.7 * _T, 0, 7.8 * _T, 150e9),
    "a100-40": (312 * _T, 156 * _T, 624 * _T, 19.5 * _T, 300e9),
    "a100-80": (312 * _T, 156 * _T, 624 * _T, 19.5 * _T, 300e9),
    "a6000": (154.8 * _T, 77.4 * _T, 309.7 * _T, 0.6 * _T, 56e9),
    "a10g": (70 * _T, 35 * _T, 140 * _T, 0.5 * _T, 32e9),
    "l4": (121 * _T, 60 * _T, 242 * _T, 0.5 * _T, 32e9),
    "rtx-4090": (165.2 * _T, 82.6 * _T, 330.3 * _T, 1.3 * _T, 32e9),
    "h100": (989 * _T, 495 * _T, 1979 * _T, 67 * _T, 450e9),
    "h100-pcie": (756 * _T, 378 * _T, 1513 * _T, 51 * _T, 300e9),
    "h200": (989 * _T, 495 * _T, 1979 * _T, 67 * _T, 450e9),
    "b200": (2250 * _T, 1125 * _T, 4500 * _T, 37 * _T, 900e9),
}
# Of one core: flops a second in bfloat16, which XLA also uses for float32 by default,
# and in 8 bits; bytes a second to its memory and to others, one way. Google Cloud's
# pages of each version; v3: Norrie et al. 2021, "The design process for Google's
# training chips".
_TPUS = {
    "tpu-v3": (61.5 * _T, 0, 450e9, 164e9),
    "tpu-v4": (275 * _T, 275 * _T, 1228e9, 300e9),
    "tpu-v5e": (197 * _T, 394 * _T, 819e9, 200e9),
    "tpu-v5p": (459 * _T, 918 * _T, 2765e9, 600e9),
    "tpu-v6e": (918 * _T, 1836 * _T, 1640e9, 448e9),
    "tpu-v7x": (1153.5 * _T, 2307 * _T, 3690e9, 600e9),
}
# Kernels of a captured graph start about this far apart.
_GPU_START = 1e-6


def published_rates(facts: DeviceFacts) -> AcceleratorRates | None:
    """The peaks of a known device; None for one that a file describes."""
    if found := _GPUS.get(facts.name):
        half, single, byte, double, link = found
        gpu = facts.gpu
        units = gpu["cores"] * gpu["fpus_per_core"] * gpu["clock_ghz"] * 1e9
        return AcceleratorRates(
            products=_by_dtype(half, single, byte, double),
            arithmetic=2 * units,
            memory=gpu["bandwidth"],
            link=link,
            start_seconds=_GPU_START,
        )
    if tpu := _TPUS.get(facts.name):
        half, byte, memory, link = tpu
        return AcceleratorRates(
            products=_by_dtype(half, half, byte, 0),
            arithmetic=0,
            memory=memory,
            link=link,
            start_seconds=0,
        )
    return None


def _by_dtype(
    half: float, single: float, byte: float, double: float
) -> dict[str, float]:
    eight = ("s8", "u8", "f8e4m3fn", "f8e5m2", "f8e4m3", "f8e4m3fnuz", "f8e5m2fnuz")
    rates = {"bf16": half, "f16": half, "f32": single, "f64": double}
    rates |= dict.fromkeys(eight, byte)
    return {name: rate for name, rate in rates.items() if rate}
