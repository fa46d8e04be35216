"""The guide's two configurations: a profile for models, and one for the coordinator."""

import dataclasses
import enum
import json
import math
import numbers
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frugax.budget import to_json
from frugax.errors import ConfigError
from frugax.fileio import write_whole

MODES = ("balanced", "aggressive", "conservative")
STRATEGIES = ("auto", "jax", "tropical", "csr", "lossless", "padic", "hybrid")
BACKENDS = ("auto", "gpu", "cpu", "tpu")
# The error of the mode "aggressive", as a multiple of that of "conservative".
_AGGRESSIVE = 10.0
# Fields of CompressionProfile that belong to training, which nothing here does.
_WITHOUT_EFFECT = (
    "fine_tuning_epochs",
    "batch_size",
    "learning_rate",
    "validation_interval",
    "early_stopping_patience",
    "enable_mixed_precision",
    "checkpoint_dir",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionProfile:
    """The target of a compression. `mode` decides between size and error.

    With E = 1 - `preserve_accuracy_threshold`, and the error being
    ||decoded - original|| / ||original|| over all float weights (of the codec alone,
    where the strategy "tropical" has merged units first):

    - balanced: a file at the target ratio, as exact as that allows;
    - conservative: the same, unless its error is above E; then the smallest file
      with an error of at most E, which misses the ratio, and a note says so;
    - aggressive: the smallest file with an error of at most 10 E, if that is smaller
      than the target; otherwise a file at the target ratio.

    Attributes:
        target_compression_ratio: bytes of the weights over bytes of the file; > 1.
        mode: see above.
        preserve_accuracy_threshold: 1 - E; in (0, 1].
        strategy: which codecs; docs/compat/compression.md describes each.
        device: the device of a restored torch model; "auto" is that of the original.
        verbose: warn when a target was missed.
        enable_fine_tuning: nothing here trains; True is refused.
        fine_tuning_epochs: without effect.
        batch_size: without effect.
        learning_rate: without effect.
        validation_interval: without effect.
        early_stopping_patience: without effect.
        enable_mixed_precision: without effect.
        checkpoint_dir: without effect.
    """

    target_compression_ratio: float = 4.0
    mode: str = "balanced"
    preserve_accuracy_threshold: float = 0.99
    strategy: str = "auto"
    device: str = "auto"
    verbose: bool = True
    enable_fine_tuning: bool = False
    fine_tuning_epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 1e-3
    validation_interval: int = 100
    early_stopping_patience: int = 3
    enable_mixed_precision: bool = True
    checkpoint_dir: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("strategy", STRATEGIES)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {value!r}."
                )
        for name in ("target_compression_ratio", "preserve_accuracy_threshold"):
            if not isinstance(value := getattr(self, name), numbers.Real):
                raise TypeError(
                    f"{name} must be a number, such as {getattr(type(self), name)}, "
                    f"got {value!r}."
                )
        ratio = self.target_compression_ratio
        if not 1 < ratio < math.inf:
            raise ValueError(f"target_compression_ratio must be > 1, got {ratio}.")
        threshold = self.preserve_accuracy_threshold
        if not 0 < threshold <= 1:
            raise ValueError(
                f"preserve_accuracy_threshold must be in (0, 1], got {threshold}."
            )
        if self.enable_fine_tuning:
            raise ValueError(
                "enable_fine_tuning: compressing does not train. Decompress the "
                "model, train it with your own loop, and compress it again."
            )
        # Accepted, so that configurations of the older library load, but with a
        # warning.
        changed = [
            field.name
            for field in dataclasses.fields(self)
            if field.name in _WITHOUT_EFFECT
            and getattr(self, field.name) != field.default
        ]
        if changed:
            warnings.warn(
                f"CompressionProfile: no effect of {', '.join(changed)}, because "
                "nothing is trained here; leave out what has none.",
                UserWarning,
                stacklevel=3,
            )

    @property
    def rel_error(self) -> float | None:
        """The relative error that the mode allows; None in balanced: no limit."""
        # Decimal places, so that 1 - 0.99 is 0.01.
        share = round(1 - self.preserve_accuracy_threshold, 12)
        return {
            "balanced": None,
            "conservative": share,
            "aggressive": min(1.0, _AGGRESSIVE * share),
        }[self.mode]

    def to_dict(self) -> dict[str, Any]:
        """Return every field by its name."""
        return dataclasses.asdict(self)


class OptimizationStrategy(enum.Enum):
    """The preference of the coordinator.

    BALANCED and THROUGHPUT: JAX for tensors that are worth a transfer, NumPy for
    small ones. LATENCY: JAX only where its program is compiled already. MEMORY: twice
    the target ratio. ADAPTIVE: whichever of JAX and NumPy was faster so far.
    JAX_ACCELERATED: always JAX.
    """

    BALANCED = "balanced"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    MEMORY = "memory"
    ADAPTIVE = "adaptive"
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
        optimization_strategy: the preference of the coordinator.
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
        cache_size = self.jax_compilation_cache_size
        for name, valid, expected in (
            ("jax_memory_fraction", 0 < self.jax_memory_fraction <= 1, "in (0, 1]"),
            ("jax_compilation_cache_size", cache_size >= 1, ">= 1"),
            ("jax_parallel_devices", self.jax_parallel_devices >= 1, ">= 1"),
            ("target_compression_ratio", self.target_compression_ratio > 1, "> 1"),
        ):
            if not valid:
                raise ValueError(
                    f"{name} must be {expected}, got {getattr(self, name)}."
                )

    def to_dict(self) -> dict[str, Any]:
        """Return every field by its name, in values that JSON can hold."""
        plain = dataclasses.asdict(self)
        return plain | {"optimization_strategy": self.optimization_strategy.value}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "SystemConfiguration":
        """Invert `to_dict`; fields that are not there get their default.

        Raises:
            ConfigError: an unknown field, or an unknown optimisation strategy.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(plain.keys() - known):
            raise ConfigError(
                f"SystemConfiguration has no field {unknown[0]!r}; it has "
                f"{', '.join(sorted(known))}."
            )
        # A copy: the caller's mapping is not changed.
        values = dict(plain)
        if (value := values.pop("optimization_strategy", None)) is not None:
            try:
                values["optimization_strategy"] = OptimizationStrategy(value)
            except ValueError as e:
                names = ", ".join(s.value for s in OptimizationStrategy)
                raise ConfigError(
                    f"optimization_strategy must be one of {names}, got {value!r}."
                ) from e
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON.

        Raises:
            OutputError: the file could not be written.
        """
        write_whole(path, to_json(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SystemConfiguration":
        """Read a file that `save` wrote.

        Raises:
            ConfigError: it is not such a file.
        """
        try:
            plain = json.loads(Path(path).read_text(encoding="utf-8"))
        # json.JSONDecodeError and UnicodeDecodeError are both ValueErrors.
        except ValueError as e:
            raise ConfigError(f"{os.fspath(path)}: not valid JSON: {e}.") from e
        if not isinstance(plain, dict):
            raise ConfigError(f"{os.fspath(path)}: not a JSON object.")
        return cls.from_dict(plain)
