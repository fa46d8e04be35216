"""A price for each probe before the run, and what the budget can pay for."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from frugax import OverheadBudget
from frugax.watch._jit import jit
from frugax.watch._price import WatchPrices, _paid, price
from frugax.watch._turns import interval, take_turns
from frugax.watch.probes import Probe, frame, record, summarise

X = jnp.ones((8, 8))


def fn(x):
    record("mean", x.mean())
    summarise("end", x[0, 0])
    frame("x", x)
    return jnp.sin(x)


class Clock:
    """Seconds that pass as programs say."""

    now = 0.0

    def __call__(self):
        return self.now


def test_every_probe_has_a_price_and_the_list_is_a_plan():
    budget = OverheadBudget("5%")
    prices = price(fn, X, budget=budget, seconds=0.05, chunk_s=1e-4)
    assert [p.name for p in prices.probes] == ["end", "mean", "x"]
    assert [p.bytes for p in prices.probes] == [4, 4, 256]
    assert all(p.callback_seconds is not None for p in prices.probes)
    assert prices.predicted <= budget.share
    assert WatchPrices.from_json(prices.to_json()) == prices
    assert len({prices, WatchPrices.from_json(prices.to_json())}) == 1
    assert all(p.name in str(prices) for p in prices.probes)
    with pytest.raises(dataclasses.FrozenInstanceError):
        prices.budget = None  # pyright: ignore[reportAttributeAccessIssue]


def test_a_watched_function_is_priced_without_its_watcher_and_keeps_its_arguments():
    class Taker:
        def wants_frames(self):
            return False

        def take(self, step, probes, records):
            raise AssertionError("priced, not run")

    watched = jit(fn, watcher=Taker(), donate_argnums=0)
    x = X + 0
    prices = price(watched, x, seconds=0.02, chunk_s=1e-4, callbacks=False)
    assert not x.is_deleted()
    assert all(p.callback_seconds is None for p in prices.probes)


def made(*rows):
    found = [(Probe.of(n, k, None, 1.0), c, 0.0, 4, None) for n, k, c in rows]
    return _paid(found, 10.0, 1000.0)


def test_summaries_are_paid_first_then_numbers_then_frames():
    paid = made(
        ("f", "frame", 1.0),
        ("b", "scalar", 4.0),
        ("a", "scalar", 1.0),
        ("s", "summary", 2.0),
    )
    assert [(p.name, p.every) for p in paid] == [("s", 1), ("a", 1), ("b", 1), ("f", 1)]
    assert [p.needs for p in paid] == [0.002, 0.003, 0.007, 0.008]


def test_what_does_not_fit_comes_less_often_and_leaves_something_for_the_next():
    (a, b, c) = made(("a", "scalar", 2.0), ("b", "scalar", 80.0), ("c", "frame", 400.0))
    assert a.every == 1
    assert b.every == 20  # 8 are left: 4 of them
    assert c.every == 200  # 4 are left: 2 of them
    assert c.needs == (2 + 4 + 400) / 1000
    (s, f) = made(("s", "summary", 11.0), ("f", "frame", 1.0))
    assert (s.every, f.every) == (0, 1)  # a summary is of every step or of none
    assert WatchPrices(
        budget=OverheadBudget("1%"), step_seconds=1000.0, probes=(s, f)
    ).left_out == ("s",)


cost = st.floats(0, 100)
kind = st.sampled_from(["summary", "call", "scalar", "frame"])


@settings(deadline=None)
@given(st.lists(st.tuples(kind, cost), max_size=6), st.floats(0, 50))
def test_never_over_the_budget(rows, limit):
    found = [
        (Probe.of(f"{i}", k, None, 1.0), c, 0.0, 4, None)
        for i, (k, c) in enumerate(rows)
    ]
    paid = _paid(found, limit, 100.0)
    # One rounding for each addition.
    spent = sum(p.seconds / p.every for p in paid if p.every)
    assert spent <= limit * (1 + 1e-12)


def test_programs_that_take_turns_are_told_apart_by_a_known_factor():
    clock = Clock()

    def program(seconds):
        def run():
            clock.now += seconds * (1 + clock.now % 0.01)  # the machine gets slower
            return jnp.zeros(())

        return run

    programs = {"one": program(1e-3), "two": program(2e-3)}
    turns = take_turns(programs, (), seconds=1.0, chunk_s=1e-2, clock=clock)
    ratio = turns.ratio("two", "one")
    assert ratio.low <= ratio.middle <= ratio.high
    # A turn lasts 10 or 20 ms, in which the machine changes by 1%, and so does a ratio.
    np.testing.assert_allclose(ratio.middle, 2.0, rtol=0.02)
    assert interval(np.full(5, 3.0)).noise == 0
    assert abs(turns.added("one", "one").middle) == 0


@pytest.mark.parametrize("given", [{"seconds": 0}, {"chunk_s": -1.0}])
def test_no_time_is_refused(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        price(fn, X, **given)
