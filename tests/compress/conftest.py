"""A file that several tests read."""

import pytest

from frugax import compress
from saved_tree import SIX, TREE


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "deep" / "w.fxz"
    return path, compress.save(path, TREE, SIX)
