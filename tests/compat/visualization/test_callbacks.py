"""Callbacks inside jit: the program continues, and the statistics are true.

Programs here are jitted by JAX alone, so they call back from inside.
"""

import signal
import threading
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import OverheadBudget, watch
from frugax.compat import visualization
from refusals import refuses


@pytest.fixture(autouse=True)
def fresh():
    yield
    jax.effects_barrier()


def stats(name):
    jax.effects_barrier()
    return visualization.get_callback_performance_stats()[name]


def test_a_function_gets_copies_of_arrays_and_other_values_unchanged():
    got: list[Any] = []

    abstract = jax.ShapeDtypeStruct((2,), jnp.float32)  # a shape and a dtype alone

    def look(tree, word, *, flag, key):
        got.append((tree, word, flag, key))

    @jax.jit
    def program(x, key):
        tree = {"a": x, "b": [x + 1, None, np.float32(3)]}
        visualization.jax_debug_callback(look, tree, "word", flag=abstract, key=key)
        return x * 2

    key = jax.random.key(7)
    result = program(jnp.arange(3.0), key)
    assert result.tolist() == [0, 2, 4]
    assert stats("look")["total_calls"] == 1
    ((tree, word, flag, seen),) = got
    assert word == "word"
    assert flag is abstract
    assert type(tree["a"]) is np.ndarray
    owner = tree["a"] if tree["a"].base is None else tree["a"].base
    assert owner.flags.owndata
    assert tree["a"].tolist() == [0, 1, 2]
    assert tree["b"][1] is None
    assert float(tree["b"][2]) == 3
    np.testing.assert_array_equal(seen, jax.random.key_data(key))


def test_a_function_without_values_is_called_all_the_same():
    calls = []

    @jax.jit
    def program(x):
        visualization.jax_debug_callback(lambda: calls.append(1), callback_name="bell")
        return x

    program(1.0)
    assert stats("bell")["total_calls"] == len(calls) == 1


def test_it_runs_in_another_thread_and_the_program_waits_for_it():
    where = []

    def slow(x):
        time.sleep(0.05)
        where.append(threading.current_thread())

    @jax.jit
    def program(x):
        visualization.jax_debug_callback(slow, x, callback_name="slow")
        return x + 1

    jax.block_until_ready(program(1.0))
    jax.effects_barrier()
    assert where
    assert where[0] is not threading.main_thread()
    assert stats("slow")["avg_time_ms"] >= 50


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(2), KeyboardInterrupt(), MemoryError()]
)
def test_an_exception_in_a_callback_is_counted_and_does_not_change_results(error):
    def broken(x):
        raise error

    def program(x):
        for i in range(3):
            visualization.jax_debug_callback(broken, x, callback_name="broken")
            x = jnp.sin(x) + i
        return x

    x = jnp.linspace(0, 1, 5)
    watched = jax.jit(program)(x)
    assert stats("broken")["error_count"] == 3
    bare = jax.jit(lambda x: jnp.sin(jnp.sin(jnp.sin(x) + 0) + 1) + 2)(x)
    np.testing.assert_array_equal(watched, bare)


def test_a_hanging_callback_is_abandoned_and_the_program_goes_on(monkeypatch):
    monkeypatch.setattr("frugax.compat.visualization._host_calls._MAX_WAIT_S", 0.05)
    gate = threading.Event()

    @jax.jit
    def program(x):
        visualization.jax_debug_callback(
            lambda _: gate.wait(), x, callback_name="stuck"
        )
        return x + 1

    try:
        for _ in range(2):
            assert float(program(1.0)) == 2.0
        stuck = stats("stuck")
        assert (stuck["hung_calls"], stuck["error_count"]) == (2, 2)
    finally:
        gate.set()


class Clock:
    """Stands in for the clock of the pace, so that a price is exact."""

    def __init__(self, price):
        self.price, self.now = price, 0.0

    def perf_counter(self):
        return self.now

    def run(self, _):
        self.now += self.price


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(price=0.01)
    monkeypatch.setattr("frugax.compat.visualization._host_calls.time", clock)
    return clock


