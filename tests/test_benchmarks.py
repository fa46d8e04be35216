"""Benchmarks and examples are too slow for CI, but their imports are not."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted([*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/*.py")])
OURS = ("frugax", "benchmarks")


def broken_imports(source: str) -> list[str]:
    """The names of frugax and of the benchmarks that a file imports in vain."""
    broken = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        sibling = ROOT / "benchmarks" / f"{node.module}.py"
        if node.level == 0 and sibling.is_file():
            # Found only if the file is run by its path, not by `python -m`.
            broken.append(node.module)
        if node.module.split(".")[0] not in OURS:
            continue
        broken += [
            f"{node.module}.{alias.name}"
            for alias in node.names
            if not is_there(node.module, alias.name)
        ]
    return broken


def is_there(module: str, name: str) -> bool:
    """Whether `from module import name` works, without running any benchmark."""
    if module.split(".")[0] == "frugax":
        loaded = importlib.import_module(module)
        # `dir` lists lazy names without importing their modules.
        return name in dir(loaded) or bool(
            hasattr(loaded, "__path__")
            and importlib.util.find_spec(f"{module}.{name}") is not None
        )
    # Read, not imported: some benchmarks pin themselves to a core when imported.
    path = ROOT.joinpath(*module.split("."))
    if path.is_dir():
        return (path / f"{name}.py").is_file() or (path / name).is_dir()
    return name in names_at_top(path.with_suffix(".py").read_text())


def names_at_top(source: str) -> set[str]:
    """The names that a module defines or imports outside of functions and classes."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        for part in ast.walk(node):
            match part:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                case ast.ImportFrom(names=found) | ast.Import(names=found):
                    names |= {alias.asname or alias.name for alias in found}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_benchmark_imports_names_that_exist(path):
    source = path.read_text()
    if "import torch" in source and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    assert broken_imports(source) == []


def test_a_missing_name_is_found():
    assert broken_imports("from frugax.run import bugdet") == ["frugax.run.bugdet"]
    assert broken_imports("from benchmarks.nets import ne") == ["benchmarks.nets.ne"]
    assert broken_imports("from nets import ne") == ["nets"]
    assert broken_imports("from frugax import watch") == []


def watchers_in(source: str) -> list[ast.ClassDef]:
    """The watcher classes that are passed to `watch.jit`, by their methods."""
    classes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef)]
    return [c for c in classes if "wants_frames" in methods_of(c)]


def methods_of(node: ast.ClassDef) -> set[str]:
    return {part.name for part in node.body if isinstance(part, ast.FunctionDef)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_benchmarks_watcher_accepts_the_records_of_watch_jit(path):
    for watcher in watchers_in(path.read_text()):
        assert {"due", "ingest"} <= methods_of(watcher), watcher.name
