"""The settings of a compression, and whether JAX can be used at all."""

import dataclasses
import enum
import functools
import math
import warnings
from typing import Any

STRATEGIES = {
    "auto": "JAX decodes tensors of 65,536 numbers and more, NumPy the others",
    "jax": "JAX decodes every tensor that has whole numbers to multiply",
    "lossless": "every bit comes back; the ratio is not a choice",
    "padic": "a progressive file: the digits in base 2, the highest first",
    "tropical": "decoded by NumPy; frugax.compress.reduce_relu narrows a net",
    "csr": "decoded by NumPy; zeros stay zeros, as in every file",
}
MODES = ("balanced", "aggressive", "conservative")
BACKENDS = ("auto", "gpu", "cpu", "tpu")
# The error of the mode "aggressive", as a multiple of that of "conservative".
_AGGRESSIVE = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionProfile:
    """The target of a compression.

    The error is ||decoded - original|| / ||original|| over all float weights, and E is
    1 - `preserve_accuracy_threshold`.

    Attributes:
        target_compression_ratio: bytes of the weights over bytes of the file; > 1.
        mode: "balanced" makes a file at the ratio, as exact as that allows;
            "conservative" the smallest file with an error of at most E, and warns where
            that misses the ratio; "aggressive" the smallest with an error of at most
            10 E, if it is smaller than at the ratio.
        preserve_accuracy_threshold: 1 - E; in (0, 1].
        strategy: one of "auto", "jax", "lossless", "padic", "tropical" and "csr".
    """

    target_compression_ratio: float = 4.0
    mode: str = "balanced"
    preserve_accuracy_threshold: float = 0.99
    strategy: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("strategy", tuple(STRATEGIES))):
            if (value := getattr(self, name)) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {value!r}."
                )
        ratio, threshold = (
            self.target_compression_ratio,
            self.preserve_accuracy_threshold,
        )
        if not 1 < ratio < math.inf:
            raise ValueError(f"target_compression_ratio must be > 1, got {ratio}.")
        if not 0 < threshold <= 1:
            raise ValueError(
                f"preserve_accuracy_threshold must be in (0, 1], got {threshold}."
            )

    @property
    def rel_error(self) -> float | None:
        """The relative error that the mode allows; None in "balanced"."""
        # Decimal places, so that 1 - 0.99 is 0.01.
        share = round(1 - self.preserve_accuracy_threshold, 12)
        factor = {"balanced": None, "conservative": 1.0, "aggressive": _AGGRESSIVE}
        allowed = factor[self.mode]
        return None if allowed is None else min(1.0, allowed * share)


class OptimizationStrategy(enum.Enum):
    """Which tensors JAX decodes.

    BALANCED: those of 65,536 numbers and more. MEMORY: the same, at twice the ratio.
    JAX_ACCELERATED: all.
    """

    BALANCED = "balanced"
    MEMORY = "memory"
    JAX_ACCELERATED = "jax_accelerated"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemConfiguration:
    """The resources of a `SystemIntegrationCoordinator`.

    Attributes:
        enable_jax: use JAX where it is installed.
        jax_backend: "auto" for JAX's own choice, or "gpu", "cpu", "tpu".
        jax_memory_fraction: share of the device's memory that tensors may take there;
            in (0, 1].
        jax_compilation_cache_size: compiled programs to keep; >= 1.
        jax_enable_x64: let the tropical engine compute in 64 bits. Weights of 64 bits
            are always decoded in 64 bits.
        jax_parallel_devices: devices to use in turn; >= 1.
        target_compression_ratio: bytes of a tensor over bytes of its file; > 1.
        optimization_strategy: which tensors JAX decodes.
    """

    enable_jax: bool = True
    jax_backend: str = "auto"
    jax_memory_fraction: float = 0.75
    jax_compilation_cache_size: int = 128
    jax_enable_x64: bool = False
    jax_parallel_devices: int = 1
    target_compression_ratio: float = 4.0
    optimization_strategy: OptimizationStrategy = OptimizationStrategy.BALANCED

    def __post_init__(self) -> None:
        if self.jax_backend not in BACKENDS:
            raise ValueError(
                f"jax_backend must be one of {', '.join(BACKENDS)}, got "
                f"{self.jax_backend!r}."
            )
        limits: dict[str, tuple[str, Any]] = {
            "jax_memory_fraction": ("in (0, 1]", lambda x: 0 < x <= 1),
            "jax_compilation_cache_size": (">= 1", lambda x: x >= 1),
            "jax_parallel_devices": (">= 1", lambda x: x >= 1),
            "target_compression_ratio": ("> 1", lambda x: x > 1),
        }
        for name, (expected, is_valid) in limits.items():
            if not is_valid(value := getattr(self, name)):
                raise ValueError(f"{name} must be {expected}, got {value}.")


@functools.cache
def has_jax() -> bool:
    """Whether JAX can be used; the first call that finds it missing warns."""
    try:
        import jax.numpy  # noqa: F401
    except Exception as e:  # a broken JAX fails in any way, and NumPy does its work
        reason = f"{type(e).__name__}: {e}".splitlines()[0]
        warnings.warn(
            f"JAX cannot be imported here ({reason}): NumPy does its part, with the "
            "same files and the same numbers. To have it: pip install jax.",
            UserWarning,
            stacklevel=3,
        )
        return False
    return True
