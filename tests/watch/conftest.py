"""A journal for each test that needs one, and separate counts for each test."""

import pytest

from frugax import watch
from frugax.watch.delivery import callback_stats


@pytest.fixture(autouse=True)
def own_counts():
    """The statistics are the process's, by name: none are found, and none are left."""
    callback_stats.reset()
    yield
    callback_stats.reset()


@pytest.fixture
def journal(tmp_path):
    with watch.Journal.create(tmp_path / "journal", {}) as made:
        yield made
