"""Loops as the libraries of solvers build them."""

import equinox as eqx
import jax
import jax.extend.core  # noqa: TID251
import jax.numpy as jnp
import pytest
from jax import lax
from jax.interpreters import ad, mlir

from draws import normal
from frugax import InfeasibleBudgetError, MemoryBudget, remat
from refusals import refuses
from tiers import mostly_thorough

from .checks import assert_same, plan_whole

W = normal(0, 16, 16, scale=1 / 4)
START = normal(1, 64, 16)


def step(w, y):
    return y + 0.01 * jnp.tanh(jnp.tanh(y @ w) @ w)


def bounded_loop(w, y):
    """At most 64 steps: scans of scans that checkpoint, with steps that are skipped."""

    def one(state, _):
        t, y = state
        go = lambda t, y: (t + 0.1, step(w, y))
        return lax.cond(t < 5, go, lambda t, y: (t, y), t, y), None

    @jax.checkpoint
    def several(state, _):
        return lax.scan(one, state, None, 16)[0], None

    (_, y), _ = lax.scan(several, (jnp.zeros(()), y), None, 4)
    return jnp.mean(y**2)


@pytest.mark.thorough  # it compiles loops in loops
def test_the_checkpoints_of_a_bounded_loop_are_replanned():
    plan = plan_whole(bounded_loop, MemoryBudget.share(0.5), (W, START), cache=False)
    assert plan.is_opened
    assert plan.predicted <= plan.unplanned_bytes // 2
    want = jax.jit(jax.value_and_grad(bounded_loop))(W, START)
    assert_same(jax.jit(remat.apply(bounded_loop, plan))(W, START), want)


def test_an_operation_may_have_a_parameter_named_prim():
    # As the operations of equinox's loops; JAX's own policies call an argument so.
    double = jax.extend.core.Primitive("double")  # noqa: TID251
    double.def_impl(lambda x, prim: 2 * x)
    double.def_abstract_eval(lambda x, prim: x)
    ad.deflinear2(double, lambda g, x, prim: [double.bind(g, prim=prim)])
    mlir.register_lowering(
        double, mlir.lower_fun(lambda x, prim: 2 * x, multiple_results=False)
    )

    def loss(w, y):
        go = lambda y, _: (step(w, double.bind(y, prim="x") / 2), None)
        return jnp.mean(lax.scan(go, y, None, 32)[0] ** 2)

    how = {"cache": False, "first_fit": True}
    plan = plan_whole(loss, MemoryBudget.share(0.5), (W, START), **how)
    assert plan.body_plans
    want = jax.jit(jax.value_and_grad(loss))(W, START)
    assert_same(jax.jit(remat.apply(loss, plan))(W, START), want)


def test_a_loop_of_unknown_length_is_refused_in_one_line():
    def loss(w, y):
        more = lambda y: jnp.sum(y) < 5
        return jnp.mean(lax.while_loop(more, lambda y: step(w, y), y))

    with refuses(ValueError, "lax.scan") as e:
        remat.plan(loss, MemoryBudget("1KiB"), (W, START), cache=False)
    assert "\n" not in str(e.value)


def test_a_custom_rule_is_named_where_no_plan_fits():
    @jax.custom_vjp
    def solve(w, y):
        return step(w, y)

    solve.defvjp(lambda w, y: (step(w, y), (w, y)), lambda saved, g: (saved[0], g))
    loss = lambda w, y: jnp.mean(solve(w, y) ** 2)
    with refuses(InfeasibleBudgetError, "custom_vjp"):
        plan_whole(loss, MemoryBudget("1KiB"), (W, START), cache=False)


def fixed(x):
    """Refuses to be differentiated, as what a solver reads beside its state does."""
    return eqx.internal.nondifferentiable(x)


def in_the_body(w, x):
    def body(carry, _):
        x, time = carry
        return (jnp.tanh(x @ w) + fixed(time), time + 0.1), None

    return lax.scan(body, (x, jnp.float32(0.0)), None, 8)[0][0]


def after_the_scan(w, x):
    def body(carry, _):
        x, time = carry
        return (jnp.tanh(x @ w), time + 0.1), jnp.sqrt(time)

    (x, time), roots = lax.scan(body, (x, jnp.float32(0.0)), None, 4)
    for root in roots:
        x = jnp.tanh(x @ w) + fixed(root) * fixed(time)
    return x


def after_a_call(w, x):
    both = jax.jit(lambda x, time: (jnp.tanh(x @ w), time + 0.1))
    time = jnp.float32(0.0)
    for _ in range(4):
        x, time = both(x, time)
        x = x + fixed(time)
    return x


def after_a_branch(w, x):
    time = jnp.float32(0.0)
    for i in range(4):
        branches = [lambda x, t: (jnp.tanh(x @ w), t), lambda x, t: (x @ w, t + 0.1)]
        x, time = lax.cond(jnp.sum(x) > i, *branches, x, time)
        x = jnp.tanh(x @ w) + fixed(time)
    return x


def after_a_checkpoint(w, x):
    both = jax.checkpoint(lambda x, time: (jnp.tanh(x @ w), time + 0.1))
    time = jnp.float32(0.0)
    for _ in range(4):
        x, time = both(x, time)
        x = x + fixed(time)
    return x


@jax.custom_jvp
def pass_on(x, y):
    return x, y


pass_on.defjvp(lambda values, tangents: (values, tangents))


def after_a_rule(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
        x, _ = pass_on(x, eqx.internal.nondifferentiable_backward(jnp.sum(x)))
    return x


@pytest.mark.parametrize(
    "net",
    mostly_thorough(
        [
            in_the_body,
            after_the_scan,
            after_a_call,
            after_a_branch,
            after_a_checkpoint,
            after_a_rule,
        ],
        in_ci=lambda net: net in (in_the_body, after_a_call, after_a_rule),
    ),
)
@pytest.mark.parametrize("share", [pytest.param(0.6, marks=pytest.mark.thorough), 0.3])
def test_what_no_gradient_reaches_is_not_differentiated(net, share):
    def loss(w, x):
        return jnp.mean(net(w, x) ** 2)

    try:
        how = {"cache": False, "first_fit": True}
        plan = remat.plan(loss, MemoryBudget.share(share), (W, START), **how)
    except InfeasibleBudgetError as e:
        plan = e.best
    assert isinstance(plan, remat.RematPlan)
    want = jax.jit(jax.value_and_grad(loss))(W, START)
    assert_same(jax.jit(remat.apply(loss, plan))(W, START), want)
