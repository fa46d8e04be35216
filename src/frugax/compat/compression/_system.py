"""The coordinator's configuration: which device, how much of it, what to favour."""

import dataclasses
import enum
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frugax.errors import ConfigError
from frugax.fileio import write_whole

BACKENDS = ("auto", "gpu", "cpu", "tpu")


class OptimizationStrategy(enum.Enum):
    """What the coordinator favours.

    BALANCED and THROUGHPUT: JAX for tensors that are worth a transfer, NumPy for
    small ones. LATENCY: JAX only where its program is compiled already. MEMORY: twice
    the target ratio. ADAPTIVE: whichever of JAX and NumPy was faster so far.
    JAX_ACCELERATED: JAX always.
    """

    BALANCED = "balanced"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    MEMORY = "memory"
    ADAPTIVE = "adaptive"
    JAX_ACCELERATED = "jax_accelerated"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemConfiguration:
    """What a `SystemIntegrationCoordinator` may use.

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
        optimization_strategy: what to favour.
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
        for name, sound, wanted in (
            ("jax_memory_fraction", 0 < self.jax_memory_fraction <= 1, "in (0, 1]"),
            (
                "jax_compilation_cache_size",
                self.jax_compilation_cache_size >= 1,
                ">= 1",
            ),
            ("jax_parallel_devices", self.jax_parallel_devices >= 1, ">= 1"),
            ("target_compression_ratio", self.target_compression_ratio > 1, "> 1"),
        ):
            if not sound:
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)}.")

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON can hold it."""
        plain = dataclasses.asdict(self)
        return plain | {"optimization_strategy": self.optimization_strategy.value}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "SystemConfiguration":
        """What `to_dict` gave; fields that are not there get their default.

        Raises:
            ConfigError: an unknown field, or no such optimisation strategy.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(plain.keys() - known):
            raise ConfigError(
                f"SystemConfiguration has no field {unknown[0]!r}; it has "
                f"{', '.join(sorted(known))}."
            )
        given = dict(plain)
        if (value := given.pop("optimization_strategy", None)) is not None:
            try:
                given["optimization_strategy"] = OptimizationStrategy(value)
            except ValueError as e:
                names = ", ".join(s.value for s in OptimizationStrategy)
                raise ConfigError(
                    f"optimization_strategy must be one of {names}, got {value!r}."
                ) from e
        return cls(**given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON.

        Raises:
            OutputError: the file could not be written.
        """
        write_whole(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SystemConfiguration":
        """Read what `save` wrote.

        Raises:
            ConfigError: it is no such file.
        """
        try:
            plain = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as e:
            raise ConfigError(f"{os.fspath(path)}: this is no JSON: {e}.") from e
        if not isinstance(plain, dict):
            raise ConfigError(f"{os.fspath(path)}: this is no JSON object.")
        return cls.from_dict(plain)
