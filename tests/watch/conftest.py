"""A journal for each test that needs one."""

import pytest

from frugax import watch


@pytest.fixture
def journal(tmp_path):
    with watch.Journal.create(tmp_path / "journal", {}) as made:
        yield made
