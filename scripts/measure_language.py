"""Count how the prose and the names of Python code bases read, side by side.

    python scripts/measure_language.py                       # frugax, with its limits
    python scripts/measure_language.py OTHER/CHECKOUT ...    # any code base

Prose is docstrings and comments; tests are left out. Phrase rates are per 10,000 words
of prose, shares are of functions or of lines. Without arguments, the phrases of the
Markdown pages are counted too, and files, pages and tests that need another look are
listed.
"""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

PHRASES = {
    "noun clauses": (
        r"\b[Ww]hat (?:is|was|are|were|has|have|can|may|must|goes|comes|came|it|they"
        r"|a|the|one)\b"
    ),
    "is no X": (
        r"\b(?:is|are|was|were) no (?!longer|more|less|better|worse|way|doubt|reason"
        r"|need|one\b|other|such|matter|fewer|room|limit)[a-z]+"
    ),
    "is none": r"` (?:is|are) none\b|\b(?:is|are) none[,;:.]",
    "so many": r"\bso (?:many|much|few|long|often)\b(?! (?:as|that))",
}
# The largest value that frugax should have; comments are the one figure with a least.
MOST = {
    "noun clauses": 8.0,
    "is no X": 1.5,
    "is none": 0.0,
    "so many": 1.5,
    "participle functions, %": 2.5,
    "conditional expressions / 1,000 lines": 10.0,
}
LEAST = {"comment lines, %": 4.0}
# One file should not use up the allowance of all.
MOST_NOUN_CLAUSES_A_FILE = 3
# Clauses that make a reader decode the name of a test, such as "what_is_no_number".
CLAUSES_IN_NAMES = re.compile(
    r"_(is|are|was|were)_no_(?!longer)|_what_|_so_many|_whoever|_whatever"
    r"|_(nobody|somebody|said|told|heard)(_|$)"
)

_IRREGULAR_PARTICIPLES = """
made drawn told said kept held found given taken written shown known chosen left sent
bound begun done gone seen worn won built burnt met paid spread bent wound torn born
grown
"""
_NOT_PARTICIPLES = frozenset({"embed", "feed", "need", "seed", "shed", "speed"})
_ROOT = Path(__file__).parent.parent
_FRUGAX = _ROOT / "src" / "frugax"


def python_files(root: Path) -> Iterator[Path]:
    """Every Python file below `root` that is not a test."""
    for path in sorted(root.rglob("*.py")):
        if not any("test" in part for part in path.relative_to(root).parts):
            yield path


def is_participle(name: str) -> bool:
    """Whether a function's name starts with a participle, as `made_up` does."""
    first = name.strip("_").split("_")[0]
    regular = first.endswith("ed") and first not in _NOT_PARTICIPLES
    return regular or first in _IRREGULAR_PARTICIPLES.split()


def prose_of(source: str) -> list[str]:
    """The docstrings and comments of a module."""
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    prose = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented)
    ]
    comments = [line.split("#", 1)[1] for line in source.splitlines() if "#" in line]
    return prose + comments


def count_phrase(name: str, prose: list[str]) -> int:
    """How often a phrase of `PHRASES` occurs."""
    return sum(len(re.findall(PHRASES[name], text)) for text in prose)


def measure(files: list[Path]) -> dict[str, float]:
    """Figures over all of `files` together."""
    words = lines = comments = code = functions = participles = conditionals = 0
    phrases = dict.fromkeys(PHRASES, 0)
    for path in files:
        source = path.read_text(encoding="utf-8")
        try:
            tree = ast.parse(source)
        except SyntaxError:  # other code bases hold templates and older Python
            continue
        prose = prose_of(source)
        words += sum(len(text.split()) for text in prose)
        for name in PHRASES:
            phrases[name] += count_phrase(name, prose)
        stripped = [line.strip() for line in source.splitlines()]
        lines += len(stripped)
        comments += sum(line.startswith("#") for line in stripped)
        code += sum(bool(line) and not line.startswith("#") for line in stripped)
        for node in ast.walk(tree):
            conditionals += isinstance(node, ast.IfExp)
            if isinstance(node, ast.FunctionDef) and _is_named_freely(node):
                functions += 1
                participles += is_participle(node.name)
    rates = {name: 1e4 * n / max(words, 1) for name, n in phrases.items()}
    rates |= {
        "participle functions, %": 100 * participles / max(functions, 1),
        "comment lines, %": 100 * comments / max(lines, 1),
        "conditional expressions / 1,000 lines": 1000 * conditionals / max(code, 1),
    }
    return {"lines": lines} | {name: round(rate, 1) for name, rate in rates.items()}


def _is_named_freely(node: ast.FunctionDef) -> bool:
    """Whether the name should be a verb: not a property's and not Python's own."""
    marks = {
        getattr(mark, "id", getattr(mark, "attr", "")) for mark in node.decorator_list
    }
    is_value = marks & {"property", "cached_property", "setter"}
    return not is_value and not node.name.startswith("__")


def measure_pages(pages: list[Path]) -> dict[str, float]:
    """Rates of the phrases in Markdown pages, without their code."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    words = max(len(prose.split()), 1)
    return {
        name: round(1e4 * count_phrase(name, [prose]) / words, 1) for name in PHRASES
    }


def files_with_many_clauses() -> Iterator[str]:
    """Source files with more noun clauses than one file should have."""
    for path in python_files(_FRUGAX):
        found = count_phrase("noun clauses", prose_of(path.read_text(encoding="utf-8")))
        if found > MOST_NOUN_CLAUSES_A_FILE:
            yield f"{path.relative_to(_ROOT)}: {found} noun clauses"


def test_names_to_decode() -> Iterator[str]:
    """Tests whose names are not plain statements."""
    for path in sorted((_ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")):
            if CLAUSES_IN_NAMES.search(name):
                yield f"{path.relative_to(_ROOT)}: {name}"


def main() -> None:
    """Print a column of figures for each code base."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("roots", nargs="*", type=Path, default=[_FRUGAX])
    roots = parser.parse_args().roots
    columns = {root.name: measure(list(python_files(root))) for root in roots}
    if roots == [_FRUGAX]:
        named = (_ROOT / "README.md", _ROOT / "CONTRIBUTING.md")
        columns["pages"] = measure_pages([*named, *_ROOT.glob("docs/**/*.md")])
    print(f"{'':38}", *(f"{name:>12}" for name in columns), f"{'limit':>8}")
    for name in next(iter(columns.values())):
        limit = LEAST.get(name, MOST.get(name, ""))
        figures = (f"{column.get(name, ''):>12}" for column in columns.values())
        print(f"{name:38}", *figures, f"{limit:>8}")
    if roots == [_FRUGAX]:
        print(*files_with_many_clauses(), *test_names_to_decode(), sep="\n")


if __name__ == "__main__":
    main()
