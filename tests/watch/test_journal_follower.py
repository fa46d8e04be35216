"""A follower sees appended records once, for every fate of the writer."""

import io

import numpy as np
import pytest

from frugax import watch
from frugax.errors import CorruptFileError
from frugax.watch.journal import Appended, Follower, LostRange, Rewound
from refusals import refuses


def steps(changes, stream=""):
    return [
        int(s)
        for change in changes
        if isinstance(change, Appended) and change.stream == stream
        for s in change.steps
    ]


@pytest.fixture
def journal(tmp_path):
    with watch.Journal.create(tmp_path / "a", {"seed": 3}) as made:
        yield made


def test_each_record_comes_once_and_in_order(journal, tmp_path):
    follower = Follower(tmp_path / "a")
    assert follower.meta == {"seed": 3}
    assert follower.poll() == []
    seen, grids = [], []
    for step in range(300):
        journal.write(step, {"loss": step / 2})
        if step % 3 == 0:
            journal.write(step, {"g": np.full((2, 2), step)}, stream="grid")
        if step % 7 == 0:
            journal.flush()
        changes = follower.poll()
        seen += steps(changes)
        for change in changes:
            if isinstance(change, Appended) and change.stream == "grid":
                grids += list(change.columns["g"].values[:, 0, 0])
    assert not follower.closed
    journal.close()
    seen += steps(follower.poll())
    assert seen == list(range(300))
    assert grids == list(range(0, 295, 3))
    assert follower.closed
    assert follower.poll() == []
    assert follower.offset == follower.size_bytes == (tmp_path / "a").stat().st_size


def test_nothing_is_read_twice(journal, tmp_path, monkeypatch):
    journal.write_many(range(64_000), {"x": np.random.default_rng(0).random(64_000)})
    journal.flush()
    follower = Follower(tmp_path / "a")
    assert len(steps(follower.poll())) == 64_000
    read = []

    class Counted(io.FileIO):
        def read(self, n=-1):
            data = super().read(n)
            read.append(len(data or b""))
            return data

    monkeypatch.setattr("frugax.watch.journal._follower._open", Counted)
    assert follower.poll() == []
    assert sum(read) == 0
    before = (tmp_path / "a").stat().st_size
    journal.write(64_000, {"x": 1.0})
    journal.flush()
    assert steps(follower.poll()) == [64_000]
    assert sum(read) == (tmp_path / "a").stat().st_size - before


def test_much_is_read_in_pieces(journal, tmp_path):
    journal.write_many(range(6400), {"x": np.random.default_rng(0).random(6400)})
    journal.flush()
    follower = Follower(tmp_path / "a")
    pieces = []
    while changes := follower.poll(2000):
        pieces.append(steps(changes))
    assert len(pieces) > 20
    assert [step for piece in pieces for step in piece] == list(range(6400))
    with refuses(ValueError, "max_bytes"):
        follower.poll(0)


def test_an_unfinished_block_comes_when_it_is_finished(journal, tmp_path):
    journal.write_many(range(200), {"x": np.random.default_rng(0).random(200)})
    journal.close()
    data = (tmp_path / "a").read_bytes()
    path = tmp_path / "slow"
    head = len(data) - 900
    path.write_bytes(data[:head])
    follower = Follower(path)
    seen = steps(follower.poll())
    for end in range(head, len(data) + 1, 7):
        path.write_bytes(data[:end])  # the same file, longer
        seen += steps(follower.poll())
        assert not follower.lost
    path.write_bytes(data)
    seen += steps(follower.poll())
    assert seen == list(range(200))
    assert follower.closed


def test_a_crash_and_a_rewind_are_seen(journal, tmp_path):
    path = tmp_path / "a"
    for step in range(200):
        journal.write(step, {"x": step})
        journal.write(step, {"y": step}, stream="s")
    journal.flush()
    follower = Follower(path)
    assert len(steps(follower.poll())) == 200
    journal._file.write(b"\xf5BLK\x07\x00\x00\x00 died here")
    journal._file.close()  # as the system does for a process that died
    assert follower.poll() == []
    with watch.Journal.append_to(path) as again:
        again.rewind(150, others={"s": 190})
        again.write(151, {"x": -1})
    changes = follower.poll()
    assert [type(change) for change in changes] == [
        LostRange,
        Rewound,
        Rewound,
        Appended,
    ]
    assert {c.stream: c.step for c in changes if isinstance(c, Rewound)} == {
        "": 150,
        "s": 190,
    }
    assert steps(changes) == [151]
    assert len(follower.lost) == 1
    journal._file.close()


def test_another_file_is_noticed(journal, tmp_path):
    path = tmp_path / "a"
    journal.write(0, {"x": 1})
    journal.flush()
    follower = Follower(path)
    follower.poll()
    with watch.Journal.create(tmp_path / "b", {}) as other:
        other.write_many(range(500), {"x": np.arange(500)})
    (tmp_path / "b").replace(path)
    with refuses(CorruptFileError):
        follower.poll()
    fresh = Follower(path)
    fresh.poll()
    with path.open("r+b") as file:
        file.truncate(60)
    with refuses(CorruptFileError):
        fresh.poll()
    with pytest.raises(FileNotFoundError):
        Follower(tmp_path / "none")
