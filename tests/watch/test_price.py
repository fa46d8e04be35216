"""A price for each probe, measured before the run."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from frugax import watch
from frugax.measure import InterleavedTimes
from frugax.watch.probes import frame, record, summarise
from refusals import refuses

X = jnp.ones((8, 8))


def fn(x):
    record("mean", x.mean())
    summarise("end", x[0, 0])
    frame("x", x)
    return jnp.sin(x)


def test_every_probe_has_a_price():
    prices = watch.price(fn, X, seconds=0.05, chunk_s=1e-4)
    assert [p.name for p in prices.probes] == ["mean", "end", "x"]
    assert [p.bytes for p in prices.probes] == [4, 4, 256]
    assert all(p.callback_seconds is not None for p in prices.probes)
    assert all(p.seconds > 0 for p in prices.probes)
    assert prices.step_seconds > 0 < prices.drain_seconds
    assert all(p.name in str(prices) for p in prices.probes)


def test_several_numbers_are_priced_together_too():
    def program(x):
        for i in range(6):
            record(f"n{i}", x[i, i])
        frame("x", x)
        return jnp.sin(x)

    prices = watch.price(program, X, seconds=0.2, chunk_s=1e-4, callbacks=False)
    # One vector leaves the program: its cost is not in the price of each.
    assert prices.shared_seconds > 0
    numbers = prices.probes[:6]
    assert prices.all_seconds < sum(p.seconds for p in prices.probes) + 6 * (
        prices.shared_seconds
    )
    assert all(p.seconds >= 0 for p in numbers)
    assert "numbers, once" in str(prices)


def test_noise_in_the_price_of_one_number_does_not_raise_that_of_all(monkeypatch):
    def program(x):
        for i in range(3):
            record(f"n{i}", x[i, i])
        return jnp.sin(x)

    def measured(programs, *args, **options):
        # The second number looks free, by noise; the last program has all three.
        added_us = dict(zip(programs, (0, 10, 0, 10, 12), strict=True))
        seconds = {k: np.full(5, (100 + us) * 1e-6) for k, us in added_us.items()}
        return InterleavedTimes(seconds, calls=1)

    monkeypatch.setattr("frugax.watch._price.time_interleaved", measured)
    prices = watch.price(program, X, callbacks=False, clock=lambda: 0.0)
    assert prices.all_seconds == pytest.approx(12e-6)
    assert [p.seconds > 0 for p in prices.probes] == [True, False, True]


def test_a_watched_function_is_priced_without_its_watcher_and_keeps_its_arguments():
    class Consumer:
        def wants_frames(self):
            return False

        def ingest(self, step, probes, records):
            raise AssertionError("priced, not run")

    watched = watch.jit(fn, watcher=Consumer(), donate_argnums=0)
    x = X + 0
    prices = watch.price(watched, x, seconds=0.02, chunk_s=1e-4, callbacks=False)
    assert not x.is_deleted()
    assert all(p.callback_seconds is None for p in prices.probes)


def test_a_user_callback_is_priced_without_being_called():
    def program(x):
        handler = lambda *_: pytest.fail("called")
        probe = watch.Probe.of("call", "call", handler, 1.0)
        watch.probes.emit(probe, x[0, 0])
        return x + 1

    prices = watch.price(program, X, seconds=0.02, chunk_s=1e-4, callbacks=False)
    assert [p.kind for p in prices.probes] == ["call"]


@pytest.mark.parametrize("given", [{"seconds": 0}, {"chunk_s": -1.0}])
def test_a_time_that_is_not_positive_is_refused(given):
    with refuses(ValueError, *given):
        watch.price(fn, X, **given)


def test_only_functions_have_prices():
    not_callable: Any = 3
    with pytest.raises(TypeError):
        watch.price(not_callable, X)
