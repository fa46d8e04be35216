"""`Receipt`: each limit beside its predicted and measured expense, with a verdict."""

import dataclasses
import enum
import json
import math
from typing import Literal

from ._plain import from_plain, to_json, to_plain
from ._quantities import format_bytes, format_seconds, format_share
from ._table import table


class Verdict(enum.StrEnum):
    """Whether a budget was kept, as far as the measurement can tell."""

    KEPT = "kept"
    BROKEN = "broken"
    CANNOT_TELL = "cannot tell"


class SpendName(enum.StrEnum):
    """Names of the limits of a run. Programs find a row of a receipt by them."""

    COMPILES = "compiles of the step"
    TIME = "time of the whole run"
    WATCHING = "time spent watching"
    ACCURACY = "accuracy lost by compression"
    FILE = "file"
    REL_ERROR = "relative error"
    MAX_ABS = "largest error"

    @staticmethod
    def step_memory(kind: Literal["temp", "total"], *, each_device: bool) -> str:
        """The name of the memory of a training step, on one device or on each."""
        return f"{kind} memory of one step" + " on each device" * each_device


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """One limit beside the predicted and the measured expense.

    Attributes:
        name: of the limited quantity, for example `"memory of one step"`.
        unit: of the numbers: `"bytes"`, `"seconds"`, `"share"`, `"compiles"`...
        limit: the most allowed.
        predicted: by the plan; None without a prediction.
        measured: the real expense; None if it could not be measured.
        noise: half-width of the interval in which the true value lies, in `unit`;
            0 for exact counts.
        source: of the measurement, so that it can be repeated.
        problems: sentences that say what went wrong, printed below the table; empty if
            nothing did.
    """

    name: str
    unit: str
    limit: float
    measured: float | None
    source: str
    predicted: float | None = None
    noise: float = 0.0
    problems: str = ""

    def __post_init__(self) -> None:
        # A negative one would turn "broken" into "kept".
        if -math.inf < self.noise < 0:
            raise ValueError(f"noise must not be negative, got {self.noise}.")

    @property
    def verdict(self) -> Verdict:
        """Kept if the whole interval is within the limit, broken if it is beyond it."""
        if self.measured is None or not math.isfinite(self.measured + self.noise):
            return Verdict.CANNOT_TELL
        if self.measured + self.noise <= self.limit:
            return Verdict.KEPT
        if self.measured - self.noise > self.limit:
            return Verdict.BROKEN
        return Verdict.CANNOT_TELL

    @property
    def limit_text(self) -> str:
        """The limit with its unit; `-` if there is none."""
        return amount(None if math.isnan(self.limit) else self.limit, self.unit)

    @property
    def measured_text(self) -> str:
        """The measured expense with its unit and noise."""
        text = amount(self.measured, self.unit)
        if self.noise:
            return f"{text} ± {amount(self.noise, self.unit)}"
        return text


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """Every limit of a result with its verdict; prints as a table, is kept as JSON."""

    spends: tuple[Spend, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the spends; kept without any spends."""
        found = {s.verdict for s in self.spends}
        # A budget that is known to be broken outweighs any doubt about another one.
        for worst in (Verdict.BROKEN, Verdict.CANNOT_TELL):
            if worst in found:
                return worst
        return Verdict.KEPT

    def to_json(self) -> str:
        """The receipt as strict JSON text, each verdict beside its numbers.

        A number that is not finite is null; read back, its verdict is "cannot tell".
        """
        # For readers other than frugax, which would have to know the rule of verdicts.
        spends = [to_plain(s) | {"verdict": str(s.verdict)} for s in self.spends]
        return to_json({"verdict": str(self.verdict), "spends": spends}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        """Read a receipt that `to_json` wrote; verdicts are computed again.

        Raises:
            ValueError: the text is not a receipt.
        """
        data = json.loads(text)
        try:
            # Only numbers are read: an edited verdict cannot claim that a budget was
            # kept.
            spends = [
                {name: value for name, value in spend.items() if name != "verdict"}
                for spend in data["spends"]
            ]
        except (KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"not a valid receipt: {text[:60]!r}") from e
        return from_plain(cls, {"spends": spends}, null_is_nan=True)

    def __str__(self) -> str:
        rows = [
            [
                s.name,
                s.limit_text,
                amount(s.predicted, s.unit),
                s.measured_text,
                str(s.verdict),
            ]
            for s in self.spends
        ]
        lines = [table(["budget", "limit", "predicted", "measured", "verdict"], rows)]
        return "\n".join(
            [*lines, *(f"{s.name}: {s.problems}" for s in self.spends if s.problems)]
        )


def amount(value: float | None, unit: str) -> str:
    """Format a number with its unit; `-` for None.

    >>> amount(2048, "bytes"), amount(0.01, "share"), amount(3, "compiles")
    ('2 KiB', '1%', '3 compiles')
    """
    if value is None:
        return "-"
    match unit:
        case "bytes":
            return format_bytes(value)
        case "seconds":
            return format_seconds(value)
        case "share":
            return format_share(value)
        case _:
            if value == 1:
                unit = unit.removesuffix("s")
            return f"{value:.4g} {unit}".rstrip()
