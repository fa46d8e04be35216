"""A plan with several micro-batches is carried out, and its gradient is the batch's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import frugax as fx
from frugax import fit, train
from frugax.errors import ConfigError
from frugax.targets import Target
from refusals import refuses

W = [jnp.eye(16) * 0.9] * 3
X = jax.random.normal(jax.random.key(0), (64, 16))
KEY = jax.random.key(1)
ONE = Target.of_devices(jax.devices()[:1])


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def with_metrics(ws, x):
    return loss(ws, x), {"mean": x.mean(), "rows": x.shape[0]}


def dropped(ws, x, key):
    mask = jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype)
    return loss(ws, x * mask), {"kept": mask.mean()}


def plan(fn, args, **options):
    return fx.plan(fn, args, "1MiB", target=ONE, **{"micro_batches": 4, **options})


def close(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda grad: grad, jax.jit], ids=["eager", "jit"])
def test_the_applied_gradient_is_that_of_the_batch(wrap):
    grad = wrap(fit.apply(loss, plan(loss, (W, X))))
    close(grad(W, X), jax.value_and_grad(loss)(W, X))


def test_its_report_measures_the_planned_program():
    found = plan(loss, (W, X))
    (spend,) = fit.apply(loss, found).report(W, X).spends
    assert spend.measured == found.predicted


def test_metrics_are_averaged():
    found = plan(with_metrics, (W, X))
    (_, metrics), _ = fit.apply(with_metrics, found)(W, X)
    assert float(metrics["mean"]) == pytest.approx(float(X.mean()), abs=1e-6)
    assert int(metrics["rows"]) == 16  # of the last part: counters have no mean


@pytest.mark.parametrize("argument", ["key", "in the batch"])
def test_each_part_has_its_own_random_key(argument):
    def of_batch(ws, batch):
        return dropped(ws, *batch)

    fn, args = (
        (dropped, (W, X, KEY)) if argument == "key" else (of_batch, (W, (X, KEY)))
    )
    (value, metrics), grads = fit.apply(fn, plan(fn, args, batch_argnum=1))(*args)
    keys = [jax.random.fold_in(KEY, i) for i in range(4)]
    differentiate = jax.value_and_grad(dropped, has_aux=True)
    parts = [differentiate(W, X[i::4], k) for i, k in enumerate(keys)]
    mean = lambda *found: sum(found) / 4
    close(((value, metrics), grads), jax.tree.map(mean, *parts))


def test_the_rows_of_a_training_step_are_those_of_a_loss():
    # Both name the same rows to the same part: the mean of a root tells rows apart.
    root = lambda ws, x: jnp.sqrt(loss(ws, x))
    with pytest.warns(train.AccumulationWarning):
        value, _ = fit.apply(root, plan(root, (W, X)))(W, X)
    expected = np.mean([root(W, X[i::4]) for i in range(4)])
    assert float(value) == pytest.approx(float(expected), abs=1e-6)


def test_an_unsplit_key_is_named_as_the_reason():
    key = jax.random.PRNGKey(1)  # two integers, which no part can fold
    found = plan(dropped, (W, X, key), batch_argnum=1)
    with pytest.warns(train.AccumulationWarning, match="jax.random.key"):
        fit.apply(dropped, found)(W, X, key)


class Net(nnx.Module):
    def __init__(self, rate):
        self.linear = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(rate, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.dropout(self.linear(x))


def of_module(net, x):
    return (net(x) ** 2).mean()


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_plan_for_a_flax_module_is_applied_to_it(micro_batches):
    net = Net(0.0)
    found = plan(of_module, (net, X), micro_batches=micro_batches)
    value, grads = fit.apply(of_module, found)(net, X)
    close((value, grads), nnx.value_and_grad(of_module)(net, X))


def test_what_cannot_be_divided_is_refused_with_what_to_do():
    rows = lambda ws, x: (loss(ws, x), {"x": x})
    with refuses(ConfigError, (16, 16), "aux['x']"):
        plan(rows, (W, X))
    with refuses(ConfigError, 4, 60, 64):
        plan(loss, (W, X[:62]))
    two = lambda ws, x, y: ((loss(ws, x) - y) ** 2).mean()
    with refuses(ConfigError, 1, 2, 64):
        plan(two, (W, X, X[:, 0]))
    with refuses(ConfigError, "flax nnx", "train.make_train_step"):
        plan(of_module, (Net(0.5), X))


def test_an_argument_that_is_not_the_batch_is_refused():
    with refuses(ConfigError, 0, "batch_argnum"):
        plan(lambda w: (w @ w).mean(), (W[0],))
    with refuses(ConfigError, 0, "batch_argnum"):
        plan(loss, (W, X), batch_argnum=0)
    with refuses(ConfigError, 7, -2, 1):
        plan(loss, (W, X), batch_argnum=7)


def test_impossible_numbers_of_micro_batches_are_refused():
    with refuses(ValueError, 0, "micro_batches"):
        plan(loss, (W, X), micro_batches=0)
    workload = fit.Workload.of(loss, (W, X))
    with refuses(ValueError, 0, "micro_batches"):
        fit.search(workload, ONE, "1MiB", micro_batches=(0, 1))
    with refuses(ConfigError, 64, 7):
        fit.search(workload, ONE, "1MiB", micro_batches=(7,))


def test_a_training_step_is_planned_with_its_state():
    step = train.make_train_step(loss, optax.sgd(0.1))
    for args in ((W, X), (X,), (X, step.init_shapes(W))):
        with refuses(ConfigError, "step.init_shapes(model)"):
            plan(step, args)
