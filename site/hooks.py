"""MkDocs hooks: what the site has besides the pages of docs/.

The README is the home page. Contributing, security and changes come from the root
of the repository. The API reference has one page for each package, generated from the
names that it exports; commands and config keys have a page each, generated from
docstrings, and the results of each benchmark one generated from its JSON. One page
lists the releases whose sites were built. Notebooks are shown with the outputs that
they hold. Links are rewritten to where the pages are on the site. A search finds guides
before reference.
"""

import ast
import importlib.util
import json
import os
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = ROOT / "notebooks"
RESULTS = ROOT / "benchmarks" / "results"
# Pages from the root of the repository, by their place on the site.
FROM_ROOT = {
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changes.md": "CHANGELOG.md",
}
# Pages that people look for first.
GUIDES = {
    "concepts.md",
    "faq.md",
    "howto.md",
    "jit.md",
    "remat.md",
    "run.md",
    "scripts.md",
    "targets.md",
    "train.md",
}
# Packages that only the others use, or that serve names of older systems.
NO_REFERENCE = {"cli", "compat"}
# Classes whose fields are the keys of a YAML config, by file, in the order of the page.
CONFIGS = {
    "`frugax run`": {
        "run/_config.py": "RunConfig TrainConfig Budgets DataConfig ModelConfig "
        "LayoutConfig",
        "train/loop/_evaluation.py": "EarlyStop",
    },
    "`frugax causal run`": {"causal/campaign/_config.py": "CampaignConfig Simulator"},
    "`campaign` of `frugax causal run`": {
        "causal/campaign/_settings.py": "CampaignSettings",
    },
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Place the generated pages, and those that the navigation does not name."""
    sections = {name: pages for entry in config["nav"] for name, pages in entry.items()}
    sections["Reference"] += ["reference/commands.md", "reference/config_keys.md"]
    sections["Reference"] += [f"reference/{package}.md" for package in packages()]
    sections["Project"] += [f"results/{path.stem}.md" for path in result_files()]
    sections["Project"] += [*FROM_ROOT, "versions.md"]
    sections["Notebooks"] += [f"notebooks/{path.stem}.md" for path in notebooks()]
    config["copyright"] = f"frugax {version()}, {config.get('copyright')}"
    return config


def search_boost(place: str) -> float:
    """How much a page counts in a search: someone who searches has a task first."""
    if place == "index.md" or place.startswith("tutorials/") or place in GUIDES:
        return 4.0
    last = ("reference/", "results/", "compat/", "decisions/")
    others = {"changes.md", "maintainers.md", "releasing.md", "architecture.md"}
    if place.startswith(last) or place in others:
        return 0.001  # a word in a title counts a thousand times one in a text
    return 1.0


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    # Imported here, so that the tests read this file without MkDocs.
    from mkdocs.structure.files import File

    for place, source in FROM_ROOT.items():
        files.append(File.generated(config, place, content=read(source)))
    pages = {
        f"reference/{package}.md": reference_page(package) for package in packages()
    }
    pages["reference/commands.md"] = commands_page()
    pages["reference/config_keys.md"] = config_keys_page()
    pages |= {f"results/{path.stem}.md": results_page(path) for path in result_files()}
    pages["versions.md"] = versions_page(os.environ.get("FRUGAX_SITE_TAGS", "").split())
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    for path in notebooks():
        for place, content in notebook_files(path).items():
            files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite links to files that are elsewhere on the site, or not on it."""
    place = page.file.src_uri
    page.meta["search"] = {"boost": search_boost(place)}
    folder = posixpath.join("docs", posixpath.dirname(place))
    if place in FROM_ROOT:
        folder = ""
    if place.startswith("notebooks/"):
        folder = "notebooks"
    if place == "benchmarks.md":
        links = [f"- [{path.stem}](results/{path.stem}.md)" for path in result_files()]
        markdown += "\n## All figures\n\n" + "\n".join(links) + "\n"
    if place == "index.md":
        index = markdown.partition("\n")[2]
        home = rewrite(read("README.md"), "", place)
        return f"{home}\n\n## All pages\n\n{rewrite(index, 'docs', place)}"
    return rewrite(markdown, folder, place)


def rewrite(markdown: str, folder: str, place: str) -> str:
    """Point links of a page at the site; one that leads to source code becomes text."""
    by_source = {source: target for target, source in FROM_ROOT.items()}
    by_source["README.md"] = "index.md"
    by_source |= {
        f"notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in notebooks()
    }
    by_source |= {
        f"benchmarks/results/{path.name}": f"results/{path.stem}.md"
        for path in result_files()
    }

    def one(match: re.Match[str]) -> str:
        picture, text, link = match.groups()
        if ":" in link or link.startswith("#"):
            return match.group()
        path, _, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        target = by_source.get(path, path.removeprefix("docs/"))
        if path.startswith("notebooks/") and picture:
            return match.group()  # beside its page: `notebook_files`
        if not (path in by_source or path.startswith("docs/")):
            return text if not picture else ""
        target = posixpath.relpath(target, posixpath.dirname(place) or ".")
        return f"{picture}[{text}]({target}{'#' * bool(anchor)}{anchor})"

    # Code is left alone: `a[i](x)` is not a link.
    pieces = re.split(r"(^```.*?^```$|`[^`\n]+`(?!\]))", markdown, flags=re.S | re.M)
    return "".join(p if i % 2 else _LINK.sub(one, p) for i, p in enumerate(pieces))


def read(path: str) -> str:
    """Read a text file of the repository."""
    return (ROOT / path).read_text()


def notebooks() -> list[Path]:
    """The notebooks, in the order of their numbers."""
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def notebook_files(path: Path) -> dict[str, str]:
    """A notebook as a page, and its pictures, by their places on the site."""
    pictures: dict[str, str] = {}
    parts: list[str] = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        # Lines that were printed one after the other are one block.
        printed = "".join("".join(o.get("text", "")) for o in cell["outputs"])
        if printed:
            parts.append(f'```{{.text title="prints"}}\n{printed.rstrip()}\n```')
        for output in cell["outputs"]:
            drawn = "".join(output.get("data", {}).get("image/svg+xml", ""))
            if drawn:
                name = f"{path.stem}_{len(pictures) + 1}.svg"
                pictures[f"notebooks/{name}"] = drawn
                parts.append(f"![{picture_title(drawn)}]({name})")
    return {f"notebooks/{path.stem}.md": "\n\n".join(parts) + "\n"} | pictures


def picture_title(svg: str) -> str:
    """The title of a picture, for those who do not see it."""
    found = re.search(r"<title>([^<]*)</title>", svg)
    return found[1] if found else "the picture that the cell above draws"


def packages() -> list[str]:
    """The packages with a page of reference."""
    source = ROOT / "src" / "frugax"
    found = sorted(path.parent.name for path in source.glob("*/__init__.py"))
    return [package for package in found if package not in NO_REFERENCE]


def exported_names(package: str) -> list[str]:
    """The names that a package exports, without importing it."""
    folder = ROOT / "src" / "frugax" / package
    stub = folder / "__init__.pyi"
    if stub.is_file():
        tree = ast.parse(stub.read_text())
        imports = [
            node
            for node in tree.body
            # JAX's own names, passed on: JAX documents them.
            if isinstance(node, ast.ImportFrom) and node.module != "_jax_internals"
        ]
        return sorted(alias.asname or alias.name for n in imports for alias in n.names)
    for node in ast.parse((folder / "__init__.py").read_text()).body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id="__all__")], value=ast.List(elts=elts)
            ):
                return sorted(e.value for e in elts if isinstance(e, ast.Constant))
    return []


