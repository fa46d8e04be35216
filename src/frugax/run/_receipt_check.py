"""`ReceiptCheck`: the result of `frugax verify-receipt`, figure by figure."""

import collections
import dataclasses
from typing import Literal

from frugax.budget import table

Finding = Literal["same", "differs", "cannot tell"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FigureCheck:
    """One figure of a receipt beside the one derived here.

    Attributes:
        figure: its name, for example `"file: measured"`.
        stated: in the receipt.
        derived: here; `"-"` if it could not be derived.
        finding: whether the two agree.
        reason: why nothing can be told; empty otherwise.
        is_deterministic: whether the figure follows from config, versions and file. One
            that was measured once, such as a time, does not.
    """

    figure: str
    stated: str
    derived: str
    finding: Finding
    reason: str = ""
    is_deterministic: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """Every figure of a receipt; prints as a table.

    Attributes:
        checks: one for each figure.
    """

    checks: tuple[FigureCheck, ...]

    @property
    def finding(self) -> Finding:
        """`same` if each deterministic figure was derived again and none differs."""
        found = {check.finding for check in self.checks if check.is_deterministic}
        # Otherwise a forger would make figures underivable, as by another version.
        for worst in ("differs", "cannot tell"):
            if worst in found:
                return worst
        return "same"

    def __str__(self) -> str:
        rows = [
            [_shorten(c.figure), _shorten(c.stated), _shorten(c.derived), c.finding]
            for c in self.checks
        ]
        lines = [table(["figure", "receipt", "derived here", "finding"], rows)]
        reasons: dict[str, list[str]] = {}
        for check in self.checks:
            if check.reason:
                reasons.setdefault(check.reason, []).append(_shorten(check.figure))
        for why, names in reasons.items():
            lines.append(f"{', '.join(names)}: {_printable(why)}")
        return "\n".join([*lines, self._conclude()])

    def _conclude(self) -> str:
        counts = collections.Counter(
            (check.finding, check.is_deterministic) for check in self.checks
        )
        once = f"{counts['cannot tell', False]} were measured once, in that run"
        match self.finding:
            case "same":
                return (
                    f"verified: {counts['same', True]} figures were derived again and "
                    f"are the same; {once}, and nobody can derive them."
                )
            case "differs":
                differing = counts["differs", True]
                return f"broken: {differing} of the receipt's figures are not true."
            case _:
                return (
                    f"cannot tell: {counts['cannot tell', True]} deterministic figures "
                    f"could not be derived here, {counts['same', True]} are the same; "
                    f"{once}."
                )


def _printable(text: str) -> str:
    """Replace control characters, with which a receipt could redraw the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _shorten(text: str) -> str:
    text = _printable(" ".join(text.split()))
    if len(text) <= 60:
        return text
    return f"{text[:28]}...{text[-28:]}"
