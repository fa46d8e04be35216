"""A plan holds its budget, as XLA measures it, or reports the limit that it needs."""

import dataclasses
import io
import json
import pkgutil
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import forked
from draws import normal
from frugax import InfeasibleBudgetError, MemoryBudget, measure, remat
from frugax.budget import Plan, Verdict
from frugax.errors import RematUndoneError
from frugax.jaxprs import count_heavy, count_heavy_in_hlo, flops
from frugax.remat import solver
from frugax.remat.rewrite import trace_loss
from frugax.remat.solver import build_parts, list_candidates
from refusals import refuses

from .checks import assert_same, follow, plan_whole, temp_bytes


def residual_mlp(depth=4, width=64, batch=256):
    params = [normal(i, 2, width, width, scale=width**-0.5) for i in range(depth)]
    x = normal(depth, batch, width)

    def loss(params, x):
        for w in params:
            x = x + jax.nn.gelu(x @ w[0]) @ w[1]
        return jnp.mean(x**2)

    return loss, params, x


@pytest.fixture(scope="module")
def mlp():
    loss, params, x = residual_mlp()
    return loss, params, x, temp_bytes(jax.jit(jax.value_and_grad(loss)), params, x)


@pytest.fixture(scope="module")
def half(mlp):
    loss, params, x, plain = mlp
    return plan_whole(
        loss, MemoryBudget(limit_bytes=plain // 2), example_args=(params, x)
    )


def test_a_budget_is_met_as_xla_measures_it(mlp, half):
    loss, params, x, plain = mlp
    step = remat.apply(loss, half)
    assert half.unplanned_bytes == plain
    assert temp_bytes(step, params, x) == half.predicted <= plain // 2
    receipt = step.report(params, x)
    assert receipt.verdict is Verdict.KEPT
    assert receipt.spends[0].measured == half.predicted
    assert half.compiles <= 11


def test_planning_needs_only_shapes(mlp, half):
    loss, params, x, plain = mlp
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (params, x))
    budget = MemoryBudget(limit_bytes=plain // 2)
    assert plan_whole(loss, budget, example_args=shapes) == half


def test_a_large_budget_needs_no_recomputation(mlp):
    loss, params, x, plain = mlp
    plan = plan_whole(loss, MemoryBudget(limit_bytes=plain), example_args=(params, x))
    assert plan.segments == ()
    assert plan.extra_flops == 0
    # A quick compilation of the plain program, and one as it will be run.
    assert plan.compiles <= 2
    assert temp_bytes(remat.apply(loss, plan), params, x) == plain


def test_a_compiler_without_the_options_for_quick_programs_is_planned_for(
    mlp, monkeypatch
):
    # Experimental options of XLA go without notice.
    quick = {"xla_backend_optimization_level": "0", "xla_cpu_no_such_option": True}
    monkeypatch.setattr("frugax.remat._compile_search._QUICK", quick)
    loss, params, x, plain = mlp
    plan = plan_whole(loss, MemoryBudget(limit_bytes=plain // 2), (params, x))
    assert plan.predicted <= plain // 2


def test_a_frozen_network_inside_of_the_loss_is_planned():
    # Nothing but recomputation reads what it hands to the network that is trained.
    def net(layers, x):
        for w in layers:
            x = x + jax.nn.gelu(x @ w)
        return x

    def loss(layers, frozen, x, y):
        return jnp.mean(net(layers, net(frozen, x))) - jnp.mean(net(layers, y))

    weights = [jax.ShapeDtypeStruct((16, 16), "float32")] * 3
    x = jax.ShapeDtypeStruct((128, 16), "float32")
    args = weights, weights, x, x
    how = {"first_fit": True, "cache": False}
    plan = remat.plan(loss, MemoryBudget("90%"), args, **how)
    assert plan.predicted <= 0.9 * plan.unplanned_bytes


def test_recomputed_flops_equal_the_traced_program(mlp, half):
    loss, params, x, _ = mlp
    count = lambda fn: flops(jax.make_jaxpr(fn)(params, x).jaxpr)
    step = remat.apply(loss, half)
    extra = count(step) - count(jax.value_and_grad(loss))
    assert extra == half.extra_flops
    assert 0 < half.extra_share < 0.5


def test_recomputation_survives_the_compiler(mlp):
    """The canary: it dies when XLA learns to see through a gate."""
    loss, params, x, plain = mlp
    tight = plan_whole(
        loss, MemoryBudget(limit_bytes=int(0.46 * plain)), example_args=(params, x)
    )
    written, left = [], []
    for fn in (jax.jit(jax.value_and_grad(loss)), remat.apply(loss, tight)):
        written.append(count_heavy(jax.make_jaxpr(fn)(params, x).jaxpr))
        text = fn.lower(params, x).compile().as_text()
        left.append(count_heavy_in_hlo(text or ""))
    assert left[1] - left[0] == written[1] - written[0] > 0


def test_a_plan_holds_inside_a_jit_of_the_users_own(mlp):
    loss, params, x, _ = mlp

    def sgd(value_and_grad):
        def train(params, x):
            value, grads = value_and_grad(loss)(params, x)
            return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

        return train

    plain = temp_bytes(jax.jit(sgd(jax.value_and_grad)), params, x)
    budget = MemoryBudget(limit_bytes=int(0.6 * plain))
    whole = remat.EnclosingProgram(build=sgd, args=(params, x))
    plan = plan_whole(loss, budget, example_args=(params, x), within=whole)
    planned = jax.jit(sgd(lambda loss: remat.apply(loss, plan)))
    assert temp_bytes(planned, params, x) == plan.predicted <= budget.limit_bytes
    np.testing.assert_allclose(
        planned(params, x)[0], loss(params, x), rtol=1e-5
    )  # f32 rounding


@pytest.fixture
def loose_promotion():
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types
        yield


KINDS = pytest.mark.parametrize(
    "kind", ["temp", pytest.param("total", marks=pytest.mark.thorough)]
)


@pytest.mark.usefixtures("loose_promotion")
@KINDS
def test_an_adam_step_with_donation_fits_in_half_its_memory(kind):
    loss, params, x = residual_mlp(batch=512)
    adam = optax.adam(1e-3)

    def build(value_and_grad):
        def step(state, x):
            params, moments = state
            value, grads = value_and_grad(loss)(params, x)
            updates, moments = adam.update(grads, moments, params)
            return (optax.apply_updates(params, updates), moments), value

        return step

    state = jax.eval_shape(lambda p: (p, adam.init(p)), params)
    whole = remat.EnclosingProgram(build=build, args=(state, x), donate_argnums=(0,))
    jitted = jax.jit(build(jax.value_and_grad), donate_argnums=0)
    plain = measure.program(jitted.lower(state, x).compile())
    limit = plain.bytes_of(kind) - plain.temp_bytes // 2
    budget = MemoryBudget(limit_bytes=limit, kind=kind)
    plan = plan_whole(loss, budget, example_args=(params, x), within=whole)
    assert plan.predicted <= limit
    report = remat.apply(loss, plan).report(params, x, within=whole)
    assert report.spends[0].measured == plan.predicted


@KINDS
@pytest.mark.thorough
def test_at_needed_a_plan_is_found_and_a_nearer_limit_needs_no_more(kind):
    loss, params, x = residual_mlp(depth=3, width=32, batch=128)
    budget = MemoryBudget(limit_bytes=1000, headroom_frac=0.07, kind=kind)
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan_whole(loss, budget, example_args=(params, x))
    needed = int(caught.value.needed)
    enough = dataclasses.replace(budget, limit_bytes=needed)
    plan = plan_whole(loss, enough, example_args=(params, x))
    assert plan.predicted <= enough.usable_bytes
    best = caught.value.best
    assert isinstance(best, remat.RematPlan)
    assert best.predicted <= enough.usable_bytes
    compiled = remat.apply(loss, best).lower(params, x).compile()
    assert measure.program(compiled).bytes_of(kind) == best.predicted
    # For the total there is a limit below which inputs and results alone are more.
    short = dataclasses.replace(budget, limit_bytes=needed // 2)
    with pytest.raises(InfeasibleBudgetError) as again:
        plan_whole(loss, short, example_args=(params, x))
    if kind == "temp":
        assert again.value.needed == needed
    else:  # inputs and results alone were more, so nothing was tried
        assert again.value.needed <= needed


def plan_share(mlp, share, **how):
    loss, params, x, _ = mlp
    return remat.plan(loss, MemoryBudget.share(share), (params, x), cache=False, **how)


def test_needed_is_what_the_smallest_program_needs_as_it_will_run(monkeypatch):
    place = "frugax.remat._compile_search.CompileBench._compile"
    compile_once = pkgutil.resolve_name(place)

    def need_more_where_quick(self, parts, *, is_quick):
        found = compile_once(self, parts, is_quick=is_quick)
        return dataclasses.replace(found, bytes=found.bytes + 64 * is_quick)

    monkeypatch.setattr(place, need_more_where_quick)
    loss, params, x = residual_mlp(depth=2)
    with refuses(InfeasibleBudgetError) as caught:
        plan_share((loss, params, x, None), 0.1)
    needed = int(caught.value.needed)
    assert caught.value.best.predicted == needed
    again = remat.plan(loss, MemoryBudget(limit_bytes=needed), (params, x), cache=False)
    assert again.predicted == needed


def test_a_hopeless_budget_is_refused_after_few_compilations():
    mlp = (*residual_mlp(depth=2), None)
    with refuses(InfeasibleBudgetError) as near:
        plan_share(mlp, 0.1)
    with refuses(InfeasibleBudgetError) as hopeless:
        plan_share(mlp, 0.001)
    assert hopeless.value.best.compiles <= near.value.best.compiles <= 6
    assert hopeless.value.needed == near.value.needed
    # What it needs is proven all the same, by the plan itself.
    (loss, params, x, _), best = mlp, hopeless.value.best
    assert temp_bytes(remat.apply(loss, best), params, x) <= hopeless.value.needed


def test_no_other_plan_is_looked_for_where_little_can_be_saved(mlp, monkeypatch):
    plan = plan_share(mlp, 0.95)
    assert plan.extra_share <= 0.01
    assert plan.compiles == 3  # the plain program, the plan quickly, and in full
    monkeypatch.setattr("frugax.remat._compile_search._WORTHWHILE", 0.001)
    assert plan_share(mlp, 0.95).compiles > 3


def test_a_search_that_is_out_of_time_takes_the_best_plan_so_far_and_says_so(
    mlp, half, monkeypatch
):
    whole = plan_share(mlp, 0.5, within_s=9999)
    assert whole.cut_after_s is None
    assert (whole.compiles, whole.segments) == (half.compiles, half.segments)
    is_late = property(lambda bench: bench.compiles >= 2)
    place = "frugax.remat._compile_search.CompileBench.is_late"
    monkeypatch.setattr(place, is_late)
    plan = plan_share(mlp, 0.5, within_s=9999)
    assert plan.cut_after_s == 9999
    assert plan.compiles == 3 < whole.compiles
    assert plan.predicted <= plan.budget.usable_bytes
    assert plan.extra_flops >= whole.extra_flops
    assert len(str(plan).splitlines()) > len(
        str(dataclasses.replace(plan, cut_after_s=None)).splitlines()
    )


def test_a_search_that_runs_out_of_time_while_nothing_fits_gives_the_smallest(
    mlp, monkeypatch
):
    with refuses(InfeasibleBudgetError) as whole:
        plan_share(mlp, 0.1)
    tried = whole.value.best.tried
    # The time is over once the search has failed, before it plans at what is needed.
    is_late = property(lambda bench: bench.limit > whole.value.limit)
    place = "frugax.remat._compile_search.CompileBench.is_late"
    monkeypatch.setattr(place, is_late)
    with refuses(InfeasibleBudgetError) as caught:
        plan_share(mlp, 0.1, within_s=9999)
    # Compiled as it will run, it differs by some bytes.
    assert caught.value.best.predicted <= 1.05 * min(t.bytes for t in tried)


def test_a_search_that_found_nothing_in_time_is_refused(mlp):
    with refuses(InfeasibleBudgetError) as caught:
        plan_share(mlp, 0.5, within_s=1e-9)
    best = caught.value.best
    assert best.compiles == 2  # the plain program, quickly and in full
    assert best.predicted == caught.value.needed


@pytest.mark.parametrize(
    ("seconds", "error"),
    [(0, ValueError), (float("nan"), ValueError), ("9", TypeError)],
)
def test_a_time_limit_that_is_not_above_zero_is_refused(mlp, seconds, error):
    with refuses(error, "within_s", seconds):
        plan_share(mlp, 0.5, within_s=seconds)


def test_a_terminal_shows_programs_from_the_second_on(mlp, monkeypatch):
    for is_terminal in (True, False):
        stderr = io.StringIO()
        monkeypatch.setattr(
            stderr, "isatty", lambda is_terminal=is_terminal: is_terminal
        )
        monkeypatch.setattr(sys, "stderr", stderr)
        plan = plan_share(mlp, 0.9)
        monkeypatch.undo()
        found = re.findall(r"program (\d+)", stderr.getvalue())
        numbers = [str(n) for n in range(2, plan.compiles + 1)]
        assert found == (numbers if is_terminal else [])
        assert not stderr.getvalue().split("\r")[-1].strip()


def deep_chain():
    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    ws = [normal(i, 32, 32, scale=1 / 6) for i in range(32)]
    return loss, (ws, normal(32, 512, 32))


def levels_of(segments):
    return 1 + max((levels_of(s.nested) for s in segments if s.nested), default=0)


@pytest.fixture(scope="module")
def nested():
    loss, args = deep_chain()
    body = trace_loss(loss, args)
    candidates = list_candidates(body)
    of_depth = [levels_of(build_parts(r, "cpu").segments) for r in candidates]
    flat = candidates[max(i for i, depth in enumerate(of_depth) if depth == 1)]
    return loss, args, flat, candidates[-1]


def step_of(loss, args, candidate):
    return jax.jit(follow(loss, args, build_parts(candidate, jax.default_backend())))


@pytest.mark.thorough
def test_nested_plans_are_truly_smaller_and_still_the_same(nested):
    loss, args, flat, tight = nested
    assert levels_of(build_parts(tight, "cpu").segments) > 1
    assert tight.peak_bytes < flat.peak_bytes
    needed = [temp_bytes(step_of(loss, args, r), *args) for r in (flat, tight)]
    plain = temp_bytes(jax.jit(jax.value_and_grad(loss)), *args)
    assert needed[1] < needed[0] < plain
    assert needed[1] < plain / 3
    want = jax.jit(jax.value_and_grad(loss))(*args)
    assert_same(step_of(loss, args, tight)(*args), want)


@pytest.mark.thorough
def test_a_nested_plan_recomputes_the_predicted_operations(nested):
    loss, args, _, tight = nested
    count = lambda fn: flops(jax.make_jaxpr(fn)(*args).jaxpr)
    extra = count(step_of(loss, args, tight)) - count(jax.value_and_grad(loss))
    # Besides, gates and sums of gradients.
    assert extra == pytest.approx(tight.flops, rel=0.01)
    again = 2 * 512 * 32 * 32 * 32
    assert tight.flops > again  # more than one forward pass: the cost of nesting


def test_a_plan_with_every_part_goes_through_json(nested, half):
    *_, tight = nested
    inner = remat.BodyPlan(2, (remat.Recompute(), remat.Recompute()), "cond")
    again = remat.Recompute((remat.Chunk(0, 4, (1, 2)),), 2, body_plans=(inner,))
    loops = (remat.BodyPlan(3, (again, remat.Recompute(levels=(5, 2)))),)
    plan = dataclasses.replace(
        half,
        segments=build_parts(tight, "cpu").segments,
        body_plans=loops,
        batch=remat.BatchChunks(4, 1, 0, segments=half.segments, body_plans=loops),
        copies=remat.LateCopies(((0, 4, 8),), "select"),
        rows=remat.RowChunks(4, 64),
        shard_map=3,
    )
    again = remat.RematPlan.from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    assert levels_of(again.segments) > 1


def test_recomputation_that_the_compiler_undoes_is_an_error(mlp, monkeypatch):
    loss, params, x, _ = mlp
    open_gate = lambda gate, pull, inputs, cotangents, tied: pull(inputs, cotangents)
    monkeypatch.setattr("frugax.remat.rewrite._backward.through_gate", open_gate)
    # Drafts that recompute no product leave nothing to undo.
    product = 2 * x.shape[0] * x.shape[1] ** 2
    every = solver.draft_plans

    def heavy(body, block_size):
        costs, made = every(body, block_size)
        return costs, [d for d in made if d.flops == 0 or d.flops > product]

    monkeypatch.setattr("frugax.remat.solver._candidates.draft_plans", heavy)
    with refuses(RematUndoneError):
        plan_whole(
            loss, MemoryBudget(limit_bytes=1000), example_args=(params, x), cache=False
        )


def test_a_plan_that_went_through_json_is_applied_and_described(mlp, half):
    loss, params, x, _ = mlp
    again = remat.RematPlan.from_json(half.to_json())
    assert isinstance(again, Plan)
    assert temp_bytes(remat.apply(loss, again), params, x) == half.predicted
    assert str(half.budget) in str(half)
    assert str(half).count("recompute (") == sum(
        s.gate is not None for s in half.segments
    )


def test_a_damaged_plan_names_the_place(half):
    data = json.loads(half.to_json())
    data["segments"][1]["stop"] = "later"
    with refuses(ValueError, "segments[1].stop"):
        remat.RematPlan.from_json(json.dumps(data))


def test_a_plan_fits_no_other_loss(mlp, half):
    loss, params, x, _ = mlp
    with refuses(ValueError) as e:
        remat.apply(loss, half)(params, x[:-1])
    said = re.search(
        r"fingerprint is (\w{8}), that of this loss (\w{8})\.", str(e.value)
    )
    assert said
    assert half.fingerprint.startswith(said[1])
    with refuses(ValueError, "remat.plan"):
        remat.apply(lambda p, x: loss(p, x) + 1, half)(params, x)


BIG = MemoryBudget("1GiB")


@pytest.mark.parametrize(
    ("loss", "has_aux", "named"),
    [
        (lambda x: x, False, "has_aux"),
        (lambda x: (x.sum(), x), False, "has_aux"),
        (lambda x: x.sum(), True, "has_aux"),
        (lambda x: (x > 0).any(), False, "has_aux"),
        (lambda x: None, False, "PyTreeDef"),
        (lambda x: jnp.sum(x) if x[0] > 0 else jnp.sum(x**2), False, "traced"),
        (lambda x: x.astype(float).sum(), False, "int32"),
    ],
)
def test_a_function_that_is_not_a_loss_is_refused(loss, has_aux, named):
    x = jnp.ones(3, "int32" if named == "int32" else "float32")
    with refuses(TypeError, named):
        plan_whole(loss, BIG, example_args=(x,), has_aux=has_aux)


def test_a_loss_without_operations_is_planned_too():
    plan = plan_whole(lambda x: x, BIG, example_args=(jnp.float32(2),))
    value, grad = remat.apply(lambda x: x, plan)(jnp.float32(2))
    assert (value, grad) == (2, 1)


def test_callers_that_check_no_types_are_checked_all_the_same():
    # In its own process: in this one every call is type-checked before it is made.
    code = (
        "from frugax import remat\nremat.plan(lambda x: x, '1MiB', example_args=(1.0,))"
    )
    ran = forked.python(code)
    assert ran.stderr.endswith(
        "TypeError: budget must be a MemoryBudget, such as "
        "MemoryBudget(\"1MiB\"), got '1MiB'.\n"
    )


@pytest.mark.thorough
def test_auxiliary_outputs_do_not_prevent_a_plan():
    def summed(params, x):
        total = jnp.float32(0.0)
        for w in params:
            x = x + jnp.tanh(x @ w)
            total = total + x.mean()  # its gradient is a zero that XLA knows
        return jnp.mean(x**2), total

    def regularised(params, x):
        value, total = summed(params, x)
        return value + 1e-3 * total, total  # and here a constant

    params = [normal(i, 64, 64, scale=1 / 8) for i in range(8)]
    x = jnp.ones((512, 64))
    for loss in (summed, regularised):
        plain = jax.jit(jax.value_and_grad(loss, has_aux=True))
        limit = int(0.65 * temp_bytes(plain, params, x))
        budget = MemoryBudget(limit_bytes=limit)
        plan = plan_whole(loss, budget, example_args=(params, x), has_aux=True)
        assert plan.predicted <= limit
        (value, told), grads = remat.apply(loss, plan)(params, x)
        assert_same(((value, told), grads), plain(params, x))


@pytest.mark.parametrize("argnums", [5, -3, (0, 0), (0, -2), ()])
def test_argnums_that_name_no_argument_are_refused(mlp, argnums):
    loss, params, x, _ = mlp
    with refuses(ValueError, "argnums"):
        plan_whole(
            loss, MemoryBudget("1GiB"), example_args=(params, x), argnums=argnums
        )


def test_a_program_around_another_gradient_is_refused(mlp):
    loss, params, x, _ = mlp
    step = lambda value_and_grad: value_and_grad(loss)
    other = remat.EnclosingProgram(build=step, args=(params, x[:7]))
    with refuses(ValueError, "example_args"):
        plan_whole(loss, MemoryBudget("1GiB"), example_args=(params, x), within=other)
    own = lambda value_and_grad: jax.value_and_grad(loss)
    unused = remat.EnclosingProgram(build=own, args=(params, x))
    with refuses(ValueError, "within"):
        plan_whole(loss, MemoryBudget("1GiB"), example_args=(params, x), within=unused)


@pytest.mark.parametrize(
    ("fun", "options", "named"),
    [
        (lambda params, x: jnp.sum(x), {}, "<lambda>"),
        (None, {"argnums": 1}, "argnums=1"),
        (None, {"argnums": (0,)}, "argnums=(0,)"),
        (None, {"has_aux": True}, "has_aux=True"),
    ],
)
def test_a_program_that_differentiates_otherwise_is_refused(mlp, fun, options, named):
    loss, params, x, _ = mlp
    build = lambda value_and_grad: value_and_grad(fun or loss, **options)
    other = remat.EnclosingProgram(build=build, args=(params, x))
    with refuses(ValueError, named):
        plan_whole(loss, MemoryBudget("1GiB"), example_args=(params, x), within=other)


def test_the_same_argument_counted_from_the_back_is_planned(mlp):
    loss, params, x, _ = mlp
    build = lambda value_and_grad: value_and_grad(loss, -2)
    whole = remat.EnclosingProgram(build=build, args=(params, x))
    plan_whole(loss, MemoryBudget("1GiB"), example_args=(params, x), within=whole)


@pytest.mark.parametrize("change", [{"stop": 99999}, {"start": 3}, {"kept": (4096,)}])
def test_a_plan_with_a_damaged_segment_is_refused(mlp, change):
    loss, params, x, plain = mlp
    plan = plan_whole(
        loss, MemoryBudget(limit_bytes=int(0.6 * plain)), example_args=(params, x)
    )
    *rest, last = plan.segments
    segments = (*rest, dataclasses.replace(last, **change))
    damaged = dataclasses.replace(plan, segments=segments)
    with refuses(ValueError):
        remat.apply(loss, damaged)(params, x)
    with refuses(ValueError, "JSON"):
        remat.RematPlan.from_json("{nope")
