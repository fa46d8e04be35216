"""The cache keeps to its limit and evicts what was used longest ago."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fault_injection import at_once
from frugax.compat.visualization import VisualizationCache
from refusals import refuses

KB = 1000
HEADER = sys.getsizeof(np.zeros(0, np.uint8))


def item(number: int, nbytes: int = 10 * KB) -> np.ndarray:
    """An array that counts as this many bytes."""
    return np.full(nbytes - HEADER, number, np.uint8)


def test_the_least_recently_used_item_is_evicted_first():
    cache = VisualizationCache(max_memory_mb=0.03)
    for i in range(3):
        assert cache.put(str(i), item(i))
    assert cache.get("0")[0] == 0  # now the newest
    cache.put("3", item(3))
    assert [k for k in "0123" if k in cache] == ["0", "2", "3"]
    assert cache.get("1", "gone") == "gone"
    assert cache.get_stats() == {
        "items_in_memory": 3,
        "memory_usage_mb": 0.03,
        "max_memory_mb": 0.03,
    }


def test_none_is_a_value_like_any_other():
    cache = VisualizationCache()
    assert cache.put("x", None)
    assert cache.get("x", "default") is None
    assert "x" in cache


def test_an_item_larger_than_the_cache_is_refused_and_replaces_the_older_one():
    cache = VisualizationCache(max_memory_mb=0.02)
    cache.put("small", item(1))
    cache.put("x", item(1))
    assert not cache.put("x", item(2, 30 * KB))
    assert "x" not in cache
    assert "small" in cache
    assert cache.get_stats()["memory_usage_mb"] == 0.01


def test_many_threads_leave_it_in_order():
    cache = VisualizationCache(max_memory_mb=0.05)
    wrong = []

    seeds = itertools.count()

    def work():
        rng = np.random.default_rng(next(seeds))
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

    at_once(work, threads=6)
    assert not wrong
    kept = [value for key in "01234567" if (value := cache.get(key)) is not None]
    assert cache.nbytes == sum(v.nbytes + HEADER for v in kept) <= 50 * KB


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf, 1e-9, True])
def test_impossible_limits_are_refused(limit):
    with refuses((TypeError, ValueError), "max_memory_mb", limit):
        VisualizationCache(limit)


class AgainstADict(RuleBasedStateMachine):
    """What is found is what was put last, and the limit is kept."""

    def __init__(self):
        super().__init__()
        self.put_last: dict[str, np.ndarray] = {}
        self.cache = VisualizationCache(0.01)

    @rule(key=st.sampled_from("abcdefgh"), nbytes=st.integers(HEADER, 14 * KB))
    def put(self, key, nbytes):
        value = item(nbytes % 251, nbytes)
        assert self.cache.put(key, value) == (nbytes <= 10 * KB)
        self.put_last[key] = value

    @rule(key=st.sampled_from("abcdefgh"))
    def get(self, key):
        value = self.cache.get(key)
        assert value is None or value is self.put_last[key]

    @rule(key=st.sampled_from("abcdefgh"))
    def remove(self, key):
        assert self.cache.remove(key) <= (key in self.put_last)
        assert key not in self.cache

    @invariant()
    def limit(self):
        kept = [value for key, value in self.put_last.items() if key in self.cache]
        assert self.cache.nbytes == sum(v.nbytes + HEADER for v in kept) <= 10 * KB
        assert self.cache.get_stats()["items_in_memory"] == len(kept)


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=40, deadline=None)
