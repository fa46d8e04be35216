"""Early stopping, and that an interruption does not change where it stops."""

import jax.numpy as jnp
import optax
import pytest

from frugax.train import Checkpoints, EarlyStop, fit, init_state, make_train_step

STOP = EarlyStop(metric="score", patience=3)


def new_step():
    return make_train_step(lambda w, x: ((w - x) ** 2).sum(), optax.sgd(0.1))


def start():
    return init_state(jnp.zeros(2), optax.sgd(0.1))


def run(state, *, steps=20, scores=(5, 4, 3, 3, 3, 3, 3, 3, 3, 3, 3), **options):
    return fit(
        new_step(),
        state,
        lambda _: jnp.ones(2),
        steps=steps,
        evaluate=lambda s: {"score": scores[int(s.step) // 2]},
        evaluate_every=2,
        early_stop=STOP,
        **options,
    )


def test_it_stops_after_patience_evaluations_without_a_better_one():
    result = run(start())
    assert (result.steps, result.stopped_because) == (10, "early")
    assert [e.step for e in result.history] == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("at", [1, 6, 7, 8, 9])
def test_it_stops_at_the_same_step_after_an_interruption(tmp_path, at):
    saved = Checkpoints(tmp_path)
    first = run(start(), steps=at, checkpoints=saved)
    assert first.stopped_because == "steps"
    state, _ = saved.restore(start())
    rest = run(state, checkpoints=saved)
    assert (int(rest.state.step), rest.stopped_because) == (10, "early")
    assert [e.step for e in rest.history] == sorted({0, 2, 4, 6, 8, 10, at})
    # And a stopped loop is not continued.
    again, _ = saved.restore(start())
    idle = run(again, checkpoints=saved)
    assert (idle.steps, idle.stopped_because) == (0, "early")
    more = fit(new_step(), idle.state, lambda _: jnp.ones(2), steps=12)
    assert more.steps == 2  # unless asked to
