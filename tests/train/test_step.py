import concurrent.futures
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from draws import normal
from frugax import measure, remat
from frugax.budget import MemoryBudget, Verdict
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.train import CompileLedger, init_state, make_train_step
from refusals import refuses

WIDTH, DEPTH = 64, 8


def assert_same_weights(actual, expected):
    for name, value in expected.items():
        # Weights are about 0.1: a few units in the last place of that. Compiled one
        # way or the other, float32 sums are taken in another order.
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6)


def mlp_params(key=0):
    draw = lambda i: normal(100 * key + i, WIDTH, WIDTH, scale=WIDTH**-0.5)
    return {f"w{i}": draw(i) for i in range(DEPTH)}


def mlp_loss(params, batch):
    h = batch["x"]
    for i in range(DEPTH):
        h = jnp.tanh(h @ params[f"w{i}"])
    return ((h - batch["y"]) ** 2).mean()


def mlp_batch(rows=512, key=1):
    return {"x": normal(key, rows, WIDTH), "y": normal(key + 1, rows, WIDTH)}


def square(params, batch):
    x = batch["x"]
    error = jnp.broadcast_to(params["w"], x.shape) - x
    return (error**2).sum(), {"worst": jnp.abs(error).max()}


def small(*, donate=True, **budgets):
    optimizer = optax.adam(0.1)
    step = make_train_step(square, optimizer, donate=donate, **budgets)
    return step, init_state({"w": jnp.zeros(3)}, optimizer), {"x": jnp.ones(3)}


def test_a_step_is_the_gradient_and_the_update_written_out():
    optimizer = optax.sgd(0.1, momentum=0.9)
    step = make_train_step(mlp_loss, optimizer)
    params, batch = mlp_params(), mlp_batch(rows=16)
    state, metrics = step(init_state(params, optimizer), batch)
    loss, grads = jax.value_and_grad(mlp_loss)(params, batch)
    updates, opt_state = optimizer.update(grads, optimizer.init(params), params)
    expected = optax.apply_updates(params, updates)
    assert int(state.step) == 1
    assert jax.tree.structure(state.opt_state) == jax.tree.structure(opt_state)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert isinstance(expected, dict)
    assert_same_weights(state.params, expected)


def test_metrics_are_arrays_on_the_device_and_include_those_of_the_loss():
    step, state, batch = small()
    _, metrics = step(state, batch)
    assert all(isinstance(v, jax.Array) for v in metrics.values())
    assert {k: float(v) for k, v in metrics.items()} == {"loss": 3.0, "worst": 1.0}


def test_metrics_may_be_constants():
    def loss(w, x):
        return (x @ w).mean(), {"rows": 3, "rate": np.float64(0.5), "on": True}

    step = make_train_step(loss, optax.sgd(0.1), accum=2)
    _, metrics = step(step.init(jnp.ones(2)), jnp.ones((4, 2)))
    assert (int(metrics["rows"]), float(metrics["rate"])) == (3, 0.5)
    assert bool(metrics["on"])


def test_one_shape_compiles_once_and_preparing_counts():
    step, state, batch = small()
    with CompileLedger() as ledger:
        step.prepare(state, batch)
        for _ in range(3):
            state, _ = step(state, batch)
    assert step.compiles == 1 == ledger.functions["train_step"]
    assert step.compile_seconds > 0


def test_preparing_needs_shapes_only():
    step, state, batch = small()
    abstract = jax.eval_shape(lambda *a: a, state, batch)
    step.prepare(*abstract)
    step(state, batch)
    assert step.compiles == 1


def test_a_shape_seen_before_is_not_compiled_again():
    step, state, batch = small()
    other = {"x": jnp.ones((1, 3))}
    for b in (batch, other, batch, other):
        state, _ = step(state, b)
    assert step.compiles == 2


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ({"x": jnp.ones((2, 3))}, "'x'"),
        ({"x": jnp.ones(3, jnp.int32)}, "'x'"),
        ({"x": jnp.ones(3), "y": 1.0}, "'y'"),
        ({"z": jnp.ones(3)}, "float32[3]"),
    ],
)
def test_a_compile_over_budget_is_refused_first_and_the_leaf_named(batch, named):
    step, state, first = small(compile_budget=1)
    state, _ = step(state, first)
    with CompileLedger() as ledger, refuses(BudgetExceededError, named):
        step(state, batch)
    assert ledger.functions["train_step"] == 0
    step(state, first)  # the state was not given away
    assert step.compiles == 1
    (spend,) = step.report().spends
    assert (spend.limit, spend.measured, spend.verdict) == (1, 1, Verdict.KEPT)


