"""How a model should be compressed: the guide's profile, and what it decides."""

import dataclasses
import math
import numbers
import warnings
from typing import Any

MODES = ("balanced", "aggressive", "conservative")
STRATEGIES = ("auto", "jax", "tropical", "csr", "lossless", "padic", "hybrid")

# How many times the error of "conservative" the mode "aggressive" may make.
_AGGRESSIVE = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionProfile:
    """What to aim for. `mode` says which of size and error gives way.

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
        mode: which gives way, see above.
        preserve_accuracy_threshold: 1 - E; in (0, 1].
        strategy: which codecs; docs/compat/compression.md says what each does.
        device: where a restored torch model goes, which torch is asked about when one
            is compressed; "auto" is where the original was.
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
            if (given := getattr(self, name)) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {given!r}."
                )
        ratio, threshold = (
            self.target_compression_ratio,
            self.preserve_accuracy_threshold,
        )
        for name in ("target_compression_ratio", "preserve_accuracy_threshold"):
            if not isinstance(given := getattr(self, name), numbers.Real):
                raise TypeError(
                    f"{name} must be a number, such as {getattr(type(self), name)}, "
                    f"got {given!r}."
                )
        if not 1 < ratio < math.inf:
            raise ValueError(f"target_compression_ratio must be > 1, got {ratio}.")
        if not 0 < threshold <= 1:
            raise ValueError(
                f"preserve_accuracy_threshold must be in (0, 1], got {threshold}."
            )
        if self.enable_fine_tuning:
            raise ValueError(
                "enable_fine_tuning: compressing does not train. Decompress the "
                "model, train it with your own loop, and compress it again."
            )
        if changed := [f.name for f in _IDLE if getattr(self, f.name) != f.default]:
            warnings.warn(
                f"CompressionProfile: {', '.join(changed)} "
                f"{'has' if len(changed) == 1 else 'have'} no effect, for nothing "
                "is trained here; leave it out.",
                UserWarning,
                stacklevel=3,
            )

    @property
    def rel_error(self) -> float | None:
        """The relative error that the mode allows; None in balanced, where none is."""
        # Decimals, so that 1 - 0.99 is 0.01.
        share = round(1 - self.preserve_accuracy_threshold, 12)
        return {
            "balanced": None,
            "conservative": share,
            "aggressive": min(1.0, _AGGRESSIVE * share),
        }[self.mode]

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name."""
        return dataclasses.asdict(self)


_IDLE = [
    field
    for field in dataclasses.fields(CompressionProfile)
    if field.name
    in (
        *("fine_tuning_epochs", "batch_size", "learning_rate", "checkpoint_dir"),
        *("validation_interval", "early_stopping_patience", "enable_mixed_precision"),
    )
]
