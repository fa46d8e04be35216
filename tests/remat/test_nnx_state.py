"""Objects of flax nnx in a planned loss change as `nnx.value_and_grad` changes them."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from draws import normal
from frugax import MemoryBudget, remat
from frugax.errors import InfeasibleBudgetError
from frugax.jaxprs import take_arrays
from refusals import refuses
from tiers import mostly_thorough

from .checks import assert_same

X = normal(0, 128, 16)
BUDGET = MemoryBudget.share(0.8)


class Net(nnx.Module):
    """Layers with dropout and batch statistics; the last layer is the first one."""

    def __init__(self, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(16, 64, rngs=rngs)
        self.back = nnx.Linear(64, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.tied = self.first

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        for _ in range(2):
            h = self.drop(jnp.tanh(self.first(x)), rngs=rngs)
            x = x + self.norm(self.back(h))
        return self.tied(x)


def mean_square(model, *rest):
    return jnp.mean(model(*rest) ** 2)


def with_metrics(model, x):
    y = model(x)
    return jnp.mean(y**2), {"largest": y.max()}


def of_a_dict(models, x):
    return mean_square(models["one"], models["two"](x)[:, :16])


class Sowing(nnx.Module):
    """Leaves a new variable behind."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(16, 64, rngs=rngs)
        self.back = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = x + self.back(jnp.tanh(self.first(x)))
        self.mean = nnx.Intermediate(x.mean())
        return x


def sum_counted(weight, count, x):
    """Variables themselves are the arguments, and one of them counts."""
    count[...] += 1
    for _ in range(4):
        x = jnp.tanh(x @ weight[...])
    return jnp.mean(x**2) * count[...]


CASES: dict[str, Any] = {
    "module": (mean_square, lambda: (Net(), X), {}),
    "random stream as an argument": (
        mean_square,
        lambda: (Net(), X, nnx.Rngs(7)),
        {},
    ),
    "metrics": (with_metrics, lambda: (Net(), X), {"has_aux": True}),
    "input and module, counted from the end": (
        mean_square,
        lambda: (Net(), X),
        {"argnums": (-2, 1)},
    ),
    "dict of modules": (of_a_dict, lambda: ({"one": Net(), "two": Net(1)}, X), {}),
    "variables": (
        sum_counted,
        lambda: (nnx.Param(jnp.eye(16)), nnx.Variable(jnp.zeros(())), X),
        {},
    ),
}


def state_of(args):
    """All variables of the arguments, by path, with their types and values."""
    flat = nnx.to_flat_state(nnx.split(list(args))[1])
    read = lambda x: jax.random.key_data(x) if _is_key(x) else x
    return {
        path: (
            type(v).__name__,
            read(v.get_value() if isinstance(v, nnx.Variable) else v),
        )
        for path, v in flat
    }


def _is_key(x):
    return jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)


def assert_same_state(got, want):
    got, want = state_of(got), state_of(want)
    assert got.keys() == want.keys()
    assert [kind for kind, _ in got.values()] == [kind for kind, _ in want.values()]
    for kind in {kind for kind, _ in want.values()}:
        of_kind = lambda state, kind=kind: _joined(
            [v for k, v in state.values() if k == kind]
        )
        assert_same(of_kind(got), of_kind(want))


def _joined(tree):
    """All numbers in one array: gradients of biases before a norm are but rounding."""
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """How plans are searched for: each once for all tests of this file."""
    return {"cache": tmp_path_factory.mktemp("plans"), "first_fit": True}


@pytest.mark.parametrize(
    "case", mostly_thorough(CASES, in_ci=lambda case: case in {"module", "variables"})
)
def test_calls_change_objects_as_nnx_changes_them(case, search):
    loss, make, how = CASES[case]
    ours, theirs = make(), make()
    plan = remat.plan(loss, BUDGET, ours, **search, **how)
    assert plan.extra_flops > 0 or plan.batch
    if "argnums" in how:  # from the front, as nnx needs them
        how = how | {"argnums": jax.tree.map(lambda n: n % len(ours), how["argnums"])}
    planned = remat.apply(loss, plan)
    plain = nnx.jit(nnx.value_and_grad(loss, **how))
    for _ in range(2):  # from the first state, and from a changed one
        got, want = planned(*ours), plain(*theirs)
        assert_same(_joined(got), _joined(want), 1e-5)
        assert jax.tree.structure(got) == jax.tree.structure(want)
        assert_same_state(ours, theirs)
    assert remat.apply(loss, plan).report(*make()).verdict == "kept"


