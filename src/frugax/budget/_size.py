"""`SizeBudget`: the most bytes of a weights file, the largest error in it, or both."""

import dataclasses
import math
import re
from typing import Any

from ._quantities import check_amount, format_bytes, parse_bytes

_TEXTS = {
    "ratio": "{:g}x smaller",
    "bits_per_weight": "{:g} bits per weight",
    "rel_error": "relative error {:g}",
    "max_abs": "largest error {:g}",
    "output_error": "output error {:g}",
}
_SIZES = ("bytes", "ratio", "bits_per_weight")
_ERRORS = ("rel_error", "max_abs", "output_error")


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class SizeBudget:
    """The largest file of weights, or the largest error of the weights in it.

    Written `SizeBudget("6x")`, `SizeBudget("2MiB")`, `SizeBudget("4bpw")` or by
    keyword. One size, one error, or one of each: then both must hold.

    Attributes:
        bytes: length of the whole file; > 0.
        ratio: bytes of the original weights over bytes of the file; > 0.
        bits_per_weight: bits of the whole file per number stored; > 0.
        rel_error: ||decoded - original|| / ||original|| over all tensors; in [0, 1].
        max_abs: largest |decoded - original| of any number; >= 0.
        output_error: ||outputs - originals|| / ||originals|| of a model, on batches
            that its `frugax.compress.calibrate` holds out; in [0, 1].
    """

    bytes: int | None
    ratio: float | None
    bits_per_weight: float | None
    rel_error: float | None
    max_abs: float | None
    output_error: float | None

    def __init__(
        self,
        text: str | None = None,
        /,
        *,
        bytes: int | str | None = None,
        ratio: float | None = None,
        bits_per_weight: float | None = None,
        rel_error: float | None = None,
        max_abs: float | None = None,
        output_error: float | None = None,
    ) -> None:
        """Read and check the limits; see the class.

        Raises:
            TypeError: no limit, two sizes, two errors, or a number without its name.
            ValueError: a limit is out of range, or the text is not a size.
        """
        limits: dict[str, Any] = {
            "bytes": bytes,
            "ratio": ratio,
            "bits_per_weight": bits_per_weight,
            "rel_error": rel_error,
            "max_abs": max_abs,
            "output_error": output_error,
        }
        if text is not None:
            name, value = _read_size(text)
            if any(limits[size] is not None for size in _SIZES):
                raise TypeError(f"SizeBudget({text!r}) already names a size.")
            limits[name] = value
        # Two sizes could contradict each other, and so could two errors; a size and an
        # error may both be kept.
        named = [name for name, value in limits.items() if value is not None]
        sizes = [name for name in named if name in _SIZES]
        if not named or len(sizes) > 1 or len(named) - len(sizes) > 1:
            raise TypeError(
                f"SizeBudget needs at most one of {', '.join(_SIZES)} and at most one "
                f"of {', '.join(_ERRORS)}, and at least one of them all; got "
                f"{named or 'none'}."
            )
        for name, value in limits.items():
            if name == "bytes" and value is not None:
                value = parse_bytes(value, name=name)
            elif value is not None:
                # An error of 0 asks for the exact weights; a size of 0 cannot be kept.
                value = check_amount(value, name, zero=name in _ERRORS)
                if name in ("rel_error", "output_error") and value > 1:
                    raise ValueError(
                        f"{name} must be at most 1 (that of all zeros), got {value}."
                    )
            object.__setattr__(self, name, value)

    @property
    def is_only_size(self) -> bool:
        """Whether no error is limited."""
        return all(getattr(self, name) is None for name in _ERRORS)

    def limit_bytes(self, *, original_bytes: int, weights: int) -> int | None:
        """The longest file that is allowed for these weights; None without a limit.

        Args:
            original_bytes: bytes of the weights as they are.
            weights: how many numbers they hold.
        """
        if self.bytes is not None:
            return self.bytes
        if self.ratio is not None:
            # Rounded down here and below: a file one byte longer would miss the ratio.
            return math.floor(original_bytes / self.ratio)
        if self.bits_per_weight is not None:
            return math.floor(weights * self.bits_per_weight / 8)
        return None

    def __str__(self) -> str:
        limits = [] if self.bytes is None else [format_bytes(self.bytes)]
        for name, text in _TEXTS.items():
            value = getattr(self, name)
            if value is not None:
                limits.append(text.format(value))
        return ", ".join(limits)


def _read_size(text: object) -> tuple[str, Any]:
    """Read text as the name and the value of a limit."""
    # Callers are checked at run time, whatever their annotations say.
    if not isinstance(text, str):
        raise TypeError(
            "a size is text, or has a name: write SizeBudget(bytes=1000), "
            f'SizeBudget(ratio=6) or SizeBudget("6x"), not {text!r}.'
        )
    # Only sizes are written so, hence the common parser of units lacks them.
    number = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(x|bpw)\s*", text)
    if number is not None:
        name = "ratio" if number[2] == "x" else "bits_per_weight"
        return name, float(number[1])
    try:
        return "bytes", parse_bytes(text, name="size")
    except ValueError as e:
        raise ValueError(f'{e} A ratio is written "6x", bits per weight "4bpw".') from e
