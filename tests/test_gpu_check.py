"""The GPU check runs, in small sizes and without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.thorough
def test_checks_run_on_a_cpu_and_a_failing_one_is_a_row(tmp_path):
    checks = ["kernel:pallas", "offload", "jit", "exec:convolutions"]
    command = ["scripts/gpu_check", "run", *checks, "--platform", "cpu"]
    done = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1  # the memory of a CPU is that of the host
    results = json.loads((tmp_path / "gpu_check.json").read_text())
    assert "ValueError" in results["offload"]["error"]
    rows = results["kernel:pallas"]["rows"]
    assert rows["planned 0.5"]["compiled"] == rows["planned 0.5"]["predicted"]
    assert rows["planned 0.5"]["compiled"] <= 0.5 * rows["plain"]["compiled"]
    assert rows["planned 0.5"]["difference"] < 1e-6
    for row in (rows["plain"], rows["planned 0.5"]):
        assert row["milliseconds"] > 0
        assert " to " in row["expected"]
        assert row["verdict"] in ("kept", "broken")
    assert f"{rows['plain']['expected']}: " in (tmp_path / "gpu_check.txt").read_text()
    rows = results["jit"]["rows"]
    assert rows["fx.jit"]["predicted"] <= 0.6 * rows["plain"]["compiled"]
    assert rows["fx.jit"]["difference"] < 1e-6
    notes = results["exec:convolutions"]["notes"]
    assert notes["steps"] == 5
    assert "problems: []" in notes["plan 0"]
    assert notes["largest difference of a loss"] < 1e-4
