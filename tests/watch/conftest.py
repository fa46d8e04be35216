"""A journal for each test that asks for one, and counts of its own for each."""

import pytest

from frugax import watch


@pytest.fixture(autouse=True)
def own_counts():
    """The statistics are the process's, by name: none are found, and none are left."""
    watch.reset_callback_performance_stats()
    yield
    watch.reset_callback_performance_stats()


@pytest.fixture
def journal(tmp_path):
    with watch.Journal.create(tmp_path / "journal", {}) as made:
        yield made
