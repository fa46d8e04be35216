"""A run's folder as frugax leaves it, for the page to look at."""

import json

import pytest

from frugax.watch.journal import Journal
from watched_pages import write_steps

RECEIPT = {
    "verdict": "kept",
    "spends": [
        {
            "name": "time spent watching",
            "unit": "share",
            "limit": 0.01,
            "predicted": None,
            "measured": 0.004,
            "noise": 0.0,
            "source": "self-measured",
            "verdict": "kept",
        }
    ],
    "memory": {"unplanned_bytes": 4096, "planned_bytes": 2048, "limit_bytes": 3000},
    "losses": {
        "frame": {"given": 9, "kept": 6, "left_out": 0, "dropped": {"queue full": 3}}
    },
    "evaluations": [[50, {"accuracy": 0.5}], [100, {"accuracy": 0.75}]],
    "notes": ["Training stopped early."],
    "environment": {"jax": "0.10.2"},
    "stopped_because": "steps",
}


@pytest.fixture
def folder(tmp_path):
    """A run of 100 steps that has not ended."""
    made = tmp_path / "runs" / "small"
    made.mkdir(parents=True)
    (made / "config.yaml").write_text(
        "name: small\ntrain: {steps: 200}\nbudgets: {overhead: {share: 0.01}}\n"
    )
    with Journal.create(made / "journal", {"name": "small"}) as journal:
        write_steps(journal, 1, 100)
    # Without its last block, which says that the writer has left.
    data = (made / "journal").read_bytes()
    (made / "journal").write_bytes(data[: data.rindex(b"\xf5BLK")])
    return made


@pytest.fixture
def finished(folder):
    """The same run, ended and with its receipt."""
    with Journal.append_to(folder / "journal"):
        pass
    (folder / "receipt.json").write_text(json.dumps(RECEIPT))
    return folder
