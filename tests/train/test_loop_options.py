"""Batches made ahead, stopping early, and programs kept on disk."""

import os
import threading

import jax
import jax.numpy as jnp
import optax
import pytest

from frugax import train
from frugax.train import EarlyStop, Evaluation
from refusals import refuses

LOSS = lambda w, x: ((w - x) ** 2).sum()


def fit(batches, steps, **options):
    optimizer = optax.sgd(0.1)
    step = train.make_train_step(LOSS, optimizer)
    state = train.init_state(jnp.zeros(2), optimizer)
    return train.fit(step, state, batches, steps=steps, **options)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_are_made_in_order_and_in_a_thread_if_asked(prefetch):
    asked, threads = [], set()

    def batch_of(i):
        asked.append(i)
        threads.add(threading.current_thread())
        return jnp.full(2, float(i))

    result = fit(batch_of, 6, prefetch=prefetch)
    assert asked == list(range(6))  # the one that is compiled for is also used
    assert (threading.main_thread() in threads) is (prefetch == 0)
    again = fit(lambda i: jnp.full(2, float(i)), 6, prefetch=0)
    assert (result.state.params == again.state.params).all()


def test_an_error_while_making_a_batch_is_raised_at_its_step():
    taken = []

    def batch_of(i):
        if i == 3:
            raise KeyError("no such image")
        return jnp.zeros(2)

    with refuses(KeyError, "image"):
        fit(batch_of, 6, prefetch=2, on_step=lambda n, m, s: taken.append(n))
    assert taken == [0, 1, 2]
    assert not [t for t in threading.enumerate() if "frugax batches" in t.name]


def history(*values):
    return [Evaluation(i, 0.0, {"loss": v}) for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "options", "due"),
    [
        ([3, 2, 1], {}, False),
        ([1, 2, 3], {"patience": 2}, True),
        ([1, 2, 3], {"patience": 3}, False),
        ([1, 2, 3], {"patience": 1, "better": "higher"}, False),
        ([1, 0.99, 0.98], {"patience": 2, "min_delta": 0.1}, True),
    ],
)
def test_when_it_is_time_to_stop(values, options, due):
    assert EarlyStop(**options).is_due(history(*values)) is due


@pytest.mark.parametrize(
    ("stop", "value", "named"),
    [
        (EarlyStop(metric="accuracy"), 1.0, "accuracy"),
        (EarlyStop(), float("nan"), "loss"),
    ],
)
def test_a_missing_metric_is_named(stop, value, named):
    with refuses(ValueError, named):
        fit(
            [jnp.ones(2)],
            20,
            evaluate=lambda state: {"loss": value},
            evaluate_every=10,
            early_stop=stop,
        )


@pytest.fixture
def cache_settings():
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_compilation_cache_max_size",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_fit_uses_the_compile_cache_unless_it_is_off(
    monkeypatch, tmp_path, cache_settings
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FRUGAX_COMPILE_CACHE")
    jax.config.update("jax_compilation_cache_dir", None)
    fit([jnp.ones(2)], 1, compile_cache=False)
    assert not os.listdir(tmp_path)
    fit([jnp.ones(2)], 1)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "frugax" / "xla")  # pyrefly: ignore[missing-attribute]
    own = str(tmp_path / "own")
    jax.config.update("jax_compilation_cache_dir", own)
    fit([jnp.ones(2)], 1)
    assert jax.config.jax_compilation_cache_dir == own