def reference_page(package: str) -> str:
    """A page with every public name of a package."""
    summary = (
        ast.get_docstring(ast.parse(read(f"src/frugax/{package}/__init__.py"))) or ""
    )
    names = exported_names(package)
    # The page about the package explains; this one is for looking things up.
    guide = ""
    if (DOCS / f"{package}.md").is_file():
        guide = f"Guide: [{package}](../{package}.md)."
    entries = "\n\n".join(f"::: frugax.{package}.{name}" for name in names)
    return f"# frugax.{package}\n\n{summary.splitlines()[0]} {guide}\n\n{entries}\n"


def result_files() -> list[Path]:
    """The kept results of the benchmarks, a file for each package."""
    others = {"all", "first_page"}
    return [p for p in sorted(RESULTS.glob("*.json")) if p.stem not in others]


def results_page(path: Path) -> str:
    """All figures of a benchmark: its comparisons, then what each part measured."""
    parts = [
        f"# Results: {path.stem}",
        "Generated from the kept figures of the benchmark. "
        "[How to read and repeat them](../benchmarks.md).",
    ]
    compared = [
        row
        for row in json.loads(read("benchmarks/results/all.json"))["rows"]
        if row["package"] == path.stem
    ]
    if compared:
        heads = ["task", "ours", "best peer", "ahead by", "standing", "measured"]
        parts.append(table_of(heads, [list(compared_cells(row)) for row in compared]))
    for name, entry in json.loads(path.read_text()).items():
        made = entry.get("made_with", entry)
        about = [f"`{entry['command']}`"] if entry.get("command") else []
        about += [str(made[k]) for k in ("date", "device", "system") if k in made]
        about += [f"JAX {made['jax']}"] if "jax" in made else []
        parts += [f"## {name}", ", ".join(about)]
        parts += list(figure_tables(entry.get("found", entry)))
    return "\n\n".join(parts) + "\n"


