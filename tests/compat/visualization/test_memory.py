"""One limit over the cache and lazy data, reports that are true, nothing global."""

import gc
import math
import subprocess
import sys
import threading

import numpy as np
import pytest

from frugax import InfeasibleBudgetError
from frugax.compat.visualization import (
    LazyLoader,
    MemoryManager,
    create_lazy_visualization_loader,
    get_memory_manager,
    optimize_garbage_collection,
)
from refusals import refuses

MB = 1_000_000
HEADER = sys.getsizeof(np.zeros(0, np.uint8))


def zeros(nbytes: int) -> np.ndarray:
    """An array that counts as this many bytes."""
    return np.zeros(nbytes - HEADER, np.uint8)


def lazy(nbytes: int, **options) -> LazyLoader:
    return LazyLoader(lambda: zeros(nbytes), **options)


def test_the_least_recently_used_data_is_released_be_it_lazy_or_cached():
    manager = MemoryManager(max_total_memory_mb=1.0)
    first, second = lazy(300_000), lazy(200_000)
    for loader in (first, second):
        manager.register_lazy_loader(loader)
    manager.cache.put("a", zeros(200_000))
    first.get()
    manager.cache.put("b", zeros(200_000))
    second.get()
    kept = lambda: [first.is_loaded(), second.is_loaded(), *map(in_cache, "abc")]
    in_cache = lambda key: key in manager.cache

    manager.cache.get("b")
    manager.cache.put("c", zeros(200_000))
    assert kept() == [True, True, False, True, True]
    first.get()
    manager.cache.put("c", zeros(400_000))
    assert kept() == [True, False, False, True, True]
    manager.cache.put("d", zeros(200_000))
    assert kept() == [True, False, False, False, True]
    second.get()
    assert kept() == [False, True, False, False, True]
    assert manager.get_memory_report()["monitor_stats"]["current_mb"] <= 1.0


def test_data_that_can_never_fit_is_refused_before_others_leave():
    manager = MemoryManager(max_total_memory_mb=1.0)
    loader, small = lazy(MB + 1), lazy(1000)
    for each in (loader, small):
        manager.register_lazy_loader(each)
    small.get()
    manager.cache.put("x", b"")
    with refuses(InfeasibleBudgetError, needed=MB + 1, limit=MB):
        loader.get()
    assert not loader.is_loaded()
    assert not manager.cache.put("big", zeros(MB + 1))
    assert small.is_loaded()
    assert "x" in manager.cache


def test_data_loaded_before_it_is_registered_counts_or_is_refused():
    manager = MemoryManager(max_total_memory_mb=0.1)
    small, large = lazy(8000), lazy(200_000)
    for loader in (small, large):
        loader.get()
    manager.register_lazy_loader(small)
    with refuses(InfeasibleBudgetError, needed=200_000, limit=100_000):
        manager.register_lazy_loader(large)
    assert not large.is_loaded()
    assert manager.get_memory_report()["monitor_stats"]["current_mb"] == 0.008


