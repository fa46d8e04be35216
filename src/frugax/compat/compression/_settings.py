"""The guide's two configurations: a profile for models, and one for the coordinator."""

import dataclasses
import enum
import math
import numbers
from collections.abc import Collection
from typing import Any

MODES = ("balanced", "aggressive", "conservative")
STRATEGIES = ("auto", "jax", "tropical", "csr", "lossless")
BACKENDS = ("auto", "gpu", "cpu", "tpu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionProfile:
    """The target of a compression. `mode` decides between size and error.

    The error is ||decoded - original|| / ||original|| over all float weights (of the
    codec alone, where the strategy "tropical" has merged units first):

    - balanced: a file at the target ratio, as exact as that allows;
    - conservative: a file at the target ratio with an error of at most 0.01; if there
      is none, the smallest file with that error, and a warning;
    - aggressive: the smallest file with an error of at most 0.1, if that is smaller
      than the target; otherwise a file at the target ratio.

    Attributes:
        target_compression_ratio: bytes of the weights over bytes of the file; > 1.
        mode: see above.
        strategy: which codecs; docs/compat/compression.md describes each.

    Raises:
        TypeError: the ratio is not a number.
        ValueError: a field is out of range or unknown; the message names it.
    """

    target_compression_ratio: float = 4.0
    mode: str = "balanced"
    strategy: str = "auto"

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, MODES)
        _check_choice("strategy", self.strategy, STRATEGIES)
        _check_ratio(self.target_compression_ratio)


class OptimizationStrategy(enum.Enum):
    """Who decodes the coordinator's tensors.

    BALANCED: JAX for tensors that are worth a transfer, NumPy for small ones.
    JAX_ACCELERATED: always JAX, where it is installed.
    """

    BALANCED = "balanced"
    JAX_ACCELERATED = "jax_accelerated"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemConfiguration:
    """The resources of a `SystemIntegrationCoordinator`.

    Attributes:
        enable_jax: use JAX where it is installed.
        jax_backend: "auto" for JAX's own choice, or "gpu", "cpu", "tpu".
        jax_memory_fraction: share of the device's memory that the coordinator's own
            tensors may take there; in (0, 1].
        jax_compilation_cache_size: compiled programs to keep; >= 1.
        jax_enable_x64: let the tropical engine compute in 64 bits. Weights of 64 bits
            are always decoded in 64 bits.
        jax_parallel_devices: devices to use in turn; >= 1.
        target_compression_ratio: bytes of a tensor over bytes of its file; > 1.
        optimization_strategy: who decodes.

    Raises:
        TypeError: the ratio is not a number.
        ValueError: a field is out of range or unknown; the message names it.
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
        _check_choice("jax_backend", self.jax_backend, BACKENDS)
        _check_ratio(self.target_compression_ratio)
        if not 0 < (fraction := self.jax_memory_fraction) <= 1:
            raise ValueError(f"jax_memory_fraction must be in (0, 1], got {fraction}.")
        for name in ("jax_compilation_cache_size", "jax_parallel_devices"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be >= 1, got {value}.")


def _check_choice(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")


def _check_ratio(ratio: Any) -> None:
    # Callers are checked at run time, whatever their annotations say.
    if not isinstance(ratio, numbers.Real):
        raise TypeError(
            f"target_compression_ratio must be a number, such as 4.0, got {ratio!r}."
        )
    if not 1 < float(ratio) < math.inf:
        raise ValueError(f"target_compression_ratio must be > 1, got {ratio}.")
