"""A watched function: its records leave as outputs, and nothing compiles twice."""

import inspect
import os
import subprocess
import sys
import textwrap

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection import at_once
from frugax import OverheadBudget
from frugax.watch import Journal, Watcher, jit, probes, read
from frugax.watch.probes import collect, frame, record
from refusals import warns

from .watching import kept

X = jnp.arange(4.0)


class Taker(Watcher):
    """Keep all records; programs record at the stated level."""

    def __init__(self, level=1):
        super().__init__(None, OverheadBudget("100%"), level="full")
        self.rate.records_all = True  # asked at each call
        self.rate.due = lambda step: self.wanted
        self.wanted = level
        self.got = []

    def ingest(self, step, records, schedule=None):
        self.packed = records
        self.got.append((step, values_of(records)))


def values_of(records):
    return {name: probes.to_value(one) for name, one in records.fetch().items()}


class Compiles:
    """How many programs XLA has compiled since it was entered."""

    def __enter__(self):
        self.count = 0
        self.on = True

        def heard(event, *_, **__):
            if self.on and event.endswith("backend_compile_duration"):
                self.count += 1

        jax.monitoring.register_event_duration_secs_listener(heard)
        return self

    def __exit__(self, *_):
        self.on = False


def fn(x):
    record("sum", x.sum())
    frame("whole", x)

    def step(x, _):
        record("inside", x[1])
        frame("square", x * x)
        return jnp.tanh(x) * 2, None

    (x, _), _ = probes.scan(step, x, length=6, every=2)
    return x


def unwatched(x):
    return jax.lax.scan(lambda x, _: (jnp.tanh(x) * 2, None), x, None, length=6)[0]


def test_results_are_unchanged_and_records_go_to_the_watcher():
    taker = Taker()
    watched = jit(fn, watcher=taker)
    for _ in range(3):
        np.testing.assert_array_equal(watched(X), jax.jit(unwatched)(X))
    assert [step for step, _ in taker.got] == [0, 1, 2]
    _, records = taker.got[-1]
    assert sorted(records) == ["inside", "sum"]
    assert records["sum"] == 6.0
    assert records["inside"].shape == (6,)
    axes = {name: result.axes for name, result in taker.packed.fetch().items()}
    assert axes == {"sum": (), "inside": ("steps",)}
    assert len(taker.packed.arrays) == 0  # all in one array
    assert sorted(watched.probes) == ["inside", "square", "sum", "whole"]


def test_levels_and_rates_neither_trace_nor_compile_again():
    traces, taker = [], Taker()
    watched = jit(lambda x: traces.append(x.shape) or fn(x), watcher=taker)
    watched(X)
    with Compiles() as compiles:
        for taker.wanted in (0, 1, 2, 0, 2, 1):
            for _ in range(3):
                watched(X)
        assert compiles.count == 0
        jax.jit(lambda x: x * 5 + 1)(X)
        assert compiles.count == 1  # the counter counts
    assert traces == [(4,)]
    kinds = [sorted(records) for _, records in taker.got]
    loud = ["inside", "square", "sum", "whole"]
    assert ["inside", "sum"] in kinds
    assert loud in kinds
    shapes = {r["square"].shape for _, r in taker.got if sorted(r) == loud}
    assert shapes == {(3, 4)}


def test_no_program_has_an_effect_and_the_bare_one_is_as_if_never_watched():
    watched = jit(fn, watcher=Taker())
    assert jax.make_jaxpr(jax.vmap(fn))(X[None]).effects
    text = watched.lower(X).as_text()
    assert "callback" not in text
    bare = watched.variants().bare.lower(X)
    assert "callback" not in bare.as_text()
    assert "4x4" not in text
    for compiled in (bare.compile(), watched.lower(X).compile()):
        assert "conditional" not in compiled.as_text()  # no frame is left, nor its gate


def test_a_sleeping_function_is_woken_by_a_level_and_by_a_watcher_that_is_entered():
    quiet = Watcher(None, OverheadBudget("50%"), level="minimal")
    full = Watcher(None, OverheadBudget("50%"), level="full")
    watched = jit(fn)
    for _ in range(3):
        watched(X)
    with quiet:
        for _ in range(3):
            watched(X)
        with full:
            watched(X)
        assert (kept(quiet), kept(full)) == (0, 7)  # of one call
        watched(X)
        watched(X)
        quiet.level = "full"
        watched(X)
    watched(X)
    assert (kept(quiet), kept(full)) == (7, 7)


def test_threads_that_call_at_once_are_steps_of_their_own():
    taker = Taker()
    watched = jit(fn, watcher=taker)
    watched(X)

    def calls():
        for _ in range(100):
            watched(X)

    at_once(calls)
    assert sorted(step for step, _ in taker.got) == [*range(401)]


