"""The notebooks run, and hold the outputs and pictures of a run from top to bottom."""

import ast
import contextlib
import importlib.util
import io
import itertools
import json
import sys
import types
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jax
import pytest

from frugax.targets import installed_compilers

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# The others take longer than a test may; CI runs all of them by `make notebooks`.
QUICK = ("3_watch",)


def cells_of(path, kind="code"):
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def pictures_of(cell):
    data = [output.get("data", {}) for output in cell["outputs"]]
    return ["".join(d["image/svg+xml"]) for d in data if "image/svg+xml" in d]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_holds_a_whole_run(path):
    cells = cells_of(path)
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    kinds = {o["output_type"] for c in cells for o in c["outputs"]}
    assert "error" not in kinds
    assert not [o for c in cells for o in c["outputs"] if o.get("name") == "stderr"]
    drawn = [svg for cell in cells for svg in pictures_of(cell)]
    assert drawn
    for svg in drawn:
        assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    # Paths of the machine that it ran on would be in the pictures, too.
    assert "/tmp/" not in "".join(drawn)


def test_the_gallery_shows_the_pictures_of_the_notebooks():
    spec = importlib.util.spec_from_file_location(
        "draw_gallery", ROOT / "scripts" / "draw_gallery.py"
    )
    assert spec is not None
    assert spec.loader is not None
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    page = (ROOT / "docs" / "gallery.md").read_text()
    for name, place in gallery.FROM_NOTEBOOKS.items():
        assert (gallery.PICTURES / f"{name}.svg").read_text() == gallery.read_notebook(
            *place
        )
        assert f"](pictures/{name}.svg)" in page


def test_each_leads_to_the_next():
    assert [path.stem[0] for path in NOTEBOOKS] == list("1234567")
    for path, following in itertools.pairwise(NOTEBOOKS):
        last = "".join(cells_of(path, "markdown")[-1]["source"])
        assert f"]({following.name})" in last


def run(path):
    """Run a notebook without Jupyter; return each cell's output as (printed, value)."""
    names = {"__name__": "__main__"}
    shown = []
    for cell in cells_of(path):
        tree = ast.parse("".join(cell["source"]), filename=path.name)
        value = None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            last = tree.body[-1]
            if isinstance(last, ast.Expr):
                tree.body.pop()
            exec(compile(tree, path.name, "exec"), names)
            if isinstance(last, ast.Expr):
                expression = ast.Expression(last.value)
                value = eval(compile(expression, path.name, "eval"), names)
        shown.append((printed.getvalue(), value))
    return shown


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=[] if p.stem in QUICK else pytest.mark.thorough)
        for p in NOTEBOOKS
    ],
    ids=lambda p: p.stem,
)
def test_a_notebook_runs(path, monkeypatch):
    source = path.read_text()
    for needed in ("equinox", "torch"):
        if needed in source:
            pytest.importorskip(needed)
    if "nnx" in source:  # before the stand-in below, into which it would look
        pytest.importorskip("flax.nnx")
    problem = next(c.problem for c in installed_compilers() if c.platform == "gpu")
    if "Target(" in source and problem:
        pytest.skip(problem)
    # Only Jupyter has IPython; pictures are checked as text.
    display = types.ModuleType("IPython.display")
    monkeypatch.setattr(display, "SVG", str, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    # A reader's JAX has its defaults, unlike the other tests (tests/conftest.py).
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        shown: Any = run(path)
    for cell, (printed, value) in zip(cells_of(path), shown, strict=True):
        if pictures_of(cell):
            svg = value if isinstance(value, str) else value._repr_svg_()
            assert ET.fromstring(svg).tag.endswith("svg")
        else:
            texts = [o for o in cell["outputs"] if o["output_type"] == "stream"]
            assert bool(printed) == bool(texts)
