"""`verify_receipt` finds every forged figure, and says which it cannot check."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from frugax import compress
from frugax.budget import Receipt, SizeBudget, Spend
from frugax.errors import ConfigError
from frugax.run import Observer, RunFolder, _verify, load_config, run, verify_receipt
from frugax.run._receipt_figures import NOT_DERIVABLE, is_below, list_figures
from refusals import refuses
from tiers import mostly_thorough

CONFIG = """
name: small
data: {name: digits, batch: 16}
model: {name: mlp, width: 16, depth: 2}
train: {steps: 2, evaluate_every: 1}
budgets:
  {memory: 100%, size: 4x, accuracy_drop: 0.5, time: {seconds: 5h, compiles: 1}}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home = tmp_path_factory.mktemp("verify")
    (home / "small.yaml").write_text(CONFIG)
    folder = RunFolder(home / "runs" / "small")
    run(load_config(home / "small.yaml"), folder, config_folder=home)
    return folder.path


@pytest.fixture(scope="module", autouse=True)
def _built_once():
    """Build the step of a built-in config once: forged copies of a run share it."""
    build, built = _verify._build, {}

    def recall(config, *rest):
        if config.task:
            return build(config, *rest)
        if (key := repr(config)) not in built:
            built[key] = build(config, *rest)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_verify, "_build", recall)
        yield


def forge(finished, tmp_path, change, *, report=False):
    """A copy of the run whose receipt was edited, by default without its report."""
    copy = tmp_path / "forged"
    shutil.copytree(finished, copy)
    if not report:
        (copy / "report.html").unlink()
    data = json.loads((copy / "receipt.json").read_text())
    change(data)
    (copy / "receipt.json").write_text(json.dumps(data))
    return copy


def findings(folder, finding, **options):
    found = verify_receipt(folder, **options)
    return {c.figure: c for c in found.checks if c.finding == finding}


def spend_of(data, name):
    return next(s for s in data["spends"] if s["name"].startswith(name))


def test_an_honest_receipt_is_confirmed(finished):
    found = verify_receipt(finished)
    assert found.finding == "same", found.table()
    same = {c.figure for c in found.checks if c.finding == "same"}
    assert {
        "spends.temp memory of one step.limit",
        "spends.temp memory of one step.predicted",
        "spends.temp memory of one step.measured",
        "spends.compiles of the step.measured",
        "spends.file.limit",
        "spends.file.predicted",
        "spends.file.measured",
        "spends.file.verdict",
        "spends.accuracy lost by compression.measured",
        "memory.unplanned_bytes",
        "memory.flops",
        "model.file_sha256",
        "model.tensors",
        "model.weights",
        "model.after.accuracy",
        "model.before.accuracy",
        "model.rel_error",
        "model.noise.accuracy",
        "steps",
        "stopped_because",
        "config.train.steps",
        "evaluations.0.accuracy",
        "evaluations.1.accuracy",
        "evaluations.2.accuracy",
        "learning_rates.1",
        "report.html",
    } <= same, str(found)
    untold = {c.figure for c in found.checks if c.finding == "cannot tell"}
    assert "spends.time of the whole run.measured" in untold
    # Nobody can derive a time, so a verdict that rests on one is not called verified.
    assert {"spends.time of the whole run.verdict", "verdict"} <= untold
    first, *rest = str(found).splitlines()
    assert re.match(r"verified, but for \d+ figures that nobody can derive: ", first)
    assert "not verified, are spends.time of the whole run.verdict (kept)" in first
    assert not any("memory.flops" in line for line in rest)
    assert "memory.flops" in found.table()
    assert all(c.reason for c in found.checks if c.finding == "cannot tell")


def leaves(data, at=()):
    """The leaves of JSON data, as (path, value)."""
    items = ()
    if isinstance(data, dict):
        items = data.items()
    elif isinstance(data, list):
        items = enumerate(data)
    if not items:
        yield at, data
    for key, value in items:
        yield from leaves(value, (*at, key))


