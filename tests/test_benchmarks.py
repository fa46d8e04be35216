"""Benchmarks run in a tiny form, and what they and the examples import exists."""

import ast
import importlib
import importlib.util
import json
from pathlib import Path

import pytest
from benchmarks import harness, results

ROOT = Path(__file__).parent.parent
MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
FILES = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")])
# A part of each package that is over in a second or two.
TINY = {
    "remat": "depth",
    "train": "overhead",
    "watch": "call",
    "compress": "budgets",
    "tropical": "closure",
    "models": "memory",
    "causal": "data",
}


def broken_imports(source: str) -> list[str]:
    """The names of frugax and of the benchmarks that a file imports in vain."""
    broken = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.level == 0 and node.module in MODULES:
            # Found only if the file is run by its path, not by `python -m`.
            broken.append(node.module)
        if node.module.split(".")[0] in ("frugax", "benchmarks"):
            broken += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if not is_there(node.module, alias.name)
            ]
    return broken


def is_there(module: str, name: str) -> bool:
    loaded = importlib.import_module(module)
    return hasattr(loaded, name) or bool(
        hasattr(loaded, "__path__") and importlib.util.find_spec(f"{module}.{name}")
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_benchmark_imports_names_that_exist(path):
    source = path.read_text()
    if "import torch" in source:
        pytest.importorskip("torch")
    assert broken_imports(source) == []


def test_a_missing_name_is_found():
    assert broken_imports("from frugax.run import bugdet") == ["frugax.run.bugdet"]
    assert broken_imports("from benchmarks.nets import ne") == ["benchmarks.nets.ne"]
    assert broken_imports("from nets import ne") == ["nets"]
    assert broken_imports("from frugax import watch") == []


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_can_be_imported(module):
    assert importlib.import_module(f"benchmarks.{module}").__doc__


@pytest.mark.thorough
@pytest.mark.parametrize("package", results.PACKAGES)
def test_a_part_of_each_benchmark_runs(package, tmp_path, capsys):
    if package in ("tropical", "models"):
        pytest.importorskip("torch")
    module = importlib.import_module(f"benchmarks.{package}")
    out, part = tmp_path / "out.json", TINY[package]
    how = {"about": module.__doc__, "options": getattr(module, "add_options", None)}
    argv = [part, "--quick", "--out", str(out)]
    found = harness.run(package, module.PARTS, argv=argv, **how)
    assert list(found) == [part]
    entry = json.loads(out.read_text())[part]
    assert entry["found"]
    assert {"jax", "cpu", "date", "git commit"} <= set(entry["made_with"])
    assert f"## {package}: {part}" in capsys.readouterr().out


def test_an_unknown_part_is_refused(capsys):
    tropical = importlib.import_module("benchmarks.tropical")
    with pytest.raises(SystemExit):
        harness.run("tropical", tropical.PARTS, argv=["matmull"])
    assert "matmull" in capsys.readouterr().err
