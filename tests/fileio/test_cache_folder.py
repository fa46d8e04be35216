"""Caches live where the user keeps caches."""

from pathlib import Path

from frugax.fileio import cache_folder
from frugax.train import compile_cache_folder


def test_caches_follow_the_users_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("plans") == tmp_path / "frugax" / "plans"
    assert compile_cache_folder() == tmp_path / "frugax" / "xla"
    assert list(tmp_path.iterdir()) == []  # asking makes nothing


def test_without_a_setting_they_are_at_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder("plans") == tmp_path / ".cache" / "frugax" / "plans"