def test_the_report_is_true():
    manager = MemoryManager(1.0, 5.0)
    loaders = [lazy(MB), lazy(MB)]
    manager.register_lazy_loader(loaders[0])
    manager.register_lazy_loader(loaders[1])
    loaders[0].get()
    manager.cache.put("x", zeros(MB // 2))
    report = manager.get_memory_report()
    assert report["monitor_stats"] == {"current_mb": 1.5, "limit_mb": 5.0}
    assert (report["active_lazy_loaders"], report["loaded_lazy_loaders"]) == (2, 1)
    assert report["cache_stats"]["items_in_memory"] == 1
    assert report["cache_stats"]["max_memory_mb"] == 1.0
    loaders.clear()
    gc.collect()
    report = manager.get_memory_report()
    assert report["monitor_stats"]["current_mb"] == 0.5
    assert report["active_lazy_loaders"] == 0


def test_cleanup_releases_all_and_counts_it():
    with MemoryManager() as manager:
        loaders = [lazy(MB) for _ in range(3)]
        for loader in loaders:
            manager.register_lazy_loader(loader)
        loaders[0].get()
        loaders[1].get()
        manager.cache.put("x", zeros(MB))
        freed = manager.cleanup_memory()
        assert freed["lazy_loaders_cleaned"] == 2
        assert freed["cache_items_cleaned"] == 1
        assert freed["freed_mb"] == 3.0
        assert freed["gc_collected"] >= 0
        loaders[2].get()
    assert not loaders[2].is_loaded()
    assert manager.get_memory_report()["monitor_stats"]["current_mb"] == 0


def test_eager_managers_load_registered_data():
    loader = lazy(MB)
    MemoryManager(lazy_loading=False).register_lazy_loader(loader)
    assert loader.is_loaded()


def test_a_loader_belongs_to_one_manager():
    a, b = MemoryManager(), MemoryManager()
    loader = lazy(8000)
    a.register_lazy_loader(loader)
    a.register_lazy_loader(loader)
    with refuses(ValueError, repr(loader.loader_func)):
        b.register_lazy_loader(loader)
    loader.get()
    held = [m.get_memory_report()["monitor_stats"]["current_mb"] for m in (a, b)]
    assert held == [0.008, 0.0]


def test_loaders_of_a_path_belong_to_the_manager_of_the_process(tmp_path):
    path = tmp_path / "x.npy"
    loader = create_lazy_visualization_loader(path, np.load)
    with pytest.raises(FileNotFoundError):
        loader.get()
    np.save(path, np.arange(5))
    before = get_memory_manager().get_memory_report()["loaded_lazy_loaders"]
    np.testing.assert_array_equal(loader.get(), np.arange(5))
    after = get_memory_manager().get_memory_report()["loaded_lazy_loaders"]
    assert after == before + 1
    with pytest.raises(TypeError):
        create_lazy_visualization_loader(path, None)  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan, 1e-9, "5"])
@pytest.mark.parametrize("name", ["max_cache_memory_mb", "max_total_memory_mb"])
def test_impossible_limits_are_refused(name, limit):
    with refuses((TypeError, ValueError), name, repr(limit)):
        MemoryManager(**{name: limit})


def test_threads_of_all_kinds_stay_within_the_limit():
    manager = MemoryManager(0.5, 1.0)
    loaders = [lazy(200_000 + i, max_idle_time=0.01) for i in range(6)]
    for loader in loaders:
        manager.register_lazy_loader(loader)
    errors = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(100):
                i = int(rng.integers(6))
                match rng.integers(3):
                    case 0:
                        assert len(loaders[i].get()) == 200_000 + i - HEADER
                    case 1:
                        manager.cache.put(str(i), zeros(100_000))
                    case _:
                        manager.cleanup_memory()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors
    assert manager.get_memory_report()["monitor_stats"]["current_mb"] <= 1.0


def test_loaders_that_evict_each_other_do_not_wait_for_each_other():
    """Each loads while the other one is the oldest, and is loading too."""
    manager = MemoryManager(max_total_memory_mb=1.0)
    meeting = threading.Barrier(2)

    def load():
        meeting.wait(20)
        return zeros(800_000)

    loaders = [LazyLoader(load), LazyLoader(load)]
    for loader in loaders:
        manager.register_lazy_loader(loader)
    for _ in range(20):
        threads = [threading.Thread(target=loader.get) for loader in loaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert sum(loader.is_loaded() for loader in loaders) == 1
        manager.cleanup_memory()


def test_getting_the_manager_does_not_change_the_process():
    code = """
import gc, threading
import frugax.compat.visualization as visualization
state = lambda: (gc.get_threshold(), gc.isenabled(), threading.active_count(),
                 len(gc.callbacks))
before = state()
manager = visualization.get_memory_manager()
with manager: pass
assert manager is visualization.get_memory_manager()
assert state() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the garbage collector ----------------------------------------------------------


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_settings_are_restored_by_the_last_block_in_any_order(thresholds):
    a, b = optimize_garbage_collection(), optimize_garbage_collection()
    with optimize_garbage_collection():
        fewer = gc.get_threshold()
        assert fewer[:2] == (1000, 15)
    assert gc.get_threshold() == thresholds
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    assert gc.get_threshold() == fewer
    b.__exit__(None, None, None)
    assert gc.get_threshold() == thresholds
