"""Any optimiser of optax by name; a wrong name or argument is one line."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax.errors import ConfigError
from frugax.run import TrainConfig
from frugax.run._optimizer import averaged_weights, build_optimizer
from refusals import refuses


@pytest.mark.parametrize(
    "optimizer",
    [
        *("adam", "lion", "muon", "lbfgs", "sgd", "nadam", "nadamw", "sm3"),
        *("polyak_sgd", "dog", "dowg", "schedule_free_adamw"),
        {"name": "adamw", "b1": 0.8},
    ],
)
def test_optimisers_by_name_update_weights(optimizer):
    found, _ = build_optimizer(TrainConfig(steps=9, optimizer=optimizer))
    params = {"w": jnp.ones((4, 3))}
    value_fn = lambda p: (p["w"] ** 2).sum()

    @jax.jit
    def update(params):
        value, grads = jax.value_and_grad(value_fn)(params)
        more = {"value": value, "grad": grads, "value_fn": value_fn}
        return found.update(grads, found.init(params), params, **more)[0]

    with jax.numpy_dtype_promotion("standard"):
        updates = update(params)
    change = np.asarray(jax.tree.leaves(updates)[0])
    assert np.isfinite(change).all()
    assert (change != 0).any()


def test_the_rate_rises_and_falls():
    config = TrainConfig(steps=20, learning_rate=1.0, warmup=10, schedule="linear")
    _, rate = build_optimizer(config)
    assert rate is not None
    assert [rate(s) for s in (0, 5, 10, 15)] == pytest.approx([0, 0.5, 1, 0.5])
    options = {"name": "exponential_decay", "transition_steps": 1, "decay_rate": 0.5}
    _, rate = build_optimizer(TrainConfig(steps=9, schedule=options, learning_rate=4.0))
    assert rate is not None
    assert [rate(s) for s in (0, 1, 2)] == pytest.approx([4, 2, 1])


def test_the_average_follows_the_weights():
    optimizer, _ = build_optimizer(
        TrainConfig(steps=9, optimizer="sgd", schedule="constant", ema=0.5)
    )
    params = jnp.float32(1.0)
    state = optimizer.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(3):
            updates, state = optimizer.update(jnp.float32(1.0), state, params)
            params = optax.apply_updates(params, updates)
    average = averaged_weights(state, params)
    assert np.asarray(params) < np.asarray(average) < 1.0
    assert averaged_weights((), params) is params


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"optimizer": "adm"}, "adam"),
        ({"optimizer": {"name": "adam", "b": 1}}, "'b'"),
        ({"optimizer": "chain"}, "chain"),
        ({"schedule": "cosin"}, "cosine"),
        ({"weight_decay": 0.1}, "adam"),
    ],
)
def test_a_wrong_name_or_argument_is_one_line(options, named):
    with refuses(ConfigError, named):
        build_optimizer(TrainConfig(steps=9, **options))
