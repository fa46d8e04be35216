"""The pages that the site adds to docs/, and the links between them."""

import dataclasses
import importlib
import importlib.util
import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from frugax.causal import CampaignConfig
from frugax.causal.campaign import CampaignSettings
from frugax.cli import main
from frugax.models import layers
from frugax.run import Budgets, RunConfig, TrainConfig

ROOT = Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location("hooks", ROOT / "site" / "hooks.py")
assert _SPEC is not None
assert _SPEC.loader is not None
hooks = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hooks)


@pytest.mark.parametrize(
    ("folder", "place", "link", "expected"),
    [
        ("", "index.md", "[a](docs/remat.md#limits)", "[a](remat.md#limits)"),
        ("docs", "remat.md", "[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("docs", "remat.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/compat", "compat/index.md", "[a](../remat.md)", "[a](../remat.md)"),
        ("", "index.md", "[a](examples/own_model.py)", "a"),
        ("", "index.md", "![a](docs/pictures/x.svg)", "![a](pictures/x.svg)"),
        ("docs", "remat.md", "[a](#limits)", "[a](#limits)"),
        ("notebooks", "notebooks/2.md", "![a](2_1.svg)", "![a](2_1.svg)"),
        ("notebooks", "notebooks/2.md", "[a](../docs/run.md)", "[a](../run.md)"),
        ("notebooks", "notebooks/2.md", "[a](3_watch.ipynb)", "[a](3_watch.md)"),
        (
            "docs",
            "index.md",
            "[a](../notebooks/3_watch.ipynb)",
            "[a](notebooks/3_watch.md)",
        ),
        (
            "docs",
            "targets.md",
            "[a](../benchmarks/results/gpu_check.json)",
            "[a](results/gpu_check.md)",
        ),
        ("docs", "remat.md", "`a[i](x)`", "`a[i](x)`"),
        ("docs", "remat.md", "```python\nf[0](y)\n```", "```python\nf[0](y)\n```"),
    ],
)
def test_links_lead_to_the_page_on_the_site(folder, place, link, expected):
    assert hooks.rewrite(link, folder, place) == expected


@pytest.mark.parametrize("package", hooks.packages())
def test_the_reference_has_every_public_name(package):
    names = hooks.exported_names(package)
    exported = set(importlib.import_module(f"frugax.{package}").__all__)
    if package == "models" and importlib.util.find_spec("torch") is None:
        exported.add("TorchBackend")  # public beside torch only
    assert set(names) <= exported
    # Names of JAX are left to its reference, and layers are those of `layers`.
    assert package in {"jaxprs", "models"} or set(names) == exported
    page = hooks.reference_page(package)
    assert all(f"::: frugax.{package}.{name}\n" in page for name in names)


def test_the_page_of_commands_has_every_command_and_option(capsys):
    page = hooks.commands_page()
    headings = set(re.findall(r"^## frugax (.*)$", page, flags=re.M))
    for group in ([], ["watch"], ["causal"]):
        with pytest.raises(SystemExit):
            main([*group, "--help"])
        listed = re.findall(r"^  ([\w-]+) ", capsys.readouterr().out, flags=re.M)
        prefix = " ".join([*group, ""]).lstrip()
        names = {prefix + name for name in listed}
        assert len(names) >= 2
        assert names - {"watch", "causal"} <= headings
    assert "| `--trust-code` |  | import and run" in page
    assert "| `--processes`, `-n` |" in page
    # Options of a group, which several commands may share.
    assert "| `--size`, `--bytes` |" in page
    assert "| `--limits` |" not in page


def test_the_page_of_config_keys_has_every_key():
    page = hooks.config_keys_page()
    for cls in (RunConfig, TrainConfig, Budgets, CampaignConfig, CampaignSettings):
        keys = page.partition(f"### {cls.__name__}\n")[2].partition("\n### ")[0]
        for field in dataclasses.fields(cls):
            assert re.search(rf"^\| `{field.name}` \| `.+` \|.*\| \S", keys, flags=re.M)
    assert (
        "| `learning_rate` | `float` | `0.001` | highest learning rate; > 0. |" in page
    )
    assert "that counts as an improvement; >= 0. |" in page  # without its example


def test_releases_are_listed_by_version():
    page = hooks.versions_page(["v0.2.0", "v0.1.0"])
    assert f"frugax {version('frugax')}." in page
    assert '<a href="versions/v0.1.0/index.html">v0.1.0</a>' in page
    assert "no older release" in hooks.versions_page([])


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "site" / "mkdocs.yml").read_text()
    left_out, nav = settings.partition("not_in_nav: |")[2].split("nav:\n")
    sections = re.findall(r"^  - ([^:\n]+):", nav, flags=re.M)
    made = hooks.on_config({"nav": [{name: []} for name in sections]})["nav"]
    placed = set(re.findall(r"[\w/]+\.md", nav + str(made)))
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").as_posix()
        hidden = any(place.startswith(name) for name in left_out.split())
        assert hidden != (place in placed), place
    assert {"contributing.md", "security.md", "reference/remat.md"} <= placed
    assert {"notebooks/1_first_plan.md", "results/remat.md"} <= placed


def test_a_search_finds_guides_before_reference():
    boosts = [
        hooks.search_boost(place)
        for place in (
            "tutorials/first_plan.md",
            "watch.md",
            "compat/visualization.md",
        )
    ]
    assert boosts == sorted(boosts, reverse=True)
    assert len(set(boosts)) == 3
    assert hooks.search_boost("reference/remat.md") < hooks.search_boost("watch.md")
    assert all((ROOT / "docs" / place).exists() for place in hooks.GUIDES)


def test_the_page_of_results_has_every_comparison_and_figure():
    path = ROOT / "benchmarks" / "results" / "compress.json"
    page = hooks.results_page(path)
    kept = json.loads((path.parent / "all.json").read_text())["rows"]
    rows = [row for row in kept if row["package"] == "compress"]
    assert all(f"| {row['task']} |" in page for row in rows)
    assert page.count("**behind**") == sum(r["standing"] == "behind" for r in rows)
    for part, entry in json.loads(path.read_text()).items():
        assert f"## {part}\n" in page
        for place, figures in hooks.figures_by_case(entry["found"]):
            assert f"| {' / '.join(place)} |" in page
            assert all(hooks.show_figure(x) in page for x in figures.values())


def test_a_notebook_becomes_a_page_with_its_outputs_and_pictures():
    files = hooks.notebook_files(ROOT / "notebooks" / "2_train.ipynb")
    page = files["notebooks/2_train.md"]
    assert page.startswith("# Train within a budget")
    assert "temp memory of one step" in page  # of the receipt that it prints
    assert files["notebooks/2_train_1.svg"].startswith("<svg")
    assert "](2_train_1.svg)" in page
    assert all(f"]({Path(place).name})" in page for place in files if "svg" in place)


def test_search_is_self_contained():
    settings = (ROOT / "site" / "mkdocs.yml").read_text()
    script = "javascripts/iframe-worker.js"
    assert f"polyfills: [{script}]" in settings
    assert "IFrameWorker" in (ROOT / "docs" / script).read_text()
    assert "https://" not in settings


def test_the_page_of_layers_names_each_layer():
    page = (ROOT / "docs" / "layers.md").read_text()
    table = re.findall(r"^\| .* \| (.*) \|$", page, flags=re.M)
    named = re.findall(r"\b[A-Z]\w*", " ".join(table[1:]))
    assert sorted(named) == sorted(layers.__all__)
