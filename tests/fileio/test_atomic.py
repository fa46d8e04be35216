"""A file is written whole or not at all, and a failed write names the remedy."""

import errno
import os

import pytest

from frugax import fileio
from frugax.errors import OutputError
from refusals import refuses


def test_written_whole_with_its_folder_and_an_ordinary_mode(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    fileio.write_whole(path, "text")
    assert path.read_text() == "text"
    plain = tmp_path / "plain"
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_path_without_a_file_name_is_refused():
    with refuses(OutputError, "''"):
        fileio.write_whole("", b"")


def test_if_the_block_raises_the_old_content_stays(tmp_path):
    path = tmp_path / "file"
    fileio.write_whole(path, b"old")

    def fail_half_way():
        with fileio.atomic_write(path) as file:
            file.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    fileio.write_whole(path, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with refuses(OutputError):
        fileio.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_where_a_folder_is_needed_is_named(tmp_path):
    (tmp_path / "x").write_text("")
    with refuses(OutputError):
        fileio.write_whole(tmp_path / "x" / "y", b"")


def test_a_folder_where_a_file_is_needed_is_named(tmp_path):
    (tmp_path / "x").mkdir()
    with refuses(OutputError):
        fileio.write_whole(tmp_path / "x", b"data")
    assert os.listdir(tmp_path) == ["x"]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    def write(text, error=None):
        with fileio.atomic_folder(tmp_path / "new" / "folder") as folder:
            (folder / "a").write_text(text)
            if error is not None:
                raise error
            (folder / "b").write_text(text)

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for error, raised in ((KeyboardInterrupt, KeyboardInterrupt), (full, OutputError)):
        with pytest.raises(raised):
            write("broken off", error)
        assert os.listdir(tmp_path / "new") == []
    write("first")
    (tmp_path / "new" / "folder" / "mine").write_text("mine")
    write("second")
    assert os.listdir(tmp_path / "new") == ["folder"]
    there = {p.name: p.read_text() for p in (tmp_path / "new" / "folder").iterdir()}
    assert there == {"a": "second", "b": "second", "mine": "mine"}
    fileio.write_whole(tmp_path / "file", b"")
    with (
        refuses(OutputError, tmp_path / "file"),
        fileio.atomic_folder(tmp_path / "file") as folder,
    ):
        (folder / "a").write_text("")
