"""One writer at a time, where the file system has locks."""

import errno
import io

import pytest

import forked
from frugax.errors import OutputError
from frugax.fileio import lock, unlock
from refusals import refuses


def test_a_second_writer_is_refused_until_the_first_unlocks(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    with io.FileIO(path, "r+") as first, io.FileIO(path, "r+") as second:
        first.seek(2)
        lock(first, path)
        assert first.tell() == 2
        with refuses(OutputError, path):
            lock(second, path)
        assert path.read_bytes() == b"abc"  # readers are not kept out
        unlock(first)
        lock(second, path)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_killed_writer_leaves_no_lock_behind(tmp_path):
    path = tmp_path / "a"
    code = (
        "import io, os, pathlib, signal, sys\n"
        "from frugax.fileio import lock\n"
        "file = io.FileIO(sys.argv[1], 'w')\n"
        "lock(file, pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert forked.python(code, path).returncode == -9
    with io.FileIO(path, "r+") as file:
        lock(file, path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_can_still_be_written(
    tmp_path, monkeypatch, number
):
    def fail(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", fail)
    with io.FileIO(tmp_path / "a", "w") as file:
        lock(file, tmp_path / "a")
        unlock(file)


def test_a_lock_that_fails_is_reported(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", fail)
    with (
        io.FileIO(tmp_path / "a", "w") as file,
        refuses(OutputError),
    ):
        lock(file, tmp_path / "a")