def test_a_variable_that_the_loss_creates_is_there_afterwards(search):
    both = remat.value_and_grad(mean_square, BUDGET)
    plain = nnx.jit(nnx.value_and_grad(mean_square))
    ours, theirs = Sowing(), Sowing()
    for _ in range(2):  # the second call has one variable more, and its own plan
        value, _ = both(ours, X)
        assert_same(value, plain(theirs, X)[0])
        assert_same_state([ours], [theirs])
    with refuses(ValueError, "example_args"):
        plan = remat.plan(mean_square, BUDGET, (Sowing(), X), **search)
        remat.apply(mean_square, plan)(ours, X)


def test_value_and_grad_plans_and_updates_within_a_jit_of_the_caller():
    both = remat.value_and_grad(mean_square, BUDGET)
    optimizer = lambda net: nnx.Optimizer(net, _sgd(), wrt=nnx.Param)

    def step(value_and_grad, net, opt, x):
        value, grads = value_and_grad(net, x)
        opt.update(net, grads)
        return value

    ours, theirs = Net(), Net()
    nets = (ours, optimizer(ours)), (theirs, optimizer(theirs))
    jitted = [
        nnx.jit(lambda n, o, x, f=f: step(f, n, o, x))
        for f in (both, nnx.value_and_grad(mean_square))
    ]
    for _ in range(2):
        values = [f(*net, X) for f, net in zip(jitted, nets, strict=True)]
        assert_same(values[0], values[1])
    assert_same_state([ours], [theirs])


def _sgd():
    import optax

    return optax.sgd(0.1)


def test_shapes_of_a_module_are_planned_and_arrays_are_not_touched(search):
    plan = remat.plan(mean_square, BUDGET, (nnx.eval_shape(Net), X), **search)
    # It serves any module of these shapes, and is searched for once.
    assert plan == remat.plan(mean_square, BUDGET, (Net(3), X), **search)
    assert not plan.has_aux
    net = Net()
    before = copy.deepcopy(state_of([net]))
    receipt = remat.apply(mean_square, plan).report(net, X)
    assert receipt.verdict == "kept"
    assert {k: str(v) for k, v in before.items()} == {
        k: str(v) for k, v in state_of([net]).items()
    }


def test_the_state_of_a_functional_loss_is_left_alone():
    """What `nnx.split` returns is an ordinary tree, as for `jax.value_and_grad`."""
    graph, params, rest = nnx.split(Net(), nnx.Param, ...)

    def loss(params, rest, x):
        net = nnx.merge(graph, params, rest, copy=True)
        return mean_square(net, x), nnx.state(net, nnx.BatchStat)

    before = jax.tree.leaves(rest)
    how: dict[str, Any] = {"has_aux": True, "cache": False, "first_fit": True}
    plan = remat.plan(loss, BUDGET, (params, rest, X), **how)
    got = remat.apply(loss, plan)(params, rest, X)
    want = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, rest, X)
    assert_same(_joined(got), _joined(want))
    assert all(a is b for a, b in zip(jax.tree.leaves(rest), before, strict=True))


def test_an_attribute_that_is_no_variable_must_not_change():
    class Counting(Net):
        calls = 0

        def __call__(self, x, rngs=None):
            self.calls += 1
            return super().__call__(x, rngs)

    with refuses(TypeError, "nnx.Variable"):
        remat.plan(mean_square, BUDGET, (Counting(), X), cache=False)


def test_structure_tells_losses_of_modules_apart():
    keys = {take_arrays(mean_square, (net, X)).key for net in (Net(), Net(1), Sowing())}
    assert len(keys) == 2


def test_the_smallest_plan_of_a_refusal_changes_objects_too():
    loss, make, how = CASES["variables"]
    ours, theirs = make(), make()
    with refuses(InfeasibleBudgetError, "1,024") as caught:
        remat.plan(loss, MemoryBudget("1KiB"), ours, cache=False, **how)
    assert isinstance(caught.value.best, remat.RematPlan)
    got = remat.apply(loss, caught.value.best)(*ours)
    want = nnx.jit(nnx.value_and_grad(loss, **how))(*theirs)
    assert_same(_joined(got), _joined(want), 1e-5)
    assert_same_state(ours, theirs)
