"""Lazy data is loaded once, released when idle, and counted while it is loaded."""

import gc
import math
import os
import threading
import time
import weakref

import numpy as np
import pytest

from frugax import InfeasibleBudgetError
from frugax.compat.visualization.memory import (
    IdleWatch,
    LazyLoader,
    MemoryManager,
    idle_watch,
)


def wait_until(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def test_none_is_kept_like_any_other_result():
    loads = []
    loader = LazyLoader(lambda: loads.append(1))
    assert loader.get() is None
    assert loader.get() is None
    assert len(loads) == 1
    assert loader.is_loaded()


def test_an_idle_item_is_released_and_loaded_again():
    cleaned = []
    loader = LazyLoader(lambda: "data", cleaned.append, max_idle_time=0.05)
    assert loader.get() == "data"
    wait_until(lambda: not loader.is_loaded())
    wait_until(lambda: cleaned == ["data"])
    assert loader.get() == "data"
    assert loader.is_loaded()


def test_it_is_kept_while_it_is_used():
    loader = LazyLoader(lambda: object(), max_idle_time=0.2)
    first = loader.get()
    deadline = loader.idle_at()
    assert deadline is not None
    while time.monotonic() < deadline + 0.1:
        assert loader.get() is first
        time.sleep(0.005)


def test_one_that_falls_idle_sooner_wakes_the_watch():
    late = LazyLoader(lambda: 1, max_idle_time=3600)
    late.get()
    soon = LazyLoader(lambda: 1, max_idle_time=0.05)
    soon.get()
    wait_until(lambda: not soon.is_loaded())
    assert late.is_loaded()


def test_the_idle_thread_ends_with_its_work_and_keeps_no_references():
    watch = IdleWatch()
    loader = LazyLoader(lambda: 1, max_idle_time=0.03)
    loader.get()
    watch.add(loader)
    thread = watch._thread
    assert thread is not None
    gone = weakref.ref(loader)
    thread.join(20)
    assert not thread.is_alive()
    assert watch._thread is None
    del loader
    gc.collect()
    assert gone() is None


def test_a_loader_that_is_thrown_away_is_not_kept_by_the_watch():
    loader = LazyLoader(lambda: np.zeros(3), max_idle_time=3600)
    data = weakref.ref(loader.get())
    gone = weakref.ref(loader)
    del loader
    # The watch may just be looking at it.
    wait_until(lambda: gone() is None and data() is None)


def test_infinite_patience_needs_no_thread():
    loader = LazyLoader(lambda: 1, max_idle_time=math.inf)
    loader.get()
    assert loader.idle_at() is None
    assert loader.is_loaded()


def test_a_forked_child_has_a_watch_of_its_own(monkeypatch):
    """The thread of the parent is not there, and its lock may be held for ever."""
    LazyLoader(lambda: 1, max_idle_time=3600).get()
    before = idle_watch()
    assert idle_watch() is before
    monkeypatch.setattr(os, "getpid", lambda: -1)
    loader = LazyLoader(lambda: 1, max_idle_time=0.05)
    with before._wake:  # as if the fork had come in the middle
        loader.get()
    assert idle_watch() is not before
    wait_until(lambda: not loader.is_loaded())


def test_a_failing_loader_is_named_and_retried():
    tries = []

    def load_frames():
        tries.append(1)
        if len(tries) == 1:
            raise FileNotFoundError("frames.npy")
        return 5

    loader = LazyLoader(load_frames)
    with pytest.raises(FileNotFoundError, match=r"frames\.npy") as caught:
        loader.get()
    (note,) = caught.value.__notes__
    assert "load_frames" in note
    assert "tries again" in note
    assert not loader.is_loaded()
    assert loader.get() == 5


@pytest.mark.parametrize("fails", [False, True])
def test_threads_load_once_and_share_the_result(fails):
    running, most, loads = 0, 0, []
    lock = threading.Lock()

    def load():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
            loads.append(1)
        if fails:
            raise OSError("no disk")
        return object()

    loader = LazyLoader(load)
    results, errors = [], []

    def ask():
        try:
            results.append(loader.get())
        except OSError as e:
            errors.append(e)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    if fails:
        assert len(loads) == 8
        assert len(set(map(id, errors))) == 8
    else:
        assert len(loads) == 1
        assert len(set(map(id, results))) == 1
        assert not errors


def test_no_lock_is_held_while_it_loads():
    loading, go_on = threading.Event(), threading.Event()

    def load():
        loading.set()
        assert go_on.wait(20)
        return 1

    loader = LazyLoader(load)
    thread = threading.Thread(target=loader.get)
    thread.start()
    assert loading.wait(20)
    assert not loader.is_loaded()
    assert not loader.force_cleanup()
    assert loader.idle_at() is None
    go_on.set()
    thread.join()
    assert loader.is_loaded()


def test_a_recursive_loader_is_refused():
    loader: LazyLoader = LazyLoader(lambda: loader.get())
    with pytest.raises(RuntimeError, match="asks for its own data"):
        loader.get()
    assert not loader.is_loaded()


def test_a_failing_cleanup_is_raised_on_request_and_recorded_otherwise():
    def broken(data):
        raise ValueError("cannot close")

    loader = LazyLoader(lambda: 1, broken)
    loader.get()
    with pytest.raises(ValueError, match="cannot close"):
        loader.force_cleanup()
    assert not loader.is_loaded()
    assert loader.cleanup_error is None
    loader.get()
    loader.let_go_for_room()
    wait_until(lambda: loader.cleanup_error == "ValueError: cannot close")
    assert loader.get() == 1


def test_a_hanging_cleanup_does_not_block_others():
    stuck, go_on = threading.Event(), threading.Event()

    def hang(data):
        stuck.set()
        go_on.wait(20)

    hanging = LazyLoader(lambda: 1, hang, max_idle_time=0.02)
    hanging.get()
    assert stuck.wait(20)
    other = LazyLoader(lambda: 1, max_idle_time=0.02)
    other.get()
    wait_until(lambda: not other.is_loaded())
    assert not go_on.is_set()
    go_on.set()


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_idle_times_that_make_no_sense_are_refused(seconds):
    with pytest.raises(ValueError, match=r"max_idle_time must be > 0 .*math\.inf"):
        LazyLoader(lambda: 1, max_idle_time=seconds)


def test_an_item_without_room_is_refused_and_cleaned_up():
    manager = MemoryManager(max_total_memory_mb=1.0)
    cleaned = []
    loader = LazyLoader(lambda: np.zeros(200_000), cleaned.append, name="big one")
    manager.register_lazy_loader(loader)
    with pytest.raises(InfeasibleBudgetError, match="'big one'") as caught:
        loader.get()
    assert caught.value.needed == 1_600_000
    assert caught.value.limit == 1_000_000
    assert len(cleaned) == 1
    assert not loader.is_loaded()
    assert manager.ledger.bytes == 0
    assert manager.ledger.refusals == 1


def test_the_needed_limit_counts_items_that_cannot_be_released():
    manager = MemoryManager(max_total_memory_mb=1.0)
    manager.ledger.account("queue").reserve(600_000)
    loader = LazyLoader(lambda: np.zeros(100_000))
    manager.register_lazy_loader(loader)
    with pytest.raises(InfeasibleBudgetError) as caught:
        loader.get()
    assert caught.value.needed == 1_400_000


def test_a_loader_belongs_to_one_manager():
    a, b = MemoryManager(), MemoryManager()
    loader = LazyLoader(lambda: np.zeros(1000))
    a.register_lazy_loader(loader)
    a.register_lazy_loader(loader)
    with pytest.raises(ValueError, match="registered with another manager"):
        b.register_lazy_loader(loader)
    loader.get()
    assert (a.ledger.bytes, b.ledger.bytes) == (8000, 0)


def test_data_loaded_before_counts_or_is_let_go():
    manager = MemoryManager(max_total_memory_mb=0.1)
    small, large = (LazyLoader(lambda n=n: np.zeros(n)) for n in (1000, 100_000))
    for loader in (small, large):
        loader.get()
        manager.register_lazy_loader(loader)
    assert small.is_loaded()
    assert not large.is_loaded()
    assert manager.ledger.bytes == 8000


def test_a_loader_thrown_away_gives_its_bytes_back():
    manager = MemoryManager()
    loader = LazyLoader(lambda: np.zeros(1000))
    manager.register_lazy_loader(loader)
    loader.get()
    assert manager.ledger.bytes == 8000
    del loader
    wait_until(lambda: manager.ledger.bytes == 0)
    assert manager.get_memory_report()["active_lazy_loaders"] == 0
