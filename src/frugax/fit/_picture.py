"""Draw what fills the memory of each target as an SVG document."""

from collections.abc import Sequence

from frugax.budget import format_bytes
from frugax.measure import PeakMemory
from frugax.report import element, svg_line, svg_picture, svg_text

from ._plan import FitPlan, FitRow

_WIDTH, _SIDE, _TOP, _BOTTOM = 880, 24, 106, 30
_HEAD, _BAR, _LINE, _GAP = 22, 26, 19, 26  # heights, in px
_LISTED = 4  # arrays named under each bar
_LETTER = 6.6  # px of a character, on average
# The colour of each kind of array; the same in every bar.
_COLOURS = {
    "argument": "s0",
    "saved for backward": "s1",
    "gradient": "s2",
    "recomputed": "s3",
    "other": "s5",
    "everything else": "faint",
}
_STYLE = ".back { fill:var(--paper); }\n.limit { stroke-dasharray:none; }\n" + "".join(
    f".{name} {{ fill:var(--{name}); }}\n" for name in _COLOURS.values()
)


def draw_memory(plan: FitPlan, peaks: Sequence[PeakMemory | None]) -> str:
    """Draw a bar for each row of a plan: its bytes by kind, and the budget as a line.

    Args:
        plan: the answers for some targets.
        peaks: for each row what `show_why` found, or None where it found nothing.

    Returns:
        The text of an SVG file, self-contained, for light and dark themes.
    """
    limits = [r.budget.usable_bytes for r in plan.rows]
    most = max([*limits, *(p.bytes for p in peaks if p), 1])
    px = lambda n: n / most * (_WIDTH - 2 * _SIDE)
    parts = [svg_text(_SIDE, 34, "What fills the memory of one device", "title")]
    x = float(_SIDE)
    sums = [_sums(row, peak) for row, peak in zip(plan.rows, peaks, strict=True)]
    for kind, colour in _COLOURS.items():
        if not any(kind in sizes for sizes in sums):
            continue
        parts.append(element("rect", class_=colour, x=x, y=58, width=12, height=12))
        parts.append(svg_text(x + 18, 69, kind))
        x += 40 + _LETTER * len(kind)
    y = float(_TOP)
    for row, peak, sizes in zip(plan.rows, peaks, sums, strict=True):
        limit = row.budget.usable_bytes
        size = peak.bytes if peak else row.predicted
        words = f"{row.target}: {format_bytes(size)}, {row.answer}"
        parts.append(svg_text(_SIDE, y, words, "strong"))
        y += _HEAD - 12
        x = float(_SIDE)
        for kind, size in sizes.items():
            tip = element("title", f"{kind}: {format_bytes(size)}")
            box = {"x": x, "y": y, "width": px(size), "height": _BAR}
            parts.append(element("rect", tip, class_=_COLOURS[kind], **box))
            x += px(size)
        edge = _SIDE + px(limit)
        parts.append(svg_line(edge, y - 5, edge, y + _BAR + 5, "limit"))
        label = f"budget {format_bytes(limit)}"
        half = _LETTER * len(label) / 2
        middle = min(max(edge, _SIDE + half), _WIDTH - _SIDE - half)
        y += _BAR + 20
        parts.append(svg_text(middle, y, label, "limit-text", "middle"))
        for held in peak.largest[:_LISTED] if peak else ():
            y += _LINE
            facts = (held.shape, held.kind, held.name, held.source)
            words = " · ".join(filter(None, (format_bytes(held.bytes), *facts)))
            parts.append(svg_text(_SIDE, y, _cut(words)))
        y += _GAP + _HEAD
    height = y - _GAP - _HEAD + _BOTTOM
    return svg_picture(
        "What fills the memory of one device",
        parts,
        width=_WIDTH,
        height=height,
        description=str(plan),
        style=_STYLE,
    )


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


def _cut(text: str) -> str:
    room = int((_WIDTH - 2 * _SIDE) / _LETTER)
    return text if len(text) <= room else text[: room - 1] + "…"
