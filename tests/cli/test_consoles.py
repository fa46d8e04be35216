"""What commands print beside their results."""

import sys
import warnings
from pathlib import Path

import pytest

import frugax
from frugax.cli._consoles import show_own_warnings_as_lines


@pytest.fixture
def shown(monkeypatch, capsys):
    """Give a warning from a file; return what a person sees."""

    def as_python(message, category, filename, lineno, file=None, line=None):
        text = warnings.formatwarning(message, category, filename, lineno, line)
        sys.stderr.write(text)

    monkeypatch.setattr(warnings, "showwarning", as_python)  # pytest keeps its own
    show_own_warnings_as_lines()

    def show(file):
        warnings.showwarning("one\nmodel [a]", UserWarning, str(file), 7)
        return capsys.readouterr().err

    return show


def test_a_warning_of_frugax_is_one_line(shown):
    file = Path(frugax.__file__).with_name("cli") / "x.py"
    assert shown(file) == "frugax: warning: one model [a]\n"


def test_a_warning_of_a_script_keeps_its_place(shown, tmp_path):
    assert f"{tmp_path / 'train.py'}:7: UserWarning" in shown(tmp_path / "train.py")
