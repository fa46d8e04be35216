"""Draw how a budget flows through a run, from the imports of the source.

    python scripts/draw_architecture.py    # writes docs/pictures/architecture.svg

Each blue arrow is an import: from `frugax.run` to a package that plans, or from one of
these to another. A package receives those budgets that its source imports from
`frugax.budget`.
`tests/test_structure.py` fails if the picture no longer shows the source.
"""

import ast
from pathlib import Path

import grimp

from frugax.report import Markup, element, fragment

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"

# The packages that plan, from left to right in the order in which a run reaches them.
_PLANNING_PACKAGES = ("remat", "train", "watch", "compress")
_UNITS = {
    "MemoryBudget": "bytes on the device",
    "TimeBudget": "bytes, seconds, compiles",
    "OverheadBudget": "share of the time",
    "SizeBudget": "bytes of the file",
}
_WIDTH, _HEIGHT = 920, 490
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 190, 76, 36
_ROWS = {"config": 16, "run": 128, "packages": 252, "receipt": 390}

_STYLE = """
svg { font: 14px system-ui, sans-serif; } .box { fill: #fff; stroke: #5b6470; }
.name { font-weight: 600; } .soft { fill: #5b6470; font-size: 12px; }
.down { stroke: #2563c9; } .up { stroke: #15803d; } text { fill: #1b1f24; }
line { stroke-width: 1.6; marker-end: url(#tip); }
@media (prefers-color-scheme: dark) { .box { fill: #1b1f24; stroke: #9aa4b0; }
 text { fill: #e7e9ec; } .soft { fill: #9aa4b0; } }
"""


def budgets_of(package: str) -> list[str]:
    """Find the budget classes that a package's source imports."""
    imported = {
        alias.name
        for path in sorted((ROOT / "src" / "frugax" / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "frugax.budget"
        for alias in node.names
    }
    return [name for name in _UNITS if name in imported]


def imports_of(package: str) -> set[str]:
    """Find the planning packages that a package imports."""
    graph = grimp.build_graph("frugax")
    imported = {
        used.split(".")[1]
        for module in {
            f"frugax.{package}",
            *graph.find_descendants(f"frugax.{package}"),
        }
        for used in graph.find_modules_directly_imported_by(module)
        if used.count(".")
    }
    return imported & set(_PLANNING_PACKAGES) - {package}


def draw() -> str:
    """Draw the picture as SVG text."""
    direct = imports_of("run")
    step = _BOX_WIDTH + _GAP
    middle = _WIDTH / 2
    center = (len(_PLANNING_PACKAGES) - 1) / 2
    xs = {
        package: middle + (i - center) * step
        for i, package in enumerate(_PLANNING_PACKAGES)
    }
    parts = [
        _box(
            middle,
            _ROWS["config"],
            "config.yaml",
            "budgets: memory,",
            "time, overhead, size",
        ),
        _arrow(middle, _ROWS["config"] + _BOX_HEIGHT, middle, _ROWS["run"], "down"),
        _box(middle, _ROWS["run"], "frugax.run", "passes each package", "its budget"),
        _box(
            middle,
            _ROWS["receipt"],
            "receipt.json",
            "limit, predicted,",
            "measured, verdict",
        ),
    ]
    for i, (package, x) in enumerate(xs.items()):
        # Spread the ends so that the arrows do not meet in one point.
        end = middle + (i - center) * _BOX_WIDTH / (len(xs) + 1)
        budgets = budgets_of(package)
        units = [_UNITS[name] for name in budgets]
        top, bottom = _ROWS["packages"], _ROWS["packages"] + _BOX_HEIGHT
        parts.append(_box(x, top, f"frugax.{package}", ", ".join(budgets), units[-1]))
        parts.append(_arrow(x, bottom, end, _ROWS["receipt"], "up"))
        if package in direct:
            parts.append(_arrow(end, _ROWS["run"] + _BOX_HEIGHT, x, top, "down"))
        for used in imports_of(package):
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
