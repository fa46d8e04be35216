import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from frugax.capture._jit import _open_ledger
from frugax.train import CompileLedger
from refusals import refuses


@pytest.fixture
def no_persistent_cache():
    """Compile everything: the suite's cache on disk may hold a test's programs."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX asks once a process whether there is one
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("no_persistent_cache")
def test_a_ledger_counts_compiles_of_each_function_and_not_calls():
    @jax.jit
    def halve(x):
        return x / 2.0

    three, four = jnp.ones(3), jnp.ones(4)
    with CompileLedger() as ledger:
        for x in (three, three, four):
            halve(x)
    assert ledger.functions["halve"] == 2 == ledger.compiles


@pytest.fixture
def no_other_ledger():
    """Close the ledger of `fx.jit`, which stays open from its first function on."""
    ledger = _open_ledger()
    ledger.__exit__()
    yield
    ledger.__enter__()


@pytest.mark.usefixtures("no_persistent_cache", "no_other_ledger")
def test_a_closed_ledger_counts_no_more_and_leaves_no_listener(monkeypatch):
    listeners = []

    def spy(name, note):
        true = getattr(jax.monitoring, name)

        def noting(listener):
            true(listener)
            note(listener)

        monkeypatch.setattr(jax.monitoring, name, noting)

    spy("register_event_listener", listeners.append)
    spy("register_event_duration_secs_listener", listeners.append)
    spy("unregister_event_listener", listeners.remove)
    spy("unregister_event_duration_listener", listeners.remove)
    three = jnp.ones(3)
    with CompileLedger() as outer:
        with CompileLedger() as inner:
            jax.jit(lambda x: x + 1.0)(three)
        jax.jit(lambda x: x + 2.0)(three)
        assert len(listeners) == 2  # one for events, one for durations
    jax.jit(lambda x: x + 3.0)(three)
    assert (inner.compiles, outer.compiles) == (1, 2)
    assert not listeners


def test_a_ledger_that_is_open_cannot_be_opened_again():
    with CompileLedger() as ledger, refuses(ValueError, "CompileLedger"):
        ledger.__enter__()


CACHED = """
import jax, jax.numpy as jnp, sys
from frugax import train
train.use_compile_cache()
@jax.jit
def layers(x):
    # Long enough in XLA to be above the threshold of 0.1 s.
    for _ in range(100):
        x = jnp.tanh(x @ x) + jnp.sort(x, axis=0)
    return x
with train.CompileLedger() as ledger:
    layers(jnp.ones((8, 8)))
print(ledger.functions["layers"], ledger.cache_hits, ledger.compiles > 0)
"""


@pytest.mark.thorough
def test_the_second_process_reuses_the_compile_cache(tmp_path):
    message = [
        subprocess.run(
            [sys.executable, "-c", CACHED],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert (tmp_path / "frugax" / "xla").is_dir()
    (compiles, hits, missed), (compiles_again, hits_again, _) = message
    assert (compiles, hits, missed) == ("1", "0", "True")
    assert compiles_again == "1"
    assert int(hits_again) >= 1


@pytest.mark.slow
def test_importing_train_switches_no_cache_on():
    # In its own process: the tests themselves run with a cache.
    code = (
        "import jax, frugax.train\n"
        "raise SystemExit(jax.config.values['jax_compilation_cache_dir'])"
    )
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
