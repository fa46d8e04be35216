"""What a new user writes wrong is said where it is written.

Where the run-time type checker would be first, code runs without it in a fork.
"""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forked import python
from frugax import OverheadBudget, watch


def said(code):
    """What a program that ends in an error says last."""
    done = python(textwrap.dedent(code))
    assert done.returncode == 1, (done.stdout, done.stderr)
    return done.stderr.strip().splitlines()[-1]


def test_an_unknown_option_of_a_callback_is_refused_where_it_is_written(tmp_path):
    grid = jnp.zeros((2, 2), jnp.int32)
    with pytest.raises(TypeError, match="'nope'; there are show_numbers, palette"):
        watch.jax_log_grid(grid, nope=3)
    with pytest.raises(TypeError, match="jax_save_step_visualization has no option"):
        watch.jax_save_step_visualization(grid, 1, grid, tmp_path, nope=3)
    watch.jax_log_grid(grid, show_numbers=True, show_coordinates=True)


def test_the_first_failure_of_a_callback_is_said_and_later_ones_counted(capsys):
    watch.reset_callback_performance_stats()

    @jax.jit
    def program(x):
        watch.jax_debug_callback(lambda x: 1 / 0, x, callback_name="broken")
        return x + 1

    for _ in range(3):
        program(jnp.float32(1))
    jax.effects_barrier()
    text = capsys.readouterr().err
    assert text.count("'broken' failed: ZeroDivisionError") == 1
    stats = watch.get_callback_performance_stats()["broken"]
    assert stats["error_count"] == 3


def test_a_sink_that_fails_is_in_the_printed_receipt(tmp_path):
    class Broken:
        name = "broken sink"

        def write(self, events):
            raise OSError("no such place")

        def close(self):
            pass

    with watch.Journal.create(tmp_path / "a", {}) as journal, watch.Watcher(
        journal, OverheadBudget("100%"), sinks=[Broken()], monitor=False
    ) as watcher:
        watcher.record(0, {"loss": np.float32(1)})
    text = str(watcher.report())
    assert "broken sink" in text
    assert "OSError: no such place" in text
