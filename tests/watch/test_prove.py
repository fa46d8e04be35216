"""A receipt for the cost of watching, and `cannot tell` on a restless machine."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from frugax import OverheadBudget
from frugax.budget import Verdict
from frugax.watch import Watcher, jit, prove
from frugax.watch.probes import record
from refusals import refuses

pytestmark = pytest.mark.slow

X = jnp.ones(4)


def watcher():
    return Watcher(None, OverheadBudget("100%"), level="full")


class Machine:
    """A clock under which bare and watched calls last as long as stated."""

    def __init__(self, *, watched, restless=0.0):
        self.now, self.restless = 0.0, restless
        self.random = random.Random(0)
        self.fn = jit(self._watched, watcher=watcher())
        self._bare = self.fn.variants().bare
        bare: Any = self._timed(self._bare, 1e-3)
        bare.trace, bare.lower = self._bare.trace, self._bare.lower
        self.fn.variants().bare = bare
        inner = self.fn
        timed: Any = self._timed(inner, 1e-3 * (1 + watched))
        timed.variants = inner.variants
        self.watched = timed

    def _watched(self, x):
        record("sum", x.sum())
        return x * 2

    def _timed(self, fn, seconds):
        def run(*args):
            slower = self.restless * self.random.random()
            self.now += seconds * (1 + slower)
            return fn(*args)

        return run

    def __call__(self):
        return self.now


def measured(machine, **given):
    return prove(machine.watched, X, seconds=0.5, chunk_s=1e-3, clock=machine, **given)


def test_within_the_budget_is_kept_and_beyond_is_broken():
    receipt = measured(Machine(watched=0.005))
    overhead, same = receipt.spends
    assert overhead.measured == pytest.approx(0.005, abs=1e-6)
    assert overhead.verdict == receipt.verdict == Verdict.KEPT
    assert same.measured == 0
    assert measured(Machine(watched=0.05)).verdict == Verdict.BROKEN
    generous = measured(Machine(watched=0.05), budget=OverheadBudget("6%"))
    assert generous.verdict == Verdict.KEPT


def test_on_a_restless_machine_it_cannot_tell():
    receipt = measured(Machine(watched=0.0, restless=0.3))
    assert receipt.verdict == Verdict.CANNOT_TELL
    assert "control" in receipt.spends[0].source
    assert "measure longer" in str(receipt)


def test_results_that_differ_break_it():
    machine = Machine(watched=0.0)
    wrong: Any = machine._timed(lambda x: machine.fn(x) + jnp.float32(1e-6), 1e-3)
    wrong.variants = machine.fn.variants
    receipt = prove(wrong, X, seconds=0.1, chunk_s=1e-3, clock=machine)
    assert receipt.spends[1].measured == 1
    assert receipt.verdict == Verdict.BROKEN


def test_a_real_function_that_donates_is_measured_and_its_argument_kept():
    def step(x):
        record("sum", x.sum())
        return x * 2

    x = X + 0
    receipt = prove(
        jit(step, watcher=watcher(), donate_argnums=0), x, seconds=0.05, chunk_s=1e-4
    )
    assert not x.is_deleted()
    assert len(receipt.spends) == 1
    assert receipt.verdict in set(Verdict)


def test_only_watched_functions_can_be_proven():
    with refuses(TypeError, "watch.jit"):
        prove(jax.jit(lambda x: x), X)
    with refuses(ValueError, "seconds"):
        prove(jit(lambda x: x), X, seconds=0)
