"""The settings of a compression, and whether JAX can be used at all."""

import dataclasses
import enum
import functools
import math
import warnings
from importlib.util import find_spec

from frugax.budget import SizeBudget
from frugax.options import check_choice, check_integer

# Found without importing it, which takes a second.
JAX_AVAILABLE = find_spec("jax") is not None

STRATEGIES = ("auto", "jax", "lossless", "tropical", "csr")
BACKENDS = ("auto", "gpu", "cpu", "tpu")
# The relative error that each mode allows; None for the least at the target ratio.
MODES = {"conservative": 0.01, "balanced": None, "aggressive": 0.1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionProfile:
    """The target of a compression.

    The error is ||decoded - original|| / ||original|| over all float weights.

    Attributes:
        target_compression_ratio: bytes of the weights over bytes of the file; > 1.
        mode: "balanced" makes a file at the ratio, as exact as that allows;
            "conservative" the smallest file with an error of at most 1%, and warns
            where that misses the ratio; "aggressive" the smallest with an error of at
            most 10%, if it is smaller than at the ratio.
        strategy: "jax" decodes on JAX's devices, "auto" only tensors of 65,536 numbers
            and more, "tropical" and "csr" nothing; "lossless" keeps every bit, whatever
            the target.
    """

    target_compression_ratio: float = 4.0
    mode: str = "balanced"
    strategy: str = "auto"

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)
        check_choice("strategy", self.strategy, STRATEGIES)
        ratio = self.target_compression_ratio
        if not 1 < ratio < math.inf:
            raise ValueError(f"target_compression_ratio must be > 1, got {ratio}.")

    @property
    def budgets(self) -> tuple[SizeBudget, ...]:
        """The budgets to try in order: the first that can be met is the file's."""
        if self.strategy == "lossless":
            return (SizeBudget(max_abs=0),)
        ratio, error = self.target_compression_ratio, MODES[self.mode]
        if error is None:
            return (SizeBudget(ratio=ratio),)
        both = SizeBudget(ratio=ratio, rel_error=error)
        if self.mode == "conservative":
            return both, SizeBudget(rel_error=error)
        return both, SizeBudget(ratio=ratio)


class OptimizationStrategy(enum.Enum):
    """Which tensors JAX decodes, as a strategy of `CompressionProfile`."""

    BALANCED = "auto"
    JAX_ACCELERATED = "jax"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemConfiguration:
    """The resources of a `SystemIntegrationCoordinator`.

    Attributes:
        enable_jax: use JAX where it is installed.
        jax_backend: "auto" for JAX's own choice, or "gpu", "cpu", "tpu".
        jax_memory_fraction: share of the device's memory that tensors may take there;
            in (0, 1].
        jax_compilation_cache_size: compiled programs to keep; >= 1.
        jax_enable_x64: numbers of 64 bits in a block of the component
            `jax_config_adapter`. Weights of 64 bits are always decoded in 64 bits.
        jax_parallel_devices: devices to use in turn; >= 1.
    """

    enable_jax: bool = True
    jax_backend: str = "auto"
    jax_memory_fraction: float = 0.75
    jax_compilation_cache_size: int = 128
    jax_enable_x64: bool = False
    jax_parallel_devices: int = 1

    def __post_init__(self) -> None:
        check_choice("jax_backend", self.jax_backend, BACKENDS)
        if not 0 < self.jax_memory_fraction <= 1:
            raise ValueError(
                f"jax_memory_fraction must be in (0, 1], got "
                f"{self.jax_memory_fraction}."
            )
        for name in ("jax_compilation_cache_size", "jax_parallel_devices"):
            check_integer(name, getattr(self, name))


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
