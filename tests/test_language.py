"""The house is written in plain words: `scripts/measure_language.py` counts them."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location(
    "measure_language", ROOT / "scripts" / "measure_language.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
language = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(language)

FILES = list(language.python_files(ROOT / "src" / "frugax"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]


@pytest.fixture(scope="module")
def figures():
    return language.measure(FILES)


@pytest.mark.parametrize("name", language.MOST)
def test_the_source_keeps_the_bar_of(name, figures):
    assert figures[name] <= language.MOST[name]


def test_enough_lines_are_comments(figures):
    assert figures["comment lines, %"] >= language.LEAST["comment lines, %"]


def test_no_file_leans_on_noun_clauses():
    counts = {
        str(path.relative_to(ROOT)): language.count_phrase(
            "noun clauses", language.prose_of(path.read_text())
        )
        for path in FILES
    }
    most = language.MOST_NOUN_CLAUSES_A_FILE
    assert not {path: n for path, n in counts.items() if n > most}


# Clauses that make a reader decode the name of a test, such as "what_is_no_number".
CLAUSES = re.compile(
    r"_(is|are|was|were)_no_(?!longer)|_what_|_so_many|_whoever|_whatever"
    r"|_(nobody|somebody|said|told|heard)(_|$)"
)


def test_tests_are_named_by_plain_statements():
    found = [
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
        if CLAUSES.search(name)
    ]
    assert not found


@pytest.mark.parametrize(
    "name",
    ["test_what_is_left", "test_a_list_is_no_array", "test_a_full_disk_is_said"],
)
def test_the_gate_of_test_names_can_fail(name):
    assert CLAUSES.search(name)
    assert not CLAUSES.search("test_a_full_disk_is_reported")


def words_and_phrases(pages):
    """The words of Markdown pages without their code, and how often phrases occur."""
    text = "\n".join(page.read_text() for page in pages)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    counts = {name: language.count_phrase(name, [prose]) for name in language.PHRASES}
    return len(prose.split()), counts


@pytest.mark.parametrize("name", language.PHRASES)
def test_the_pages_keep_the_bar_of(name):
    words, counts = words_and_phrases(PAGES)
    assert 1e4 * counts[name] / words <= language.MOST[name]


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("noun clauses", "Return what is left.", "Return the remaining bytes."),
        ("is no X", "ValueError: it is no number.", "ValueError: it is not a number."),
        ("is no X", "There are no lanes left: it is no bug.", "It is no longer used."),
        ("is none", "`budget` is none, but text.", "`budget` is not a MemoryBudget."),
        ("so many", "Write every so many steps.", "Write every n-th step."),
    ],
)
def test_each_phrase_can_be_found(name, bad, good):
    assert language.count_phrase(name, language.prose_of(f'"""{bad}"""')) >= 1
    assert language.count_phrase(name, language.prose_of(f"# {bad}")) >= 1
    assert language.count_phrase(name, language.prose_of(f'"""{good}"""')) == 0


def test_names_and_lines_are_counted(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        "# Why: a comment.\ndef made(a):\n    return 1 if a else 2\n\n"
        "def embed(a):\n    return a\n"
        "class A:\n    @property\n    def sorted_names(self):\n        return []\n"
    )
    figures = language.measure([module])
    assert figures["participle functions, %"] == 50.0
    assert figures["comment lines, %"] == 10.0
    assert figures["conditional expressions / 1,000 lines"] == round(1000 / 8, 1)
