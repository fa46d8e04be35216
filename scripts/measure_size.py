"""Count the lines of source and tests, and the public names, of each package.

    python scripts/measure_size.py

A package should have at most 40 public names; the layers of `models`, which have a page
of their own, are not counted.
"""

import importlib
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def count_lines(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in folder.rglob("*.py")
    )


def count_public_names(package: str) -> int:
    """Public names of a package; of `models`, those that are not layers."""
    names = set(importlib.import_module(f"frugax.{package}").__all__)
    if package == "models":
        names -= set(importlib.import_module("frugax.models.layers").__all__)
    return len(names)


def main() -> None:
    """Print a row for each package, the largest first, and the sums."""
    packages = [p.parent for p in (_ROOT / "src" / "frugax").glob("*/__init__.py")]
    rows = [
        (
            count_lines(p),
            count_lines(_ROOT / "tests" / p.name),
            count_public_names(p.name),
        )
        for p in packages
    ]
    print(f"{'':12}{'source':>10}{'tests':>10}{'names':>8}")
    for package, row in sorted(
        zip(packages, rows, strict=True), key=lambda r: -r[1][0]
    ):
        print(f"{package.name:12}{row[0]:>10,}{row[1]:>10,}{row[2]:>8}")
    source, tests = count_lines(_ROOT / "src"), count_lines(_ROOT / "tests")
    print(f"{'all':12}{source:>10,}{tests:>10,}")


if __name__ == "__main__":
    main()