def test_it_can_be_a_method():
    class Net:
        @jit(static_argnums=0)
        def twice(self, x):
            """Two of it."""
            record("x", x[0])
            return 2 * x

    np.testing.assert_array_equal(Net().twice(X), 2 * X)
    assert Net.twice.__doc__ == "Two of it."
    assert list(inspect.signature(Net.twice).parameters) == ["self", "x"]


def test_options_of_jit_are_passed_on():
    taker = Taker()

    def power(x, n, *, scale):
        record("first", x[0])
        frame("all", x)
        return x**n * scale

    options = {"static_argnums": 1, "donate_argnums": (0,), "static_argnames": "scale"}
    watched = jit(power, watcher=taker, **options)
    for taker.wanted in (0, 1, 2, 2):
        x = jnp.arange(4.0)
        np.testing.assert_array_equal(watched(x, 2, scale=3), 3 * jnp.arange(4.0) ** 2)
        assert x.is_deleted()

    device = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    placed = jit(fn, watcher=taker, in_shardings=device, out_shardings=device)
    for taker.wanted in (0, 1, 2):
        assert placed(X).sharding == device

    @jit(watcher=taker)
    def decorated(x):
        record("d", x[0])
        return x

    assert decorated.__name__ == "decorated"
    taker.wanted = 1
    decorated(X)
    assert list(taker.got[-1][1]) == ["d"]


@pytest.mark.parametrize("level", ["minimal", "full"])
def test_a_call_inside_another_program_is_never_a_step(tmp_path, level):
    with Journal.create(tmp_path / "a", {}) as journal:
        watcher = Watcher(journal, OverheadBudget("100%"), level=level)
        watched = jit(lambda x: record("x", x) or x * 2, watcher=watcher)
        for i in range(100):
            watched(jnp.float32(i))
        with warns(UserWarning, "inside another program"):
            jax.jit(lambda x: watched(x) + 1)(jnp.float32(0))
        out, records = jax.jit(collect(lambda x: watched(x) + 1))(jnp.float32(7))
        assert (float(out), float(records["x"])) == (15, 7)
        watcher.level = "full"
        watched(jnp.float32(100))
        watcher.finish()
        assert watcher.losses.tally("scalar").lost == 0
    back = read(tmp_path / "a")
    assert back.steps.tolist() == back["x"].tolist()
    assert back.steps[-1] == 100


@pytest.mark.parametrize("compiled_by", [jax.jit, jit])
def test_a_handler_gets_its_fields_one_by_one_in_every_program(compiled_by):
    seen = []
    example = {"a": 0.0, "b": 0.0}
    handler = lambda a, b: seen.append((a.tolist(), b.tolist()))
    probe = probes.Probe.of("call", "call", handler, example)

    @jax.vmap
    def fn(x):
        probes.emit(probe, x, 2 * x, when=x > 1)
        return x

    compiled_by(fn)(jnp.arange(3.0))
    jax.effects_barrier()
    assert seen == [([0, 1, 2], [0, 2, 4])]


_CACHED = """
    import jax, jax.monitoring, jax.numpy as jnp
    from frugax import OverheadBudget
    from frugax.watch import Watcher, jit
    from frugax.watch.probes import record, frame
    events = []
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    watcher = Watcher(None, OverheadBudget("100%"), level="full")
    watcher.rate.records_all = True  # asked at each call
    def f(x):
        record("sum", x.sum())
        frame("x", x)
        return jnp.tanh(x @ x)
    f = jit(f, watcher=watcher)
    x = jnp.ones((8, 8))
    before = len(events)
    for level in (0, 1, 2):
        watcher.rate.due = lambda step: level
        f(x)
    hits = sum(e.endswith("cache_hits") for e in events[before:])
    misses = sum(e.endswith("cache_misses") for e in events[before:])
    print(hits, misses)
"""


@pytest.mark.thorough
def test_a_second_process_finds_the_programs_in_the_compile_cache(tmp_path):
    def run():
        env = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            "JAX_PLATFORMS": "cpu",
        }
        command = [sys.executable, "-c", textwrap.dedent(_CACHED)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tuple(map(int, done.stdout.split()))

    hits, misses = run()
    assert hits == 0
    assert misses >= 3
    assert run() == (misses, 0)


def test_many_numbers_leave_a_program_by_one_kernel():
    def step(w, x):
        loss, slope = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(w * x)))(w)
        for i in range(40):
            record(f"loss {i}", loss * i)
        return w - slope

    def operations(program):
        text = program.lower(jnp.ones(64), jnp.ones(64)).compile().as_text()
        return text.partition("ENTRY")[2].count(" fusion(")

    variants = jit(step).variants()
    variants.trace((jnp.ones(64), jnp.ones(64)), {})
    # Each of the 40 was a separate kernel, which made short steps twice as long.
    assert operations(variants.recording) < operations(variants.bare) + 8
