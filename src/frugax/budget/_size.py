"""`SizeBudget`: the most bytes of a weights file, the largest error in it, or both."""

import dataclasses
import math
import re

from ._quantities import check_amount, format_bytes, parse_bytes


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
        if text is not None:
            # Callers are checked at run time, whatever their annotations say.
            if not isinstance(text, str):
                raise TypeError(
                    "a size is text, or has a name: write SizeBudget(bytes=1000), "
                    f'SizeBudget(ratio=6) or SizeBudget("6x"), not {text!r}.'
                )
            if bytes is not None or ratio is not None or bits_per_weight is not None:
                raise TypeError(f"SizeBudget({text!r}) already names a size.")
            # Only sizes are written so, hence the common parser of units lacks them.
            number = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(x|bpw)\s*", text)
            if number is None:
                try:
                    bytes = parse_bytes(text, name="size")
                except ValueError as e:
                    raise ValueError(
                        f'{e} A ratio is written "6x", bits per weight "4bpw".'
                    ) from e
            elif number[2] == "x":
                ratio = float(number[1])
            else:
                bits_per_weight = float(number[1])
        # Two sizes could contradict each other, and so could two errors; a size and an
        # error may both be kept.
        sizes = {"bytes": bytes, "ratio": ratio, "bits_per_weight": bits_per_weight}
        errors = {
            "rel_error": rel_error,
            "max_abs": max_abs,
            "output_error": output_error,
        }
        named = [
            [k for k, v in group.items() if v is not None] for group in (sizes, errors)
        ]
        if not any(named) or max(map(len, named)) > 1:
            raise TypeError(
                "SizeBudget needs at most one of bytes, ratio, bits_per_weight and at "
                "most one of rel_error, max_abs, output_error, and at least one of "
                "them all; got "
                f"{named[0] + named[1] or 'none'}."
            )
        put = object.__setattr__
        if bytes is not None:
            bytes = parse_bytes(bytes, name="bytes")
        put(self, "bytes", bytes)
        for name in ("ratio", "bits_per_weight", *errors):
            value = (sizes | errors)[name]
            if value is not None:
                # An error of 0 asks for the exact weights; a size of 0 cannot be kept.
                value = check_amount(value, name, zero=name in errors)
            put(self, name, value)
        for name in ("rel_error", "output_error"):
            if (getattr(self, name) or 0) > 1:
                raise ValueError(
                    f"{name} must be at most 1 (that of all zeros), got {errors[name]}."
                )

    @property
    def is_only_size(self) -> bool:
        """Whether no error is limited."""
        errors = (self.rel_error, self.max_abs, self.output_error)
        return all(error is None for error in errors)

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
        limits: list[str] = []
        if self.bytes is not None:
            limits.append(format_bytes(self.bytes))
        if self.ratio is not None:
            limits.append(f"{self.ratio:g}x smaller")
        if self.bits_per_weight is not None:
            limits.append(f"{self.bits_per_weight:g} bits per weight")
        if self.rel_error is not None:
            limits.append(f"relative error {self.rel_error:g}")
        if self.max_abs is not None:
            limits.append(f"largest error {self.max_abs:g}")
        if self.output_error is not None:
            limits.append(f"output error {self.output_error:g}")
        return ", ".join(limits)