def test_the_refusal_compares_with_the_nearest_program():
    step, state, batch = small(compile_budget=2)
    wide = {"x": jnp.ones((5, 3)), "note": jnp.ones(())}
    state, _ = step(step(state, batch)[0], wide)
    with refuses(BudgetExceededError, "float32[5,3]", "float32[6,3]"):
        step(state, {"x": jnp.ones((6, 3)), "note": jnp.ones(())})


def test_donation_reuses_the_states_memory_and_spares_the_callers_params():
    params = {"w": jnp.zeros(3)}
    optimizer = optax.adam(0.1)
    state = init_state(params, optimizer)
    step = make_train_step(square, optimizer)
    step(state, {"x": jnp.ones(3)})
    assert state.params["w"].is_deleted()
    np.testing.assert_array_equal(params["w"], np.zeros(3))
    assert step.program.alias_bytes == sum(x.nbytes for x in jax.tree.leaves(state))


def test_a_donated_state_is_refused_with_a_remedy():
    step, state, batch = small()
    step(state, batch)
    with refuses(ValueError):
        step(state, batch)


def test_without_donation_the_state_stays():
    step, state, batch = small(donate=False)
    step(state, batch)
    np.testing.assert_array_equal(state.params["w"], np.zeros(3))
    assert step.program.alias_bytes == 0


def test_an_optimiser_that_holds_the_weights_themselves_can_be_donated():
    # Its state is the very arrays of the weights; XLA cannot be given them twice.
    def update(updates, state, params=None):
        return jax.tree.map(jnp.subtract, state, updates), state

    anchored = optax.GradientTransformation(lambda params: params, update)
    step = make_train_step(square, anchored)
    state, _ = step(init_state({"w": jnp.zeros(3)}, anchored), {"x": jnp.ones(3)})
    np.testing.assert_array_equal(state.params["w"], 2 * np.ones(3))


def test_an_optimiser_that_accepts_the_loss_receives_it():
    optimizer = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1))
    step = make_train_step(square, optimizer)
    state = init_state({"w": jnp.zeros(3)}, optimizer)
    state, _ = step(state, {"x": jnp.ones(3)})
    assert float(state.opt_state[1].best_value) == 3.0


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (lambda p, b: p["w"], "float32[3]"),
        (lambda p, b: jnp.int32(1), "int32[]"),
        (lambda p, b: (p["w"].sum(), {"all": p["w"]}), "'all'"),
        (lambda p, b: (p["w"].sum(), [p["w"].sum()]), "['float32[]']"),
        (
            lambda p, b: (p["w"].sum(), {"loss": p["w"].sum()}),
            "loss",
        ),
    ],
)
def test_a_loss_of_the_wrong_kind_is_refused(loss, named):
    optimizer = optax.sgd(0.1)
    step = make_train_step(loss, optimizer)
    with refuses(TypeError, named):
        step(init_state({"w": jnp.zeros(3)}, optimizer), {"x": jnp.ones(3)})


def test_a_state_that_would_change_its_type_is_refused():
    def update(updates, state, params=None):
        return updates, jnp.float32(0)

    optimizer = optax.GradientTransformation(lambda params: jnp.int32(0), update)
    step = make_train_step(square, optimizer)
    with refuses(TypeError, "float32[]", "int32[]"):
        step(init_state({"w": jnp.zeros(3)}, optimizer), {"x": jnp.ones(3)})


def test_a_step_that_never_ran_has_no_program():
    step, _, _ = small()
    assert step.plan is None
    with refuses(RuntimeError, "program"):
        _ = step.program


@pytest.mark.parametrize(
    "kind", [pytest.param("temp", marks=pytest.mark.thorough), "total"]
)
def test_the_whole_step_keeps_a_memory_budget_that_it_breaks_without_a_plan(kind):
    optimizer = optax.sgd(0.1, momentum=0.9)
    free = make_train_step(mlp_loss, optimizer)
    state, batch = init_state(mlp_params(), optimizer), mlp_batch()
    free.prepare(state, batch)
    needed = free.program.bytes_of(kind)
    # Two activations of (512, 64) float32 less than it would take: one block or two
    # must be done again.
    budget = MemoryBudget(limit_bytes=needed - 2 * 4 * 512 * WIDTH, kind=kind)
    step = make_train_step(mlp_loss, optimizer, budget=budget)
    step.prepare(state, batch)
    assert step.unplanned_bytes == needed
    assert step.program.bytes_of(kind) <= budget.limit_bytes
    (spend,) = step.report().spends
    assert spend.verdict is Verdict.KEPT
    assert spend.predicted == spend.measured == step.program.bytes_of(kind)

    planned, _ = step(jax.tree.map(jnp.array, state), batch)
    plain, _ = free(state, batch)
    assert_same_weights(planned.params, plain.params)


