"""One writer at a time, where the system has locks of either kind."""

import io

import pytest

from frugax.errors import OutputError
from frugax.fileio import _lock, lock, unlock


class FakeWindows:
    """Locks of bytes by where the file stands, as `msvcrt` has them."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self, files):
        self.files, self.held = files, {}

    def locking(self, handle, how, count):
        file = next(f for f in self.files if f.fileno() == handle)
        key = (file.name, file.tell(), count)
        if how == self.LK_UNLCK:
            del self.held[key]
        elif key in self.held:
            raise PermissionError(13, "Permission denied")
        else:
            self.held[key] = handle


@pytest.mark.parametrize("windows", [False, True])
def test_a_second_writer_waits_until_the_first_lets_go(tmp_path, monkeypatch, windows):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    with io.FileIO(path, "r+") as one, io.FileIO(path, "r+") as other:
        one.seek(2)
        if windows:
            monkeypatch.setattr(_lock, "fcntl", None)
            monkeypatch.setattr(_lock, "_windows", FakeWindows([one, other]))
        lock(one, path)
        assert one.tell() == 2
        with pytest.raises(OutputError, match="another writer has it open"):
            lock(other, path)
        unlock(one)
        lock(other, path)
    assert path.read_bytes() == b"abc"