def adaptive(clock, name, max_avg_time_ms=1.0):
    """A program that calls `clock.run`, which costs 10 ms."""

    @jax.jit
    def program(x):
        visualization.adaptive_visualization_callback(
            clock.run, x, callback_name=name, max_avg_time_ms=max_avg_time_ms
        )
        return x

    def run(count):
        for _ in range(count):
            assert float(program(1.0)) == 1.0
        assert cast(Any, program)._cache_size() == 1

    return run


def test_the_pace_follows_the_price(clock):
    clock.price = 0.0095
    run = adaptive(clock, "draw")
    run(1000)
    assert stats("draw")["total_calls"] == 100  # every tenth
    assert clock.now <= 1000 * 0.001
    clock.price = 1e-6
    run(50)
    assert stats("draw")["total_calls"] == 150
    clock.price = 1e6
    run(2 * 1024)
    assert stats("draw")["total_calls"] == 152


def test_calls_of_a_name_share_their_pace_until_it_is_reset(clock):
    clock.price = 0.0025
    adaptive(clock, "draw")(1)
    other = adaptive(clock, "draw", max_avg_time_ms=5.0)
    other(2)  # too early
    assert stats("draw")["total_calls"] == 1
    other(1)
    assert stats("draw")["total_calls"] == 2
    adaptive(clock, "draw")(1)
    visualization.reset_callback_performance_stats()
    other(1)
    assert stats("draw")["total_calls"] == 1


def test_functions_are_called_from_inside_of_watched_programs_too(journal):
    seen = []

    @watch.jit
    def program(x):
        visualization.jax_debug_callback(seen.append, x, callback_name="look")
        watch.record("x", x.sum())
        return x + 1

    with watch.Watcher(journal, OverheadBudget("100%"), level="full") as watcher:
        for i in range(3):
            program(jnp.full(2, i))
        assert stats("look")["total_calls"] == 3
    assert [x.tolist() for x in seen] == [[0, 0], [1, 1], [2, 2]]
    assert watcher.losses.tally("scalar").kept == 3


@pytest.mark.parametrize("jit", [jax.jit, watch.jit])
def test_a_grid_is_printed_without_a_watcher(capfd, jit):
    @jit
    def program(grid, mask):
        visualization.jax_log_grid(grid, mask, "Corner", show_numbers=True)
        return grid

    program(jnp.array([[1, 2], [3, 0]]), jnp.array([[True, True], [True, False]]))
    assert stats("log_grid_Corner")["error_count"] == 0
    out = capfd.readouterr().out
    assert "Corner" in out
    assert "2 × 2" in out
    assert "1 masked" in out


def test_of_many_lanes_the_host_is_called_once(capfd):
    @jax.jit
    @jax.vmap
    def program(grid, reward):
        visualization.jax_log_grid(grid, title="Lanes")
        visualization.jax_log_episode_summary(3, 50, reward, 0.5, reward > 2)
        return grid

    program(jnp.zeros((6, 2, 2), jnp.int32), jnp.arange(6.0))
    assert stats("log_grid_Lanes")["total_calls"] == 1
    assert stats("log_episode_summary")["total_calls"] == 1
    out = capfd.readouterr().out
    assert "4 of 6 lanes" in out
    lines = [line for line in out.splitlines() if "Episode" in line or "lanes" in line]
    assert "Episode 3: not solved after 50 steps, reward 0, similarity 50.0%" in lines
    assert "Episode 3: solved after 50 steps, reward 3, similarity 50.0%" in lines
    assert "... and 2 more lanes" in lines


def test_with_a_watcher_grids_and_summaries_do_not_go_to_the_terminal(tmp_path, capfd):
    @jax.jit
    def program(x):
        visualization.jax_log_grid(x, title="Grid")
        visualization.jax_log_episode_summary(1, 2, x.sum(), 0.5, True)
        return x

    with watch.Journal.create(tmp_path / "a", {}) as journal:
        with watch.Watcher(journal, OverheadBudget("100%"), level="full") as watcher:
            for i in range(3):
                jax.block_until_ready(program(jnp.full((2, 2), i)))
            jax.effects_barrier()
        assert watcher.losses.tally("summary").kept == 3
        said = watcher.report().spends[0].source
    assert "called back with 6 records" in said
    assert "100 microseconds" in said
    streams = watch.read(tmp_path / "a", strict=True).streams
    assert streams["Grid"]["grid"].tolist() == [[[i, i], [i, i]] for i in range(3)]
    assert streams["episode_summary"]["total_reward"].tolist() == [0, 4, 8]
    assert list(streams["episode_summary"].steps) == [0, 1, 2]
    assert capfd.readouterr().out == ""


