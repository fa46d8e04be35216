"""`ReceiptCheck`: the result of `frugax verify-receipt`, figure by figure."""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from frugax.budget import table

Finding = Literal["same", "differs", "cannot tell"]

# Evaluations add floats in an order that depends on the number of threads.
_REL_TOLERANCE = 1e-6
_MAX_NAMES = 4  # of figures, in a line about several


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FigureCheck:
    """One figure of a receipt beside the one derived here.

    Attributes:
        figure: its key, for example `"spends.file.measured"`.
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
    """Every figure of a receipt; prints the conclusion, then what differs.

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
        parts = [self._conclude()]
        if differing := [c for c in self.checks if c.finding == "differs"]:
            rows = [[c.figure, c.stated, c.derived] for c in differing]
            parts.append(_table(["figure", "receipt", "derived here"], rows))
        reasons: dict[str, list[str]] = {}
        for check in self.checks:
            if check.finding == "cannot tell":
                reasons.setdefault(check.reason, []).append(_shorten(check.figure))
        parts += [
            f"{_join(names)}: {_printable(why)}" for why, names in reasons.items()
        ]
        return "\n".join(parts)

    def table(self) -> str:
        """Return every figure beside the derived one, and the finding."""
        rows = [[c.figure, c.stated, c.derived, c.finding] for c in self.checks]
        return _table(["figure", "receipt", "derived here", "finding"], rows)

    def _conclude(self) -> str:
        # A verdict that rests on a figure is not one more.
        counts = collections.Counter(
            (check.finding, check.is_deterministic)
            for check in self.checks
            if not _is_open_verdict(check)
        )
        same, differing = counts["same", True], counts["differs", True]
        once = counts["cannot tell", False]
        match self.finding:
            case "differs":
                return f"broken: {differing} of the receipt's figures are not true."
            case "cannot tell":
                return (
                    f"cannot tell: {counts['cannot tell', True]} deterministic figures "
                    f"could not be derived here, {same} are the same; {once} figures "
                    "cannot be derived by anybody."
                )
            case _ if once:
                return (
                    f"verified, but for {once} figures that nobody can derive: "
                    f"{_list_verdicts(self.checks)}. {same} figures were "
                    "derived again and are the same."
                )
            case _:
                return f"verified: {same} figures were derived again and are the same."


def _list_verdicts(checks: Sequence[FigureCheck]) -> str:
    """Name the verdicts that rest on figures that nobody derived."""
    rows = [
        f"{_printable(check.figure)} ({_printable(check.stated)})"
        for check in checks
        if _is_open_verdict(check)
    ]
    if not rows:
        return "no verdict rests on them"
    return f"taken from the receipt, not verified, are {', '.join(rows)}"


def _is_open_verdict(check: FigureCheck) -> bool:
    is_verdict = check.figure == "verdict" or check.figure.endswith(".verdict")
    return is_verdict and check.finding == "cannot tell"


def compare(figure: str, stated: Any, derived: Any) -> FigureCheck:
    """Compare two figures, floats with a tolerance for the order of additions."""
    finding: Finding = "same"
    if not is_equal(stated, derived):
        finding = "differs"
    return FigureCheck(
        figure=figure, stated=str(stated), derived=str(derived), finding=finding
    )


def cannot_tell(
    figure: str, stated: Any, why: str, *, is_deterministic: bool = True
) -> FigureCheck:
    """State that a figure could not be derived, and why."""
    return FigureCheck(
        figure=figure,
        stated=str(stated),
        derived="-",
        finding="cannot tell",
        reason=why,
        is_deterministic=is_deterministic,
    )


def is_equal(stated: Any, derived: Any) -> bool:
    """Whether a figure of a receipt is the one derived here."""
    if isinstance(stated, bool) != isinstance(derived, bool):
        return False  # True == 1
    if isinstance(derived, float) and not math.isfinite(derived):
        return stated is None or stated == derived  # JSON has no NaN
    floats = isinstance(stated, int | float) and isinstance(derived, float)
    if floats and not float(derived).is_integer():
        return math.isclose(stated, derived, rel_tol=_REL_TOLERANCE)
    return stated == derived


def _table(heads: list[str], rows: list[list[str]]) -> str:
    return table(heads, [[_shorten(cell) for cell in row] for row in rows])


def _join(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    if more <= 1:
        return ", ".join(names)
    return f"{', '.join(names[:_MAX_NAMES])} and {more} more"


def _printable(text: str) -> str:
    """Replace control characters, with which a receipt could redraw the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _shorten(text: str) -> str:
    text = _printable(" ".join(text.split()))
    if len(text) <= 60:
        return text
    return f"{text[:28]}...{text[-28:]}"