def compared_cells(row: dict[str, Any]) -> Iterator[str]:
    """The cells of one comparison with a peer."""
    yield row["task"]
    yield f"{row['ours']:,.4g} {row['quantity']}"
    yield f"{row['peer']}: {row['theirs']:,.4g}"
    interval = ""
    if row["low"] is not None:
        interval = f" ({row['low']:.3g} to {row['high']:.3g})"
    yield f"{row['ahead_by']:.4g}{interval}"
    yield f"**{row['standing']}**" if row["standing"] == "behind" else row["standing"]
    yield row["date"].partition(" ")[0]


def figure_tables(found: dict[str, Any]) -> Iterator[str]:
    """A table for all cases that have the same figures."""
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    for place, figures in figures_by_case(found):
        cells = [" / ".join(place), *map(show_figure, figures.values())]
        tables.setdefault(tuple(figures), []).append(cells)
    for heads, rows in tables.items():
        yield table_of(["case", *(head.replace("_", " ") for head in heads)], rows)


def figures_by_case(
    found: dict[str, Any], place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The figures of each case, by the names that lead to it."""
    figures = {
        key: value
        for key, value in found.items()
        if isinstance(value, int | float)
        or (isinstance(value, str) and len(value) < 60)
    }
    if figures:
        yield place, figures
    for key, value in found.items():
        if isinstance(value, dict) and key != "made_with":
            yield from figures_by_case(value, (*place, key))


def show_figure(value: Any) -> str:
    """A figure with four digits that count."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def version() -> str:
    """The version in pyproject.toml."""
    return tomllib.loads(read("pyproject.toml"))["project"]["version"]


def versions_page(tags: list[str]) -> str:
    """This version, and the releases whose sites `make site` built beside it."""
    # HTML, as MkDocs would look for these pages among its own.
    lines = [f'- <a href="versions/{tag}/index.html">{tag}</a>' for tag in tags]
    older = "\n".join(lines) or "There is no older release yet."
    return (
        f"# Versions\n\nThis is the documentation of frugax {version()}. "
        "[Changes](changes.md) lists what is new in each release.\n\n"
        f"## Older releases\n\n{older}\n"
    )


def _load_docstrings() -> Any:
    """The reader of docstrings that the command line has, without frugax itself."""
    path = ROOT / "src" / "frugax" / "cli" / "_docstrings.py"
    spec = importlib.util.spec_from_file_location("frugax_docstrings", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


read_docstring = _load_docstrings().read_docstring


def table_of(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [heads, ["---"] * len(heads), *escaped]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def commands() -> Iterator[tuple[str, ast.FunctionDef, dict[str, ast.AST]]]:
    """The words that follow `frugax`, the function, and types by their names."""
    groups = {"_watch_commands": "watch ", "_causal_commands": "causal "}
    files = ("_commands", "_script_commands", "_weights_commands", "_explain_error")
    shared = ("_arguments", "_plan_options")
    named: dict[str, ast.AST] = {}
    for stem in (*shared, *files, *groups):
        for node in ast.parse(read(f"src/frugax/cli/{stem}.py")).body:
            if isinstance(node, ast.Assign):
                named[ast.unparse(node.targets[0])] = node.value
            elif isinstance(node, ast.ClassDef):
                named[node.name] = node
            is_function = isinstance(node, ast.FunctionDef)
            if is_function and "For example:" in (ast.get_docstring(node) or ""):
                word = node.name.rstrip("_").replace("_", "-")
                yield groups.get(stem, "") + word, node, named


def _options(
    node: ast.AST, named: dict[str, ast.AST]
) -> Iterator[tuple[str, str, str, str]]:
    """Name, annotation, default and meaning of the options of a command or group."""
    meanings = read_docstring(ast.get_docstring(node) or "").meanings
    if isinstance(node, ast.ClassDef):
        fields = [x for x in node.body if isinstance(x, ast.AnnAssign)]
        found = [(x.target.id, x.annotation, x.value) for x in fields]
    else:
        pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        found = [(x.arg, x.annotation, default) for x, default in pairs]
    for name, annotation, default in found:
        annotation = named.get(ast.unparse(annotation), annotation)
        if isinstance(annotation, ast.ClassDef):  # a group of options
            yield from _options(annotation, named)
        else:
            shown = ast.unparse(default) if default else ""
            yield name, ast.unparse(annotation), shown, meanings[name]


def commands_page() -> str:
    """Every command with its examples and options, from its docstring."""
    parts = [
        "# Commands",
        "`frugax COMMAND --help` prints the same. Exit status 0 means that every "
        "budget was kept, 1 that one was not, and 2 that the command was used wrongly "
        "([errors](../errors.md)).",
    ]
    for name, node, named in commands():
        doc = read_docstring(ast.get_docstring(node) or "")
        meanings = doc.meanings
        parts += [f"## frugax {name}", doc.summary]
        parts.append("```text\n" + "\n".join(doc.examples) + "\n```")
        parts += doc.paragraphs
        rows = [
            [f"`{argument.arg.upper()}`", "", meanings[argument.arg]]
            for argument in node.args.posonlyargs
        ]
        for argument, annotation, default, meaning in _options(node, named):
            shown = re.sub(r"Path\('(.*)'\)", r"\1", default)
            if shown in ("None", "False", "()"):
                shown = ""
            options = [f"`--{argument.replace('_', '-')}`"]
            options += [f"`{o}`" for o in re.findall(r"'(--?\w+)'", annotation)]
            choices = re.search(r"Literal\[([^\]]*)\]", annotation)
            if choices:
                meaning += f" One of {choices[1].replace(chr(39), chr(96))}."
            rows.append([", ".join(options), shown and f"`{shown}`", meaning])
        if rows:
            parts.append(table_of(["argument", "default", "meaning"], rows))
    return "\n\n".join(parts) + "\n"


def config_keys_page() -> str:
    """The keys of every YAML config, from the classes that they are read into."""
    parts = [
        "# Config keys",
        "A key without a default is required. Budgets are written as "
        "[Budgets](../budget.md) says; [Runs](../run.md#the-config) and "
        "[campaigns](../causal_campaign.md#from-the-command-line) have examples. "
        "An unknown key is refused, with the nearest name that exists.",
    ]
    for command, files in CONFIGS.items():
        parts.append(f"## Keys of {command}")
        nodes: list[ast.ClassDef] = []
        for path, names in files.items():
            tree = ast.parse(read(f"src/frugax/{path}"))
            classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
            nodes += [classes[name] for name in names.split()]
        for node in nodes:
            doc = read_docstring(ast.get_docstring(node) or "")
            rows = []
            for field in node.body:
                if not isinstance(field, ast.AnnAssign):
                    continue
                key, default = ast.unparse(field.target), ""
                if field.value is not None:
                    made = re.search(r"default_factory=(\w+)", ast.unparse(field.value))
                    empty = {"dict": "{}", "tuple": "[]", "list": "[]"}
                    default = ast.unparse(field.value)
                    if made:
                        default = empty.get(made[1], "the defaults below")
                    default = {"None": "none"}.get(default, f"`{default}`")
                kind = f"`{ast.unparse(field.annotation)}`"
                meaning = doc.meanings[key].removesuffix("; or")
                rows.append([f"`{key}`", kind, default, meaning])
            parts += [f"### {node.name}", doc.summary]
            parts.append(table_of(["key", "type", "default", "meaning"], rows))
    return "\n\n".join(parts) + "\n"