def another(value):
    """A value of the same kind, but another one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value * 2 + 1
        case str():
            return f"{value}x"
        case None:
            return 1
        case list():
            return ["none"]
        case _:
            return {"none": 1}


def with_leaf(data, path, value):
    data = json.loads(json.dumps(data))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return data


def test_every_leaf_that_is_forged_is_found_or_listed(finished):
    folder = RunFolder(finished)
    text = folder.receipt.read_text()
    data = json.loads(text)
    derived = _verify.derive(folder, data, trust_code=False, observer=Observer())
    honest = list_figures(data)
    for path, value in leaves(data):
        forged = with_leaf(data, path, another(value))
        text = json.dumps(forged)
        receipt = Receipt.from_json(text)
        found = _verify.compare_receipt(folder, text, forged, receipt, derived)
        # The report is drawn from the receipt, and from no other.
        assert found.finding == "differs", path
        figures = {c.figure: c.finding for c in found.checks}
        differing = {k for k, v in figures.items() if v == "differs"} - {"report.html"}
        now = list_figures(forged)
        changed = {k for k in {*now, *honest} if now.get(k) != honest.get(k)}
        # No other figure is called forged, but for verdicts, which rest on several.
        for key in differing - {"receipt.json"}:
            assert any(is_below(k, key) for k in changed) or "verdict" in key, key
        if not differing:
            # Whoever draws the report again is not found out, so these are listed.
            assert changed, path
            for key in changed:
                assert figures[key] == "cannot tell"
                assert any(is_below(key, k) for k in NOT_DERIVABLE), key


def test_the_docs_name_every_figure_that_nobody_can_derive():
    page = (Path(__file__).parents[2] / "docs" / "receipts.md").read_text()
    assert [key for key in NOT_DERIVABLE if f"`{key}`" not in page] == []


def test_forged_facts_beside_the_figures_are_found(finished, tmp_path):
    def change(data):
        data["steps"] = 100_000
        data["stopped_because"] = "converged"
        data["note"] = "GPU H100 run"
        data["environment"]["accelerator"] = "H100"
        del data["environment"]["command"]
        data["memory"]["saved"] = data["model"]["fitness"] = 1
        # Forged steps do not hide these: the checkpoint is there all the same.
        data["model"]["rel_error"] = 0.0001
        data["model"]["tensors"] = data["model"]["tensors"].replace(
            "file: ", "spends.file.1"
        )
        data["evaluations"][0][1]["accuracy"] += 0.25
        data["evaluations"][2][1]["accuracy"] += 0.25
        spend_of(data, "temp memory")["source"] = "a scale"
        spend_of(data, "accuracy")["problems"] = "none at all"
        spend_of(data, "time")["source"] = "a sundial"
        spend_of(data, "time")["noise"] = 3.0
        del data["seconds"]["total"]

    folder = forge(finished, tmp_path, change)
    assert set(findings(folder, "differs")) == {
        "steps",
        "stopped_because",
        "note",
        "environment.accelerator",
        "environment.command",
        "model.fitness",
        "model.rel_error",
        "model.tensors",
        "evaluations.0.accuracy",
        "evaluations.2.accuracy",
        "spends.temp memory of one step.source",
        "spends.accuracy lost by compression.problems",
        "spends.time of the whole run.source",
        "spends.time of the whole run.noise",
        "seconds.total",
        "memory.saved",
    }


@pytest.mark.parametrize(
    "steps",
    mostly_thorough(
        [3, 1, 100_000, "2", True, None], in_ci=lambda s: isinstance(s, str | bool)
    ),
)
def test_forged_steps_are_found(finished, tmp_path, steps):
    def change(data):
        data["steps"] = steps

    found = findings(forge(finished, tmp_path, change), "differs")
    assert "steps" in found
    assert "model.rel_error" not in found


def test_another_config_beside_the_receipt_is_found(finished, tmp_path):
    folder = forge(finished, tmp_path, lambda data: None)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("share: 1.0", "share: 0.9"))
    found = findings(folder, "differs")
    assert set(found) == {"config.budgets.memory.share"}  # nothing fits it
    assert found["config.budgets.memory.share"].derived == "0.9"
    (folder / "config.yaml").write_text("name: [")
    assert set(findings(folder, "differs")) == {"config.yaml"}


def test_a_forged_time_is_named_and_a_known_break_outweighs_it(finished, tmp_path):
    def change(data):
        spend_of(data, "time")["measured"] = 1.0

    folder = forge(finished, tmp_path, change)
    untold = findings(folder, "cannot tell")
    assert untold["spends.time of the whole run.measured"].stated == "1.0"
    data = json.loads((folder / "receipt.json").read_text())
    data["spends"][0] |= {"limit": 1, "verdict": "broken"}
    data["verdict"] = "broken"
    (folder / "receipt.json").write_text(json.dumps(data))
    assert "verdict" in findings(folder, "same")


def test_missing_and_additional_figures_are_found(finished, tmp_path):
    def change(data):
        data["spends"] = [s for s in data["spends"] if s["unit"] != "compiles"]
        data["spends"].append(spend_of(data, "file") | {"name": "files"})
        data["spends"].append(spend_of(data, "time"))
        del data["memory"]["flops"]
        del data["model"]["file_sha256"]
        del data["model"]["weights"]
        del data["learning_rates"][0]

    folder = forge(finished, tmp_path, change)
    assert set(findings(folder, "differs")) == {
        "spends.compiles of the step",
        "spends.files",
        "spends.time of the whole run (2)",
        "memory.flops",
        "model.file_sha256",
        "model.weights",
        "learning_rates.0",
    }


def hide_version(data):
    data["environment"]["frugax"] = "0.0.9"


def hide_environment(data):
    del data["environment"]


def hide_config(data):
    del data["config"]


def hide_task(data):
    data["config"] |= {"data": None, "model": None, "task": "no_such_module:task"}


@pytest.mark.parametrize(
    ("hide", "finding"),
    [
        (hide_version, "cannot tell"),
        (hide_config, "cannot tell"),
        (hide_environment, "differs"),
        (hide_task, "differs"),  # from the config beside the receipt
    ],
)
def test_figures_made_underivable_do_not_pass_for_verified(
    finished, tmp_path, hide, finding
):
    def change(data):
        spend_of(data, "temp memory")["measured"] -= 8
        data["memory"]["planned_bytes"] -= 8
        hide(data)

    folder = forge(finished, tmp_path, change)
    if hide is hide_version:  # and both configs have a key that only that version knows
        with (folder / "config.yaml").open("a") as file:
            file.write("later: true\n")
    found = verify_receipt(folder)
    assert found.finding == finding
    start = {"differs": "broken: ", "cannot tell": "cannot tell: "}[finding]
    assert str(found).splitlines()[0].startswith(start)


def test_another_model_file_is_found(finished, tmp_path):
    folder = forge(finished, tmp_path, lambda data: None)
    compress.save(
        folder / "model.fxz", {"w": np.ones(9, "f4")}, SizeBudget(rel_error=0)
    )
    found = findings(folder, "differs")
    assert {"model.file_sha256", "model.file_bytes", "spends.file.measured"} <= set(
        found
    )
    (folder / "model.fxz").unlink()
    assert "is missing" in findings(folder, "cannot tell")["model.file_sha256"].reason
    assert verify_receipt(folder).finding == "cannot tell"


def test_figures_before_compression_need_the_checkpoints(finished, tmp_path):
    folder = forge(finished, tmp_path, lambda data: None)
    shutil.rmtree(folder / "checkpoints")
    found = verify_receipt(folder)
    # Otherwise whoever removes the checkpoints could state any error.
    assert found.finding == "cannot tell", str(found)
    untold = {c.figure: c for c in found.checks if c.finding == "cannot tell"}
    assert "steps" in untold
    assert "no intact checkpoint" in untold["model.before.accuracy"].reason
    assert "spends.accuracy lost by compression.measured" in untold


@pytest.mark.parametrize(
    "text", mostly_thorough(["kept", "12."], in_ci=lambda text: text == "12.")
)
def test_an_edited_report_is_found(finished, tmp_path, text):
    folder = forge(finished, tmp_path, lambda data: None, report=True)
    page = (folder / "report.html").read_text()
    (folder / "report.html").write_text(page.replace(text, "7", 1))
    assert set(findings(folder, "differs")) == {"report.html"}


def test_a_report_of_another_receipt_is_found(finished, tmp_path):
    def change(data):
        data["seconds"]["total"] += 1

    folder = forge(finished, tmp_path, change, report=True)
    assert set(findings(folder, "differs")) == {"report.html"}


def test_a_report_without_its_journal_does_not_pass_for_verified(finished, tmp_path):
    folder = forge(finished, tmp_path, lambda data: None, report=True)
    (folder / "journal").unlink()
    found = verify_receipt(folder)
    assert found.finding == "cannot tell"
    # Nor does one that was removed: the times of a receipt could be any.
    (folder / "report.html").unlink()
    assert verify_receipt(folder).finding == "cannot tell"


def test_a_name_cannot_redraw_the_terminal(tmp_path):
    name = "file\x1b[2K\rverified\nverified"
    spend = Spend(name=name, unit="bytes", limit=1, measured=1, source="a scale")
    path = tmp_path / "receipt.json"
    path.write_text(Receipt((spend,)).to_json())
    text = str(verify_receipt(path))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert not [line for line in text.splitlines() if line.startswith("verified")]


def test_a_forged_verdict_is_found_without_building_the_model(tmp_path):
    spend = Spend(name="file", unit="bytes", limit=10, measured=11, source="a scale")
    data = json.loads(Receipt((spend,)).to_json())
    data["spends"][0]["verdict"] = data["verdict"] = "kept"
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(data))
    found = findings(path, "differs")
    assert set(found) == {"spends.file.verdict", "verdict"}
    assert found["spends.file.verdict"].derived == "broken"
    assert "no config" in findings(path, "cannot tell")["spends.file.measured"].reason


def test_a_damaged_model_file_is_found(finished, tmp_path):
    folder = forge(finished, tmp_path, lambda data: None)
    damaged = bytearray((folder / "model.fxz").read_bytes())
    damaged[-40] ^= 1
    (folder / "model.fxz").write_bytes(damaged)
    found = findings(folder, "differs")
    assert {"model.file_sha256", "model.fxz"} <= set(found)


def test_another_version_of_jax_cannot_tell(finished, tmp_path):
    folder = forge(
        finished, tmp_path, lambda data: data["environment"].update(jax="0.1")
    )
    assert "environment.jax" in findings(folder, "differs")  # by origin.json
    origin = json.loads((folder / "origin.json").read_text())
    origin["fingerprints"]["versions"]["jax"] = "0.1"
    (folder / "origin.json").write_text(json.dumps(origin))
    found = verify_receipt(folder)
    assert found.finding == "cannot tell"
    assert {"model.file_sha256", "spends.file.measured"} <= set(
        findings(folder, "same")
    )
    untold = findings(folder, "cannot tell")
    assert "jax 0.1 there" in untold["spends.temp memory of one step.measured"].reason
    assert "spends.file.measured" not in untold


def test_code_that_a_receipt_names_runs_only_when_trusted(finished, tmp_path):
    (tmp_path / "stranger.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
    )

    def name_a_function(data):
        data["config"] |= {"data": None, "model": None, "task": "stranger:task"}

    folder = forge(finished, tmp_path, name_a_function)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config |= {"data": None, "model": None, "task": "stranger:task"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    # `config_folder` of origin.json is where the module would be looked for.
    origin = json.loads((folder / "origin.json").read_text())
    origin["config_folder"] = str(tmp_path)
    (folder / "origin.json").write_text(json.dumps(origin))
    untold = findings(folder, "cannot tell")
    assert "--trust-code" in untold["memory.flops"].reason
    assert "--trust-code" in untold["model.rel_error"].reason
    assert "measured once" in untold["spends.time of the whole run.measured"].reason
    assert not (tmp_path / "stranger.ran").exists()
    findings(folder, "cannot tell", trust_code=True)
    assert (tmp_path / "stranger.ran").exists()


def one_row(measured):
    row = '"name": "file", "unit": "bytes", "limit": 10, "source": "a scale"'
    return '{"spends": [{' + row + f', "measured": {measured}' + "}]}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"spends": 3}',
        '{"config": {}}',
        pytest.param("[" * 100_000, id="nested"),
        one_row("NaN"),
        one_row('11, "measured": 9'),
        one_row('11, "noise": -5'),
        one_row('"9"'),
        one_row("true"),
        pytest.param(one_row("1" + "0" * 400), id="overflow"),
    ],
)
def test_a_folder_that_is_not_a_run_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "receipt.json"
    path.write_text(text)
    with refuses(ConfigError, "receipt.json") as caught:
        verify_receipt(path)
    assert "\n" not in str(caught.value)


TASK = """
import jax, jax.numpy as jnp, numpy as np

