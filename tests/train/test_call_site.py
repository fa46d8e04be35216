"""The line that warnings and receipts name is the user's, whatever lies between."""

from typing import Any

import pytest

from frugax.train.compiles import find_call_site, find_error_site

_PACKAGES = "/env/lib/python3.12/site-packages"
_MINE = "/home/ada/train.py"


def run_through(files):
    """Run a function that fails, through a frame of each file, the outermost first."""
    sites: list[str] = []
    names: Any = {"note": sites.append, "site": find_call_site}
    source = "run = lambda: note(site()) or 1 / 0"
    for file in reversed(files):
        exec(compile(source, file, "exec"), names)
        source, names = "run = lambda: call()", {"call": names["run"]}
    with pytest.raises(ZeroDivisionError) as caught:
        names["call"]()
    return sites[0], caught.value.with_traceback(caught.tb.tb_next)


@pytest.mark.parametrize("library", ["unheard", "jax/_src", "frugax/train"])
def test_the_innermost_line_of_the_user_is_named(library):
    files = ["<frozen runpy>", _MINE, f"{_PACKAGES}/{library}/fit.py"]
    site, error = run_through(files)
    assert (site, find_error_site(error)) == ("train.py:1", "train.py:1")


def test_packages_that_pip_installed_into_a_target_are_not_the_users(
    tmp_path, monkeypatch
):
    (tmp_path / "unheard-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    site, error = run_through([_MINE.replace("train", "own"), f"{tmp_path}/unheard.py"])
    assert (site, find_error_site(error)) == ("own.py:1", "own.py:1")


def test_an_installed_program_is_its_users_own():
    inside = [f"{_PACKAGES}/program/{name}.py" for name in ("cli", "train")]
    files = ["<frozen runpy>", *inside, f"{_PACKAGES}/unheard/fit.py"]
    _, error = run_through(files)
    assert find_error_site(error) == "train.py:1"
    assert find_error_site(error, installed=False) == "?"
