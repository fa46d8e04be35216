"""Without a collector one safe callback delivers the records."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from frugax.watch import probes
from frugax.watch.probes import MaskedValues, record


@pytest.fixture
def got(monkeypatch):
    found = []

    def receive(probe, mark_kind, mark, *values):
        result = probes.ProbeResult(probe, mark_kind, mark, values)
        found.append((probe.name, probes.to_value(result)))

    monkeypatch.setattr("frugax.watch._callback_receiver.receive", receive)
    return found


def test_values_are_delivered_in_order_as_arrays_of_their_own(got):
    @jax.jit
    def fn(x):
        def step(x, _):
            record("x", {"a": x, "b": 2 * x})
            return x + 1, None

        return jax.lax.scan(step, x, None, length=3)[0]

    assert fn(1.0) == 4
    jax.effects_barrier()
    assert [(v["a"].item(), v["b"].item()) for _, v in got] == [(1, 2), (2, 4), (3, 6)]


def test_a_gate_delivers_only_existing_records_in_one_call_for_all_lanes(got):
    def fn(x):
        record("x", x, when=x > 2)
        return x

    jax.jit(fn)(1.0)
    jax.effects_barrier()
    assert got == []
    jax.jit(jax.vmap(fn))(jnp.arange(4.0))
    jax.effects_barrier()
    ((name, value),) = got
    assert name == "x"
    assert isinstance(value, MaskedValues)
    assert value.present.tolist() == [False, False, False, True]


def test_outside_of_any_program_it_is_delivered_at_once(got):
    record("x", 3)
    assert got == [("x", 3)]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_exceptions_of_the_receiver_do_not_stop_the_program(error, monkeypatch, capsys):
    def fail():
        raise error("on purpose")

    monkeypatch.setattr("frugax.watch._callback_receiver.current", fail)
    fn = jax.jit(lambda x: (record("x", x), x + 1)[1])
    assert fn(1.0) == 2
    jax.effects_barrier()
    assert "'x' is not recorded" in capsys.readouterr().err


def test_remat_and_grad_deliver_and_probes_differ_by_their_handlers(got):
    def fn(x):
        record("x", x)
        return x * x

    assert jax.jit(jax.grad(jax.checkpoint(fn)))(3.0) == 6
    jax.effects_barrier()
    assert {name for name, _ in got} == {"x"}
    make = lambda handler: probes.Probe.of("x", "call", handler, 1.0)
    assert make(print) == make(print) != make(repr)
    assert len({make(print), make(print), make(repr)}) == 2


def test_a_program_that_imports_probes_alone_has_a_receiver():
    code = """
import jax
from frugax.compat import visualization
called = []
@jax.jit
def program(x):
    visualization.jax_debug_callback(lambda x: called.append(float(x)), x)
    return x + 1
assert program(1.0) == 2.0
jax.effects_barrier()
assert called == [1.0]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
