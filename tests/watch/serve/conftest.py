"""A run's folder as frugax leaves it, for the page to look at."""

import json

import pytest

from frugax.watch.journal import Journal
from watched_pages import RECEIPT, write_steps


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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
