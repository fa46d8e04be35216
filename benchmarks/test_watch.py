"""Measure the host's cost of a record of four metrics, step by step.

Run it without the type checks: `python -m pytest benchmarks/test_watch.py -o addopts=`
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import watch
from frugax.budget import OverheadBudget

N = 1024


def records():
    f = jax.jit(lambda x: {k: x * i for i, k in enumerate("abcd")})
    return jax.block_until_ready([f(jnp.float32(i)) for i in range(N)])


@pytest.mark.parametrize("fetch", [np.asarray, jax.device_get])
def test_fetch(benchmark, fetch):
    # A fetched array keeps its copy, so each round needs new ones.
    benchmark.pedantic(
        lambda given: [{k: fetch(v) for k, v in r.items()} for r in given],
        setup=lambda: ((records(),), {}),
        rounds=10,
    )
    benchmark.extra_info["us_per_record"] = benchmark.stats["min"] / N * 1e6


@pytest.mark.parametrize("part", ["record", "finish"])
def test_watcher(benchmark, tmp_path, part):
    journals = []

    def prepared():
        journal = watch.Journal.create(tmp_path / str(len(journals)), {})
        journals.append(journal)
        watcher = watch.Watcher(journal, OverheadBudget(share=0.0), max_pending=N)
        given = records()
        if part == "finish":
            for step, metrics in enumerate(given):
                watcher.record(step, metrics)
        return (watcher, given), {}

    def run(watcher, given):
        if part == "finish":
            watcher.finish()
        else:
            for step, metrics in enumerate(given):
                watcher.record(step, metrics)

    benchmark.pedantic(run, setup=prepared, rounds=10)
    for journal in journals:
        journal.close()
    benchmark.extra_info["us_per_record"] = benchmark.stats["min"] / N * 1e6


def test_journal(benchmark, tmp_path):
    names = iter(range(1000))
    values = [{k: np.float32(i) for k in "abcd"} for i in range(N)]

    def run():
        with watch.Journal.create(tmp_path / str(next(names)), {}) as journal:
            for step, record in enumerate(values):
                journal.write(step, record)

    benchmark.pedantic(run, rounds=10)
    benchmark.extra_info["us_per_record"] = benchmark.stats["min"] / N * 1e6
