"""`verify_receipt` finds every forged figure, and says which it cannot check."""

import json
import shutil

import pytest

from frugax.budget import Receipt, Spend
from frugax.errors import ConfigError
from frugax.run import RunFolder, load_config, run, verify_receipt

CONFIG = """
name: small
data: {name: digits, batch: 16}
model: {name: mlp, width: 16, depth: 2}
train: {steps: 2}
budgets: {memory: 100%, size: 4x, time: {seconds: 5h, compiles: 1}}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home = tmp_path_factory.mktemp("verify")
    (home / "small.yaml").write_text(CONFIG)
    folder = RunFolder(home / "runs" / "small")
    run(load_config(home / "small.yaml"), folder, config_folder=home)
    return folder.path


def forge(finished, tmp_path, change):
    """A copy of the run whose receipt was edited."""
    copy = tmp_path / "forged"
    shutil.copytree(finished, copy)
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
    assert found.finding == "same", str(found)
    same = {c.figure for c in found.checks if c.finding == "same"}
    assert {
        "temp memory of one step: limit",
        "temp memory of one step: predicted",
        "temp memory of one step: measured",
        "compiles of the step: measured",
        "file: limit",
        "file: predicted",
        "file: measured",
        "memory: unplanned_bytes",
        "memory: flops",
        "model: file_sha256",
        "model: sums in the file",
        "model: weights",
        "model: after.accuracy",
        "verdict of the receipt",
    } <= same, str(found)
    untold = {c.figure for c in found.checks if c.finding == "cannot tell"}
    assert {"time of the whole run: measured", "model: before.accuracy"} <= untold
    assert all(c.reason for c in found.checks if c.finding == "cannot tell")


def test_every_forged_figure_is_found_and_no_other(finished, tmp_path):
    def change(data):
        spend_of(data, "temp memory")["measured"] -= 8
        spend_of(data, "compiles")["measured"] = 0
        spend_of(data, "file")["predicted"] -= 1
        spend_of(data, "file")["measured"] -= 1
        data["memory"]["flops"] /= 2
        data["memory"]["unplanned_bytes"] += 8
        data["model"]["file_sha256"] = "0" * 64
        data["model"]["after"]["accuracy"] += 0.01
        data["model"]["weights"] += 1

    folder = forge(finished, tmp_path, change)
    assert set(findings(folder, "differs")) == {
        "temp memory of one step: measured",
        "compiles of the step: measured",
        "file: predicted",
        "file: measured",
        "memory: flops",
        "memory: unplanned_bytes",
        "model: file_sha256",
        "model: after.accuracy",
        "model: weights",
    }


def test_a_forged_limit_is_found(finished, tmp_path):
    def raise_limits(data):
        for spend in data["spends"]:
            spend["limit"] += 8

    found = findings(forge(finished, tmp_path, raise_limits), "differs")
    assert {
        "temp memory of one step: limit",
        "compiles of the step: limit",
        "file: limit",
    } <= set(found)


def test_a_forged_verdict_is_found_without_building_the_model(tmp_path):
    spend = Spend(name="file", unit="bytes", limit=10, measured=11, source="a scale")
    data = json.loads(Receipt((spend,)).to_json())
    data["spends"][0]["verdict"] = data["verdict"] = "kept"
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(data))
    found = findings(path, "differs")
    assert set(found) == {"file: verdict", "verdict of the receipt"}
    assert found["file: verdict"].derived == "broken"
    assert "no config" in findings(path, "cannot tell")["file: measured"].reason


def test_a_damaged_model_file_is_found(finished, tmp_path):
    folder = forge(finished, tmp_path, lambda data: None)
    damaged = bytearray((folder / "model.fxz").read_bytes())
    damaged[-40] ^= 1
    (folder / "model.fxz").write_bytes(damaged)
    found = findings(folder, "differs")
    assert {"model: file_sha256", "model: sums in the file"} <= set(found)


def test_another_version_of_jax_cannot_tell(finished, tmp_path):
    folder = forge(
        finished, tmp_path, lambda data: data["environment"].update(jax="0.1")
    )
    found = verify_receipt(folder)
    assert found.finding == "same"  # the file and the verdicts still are
    untold = findings(folder, "cannot tell")
    assert "jax 0.1 there" in untold["temp memory of one step: measured"].reason
    assert "file: measured" not in untold


def test_code_that_a_receipt_names_runs_only_when_trusted(finished, tmp_path):
    (tmp_path / "stranger.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
    )

    def name_a_function(data):
        data["config"] |= {"data": None, "model": None, "task": "stranger:task"}

    folder = forge(finished, tmp_path, name_a_function)
    # `config_folder` of origin.json is where the module would be looked for.
    origin = json.loads((folder / "origin.json").read_text())
    origin["config_folder"] = str(tmp_path)
    (folder / "origin.json").write_text(json.dumps(origin))
    untold = findings(folder, "cannot tell")
    assert "--trust-code" in untold["memory: flops"].reason
    assert not (tmp_path / "stranger.ran").exists()
    findings(folder, "cannot tell", trust_code=True)
    assert (tmp_path / "stranger.ran").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"spends": 3}', '{"config": {}}'])
def test_a_folder_that_is_not_a_run_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "receipt.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"receipt\.json"):
        verify_receipt(path)