def loss(w, x):
    value = jnp.mean((x @ w["w"]) ** 2)
    return value, {"zeta": value, "alpha": value, "mid": value}

def evaluate(w):
    size = float(jnp.abs(w["w"]).sum())
    shares = np.linspace(0, 1, 9) * size / (1 + size)
    return {"worst": np.inf, "least": -np.inf, "lost": np.nan, "accuracy": shares}

def task():
    init = lambda key: {"w": jax.random.normal(key, (64, 64))}
    return init, loss, lambda step: jnp.ones((4, 64)), evaluate
"""
OWN = """
name: own
task: verified_own_task:task
train: {steps: 3, optimizer: sgd, learning_rate: 0.01}
budgets: {size: 2x, accuracy_drop: 0.9}
"""
VERIFY = """
import sys
from pathlib import Path
from frugax.run import verify_receipt
for check in verify_receipt(Path(sys.argv[1]), trust_code=True).checks:
    if check.finding == "differs":
        print(check.figure)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run with figures that are not finite, and several of each kind."""
    home = tmp_path_factory.mktemp("own")
    (home / "verified_own_task.py").write_text(TASK)
    (home / "own.yaml").write_text(OWN)
    folder = RunFolder(home / "runs" / "own")
    run(load_config(home / "own.yaml"), folder, config_folder=home)
    return folder.path


@pytest.mark.thorough
@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_an_unchanged_run_is_verified_with_any_hash_seed(own, hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", VERIFY, str(own)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ""


def test_a_page_names_figures_that_are_not_finite(own):
    assert (own / "report.html").read_text().count("not finite") >= 3


def test_a_run_with_a_larger_batch_later_is_verified(tmp_path):
    task = TASK.replace("jnp.ones((4, 64))", "jnp.ones((4 + 60 * (step == 4), 64))")
    (tmp_path / "growing_task.py").write_text(task)
    config = OWN.replace("steps: 3", "steps: 6").replace("verified_own", "growing")
    config = config.replace("size: 2x", "memory: 1GiB, size: 2x")
    (tmp_path / "own.yaml").write_text(config)
    folder = RunFolder(tmp_path / "run")
    run(load_config(tmp_path / "own.yaml"), folder, config_folder=tmp_path)
    assert findings(folder.path, "differs", trust_code=True) == {}


TIED = """
import jax
import numpy as np

def task():
    def init(key):
        first, last = jax.random.normal(key, (2, 64, 64))
        return {"a": first, "b": first, "c": last * 1e-2}
    def loss(model, batch):
        return ((batch @ (model["a"] + model["b"]) @ model["c"]) ** 2).mean()
    return init, loss, [np.ones((8, 64), "f")]
"""


def test_matrices_that_are_equal_count_once(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tied_task.py").write_text(TIED)
    text = "{name: t, task: 'tied_task:task', train: {steps: 3}, budgets: {size: 6x}}"
    (tmp_path / "t.yaml").write_text(text)
    folder = RunFolder(tmp_path / "runs" / "t")
    run(load_config(tmp_path / "t.yaml"), folder, config_folder=tmp_path)
    found = verify_receipt(folder.path, trust_code=True)
    assert found.finding == "same", found.table()
