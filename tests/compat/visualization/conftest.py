"""Separate statistics and a separate journal for each test."""

import pytest

from frugax import OverheadBudget, watch
from frugax.compat import visualization


@pytest.fixture(autouse=True)
def own_counts():
    """The statistics belong to the process: none are found, and none are left."""
    visualization.reset_callback_performance_stats()
    yield
    visualization.reset_callback_performance_stats()
    visualization.Config().watcher(None, OverheadBudget("1%"))  # keeps times


@pytest.fixture
def journal(tmp_path):
    with watch.Journal.create(tmp_path / "journal", {}) as journal:
        yield journal
