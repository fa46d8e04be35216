"""Lazy data is loaded once, and released when idle."""

import gc
import math
import threading
import time
import weakref

import numpy as np
import pytest

from frugax.compat.visualization import LazyLoader
from refusals import refuses


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


def test_idle_data_is_released_and_loaded_again():
    loader = LazyLoader(lambda: "data", max_idle_time=0.05)
    for _ in range(3):  # each load has a timer that works
        assert loader.get() == "data"
        wait_until(lambda: not loader.is_loaded())
    loader.get()
    assert loader.release()
    assert not loader.release()
    assert not loader.is_loaded()


def test_it_is_kept_while_it_is_used():
    loader = LazyLoader(object, max_idle_time=0.2)
    first = loader.get()
    began = time.monotonic()
    while time.monotonic() < began + 0.5:
        assert loader.get() is first or time.monotonic() > began + 0.2
        time.sleep(0.005)


def test_a_timer_that_is_about_to_end_is_not_trusted():
    loader = LazyLoader(lambda: 1, max_idle_time=3600)
    loader.get()
    timer = loader._timer
    assert timer is not None
    loader.max_idle_time = 1e-9
    timer.function(*timer.args)  # what it calls when it is due, while it is alive
    assert not loader.is_loaded()
    loader.get()
    assert loader._timer not in (None, timer)
    timer.cancel()


def test_a_loader_that_is_thrown_away_takes_data_and_timer_with_it():
    loader = LazyLoader(lambda: np.zeros(3), max_idle_time=3600)
    data = weakref.ref(loader.get())
    timer = loader._timer
    assert timer is not None
    assert timer.daemon
    del loader
    gc.collect()
    assert data() is None
    timer.join(20)
    assert not timer.is_alive()


def test_infinite_patience_needs_no_timer():
    loader = LazyLoader(lambda: 1, max_idle_time=math.inf)
    loader.get()
    assert loader._timer is None
    assert loader.is_loaded()


def test_a_failing_loader_is_asked_again():
    tries = []

    def load_frames():
        tries.append(1)
        return 1 / (len(tries) - 1)

    loader = LazyLoader(load_frames)
    with pytest.raises(ZeroDivisionError):
        loader.get()
    assert not loader.is_loaded()
    assert loader.get() == 1.0


@pytest.mark.parametrize("fails", [False, True])
def test_threads_load_one_at_a_time_and_share_the_result(fails):
    running, most, loads = 0, 0, []

    def load():
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
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
    assert len(loads) == (8 if fails else 1)
    assert len(set(map(id, errors))) == (8 if fails else 0)
    assert len(set(map(id, results))) == (0 if fails else 1)


def test_a_loader_that_loads_can_be_asked_about():
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
    assert not loader.release()
    assert loader.nbytes == 0
    go_on.set()
    thread.join()
    assert loader.is_loaded()


def test_a_loader_that_asks_for_its_own_data_does_not_wait_for_itself():
    loader: LazyLoader = LazyLoader(lambda: loader.get())
    with pytest.raises(RecursionError):
        loader.get()
    assert not loader.is_loaded()


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_idle_times_that_make_no_sense_are_refused(seconds):
    with refuses(ValueError, "max_idle_time", seconds):
        LazyLoader(lambda: 1, max_idle_time=seconds)
