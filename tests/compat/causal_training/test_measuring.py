"""The cost of compiling, a ratio with its interval, and XLA's bytes."""

import jax
import jax.numpy as jnp

from frugax.compat import causal_training
from refusals import refuses


def test_the_first_call_pays_for_compiling_and_the_second_does_not():
    f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((16, 16))
    cost = causal_training.measure_compilation_speedup(f, x)
    speedup, first, second = cost
    assert speedup == cost.compile_s / cost.run_s > 1
    assert float(first) == float(second)


def test_functions_that_donate_can_be_measured():
    f = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.ones(4)
    causal_training.measure_compilation_speedup(f, x)
    causal_training.benchmark_sustained_performance(f, f, (x,), n_runs=2)
    causal_training.monitor_memory_usage(f, x)
    assert not x.is_deleted()


def test_both_functions_run_equally_often_and_in_turns():
    calls = []
    s = causal_training.benchmark_sustained_performance(
        lambda: calls.append("fast"), lambda: calls.append("slow"), (), n_runs=3
    )
    assert calls.count("slow") == calls.count("fast") == 4
    assert {calls[i] for i in (0, 2, 4, 6)} == {"fast", "slow"}  # the order changes
    assert s.low <= float(s) <= s.high


def test_memory_is_the_size_that_xla_plans():
    f = jax.jit(lambda x: x * 2, donate_argnums=0)
    x = jnp.ones(1000)
    result, increase, peak = use = causal_training.monitor_memory_usage(f, x)
    assert increase == 0  # the result lies where the argument lay
    assert peak == use.argument_bytes == 4000
    assert float(result[0]) == 2


def test_numbers_out_of_range_are_refused():
    with refuses(ValueError, "n_runs", 1):
        causal_training.benchmark_sustained_performance(len, len, ([],), n_runs=1)
