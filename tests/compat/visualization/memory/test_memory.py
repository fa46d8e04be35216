"""One limit over all that watching keeps, reports that are true, nothing global."""

import gc
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from frugax.compat.visualization import memory
from frugax.compat.visualization.memory import (
    GarbageCollectionOptimizer,
    LazyLoader,
    MemoryManager,
    MemoryUsageMonitor,
    VisualizationCache,
    create_lazy_visualization_loader,
    get_memory_manager,
)

MB = 1_000_000


def lazy(nbytes: int, **options) -> LazyLoader:
    return LazyLoader(lambda: np.zeros(nbytes, np.uint8), **options)


def test_loaders_let_go_first_then_the_cache_then_new_things_are_refused():
    manager = MemoryManager(max_cache_memory_mb=1.0, max_total_memory_mb=1.0)
    first, second = lazy(300_000), lazy(200_000)
    for loader in (first, second):
        manager.register_lazy_loader(loader)
        loader.get()
    manager.cache.put("a", np.zeros(200_000, np.uint8))
    manager.cache.put("b", np.zeros(200_000, np.uint8))
    queue = manager.ledger.account("queue")

    assert queue.reserve(200_000)
    assert not first.is_loaded()
    assert second.is_loaded()
    assert len(manager.cache) == 2
    assert queue.reserve(400_000)
    assert not second.is_loaded()
    assert len(manager.cache) == 2
    assert queue.reserve(100_000)
    assert "a" not in manager.cache
    assert "b" in manager.cache
    assert queue.reserve(300_000)
    assert len(manager.cache) == 0
    assert not queue.reserve(1)
    assert not manager.cache.put("c", b"x")
    report = manager.get_memory_report()
    assert report["held_mb"] == {"queue": 1.0}
    assert report["refusals"] == 2
    assert report["monitor_stats"]["peak_mb"] <= 1.0


def test_the_report_is_true_without_asking_for_a_check():
    manager = MemoryManager()
    assert manager.get_memory_report()["monitor_stats"]["current_mb"] == 0
    data = [np.zeros(MB, np.uint8)]
    grows = LazyLoader(lambda: data)
    manager.register_lazy_loader(grows)
    grows.get()
    manager.cache.put("x", np.zeros(2 * MB, np.uint8))
    report = manager.get_memory_report()
    assert report["monitor_stats"]["current_mb"] == pytest.approx(3.0, abs=0.001)
    data.append(np.zeros(4 * MB, np.uint8))
    report = manager.get_memory_report()
    stats = report["monitor_stats"]
    assert stats["current_mb"] == pytest.approx(7.0, abs=0.001)
    assert stats["peak_mb"] == stats["current_mb"]
    assert stats["samples_count"] >= 2
    assert report["held_mb"].keys() == {"lazy data", "cache"}
    assert report["max_total_memory_mb"] == 500.0
    assert (report["active_lazy_loaders"], report["loaded_lazy_loaders"]) == (1, 1)
    assert report["cache_stats"]["items_in_memory"] == 1
    assert report["gc_stats"]["total_gc_runs"] == 0
    if sys.platform == "linux":
        assert report["process_mb"] > 7
    grows.force_cleanup()
    assert manager.get_memory_report()["held_mb"].keys() == {"cache"}


