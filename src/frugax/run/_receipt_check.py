"""`ReceiptCheck`: the result of `frugax verify-receipt`, figure by figure."""

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from frugax.budget import table

Finding = Literal["same", "differs", "cannot tell"]

# Evaluations add floats in an order that depends on the number of threads.
_REL_TOLERANCE = 1e-6
_VERDICT = ": verdict"
WHOLE_VERDICT = "verdict of the receipt"


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
        # A verdict that rests on such a figure is not one more.
        rests = [c for c in self.checks if _rests(c) and not c.is_deterministic]
        same = counts["same", True]
        once = counts["cannot tell", False] - len(rests)
        match self.finding:
            case "same" if once:
                return (
                    f"verified, but for {once} figures that nobody can derive: "
                    f"{_list_budgets(self.checks)}. {same} figures were "
                    "derived again and are the same."
                )
            case "same":
                return f"verified: {same} figures were derived again and are the same."
            case "differs":
                differing = counts["differs", True]
                return f"broken: {differing} of the receipt's figures are not true."
            case _:
                return (
                    f"cannot tell: {counts['cannot tell', True]} deterministic figures "
                    f"could not be derived here, {same} are the same; {once} figures "
                    "cannot be derived by anybody."
                )


def _rests(check: FigureCheck) -> bool:
    """Whether a check is of a verdict whose figures were not derived."""
    is_verdict = check.figure.endswith(_VERDICT) or check.figure == WHOLE_VERDICT
    return is_verdict and check.finding == "cannot tell"


def _list_budgets(checks: Sequence[FigureCheck]) -> str:
    """Name the verdicts that rest on figures that nobody derived."""
    rows = [
        f"{check.figure.removesuffix(_VERDICT)} ({check.stated})"
        for check in checks
        if _rests(check)
    ]
    if not rows:
        return "no verdict rests on them"
    return f"taken from the receipt, not verified, are {', '.join(rows)}"


def compare(figure: str, stated: str, derived: str) -> FigureCheck:
    """Compare two texts."""
    finding: Finding = "same"
    if stated != derived:
        finding = "differs"
    return FigureCheck(figure=figure, stated=stated, derived=derived, finding=finding)


def compare_numbers(
    figure: str, stated: Any, derived: Any, show: Callable[[Any], str]
) -> FigureCheck:
    """Compare two figures, floats with a tolerance for the order of additions."""
    texts = show(stated), show(derived)
    finding: Finding = "same"
    if not is_equal(stated, derived):
        finding = "differs"
        # Rounded to four digits, two different counts of bytes can look alike.
        if texts[0] == texts[1]:
            texts = str(stated), str(derived)
    return FigureCheck(
        figure=figure, stated=texts[0], derived=texts[1], finding=finding
    )


def is_equal(stated: Any, derived: Any) -> bool:
    """Whether a figure of a receipt is the one derived here."""
    if isinstance(stated, bool) != isinstance(derived, bool):
        return False  # True == 1
    if isinstance(derived, list):
        rows = cast("list[Any]", derived)
        if not isinstance(stated, list) or len(cast("list[Any]", stated)) != len(rows):
            return False
        return all(map(is_equal, cast("list[Any]", stated), rows))
    if isinstance(derived, float) and not math.isfinite(derived):
        return stated is None or stated == derived  # JSON has no NaN
    floats = isinstance(stated, int | float) and isinstance(derived, float)
    if floats and not float(derived).is_integer():
        return math.isclose(stated, derived, rel_tol=_REL_TOLERANCE)
    return stated == derived


def cannot_tell(
    figure: str, stated: str, why: str, *, is_deterministic: bool = True
) -> FigureCheck:
    """State that a figure could not be derived, and why."""
    return FigureCheck(
        figure=figure,
        stated=stated,
        derived="-",
        finding="cannot tell",
        reason=why,
        is_deterministic=is_deterministic,
    )


def _printable(text: str) -> str:
    """Replace control characters, with which a receipt could redraw the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _shorten(text: str) -> str:
    text = _printable(" ".join(text.split()))
    if len(text) <= 60:
        return text
    return f"{text[:28]}...{text[-28:]}"
