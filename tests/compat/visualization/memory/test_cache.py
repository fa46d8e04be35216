"""The cache keeps its limits; evicted items are found again, or counted as lost."""

import gc
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from frugax.compat.visualization.memory import (
    ByteLedger,
    VisualizationCache,
    held_bytes,
)

KB = 1000


class Files:
    """A store of arrays in a folder that counts and can be told to fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saves: list[str] = []
        self.broken = False
        self.before_save = lambda: None

    def save(self, data, name):
        self.before_save()
        if self.broken:
            raise OSError("no space left")
        self.saves.append(name)
        path = self.folder / f"{name}.npy"
        np.save(path, data)
        return path

    def load(self, name):
        return np.load(self.folder / f"{name}.npy")

    @property
    def names(self):
        return sorted(p.stem for p in self.folder.iterdir())


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def item(number: int, nbytes: int = 10 * KB) -> np.ndarray:
    return np.full(nbytes, number, np.uint8)


def test_the_least_recently_used_item_is_evicted_first():
    cache = VisualizationCache(max_memory_mb=0.03)
    for i in range(3):
        assert cache.put(str(i), item(i))
    assert cache.get("0")[0] == 0  # now the newest
    cache.put("3", item(3))
    assert [k for k in "0123" if k in cache] == ["0", "2", "3"]
    stats = cache.get_stats()
    assert stats["items_in_memory"] == 3
    assert stats["memory_usage_mb"] == 0.03
    assert stats["memory_utilization"] == 1.0
    assert stats["dropped"] == 1


def test_the_number_of_items_is_a_limit_too():
    cache = VisualizationCache(max_items=2)
    for key in "abc":
        cache.put(key, 1)
    assert len(cache) == 2
    assert "a" not in cache


def test_evicted_items_go_to_the_store_and_come_back(files):
    cache = VisualizationCache(max_memory_mb=0.02, store=files)
    for i in range(4):
        cache.put(str(i), item(i))
    assert cache.get_stats()["storage_items"] == len(files.names) == 2
    assert cache.get("0")[0] == 0  # back in memory, its file gone; "2" is out now
    stats = cache.get_stats()
    assert stats["storage_items"] == len(files.names) == 2
    assert stats["items_in_memory"] == 2
    assert stats["spilled"] == 3
    assert len(cache) == 4
    assert (stats["hits"], stats["misses"]) == (1, 0)


@pytest.mark.parametrize("stored", [False, True])
def test_an_item_larger_than_the_cache_is_stored_or_refused(files, stored):
    cache = VisualizationCache(max_memory_mb=0.02, store=files if stored else None)
    cache.put("small", item(1))
    assert cache.put("big", item(2, 30 * KB)) is stored
    assert "small" in cache
    assert ("big" in cache) is stored
    stats = cache.get_stats()
    assert stats["memory_usage_mb"] == 0.01
    assert (stats["refused"], stats["spilled"]) == ((0, 1) if stored else (1, 0))
    if stored:
        for _ in range(2):
            assert len(cache.get("big")) == 30 * KB
        assert len(files.saves) == 1  # read where it lies, not written again


def test_a_refused_item_does_not_leave_the_old_one_behind():
    cache = VisualizationCache(max_memory_mb=0.02)
    cache.put("x", item(1))
    assert not cache.put("x", item(2, 30 * KB))
    assert cache.get("x") is None
    assert cache.get_stats()["memory_usage_mb"] == 0


def test_putting_a_key_again_replaces_its_item_in_memory_and_store(files):
    cache = VisualizationCache(max_memory_mb=0.02, store=files)
    for i in range(3):
        cache.put(str(i), item(i))
    cache.put("0", item(7))
    assert cache.get("0")[0] == 7
    cache.put("1", item(8))
    cache.put("2", item(9))
    assert cache.get("0")[0] == 7  # written and read again
    assert len(cache) == 3


def test_a_change_of_a_restored_item_is_not_lost(files):
    cache = VisualizationCache(max_memory_mb=0.01, store=files)
    cache.put("x", item(1))
    cache.put("y", item(2))
    cache.get("x")[:] = 5
    cache.put("z", item(3))
    assert cache.get("x")[0] == 5


def test_a_missing_value_is_made_and_kept():
    cache, made = VisualizationCache(), []

    def make():
        made.append(1)

    assert cache.get("x") is None
    assert "x" not in cache
    assert cache.get("x", make) is None
    assert cache.get("x", make) is None
    assert len(made) == 1
    assert "x" in cache
    stats = cache.get_stats()
    assert (stats["hits"], stats["misses"]) == (1, 2)
    with pytest.raises(ZeroDivisionError):
        cache.get("y", lambda: 1 / 0)
    assert "y" not in cache


def test_a_failing_store_loses_the_item_and_is_reported(files):
    cache = VisualizationCache(max_memory_mb=0.01, store=files)
    files.broken = True
    cache.put("x", item(1))
    assert cache.put("y", item(2))
    assert "x" not in cache
    assert not cache.put("big", item(3, 30 * KB))
    stats = cache.get_stats()
    assert stats["failures"] == 2
    assert stats["memory_usage_mb"] == 0.01
    assert stats["last_failure"] == "save of 'big': OSError: no space left"
    files.broken = False
    cache.put("z", item(4))  # "y" is written
    (files.folder / f"{files.names[0]}.npy").write_bytes(b"damage")
    assert cache.get("y", lambda: "made again") == "made again"
    assert cache.get_stats()["last_failure"].startswith("load of 'y'")


def test_an_item_is_found_while_it_is_being_written(files):
    cache = VisualizationCache(max_memory_mb=0.01, store=files)
    writing, go_on = threading.Event(), threading.Event()

    def wait():
        writing.set()
        assert go_on.wait(20)

    cache.put("x", item(1))
    files.before_save = wait
    thread = threading.Thread(target=cache.put, args=("y", item(2)))
    thread.start()
    assert writing.wait(20)
    assert cache.get("x")[0] == 1
    assert "x" in cache
    assert cache.get("y")[0] == 2
    cache.remove("x")
    go_on.set()
    thread.join()
    assert "x" not in cache
    assert files.names == []


def test_a_value_replaced_while_it_is_written_stays_replaced(files):
    cache = VisualizationCache(max_memory_mb=0.01, store=files)
    writing, go_on = threading.Event(), threading.Event()

    def wait():
        files.before_save = lambda: None
        writing.set()
        assert go_on.wait(20)

    cache.put("x", item(1))
    files.before_save = wait
    thread = threading.Thread(target=cache.put, args=("y", item(2)))
    thread.start()
    assert writing.wait(20)
    cache.put("x", item(3))  # the old one is still being written
    go_on.set()
    thread.join()
    assert cache.get("x")[0] == 3
    cache.put("z", item(4))
    assert cache.get("x")[0] == 3
    cache.clear()
    assert files.names == []
    assert len(cache) == 0


def test_files_go_with_the_cache(files):
    cache = VisualizationCache(max_memory_mb=0.01, store=files)
    for i in range(5):
        cache.put(str(i), item(i))
    assert len(files.names) == 4
    del cache
    gc.collect()
    assert files.names == []


def test_two_caches_in_one_folder_do_not_meet(files):
    a, b = (VisualizationCache(max_memory_mb=0.01, store=files) for _ in "ab")
    for cache, number in ((a, 1), (b, 2)):
        cache.put("x", item(number))
        cache.put("y", item(9))
    assert a.get("x")[0] == 1
    assert b.get("x")[0] == 2


def test_its_bytes_are_in_the_ledger(files):
    ledger = ByteLedger(50 * KB)
    account = ledger.account("cache")
    cache = VisualizationCache(max_memory_mb=0.04, store=files, account=account)
    ledger.reclaim_with(cache.let_go)
    for i in range(6):
        cache.put(str(i), item(i))
    assert account.bytes == 40 * KB == cache.get_stats()["memory_usage_mb"] * 1e6
    assert ledger.peak_bytes <= 50 * KB
    assert ledger.account("queue").reserve(25 * KB)  # two more leave
    assert account.bytes == 20 * KB
    assert len(cache) == 6
    assert not ledger.account("queue").reserve(20 * KB, make_room=False)
    cache.clear()
    assert account.bytes == 0
    assert ledger.by_account() == {"queue": 25 * KB}


def test_without_room_in_the_ledger_an_item_is_stored_or_refused(files):
    for store in (files, None):
        ledger = ByteLedger(20 * KB)
        ledger.account("queue").reserve(15 * KB)
        cache = VisualizationCache(store=store, account=ledger.account("cache"))
        assert cache.put("x", item(1)) is (store is not None)
        assert (cache.get("x") is not None) is (store is not None)
        assert ledger.by_account() == {"queue": 15 * KB}


def test_items_that_grew_are_measured_again():
    cache = VisualizationCache(max_memory_mb=0.05)
    grows = [item(0)]
    cache.put("grows", grows)
    cache.put("y", item(1))
    grows.extend(item(i) for i in range(1, 5))
    cache.recount()
    assert cache.get_stats()["memory_usage_mb"] <= 0.05
    assert "y" in cache
    assert "grows" not in cache


def test_many_threads_leave_it_in_order(files):
    ledger = ByteLedger(60 * KB)
    account = ledger.account("cache")
    cache = VisualizationCache(max_memory_mb=0.05, store=files, account=account)
    ledger.reclaim_with(cache.let_go)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(150):
            key = int(rng.integers(8))
            match rng.integers(4):
                case 0:
                    cache.remove(str(key))
                case 1:
                    cache.put(str(key), item(key, int(rng.integers(1, 60)) * KB))
                case _:
                    value = cache.get(str(key))
                    if value is not None and value[0] != key:
                        wrong.append((key, value[0]))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    stats = cache.get_stats()
    assert not wrong
    assert account.bytes == round(stats["memory_usage_mb"] * 1e6) <= 50 * KB
    assert ledger.peak_bytes <= 60 * KB
    assert not cache._leaving
    assert stats["storage_items"] == len(files.names)
    cache.clear()
    assert files.names == []
    assert ledger.bytes == 0


def test_finding_and_leaving_take_as_long_with_many_items_as_with_few():
    """By counting: a scan over the keys would call their hash or comparison."""

    class Key(str):
        asked = 0

        def __eq__(self, other):
            Key.asked += 1
            return str.__eq__(self, other)

        def __hash__(self):
            Key.asked += 1
            return str.__hash__(self)

    counts = []
    for many in (10, 1000):
        cache = VisualizationCache(max_items=many)
        for i in range(many):
            cache.put(Key(i), i)
        Key.asked = 0
        cache.put(Key("new"), 1)  # and one leaves
        cache.get(Key(many // 2))
        counts.append(Key.asked)
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"max_memory_mb": 0.0}, "max_memory_mb must be > 0"),
        ({"max_memory_mb": float("nan")}, "max_memory_mb"),
        ({"max_items": 0}, "max_items must be >= 1, got 0"),
    ],
)
def test_impossible_limits_are_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        VisualizationCache(**wrong)


def test_two_places_to_store_are_one_too_many(files, tmp_path):
    with pytest.raises(ValueError, match="give one"):
        VisualizationCache(store=files, storage_path=tmp_path)


def test_real_storage_takes_evicted_items(tmp_path):
    for compression in (True, False):
        cache = VisualizationCache(0.01, storage_path=tmp_path, compression=compression)
        cache.put("x", {"grids": [item(1, 5 * KB)], "n": None})
        cache.put("y", item(2, 30 * KB))
        cache.put("z", item(3, 9 * KB))
        assert cache.get_stats()["failures"] == 0, cache.get_stats()["last_failure"]
        sizes = [f.stat().st_size for f in tmp_path.iterdir()]
        assert (max(sizes) < 30 * KB) is compression
        back = cache.get("x")
        assert back["n"] is None
        assert (back["grids"][0] == 1).all()
        cache.clear()
        assert not [f for f in tmp_path.iterdir() if f.is_file()]


class AgainstAnEasyOne(RuleBasedStateMachine):
    """With a store nothing is ever lost, and memory keeps to its limits."""

    def __init__(self):
        super().__init__()
        self.kept: dict[str, np.ndarray] = {}
        self.stored: dict[str, np.ndarray] = {}
        self.cache = VisualizationCache(0.01, max_items=4, store=self)

    def save(self, data, name):
        self.stored[name] = data.copy()
        return Path("/no/such/folder") / name

    def load(self, name):
        return self.stored[name].copy()

    @rule(key=st.sampled_from("abcdefgh"), nbytes=st.integers(0, 14 * KB))
    def put(self, key, nbytes):
        value = np.random.default_rng(nbytes).integers(0, 9, nbytes, np.uint8)
        assert self.cache.put(key, value)
        self.kept[key] = value

    @rule(key=st.sampled_from("abcdefgh"))
    def get(self, key):
        value = self.cache.get(key)
        if key in self.kept:
            np.testing.assert_array_equal(value, self.kept[key])
        else:
            assert value is None

    @precondition(lambda self: self.kept)
    @rule(key=st.sampled_from("abcdefgh"))
    def remove(self, key):
        assert self.cache.remove(key) == (self.kept.pop(key, None) is not None)

    @rule()
    def let_go(self):
        self.cache.let_go(5 * KB)

    @invariant()
    def limits(self):
        stats = self.cache.get_stats()
        assert stats["memory_usage_mb"] <= 0.01
        assert stats["items_in_memory"] <= 4
        assert len(self.cache) == len(self.kept)
        held = sum(held_bytes(i.value) for i in self.cache._items.values())
        assert stats["memory_usage_mb"] == held / 1e6


TestAgainstAnEasyOne = AgainstAnEasyOne.TestCase
TestAgainstAnEasyOne.settings = settings(max_examples=40, deadline=None)
