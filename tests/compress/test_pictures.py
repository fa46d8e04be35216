"""What `inspect` draws of files that leave little to draw."""

import xml.etree.ElementTree as ET

import pytest

from frugax import SizeBudget, compress
from saved_tree import RNG


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        # An error as large as the weights is 0 dB below them, or even above.
        (SizeBudget(max_abs=0.01), "w: uniform, "),
        (SizeBudget(max_abs=0), "nothing to draw: every tensor is exact"),
    ],
)
def test_every_file_has_a_picture(tmp_path, budget, said):
    weights = {"w": (RNG.normal(size=(64, 64)) * 1e-3).astype("f4")}
    compress.save(tmp_path / "w.fxz", weights, budget)
    found = compress.inspect(tmp_path / "w.fxz")
    texts = [node.text or "" for node in ET.fromstring(found.svg()).iter()]
    assert any(text.startswith(said) for text in texts), texts
    assert "smaller than the 1 tensor" in str(found)
    assert "1 tensors" not in str(found)