def test_data_that_grew_past_the_limit_is_let_go():
    manager = MemoryManager(max_total_memory_mb=1.0)
    data = [np.zeros(MB // 2, np.uint8)]
    loader = LazyLoader(lambda: data)
    manager.register_lazy_loader(loader)
    loader.get()
    data.append(np.zeros(MB, np.uint8))
    assert manager.check_memory_usage() == 0.0
    assert not loader.is_loaded()


def test_cleanup_releases_all_and_lists_it():
    cleaned = []

    def broken(data):
        raise ValueError("cannot close")

    with MemoryManager() as manager:
        loaders = [
            lazy(MB, cleanup_func=cleaned.append),
            lazy(MB, cleanup_func=broken, name="broken"),
            lazy(MB),
        ]
        for loader in loaders:
            manager.register_lazy_loader(loader)
        loaders[0].get()
        loaders[1].get()
        manager.cache.put("x", np.zeros(MB, np.uint8))
        freed = manager.cleanup_memory()
        assert freed["lazy_loaders_cleaned"] == 2
        assert len(cleaned) == 1
        assert (freed["cache_items_before"], freed["cache_items_after"]) == (1, 0)
        assert freed["freed_mb"] == 3.0
        assert freed["gc_collected"] >= 0
        errors = manager.get_memory_report()["cleanup_errors"]
        assert errors == {"broken": "ValueError: cannot close"}
        loaders[2].get()
    assert not loaders[2].is_loaded()
    assert manager.ledger.bytes == 0


def test_eager_managers_load_registered_items():
    loader = lazy(MB)
    MemoryManager(lazy_loading=False).register_lazy_loader(loader)
    assert loader.is_loaded()


def test_getting_the_manager_does_not_change_the_process():
    code = """
import gc, threading
before = gc.get_threshold(), gc.isenabled(), threading.active_count(), len(gc.callbacks)
from frugax.compat.visualization.memory import get_memory_manager
manager = get_memory_manager()
with manager: pass
assert manager is get_memory_manager()
after = gc.get_threshold(), gc.isenabled(), threading.active_count(), len(gc.callbacks)
print(before[:3] == after[:3], after[3] - before[3])
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    # JAX itself adds callbacks when it is imported, and frugax.watch imports JAX.
    same, added = out.stdout.split()
    assert same == "True"
    assert int(added) <= 1


def test_loaders_of_a_path(tmp_path):
    path = tmp_path / "x.npy"
    manager = MemoryManager()
    loader = create_lazy_visualization_loader(path, np.load, manager=manager)
    with pytest.raises(FileNotFoundError) as caught:
        loader.get()
    assert str(path) in caught.value.__notes__[0]
    np.save(path, np.arange(5))
    np.testing.assert_array_equal(loader.get(), np.arange(5))
    assert manager.ledger.bytes == 40
    usual = create_lazy_visualization_loader(path, np.load)
    before = get_memory_manager().ledger.bytes
    usual.get()
    assert get_memory_manager().ledger.bytes == before + 40


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan"), 1e-9])
@pytest.mark.parametrize("name", ["max_cache_memory_mb", "max_total_memory_mb"])
def test_impossible_limits_are_refused(name, limit):
    with pytest.raises(ValueError, match=f"{name} must be > 0 and finite"):
        MemoryManager(**{name: limit})


def test_threads_of_all_kinds_stay_within_the_limit():
    manager = MemoryManager(0.5, 1.0)
    loaders = [lazy(200_000 + i, max_idle_time=0.01) for i in range(6)]
    for loader in loaders:
        manager.register_lazy_loader(loader)
    queue = manager.ledger.account("queue")
    errors = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(100):
                i = int(rng.integers(6))
                match rng.integers(4):
                    case 0:
                        assert len(loaders[i].get()) == 200_000 + i
                    case 1:
                        manager.cache.put(str(i), np.zeros(100_000, np.uint8))
                    case 2:
                        if queue.reserve(100_000, make_room=False):
                            time.sleep(0.001)
                            queue.release(100_000)
                    case _:
                        manager.check_memory_usage()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [e for e in errors if "InfeasibleBudget" not in type(e).__name__]
    assert not errors
    assert manager.ledger.peak_bytes <= MB
    manager.close()
    assert manager.ledger.bytes == 0


# --- the monitor --------------------------------------------------------------------


def test_the_monitor_is_bounded_and_keeps_the_highest_ever():
    monitor = MemoryUsageMonitor()
    assert monitor.get_memory_stats() == {
        "current_mb": 0.0,
        "peak_mb": 0.0,
        "avg_mb": 0.0,
    }
    assert not monitor.should_trigger_cleanup(0.0)
    monitor.record_memory_usage(1e6)
    for _ in range(1000):
        monitor.record_memory_usage(2.0)
    monitor.record_memory_usage(4.0)
    assert monitor.get_memory_stats() == {
        "current_mb": 4.0,
        "peak_mb": 1e6,
        "avg_mb": 2.002,
        "samples_count": 1000,
    }
    assert monitor.should_trigger_cleanup(3.9)
    assert not monitor.should_trigger_cleanup(4.0)
    assert not monitor.should_trigger_cleanup()
    with pytest.raises(ValueError, match="got nan"):
        monitor.record_memory_usage(float("nan"))


# --- the garbage collector ----------------------------------------------------------


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_settings_are_restored_in_any_order(thresholds):
    a, b = GarbageCollectionOptimizer(), GarbageCollectionOptimizer()
    a.optimize_for_visualization()
    with b:
        assert gc.get_threshold() == (1000, 15, 15)
        a.restore_original_settings()
        assert gc.get_threshold() == (1000, 15, 15)
    assert gc.get_threshold() == thresholds
    a.restore_original_settings()
    assert gc.get_threshold() == thresholds


def test_settings_come_back_when_it_is_thrown_away(thresholds):
    a = GarbageCollectionOptimizer()
    a.optimize_for_visualization()
    a.optimize_for_visualization()
    del a
    assert gc.get_threshold() == thresholds


def test_settings_of_others_are_left_alone(thresholds):
    with GarbageCollectionOptimizer():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)
    gc.set_threshold(*thresholds)
    with GarbageCollectionOptimizer():
        assert gc.get_threshold() == (1000, 15, 15)
    assert gc.get_threshold() == thresholds


def test_collecting_is_counted():
    optimizer = GarbageCollectionOptimizer()
    stats = optimizer.get_gc_stats()
    assert stats["total_gc_runs"] == 0
    assert stats["last_gc_time"] is None
    assert not optimizer.should_force_gc()
    assert optimizer.should_force_gc(-1.0)

    class Circle:
        def __init__(self):
            self.me = self

    gc.collect()
    for _ in range(10):
        Circle()
    found = optimizer.force_cleanup()
    assert found.keys() == {"generation_0", "generation_1", "generation_2"}
    assert sum(found.values()) >= 10
    for _ in range(150):
        optimizer._recent.append(1)
    stats = optimizer.get_gc_stats()
    assert stats["total_gc_runs"] == 1
    assert stats["recent_total_collected"] == 100
    assert stats["avg_collected_per_run"] == 1.0
    assert abs(stats["last_gc_time"] - time.time()) < 3600
    assert stats["current_thresholds"] == gc.get_threshold()
    assert len(stats["current_counts"]) == 3


def test_the_front_door_is_sorted():
    assert memory.__all__ == sorted(memory.__all__, key=str.lower) or (
        memory.__all__ == sorted(memory.__all__)
    )
    assert VisualizationCache is memory.VisualizationCache


def test_limits_that_are_not_numbers_are_refused():
    limit: Any = "5"
    with pytest.raises(TypeError, match="max_cache_memory_mb must be a number of MB"):
        MemoryManager(limit)
