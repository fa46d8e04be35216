"""Draw the arrays in the memory of each target as an SVG document."""

from collections.abc import Sequence

from frugax.budget import format_bytes
from frugax.measure import HeldArray, PeakMemory
from frugax.report import Bar, bar_chart

from ._plan import FitPlan, FitRow

_LISTED = 4  # arrays named under each bar
_MAX_LETTERS = 125  # of a line below a bar
# The colour of each kind of array; the same in every bar.
_COLOURS = {
    "argument": "s0",
    "saved for backward": "s1",
    "gradient": "s2",
    "recomputed": "s3",
    "other": "s5",
    "everything else": "faint",
}


def draw_memory(plan: FitPlan, peaks: Sequence[PeakMemory | None]) -> str:
    """Draw a bar for each row of a plan: its bytes by kind, and the budget as a line.

    Args:
        plan: the answers for some targets.
        peaks: for each row what `show_why` found, or None where it found nothing.

    Returns:
        The text of an SVG file, self-contained, for light and dark themes.
    """
    bars: list[Bar] = []
    for row, peak in zip(plan.rows, peaks, strict=True):
        limit = 0 if row.budget is None else row.budget.usable_bytes
        sizes = _sums(row, peak)
        largest = peak.largest[:_LISTED] if peak else ()
        bars.append(
            Bar(
                label=row.target,
                parts=tuple((k, size, _COLOURS[k]) for k, size in sizes.items()),
                limit=limit,
                remark=f", {row.answer}",
                notes=tuple(_describe(held) for held in largest),
            )
        )
    seen = {kind for bar in bars for kind, _, _ in bar.parts}
    return bar_chart(
        bars,
        title="What fills the memory of one device",
        unit="bytes",
        is_wide=True,
        keys={kind: colour for kind, colour in _COLOURS.items() if kind in seen},
        description=str(plan),
    ).svg()


def _sums(row: FitRow, peak: PeakMemory | None) -> dict[str, int]:
    """Bytes of each kind; together the peak by the compiler."""
    if peak is None:
        return {"everything else": row.predicted}
    known = peak.held
    if sum(h.bytes for h in known) > peak.bytes:
        known = peak.largest  # small ones share a place, in ways that cannot be told
    sums = dict.fromkeys(_COLOURS, 0)
    for held in known:
        sums[held.kind] += held.bytes
    sums["everything else"] = peak.bytes - sum(h.bytes for h in known)
    return {kind: size for kind, size in sums.items() if size > 0}


def _describe(held: HeldArray) -> str:
    facts = (format_bytes(held.bytes), held.shape, held.kind, held.name, held.source)
    text = " · ".join(filter(None, facts))
    if len(text) > _MAX_LETTERS:
        text = text[: _MAX_LETTERS - 1] + "…"
    return text