def test_the_level_off_shows_no_output(capfd):
    @jax.jit
    def program(x):
        visualization.jax_log_grid(x)
        return x

    with watch.Watcher(None, OverheadBudget("1%"), level="off"):
        jax.block_until_ready(program(jnp.zeros((2, 2))))
        jax.effects_barrier()
    assert visualization.get_callback_performance_stats() == {}
    assert capfd.readouterr().out == ""


def test_what_would_only_fail_in_the_program_is_refused_where_it_is_written():
    wrong: Any = "nope"
    with refuses(TypeError, repr("nope")):
        visualization.jax_debug_callback(wrong, 1.0)
    for limit in (-1.0, float("nan")):
        with refuses(ValueError, "max_avg_time_ms", limit):
            visualization.adaptive_visualization_callback(
                print, 1, max_avg_time_ms=limit
            )


@pytest.mark.parametrize("title", [5, "a" * 101, "\ud800"])
def test_titles_that_no_stream_can_have_are_refused_where_they_are_written(title):
    with refuses(ValueError, repr(title)[:99]):
        visualization.jax_log_grid(jnp.zeros((2, 2)), title=title)


@pytest.mark.parametrize("jit", [jax.jit, watch.jit])
def test_a_grid_without_a_title_is_recorded_too(tmp_path, jit):
    program = jit(lambda x: (visualization.jax_log_grid(x, title=""), x + 1)[1])
    with (
        watch.Journal.create(tmp_path / "a", {}) as journal,
        watch.Watcher(journal, OverheadBudget("100%"), level="full"),
    ):
        jax.block_until_ready(program(jnp.ones((2, 2))))
        jax.effects_barrier()
    assert watch.read(tmp_path / "a").streams["Grid"]["grid"].shape == (1, 2, 2)


def test_the_statistics_are_exact(clock):
    def broken(x):
        clock.run(x)
        raise ValueError

    for price, fn in ((0.001, clock.run), (0.003, broken), (0.002, clock.run)):
        clock.price = price
        program = lambda x, fn=fn: visualization.jax_debug_callback(
            fn, x, callback_name="a"
        )
        jax.jit(program)(1.0)
    assert stats("a") == {
        "total_calls": 3,
        "error_count": 1,
        "avg_time_ms": pytest.approx(2.0),
        "max_time_ms": pytest.approx(3.0),
        "min_time_ms": pytest.approx(1.0),
        "total_time_ms": pytest.approx(6.0),
        "skipped_calls": 0,
        "hung_calls": 0,
    }


def test_the_report_is_a_table_with_the_cost_of_callbacks(capfd):
    visualization.print_callback_performance_report()
    assert "No callback performance data available" in capfd.readouterr().out

    def broken(x):
        raise ValueError("no ink")

    jax.jit(lambda x: visualization.jax_debug_callback(broken, x))(1.0)
    jax.effects_barrier()
    visualization.print_callback_performance_report()
    out = capfd.readouterr().out
    assert "Callback Performance Report:" in out
    assert "broken raised last: ValueError: no ink" in out


def test_ctrl_c_during_a_callback_reaches_the_main_thread_after_the_program():
    def slow(x):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.2)

    @jax.jit
    def program(x):
        visualization.jax_debug_callback(slow, x, callback_name="slow")
        return x + 1

    results = []

    def run():
        results.append(jax.block_until_ready(program(1.0)))
        time.sleep(30.0)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert results, "the interrupt broke the program off"
    assert float(results[0]) == 2.0


def test_the_first_failure_of_a_callback_is_reported_and_later_ones_counted(capsys):
    @jax.jit
    def program(x):
        visualization.jax_debug_callback(lambda x: 1 / 0, x, callback_name="broken")
        return x + 1

    for _ in range(3):
        program(jnp.float32(1))
    jax.effects_barrier()
    text = capsys.readouterr().err
    assert text.count("'broken' failed: ZeroDivisionError") == 1
    stats = visualization.get_callback_performance_stats()["broken"]
    assert stats["error_count"] == 3
