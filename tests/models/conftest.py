"""How the tests of this folder trace torch modules."""

import pytest


@pytest.fixture
def fixed_lengths(monkeypatch):
    """Trace a module once: one that is refused would be with free lengths, too."""
    monkeypatch.setattr("frugax.models.torch_modules._export.FREEDOMS", ("none",))
