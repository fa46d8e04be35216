"""Count the lines and public names of each package, and name the largest files.

    python scripts/measure_size.py           # print the tables
    python scripts/measure_size.py --write   # and sums and files to docs/maintainers.md

A package should have at most 40 public names; the layers of `models`, which have a page
of their own, are not counted. The concept of a file is the first sentence of its
docstring.
"""

import argparse
import ast
import importlib
import re
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_SOURCE = _ROOT / "src" / "frugax"
_PAGE = _ROOT / "docs" / "maintainers.md"
_MARKED = re.compile(r"(<!-- size: start -->\n).*(<!-- size: end -->)", re.DOTALL)
_LARGEST = 10


def count_lines(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in folder.rglob("*.py")
    )


def count_words(folder: Path) -> int:
    """Words of all Markdown pages below a folder."""
    return sum(
        len(path.read_text(encoding="utf-8").split()) for path in folder.rglob("*.md")
    )


def count_public_names(package: str) -> int:
    """Public names of a package; of `models`, those that are not layers."""
    names = set(importlib.import_module(f"frugax.{package}").__all__)
    if package == "models":
        names -= set(importlib.import_module("frugax.models.layers").__all__)
    return len(names)


def list_packages() -> list[str]:
    """A row for each package, the largest first."""
    rows = ["| package | source | tests | public names |", "|---|--:|--:|--:|"]
    counted = sorted(
        ((count_lines(p.parent), p.parent.name) for p in _SOURCE.glob("*/__init__.py")),
        reverse=True,
    )
    for lines, name in counted:
        tests = count_lines(_ROOT / "tests" / name)
        rows.append(
            f"| `{name}` | {lines:,} | {tests:,} | {count_public_names(name)} |"
        )
    return rows


def list_largest_files() -> list[str]:
    """A row for each of the largest files of the source, with its concept."""
    rows = ["| file | lines | its concept |", "|---|--:|---|"]
    texts = {p: p.read_text(encoding="utf-8") for p in _SOURCE.rglob("*.py")}
    by_size = sorted(texts, key=lambda p: -len(texts[p].splitlines()))
    for path in by_size[:_LARGEST]:
        name = path.relative_to(_SOURCE).as_posix()
        doc = ast.get_docstring(ast.parse(texts[path])) or ""
        lines = len(texts[path].splitlines())
        rows.append(f"| `{name}` | {lines:,} | {doc.partition(chr(10))[0]} |")
    return rows


def describe() -> str:
    """The sums and the largest files, as Markdown."""
    whole = (
        f"Source has {count_lines(_ROOT / 'src'):,} lines, tests "
        f"{count_lines(_ROOT / 'tests'):,}, benchmarks "
        f"{count_lines(_ROOT / 'benchmarks'):,}, and the pages of `docs` "
        f"{count_words(_ROOT / 'docs'):,} words."
    )
    return "\n".join([whole, "", *list_largest_files(), ""])


def main() -> None:
    """Print the tables, and write them where that was asked for."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--write", action="store_true", help="into docs/maintainers.md")
    if ask.parse_args().write:
        page = _PAGE.read_text(encoding="utf-8")
        _PAGE.write_text(
            _MARKED.sub(lambda m: m[1] + describe() + m[2], page), encoding="utf-8"
        )
    print(describe(), *list_packages(), sep="\n")


if __name__ == "__main__":
    main()
