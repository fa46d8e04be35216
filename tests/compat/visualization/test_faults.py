"""Faults in the guide's callbacks do not change the program's result.

A hundred faults are injected; `make thorough` injects 10,000.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection import Faults
from frugax.compat import visualization

pytestmark = pytest.mark.slow


def program(x, watched=lambda x: None):
    """A loop whose result shows any change in a single bit."""

    def body(carry, i):
        carry = jnp.tanh(carry @ carry.T / 8 + 0.1 * i) + jnp.roll(carry, 1)
        watched(carry)
        return carry, carry.sum()

    return jax.lax.scan(body, x, jnp.arange(50, dtype=jnp.float32))


@pytest.fixture
def impatient(monkeypatch):
    """Callbacks that hang are soon abandoned."""
    monkeypatch.setattr("frugax.compat.visualization._host_calls._MAX_WAIT_S", 0.01)


@pytest.mark.parametrize(
    "most", [100, pytest.param(10_000, marks=pytest.mark.thorough)]
)
def test_callbacks_that_fail_never_end_a_program_nor_change_a_bit(impatient, most):
    faults = Faults(hang_s=0.01)

    def watched(x):
        visualization.jax_debug_callback(faults, x, callback_name="faults")

    x = jnp.linspace(-1, 1, 64, dtype=jnp.float32).reshape(8, 8)
    expected = jax.jit(program)(x)
    run = jax.jit(lambda x: program(x, watched))
    while faults.count < most:
        result = run(x)
        jax.tree.map(np.testing.assert_array_equal, result, expected)
    jax.effects_barrier()
    stats = visualization.get_callback_performance_stats()["faults"]
    raised = faults.count - faults.done["slow"] - faults.done["hang"]
    assert stats["error_count"] >= raised > 0
    assert stats["hung_calls"] >= faults.done["hang"] > 0
