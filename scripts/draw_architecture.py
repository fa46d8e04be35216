"""Draw how a budget flows through a run, from the imports of the source.

    python scripts/draw_architecture.py    # writes docs/pictures/architecture.svg

Each blue arrow is an import: from `frugax.run` to a planning room, or from one planning
room to another. A room receives those budgets that its source imports from
`frugax.budget`.
`tests/test_house.py` fails if the picture no longer shows the source.
"""

import ast
from pathlib import Path

import grimp

from frugax.report import Markup, element, fragment

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"

# The rooms that plan, from left to right in the order in which a run reaches them.
_PLANNING_ROOMS = ("remat", "train", "watch", "compress")
_UNITS = {
    "MemoryBudget": "bytes on the device",
    "TimeBudget": "bytes, seconds, compiles",
    "OverheadBudget": "share of the time",
    "SizeBudget": "bytes of the file",
}
_WIDTH, _HEIGHT = 920, 490
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 190, 76, 36
_ROWS = {"config": 16, "run": 128, "rooms": 252, "receipt": 390}

_STYLE = """
svg { font: 14px system-ui, sans-serif; } .box { fill: #fff; stroke: #5b6470; }
.name { font-weight: 600; } .soft { fill: #5b6470; font-size: 12px; }
.down { stroke: #2563c9; } .up { stroke: #15803d; } text { fill: #1b1f24; }
line { stroke-width: 1.6; marker-end: url(#tip); }
@media (prefers-color-scheme: dark) { .box { fill: #1b1f24; stroke: #9aa4b0; }
 text { fill: #e7e9ec; } .soft { fill: #9aa4b0; } }
"""


def budgets_of(room: str) -> list[str]:
    """Find the budget classes that a room's source imports."""
    imported = {
        alias.name
        for path in sorted((ROOT / "src" / "frugax" / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "frugax.budget"
        for alias in node.names
    }
    return [name for name in _UNITS if name in imported]


def imports_of(room: str) -> set[str]:
    """Find the planning rooms that a room imports."""
    graph = grimp.build_graph("frugax")
    imported = {
        used.split(".")[1]
        for module in {f"frugax.{room}", *graph.find_descendants(f"frugax.{room}")}
        for used in graph.find_modules_directly_imported_by(module)
        if used.count(".")
    }
    return imported & set(_PLANNING_ROOMS) - {room}


def draw() -> str:
    """Draw the picture as SVG text."""
    direct = imports_of("run")
    step = _BOX_WIDTH + _GAP
    middle = _WIDTH / 2
    center = (len(_PLANNING_ROOMS) - 1) / 2
    xs = {room: middle + (i - center) * step for i, room in enumerate(_PLANNING_ROOMS)}
    parts = [
        _box(
            middle,
            _ROWS["config"],
            "config.yaml",
            "budgets: memory,",
            "time, overhead, size",
        ),
        _arrow(middle, _ROWS["config"] + _BOX_HEIGHT, middle, _ROWS["run"], "down"),
        _box(middle, _ROWS["run"], "frugax.run", "passes each room", "its budget"),
        _box(
            middle,
            _ROWS["receipt"],
            "receipt.json",
            "limit, predicted,",
            "measured, verdict",
        ),
    ]
    for i, (room, x) in enumerate(xs.items()):
        # Spread the ends so that the arrows do not meet in one point.
        end = middle + (i - center) * _BOX_WIDTH / (len(xs) + 1)
        budgets = budgets_of(room)
        units = [_UNITS[name] for name in budgets]
        top, bottom = _ROWS["rooms"], _ROWS["rooms"] + _BOX_HEIGHT
        parts.append(_box(x, top, f"frugax.{room}", ", ".join(budgets), units[-1]))
        parts.append(_arrow(x, bottom, end, _ROWS["receipt"], "up"))
        if room in direct:
            parts.append(_arrow(end, _ROWS["run"] + _BOX_HEIGHT, x, top, "down"))
        for used in imports_of(room):
            side = _BOX_WIDTH / 2
            if xs[used] < x:
                side = -side
            y = top + _BOX_HEIGHT / 2
            parts.append(_arrow(x + side, y, xs[used] - side, y, "down"))
    tip = element(
        "marker",
        element("path", d="M0 0L8 4L0 8z", fill="context-stroke"),
        id="tip",
        viewBox="0 0 8 8",
        refX=8,
        refY=4,
        markerWidth=7,
        markerHeight=7,
        orient="auto",
    )
    svg = element(
        "svg",
        element("title", "How a budget flows through a run"),
        element("style", Markup(_STYLE)),
        element("defs", tip),
        fragment(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
    )
    return f"{svg}\n"


def _box(x: float, y: float, name: str, *details: str) -> Markup:
    return fragment(
        element(
            "rect",
            class_="box",
            x=x - _BOX_WIDTH / 2,
            y=y,
            width=_BOX_WIDTH,
            height=_BOX_HEIGHT,
            rx=8,
        ),
        element("text", name, class_="name", x=x, y=y + 24, text_anchor="middle"),
        [
            element("text", text, class_="soft", x=x, y=y + line, text_anchor="middle")
            for text, line in zip(details, (44, 62), strict=False)
        ],
    )


def _arrow(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return element("line", class_=kind, x1=x1, y1=y1, x2=x2, y2=y2)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw())
    print(f"Wrote {PICTURE.relative_to(ROOT)}")