def test_a_step_larger_than_its_plan_is_refused_and_not_run(monkeypatch):
    optimizer = optax.sgd(0.1)
    true_plan = remat.plan

    def plan_for_more(loss, budget, **options):
        plan = true_plan(loss, MemoryBudget("1GiB"), **options)
        return dataclasses.replace(plan, budget=budget)

    monkeypatch.setattr(remat, "plan", plan_for_more)
    step = make_train_step(mlp_loss, optimizer, budget=MemoryBudget("1KiB"))
    state = init_state(mlp_params(), optimizer)
    with refuses(BudgetExceededError, "1,024"):
        step(state, mlp_batch())
    assert not state.params["w0"].is_deleted()


def test_lowering_gives_the_planned_step():
    optimizer = optax.sgd(0.1)
    state, batch = init_state(mlp_params(), optimizer), mlp_batch()
    free = make_train_step(mlp_loss, optimizer)
    free.prepare(state, batch)
    budget = MemoryBudget(limit_bytes=free.program.temp_bytes - 4 * 512 * WIDTH)
    step = make_train_step(mlp_loss, optimizer, budget=budget)
    program = measure.program(step.lower(state, batch).compile())
    assert program.temp_bytes <= budget.limit_bytes


def test_an_infeasible_memory_budget_reports_the_need():
    optimizer = optax.sgd(0.1)
    budget = MemoryBudget(limit_bytes=1000)
    step = make_train_step(mlp_loss, optimizer, budget=budget)
    with pytest.raises(InfeasibleBudgetError) as e:
        step(init_state(mlp_params(), optimizer), mlp_batch())
    assert e.value.needed > 1000


def test_a_batch_that_grows_beyond_the_memory_budget_is_named():
    optimizer = optax.sgd(0.1)
    state = init_state(mlp_params(), optimizer)
    free = make_train_step(mlp_loss, optimizer)
    free.prepare(state, mlp_batch(rows=64))
    budget = MemoryBudget(limit_bytes=free.program.temp_bytes)
    step = make_train_step(mlp_loss, optimizer, budget=budget)
    state, _ = step(state, mlp_batch(rows=64))
    grown = "float32[32768,64]"
    with refuses(InfeasibleBudgetError, grown) as e:
        step(state, mlp_batch(rows=32_768))  # too many for micro-batches, too
    cause = e.value.__cause__
    assert isinstance(cause, InfeasibleBudgetError)
    assert str(cause.what) in e.value.what
    for what in ("needed", "limit", "unit", "hint"):
        assert getattr(e.value, what) == getattr(cause, what)
    step(state, mlp_batch(rows=64))  # the state was not given away


def test_weights_that_have_no_gradient_are_named():
    optimizer = optax.sgd(0.1)
    step = make_train_step(lambda p, b: p["w"].sum(), optimizer)
    params = {"w": jnp.zeros(3), "i": jnp.arange(3), "on": jnp.array(True)}
    with pytest.raises(TypeError) as e:
        step.prepare(init_state(params, optimizer), jnp.ones(3))
    assert str(e.value).startswith(
        "params['i'] is int32 and params['on'] is bool and cannot be trained: keep "
    )
    assert "frugax.trees.partition" in str(e.value)
    with refuses(TypeError, "params['i']"):
        step.lower(init_state(params | {"on": jnp.ones(2)}, optimizer), jnp.ones(3))


def test_threads_share_one_program():
    step = make_train_step(mlp_loss, optax.sgd(0.1), compile_budget=1, donate=False)
    state, batch = step.init(mlp_params()), mlp_batch(8)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        results = [threads.submit(step, state, batch) for _ in range(4)]
        losses = {float(r.result()[1]["loss"]) for r in results}
    assert len(losses) == 1
    assert step.compiles == 1


def test_the_report_is_of_the_largest_program():
    budget = MemoryBudget("1MiB", kind="total")
    step, state, small_batch = small(budget=budget)
    large = {"x": jnp.ones((64, 3))}
    needs = []
    for batch in (small_batch, large, small_batch):
        state, _ = step(state, batch)
        needs.append(step.program.total_bytes)
        (spend,) = step.report().spends
        assert spend.measured == max(needs)
    assert needs[1] > needs[0]
