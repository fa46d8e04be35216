import importlib.util
import io
import types

import jax
import pytest
import rich.console

from frugax.cli import _doctor


@pytest.mark.parametrize(("platform", "offered"), [("cpu", True), ("gpu", False)])
def test_doctor_offers_fast_convolutions_on_cpu(platform, offered, monkeypatch):
    device = types.SimpleNamespace(
        platform=platform, device_kind="chip", memory_stats=lambda: None
    )
    monkeypatch.setattr(jax, "devices", lambda: [device])
    shown, advice = _doctor._devices()
    assert shown == f"1 x chip ({platform})"
    assert ("remat.fast_convolutions" in advice) == offered


def test_doctor_names_the_extra_of_a_missing_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    console = rich.console.Console(record=True, width=200, file=io.StringIO())
    _doctor.examine(console)
    assert 'pip install "frugax[data]"' in console.export_text()
