"""Programs are planned for targets; a program that does not fit reports its needs."""

import dataclasses
import functools
import re
from typing import Any, get_args
from xml.etree import ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import frugax as fx
from frugax import fit, measure
from frugax.errors import ConfigError, InfeasibleBudgetError
from frugax.targets import Target, installed_compilers
from frugax.train.distributed import LayoutKind
from refusals import refuses

GPU = next(c for c in installed_compilers() if c.platform == "gpu")
needs_gpu_compiler = pytest.mark.skipif(bool(GPU.problem), reason=GPU.problem)

WIDTH, ROWS = 32, 512


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def loss(ws, x):
    for w in ws:
        x = x + jnp.tanh(x @ w)
    return jnp.mean(x**2)


ARGS = ([f32(WIDTH, WIDTH)] * 4, f32(ROWS, WIDTH))
OPTIMIZER = optax.sgd(1e-3, momentum=0.9)


def step(ws, state, x):
    value, grads = jax.value_and_grad(loss)(ws, x)
    updates, state = OPTIMIZER.update(grads, state, ws)
    return optax.apply_updates(ws, updates), state, value


STEP_ARGS = (ARGS[0], jax.eval_shape(OPTIMIZER.init, ARGS[0]), ARGS[1])
ONE = Target.of_devices(jax.devices()[:1])
EIGHT = Target.of_devices(jax.devices())


@functools.cache
def plain_bytes():
    plain = jax.jit(jax.value_and_grad(loss)).lower(*ARGS).compile()
    return measure.program(plain).temp_bytes


def temp(share):
    return fx.MemoryBudget(limit_bytes=int(share * plain_bytes()))


def test_a_loss_is_planned_and_applied():
    plan = fx.plan(loss, ARGS, temp(0.6), target=ONE)
    assert plan.predicted <= temp(0.6).usable_bytes < plan.rows[0].unplanned_bytes
    assert plan.rows[0].answer.startswith("fits at +")
    assert fit.FitPlan.from_json(plan.to_json()) == plan
    arrays = jax.tree.map(lambda s: jnp.full(s.shape, 0.1, s.dtype), ARGS)
    value, grads = fit.apply(loss, plan)(*arrays)
    expected, gradients = jax.jit(jax.value_and_grad(loss))(*arrays)
    assert jnp.allclose(value, expected)
    assert all(map(jnp.allclose, grads, gradients))


def test_chunks_of_the_batch_replace_dear_recomputation():
    """Recomputation alone costs more flops for the same budget."""
    limit = temp(0.5)
    alone = fx.remat.plan(loss, limit, ARGS, divide_batch=False, target=ONE)
    plan = fx.plan(loss, ARGS, limit, target=ONE)
    assert plan.rows[0].fits
    assert alone.extra_share > 0.1
    assert plan.rows[0].extra_share < alone.extra_share / 2
    assert plan.remat is not None
    assert plan.remat.batch is not None


def test_the_gradient_inside_a_step_is_planned():
    whole = fx.plan(step, STEP_ARGS, "1GiB", target=ONE, donate_argnums=(0, 1))
    assert whole.rows[0].answer == "fits"
    limit = fx.MemoryBudget(limit_bytes=int(0.8 * whole.predicted), kind="total")
    plan = fx.plan(step, STEP_ARGS, limit, target=ONE, donate_argnums=(0, 1))
    assert plan.predicted <= limit.usable_bytes
    assert plan.remat is not None
    assert fit.FitPlan.from_json(plan.to_json()) == plan
    workload = fit.Workload.of(step, STEP_ARGS, donate_argnums=(0, 1))
    planned = fit.apply(workload, plan)
    ws, x = jax.tree.map(lambda s: jnp.full(s.shape, 0.1, s.dtype), ARGS)
    plain = jax.jit(step)(ws, OPTIMIZER.init(ws), x)
    found = planned(ws, OPTIMIZER.init(ws), x)
    (spend,) = planned.report().receipt.spends
    assert (spend.verdict, spend.measured) == ("kept", plan.predicted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        assert jnp.allclose(a, b, atol=1e-5)


def test_a_jitted_step_is_planned_with_the_arguments_that_it_donates():
    whole = fx.plan(step, STEP_ARGS, "1GiB", target=ONE, donate_argnums=(0, 1))
    jitted = jax.jit(step, donate_argnums=(0, 1))
    assert fx.plan(jitted, STEP_ARGS, target=ONE).predicted == whole.predicted
    assert fit.Workload.of(jitted, STEP_ARGS, donate_argnums=0).donate_argnums == (0,)
    stated: dict[str, Any] = {"donate_argnums": (0, 1)}
    for fn, how in ((jitted, {}), (step, stated)):
        plan = fx.plan(fn, STEP_ARGS, target=ONE, **how)
        ws, state, x = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), STEP_ARGS)
        fit.apply(fn, plan)(ws, state, x)
        assert ws[0].is_deleted()
        assert not x.is_deleted()
    with refuses(ConfigError, "step", "x"):
        fx.plan(jax.jit(step, static_argnames="x"), STEP_ARGS, target=ONE)


def test_an_applied_step_lies_as_its_layout_was_planned():
    workload = fit.Workload.of(step, STEP_ARGS)
    (row,) = fit.compare(workload, [EIGHT], "1GiB").rows
    planned = fit.apply(workload, fit.FitPlan(rows=(row,)))
    args = jax.tree.map(lambda s: jnp.full(s.shape, 0.1, s.dtype), STEP_ARGS)
    found, plain = planned(*args), jax.jit(step)(*args)
    assert planned.report().receipt.spends[0].measured == row.predicted
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        assert jnp.allclose(a, b, atol=1e-5)
    with refuses(ValueError, "9"):
        planned(*args[:2])


def test_a_plan_without_an_answer_is_not_applied():
    workload = fit.Workload.of(step, STEP_ARGS, layout="rows")
    plan = fit.compare(workload, [EIGHT], "1GiB")
    with refuses(ConfigError, "rows"):
        fit.apply(workload, plan)


def test_an_applied_step_keeps_the_shardings_that_its_jit_states():
    jitted = jax.jit(descend, in_shardings=(EVERYWHERE, BY_ROWS))
    arrays = jax.tree.map(lambda s: jnp.zeros(s.shape), ARGS)
    ws = fit.apply(jitted, fx.plan(jitted, ARGS, target=FOUR))(*arrays)
    assert len(ws[0].sharding.device_set) == 4


def test_a_program_that_does_not_fit_reports_the_bytes_it_needs():
    with pytest.raises(InfeasibleBudgetError) as caught:
        fx.plan(loss, ARGS, temp(0.001), target=ONE)
    enough = fx.MemoryBudget(limit_bytes=int(caught.value.needed))
    assert fx.plan(loss, ARGS, enough, target=ONE).rows[0].fits


@pytest.mark.thorough
def test_a_table_shows_the_needed_bytes():
    table = fit.compare(fit.Workload.of(loss, ARGS), [ONE], temp(0.001))
    assert table.chosen is None
    assert "does not fit, needs" in str(table)


def test_a_step_that_takes_no_gradient_is_only_measured():
    step = lambda w, x: (w - 0.1, jnp.tanh(x @ w) @ w)
    args = (f32(WIDTH, WIDTH), f32(ROWS, WIDTH))
    plan = fx.plan(step, args, "1GiB", target=ONE)
    assert plan.rows[0].answer == "fits"
    assert plan.remat is None
    limit = fx.MemoryBudget(limit_bytes=plan.predicted - 1, kind="total")
    with refuses(InfeasibleBudgetError, "takes no gradient", unit="bytes") as caught:
        fx.plan(step, args, limit, target=ONE)
    assert caught.value.needed == plan.predicted


@pytest.mark.parametrize("whole", [{}, {"specs": (P(), P("rows"))}], ids=["", "specs"])
def test_bare_specs_inside_of_a_program_name_the_axes_of_its_mesh(whole):
    rows = P("rows" if whole else "data")

    def net(ws, x):
        return loss(ws, jax.lax.with_sharding_constraint(x, rows))

    def step(ws, x):
        return jax.grad(net)(ws, x)

    for fn in (net, step):
        row = fx.plan(fn, ARGS, "1GiB", target=EIGHT, **whole).rows[0]
        assert row.fits
        assert row.moved_bytes > 0
        assert fx.plan(fn, ARGS, "1GiB", target=ONE, **whole).rows[0].fits


FOUR = Target.of_devices(jax.devices()[:4])
MESH = jax.sharding.Mesh(jax.devices()[:4], "data")
BY_ROWS, EVERYWHERE = (jax.sharding.NamedSharding(MESH, s) for s in (P("data"), P()))


def constrained(ws, x):
    return loss(ws, jax.lax.with_sharding_constraint(x, BY_ROWS))


def descend(ws, x, objective=loss):
    return [w - g for w, g in zip(ws, jax.grad(objective)(ws, x), strict=True)]


def mapped(ws, x):
    step = lambda ws, x: jax.lax.pmean(descend(ws, x), "data")
    specs = {"in_specs": (P(), P("data")), "out_specs": P(), "check_vma": False}
    return jax.shard_map(step, mesh=MESH, **specs)(ws, x)


SHARDED = jax.device_put(
    jax.tree.map(lambda s: jnp.zeros(s.shape), ARGS), (EVERYWHERE, BY_ROWS)
)


PLACED = {
    "arguments": (descend, SHARDED, "60%"),
    "inside": (functools.partial(descend, objective=constrained), ARGS, "60%"),
    "jit": (jax.jit(descend, in_shardings=(EVERYWHERE, BY_ROWS)), ARGS, "60%"),
    # Gradients inside of it are planned for the devices here only.
    "shard_map": (mapped, ARGS, "60%"),
}


@pytest.mark.parametrize(
    "placed",
    [
        "jit",
        pytest.param("inside", marks=pytest.mark.thorough),
        pytest.param("arguments", marks=pytest.mark.thorough),
        pytest.param("shard_map", marks=pytest.mark.thorough),
    ],
)
def test_a_step_that_names_devices_lies_likewise_on_those_of_a_target(placed):
    fn, args, limit = PLACED[placed]
    targets = [FOUR] if GPU.problem else [FOUR, Target("h100x4")]
    for target in targets:
        row = fx.plan(fn, args, limit, target=target).rows[0]
        assert row.fits
        assert "devices" not in row.caveat
        assert row.moved_bytes > 0


@pytest.mark.thorough
@needs_gpu_compiler
def test_a_second_gradient_is_planned_after_that_of_the_first_for_an_absent_target():
    def step(a, b, x):
        net = lambda a, b: jnp.mean(jnp.tanh(jnp.tanh(x @ a) @ b) ** 2)
        a = a - jax.grad(net)(a, b)
        return a, b - jax.grad(net, argnums=1)(a, b)

    args = (*ARGS[0][:2], ARGS[1])
    (row,) = fit.compare(fit.Workload.of(step, args), [Target("h100x4")], "60%").rows
    assert "Error" not in row.caveat


def test_gradients_of_sharded_arguments_are_added_up_no_more_often_than_needed():
    args = ([jnp.zeros((64, 64))] * 8, jnp.zeros((2048, 64)))
    args = jax.device_put(args, (EVERYWHERE, BY_ROWS))
    plain = fx.plan(descend, args, "1GiB", target=FOUR).rows[0]
    row = fx.plan(descend, args, "75%", target=FOUR).rows[0]
    assert row.fits
    assert row.moved_bytes <= 2 * plain.moved_bytes


@needs_gpu_compiler
def test_a_loss_that_names_devices_is_planned_as_a_step_for_absent_ones():
    assert fx.plan(constrained, SHARDED, "60%", target=FOUR).rows[0].fits
    with refuses(ConfigError, "value_and_grad"):
        fx.plan(constrained, ARGS, target="h100x4")


def test_specs_over_named_axes_shard_the_arguments():
    workload = fit.Workload.of(loss, ARGS, specs=(P(), P("data")), axes={"data": 4})
    weights, x = workload.place(EIGHT)
    assert x.sharding.spec == P("data")
    assert x.sharding.mesh.shape == {"data": 4}
    assert weights[0].sharding.is_fully_replicated
    for specs, axes, named in (
        ((P(), P("rows")), {"data": 4}, "rows"),
        ((P(), P("data")), {"data": 16}, "data"),
        ((P("data"), P()), {"data": 3}, "data"),
    ):
        wrong = dataclasses.replace(workload, specs=specs, axes=axes)
        with refuses(ConfigError, named):
            wrong.place(EIGHT)


def test_a_larger_batch_is_sharded_as_the_smaller_one():
    mesh = EIGHT.mesh({"data": 8})
    rows = jax.sharding.NamedSharding(mesh, P("data"))
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=rows)
    workload = fit.Workload.of(loss, (ARGS[0], x)).with_rows(16 * ROWS)
    (_, larger) = workload.place(EIGHT)
    assert larger.shape == (16 * ROWS, WIDTH)
    assert larger.sharding == rows


@pytest.mark.parametrize("most", [1, 7, 500, 513, 3000, 100_001, 10**10])
def test_the_largest_batch_is_found_in_few_tries(monkeypatch, most):
    """Bytes that are a straight line in the rows, of which `most` rows fit."""
    limit = fx.MemoryBudget(limit_bytes=10_000 + 8 * most)

    def try_target(workload, target, budget):
        needed = 10_000 + 8 * workload.rows
        return fit.FitRow(
            target=str(target),
            budget=budget,
            fits=needed <= budget.usable_bytes,
            predicted=needed,
            unplanned_bytes=needed,
        )

    monkeypatch.setattr("frugax.fit._batch.try_target", try_target)
    workload = fit.Workload.of(loss, ARGS)
    found = fit.find_largest_batch(workload, ONE, limit)
    assert most * 0.9 < found.rows <= most
    # Twice the rows at each try would be 24 tries for the most.
    assert len(found.tried) <= 9
    with pytest.raises(InfeasibleBudgetError) as caught:
        fit.find_largest_batch(workload, ONE, fx.MemoryBudget("8KiB"))
    assert caught.value.needed == 10_008


@pytest.mark.thorough
def test_the_largest_batch_fits_and_a_larger_one_does_not():
    workload = fit.Workload.of(loss, ARGS)
    found = fit.find_largest_batch(workload, ONE, temp(1.0), precision=0.3)
    assert found.rows >= ROWS
    assert found.answer.fits
    assert dict(found.tried)[found.rows]
    too_large = min(rows for rows, fits in found.tried if not fits)
    assert found.rows < too_large <= found.rows * 1.6


@pytest.mark.thorough
@needs_gpu_compiler
def test_a_layout_that_divides_no_work_is_not_the_cheapest():
    small = ([f32(64, 64)] * 4, f32(65536, 64))  # weights that are not divided
    found = fit.search(fit.Workload.of(loss, small), "h100x8", "1GiB", over=("layout",))
    assert [row.layout for row in found.rows][-1] == "tensor"


def test_the_search_equals_an_exhaustive_search():
    workload = fit.Workload.of(loss, ARGS)
    limit = fx.MemoryBudget("1MiB")
    found = fit.search(workload, EIGHT, limit)
    alone = []
    kinds: tuple[LayoutKind, ...] = ("data", "fully-sharded", "tensor")
    for kind in kinds:
        one = dataclasses.replace(workload, layout=kind)
        alone += fit.compare(one, [EIGHT], limit).rows
    best = min((r for r in alone if r.fits), key=lambda r: fit.cost(r, EIGHT))
    assert fit.cost(found.rows[0], EIGHT) == fit.cost(best, EIGHT)
    with refuses(ConfigError, "mesh", "over"):
        fit.search(workload, EIGHT, limit, over=("mesh",))
    with refuses(ConfigError, "TrainStep"):
        fit.search(workload, EIGHT, limit, over=("batch",))
    with refuses(ConfigError, "micro_batches", "TrainStep"):
        dataclasses.replace(workload, micro_batches=2)


def measured_step(ws, x):
    return [w - 0.1 for w in ws], jnp.tanh(x @ ws[0]) @ ws[1]


@pytest.mark.parametrize(
    ("fn", "ask"),
    [
        (loss, lambda workload, budget: fit.plan(workload, (), budget, target=ONE)),
        (
            measured_step,
            lambda workload, budget: fit.plan(workload, (), budget, target=ONE),
        ),
        (
            loss,
            lambda workload, budget: fit.search(
                workload, EIGHT, budget, over=("layout",)
            ),
        ),
        (
            measured_step,
            lambda workload, budget: fit.find_largest_batch(workload, EIGHT, budget),
        ),
    ],
)
def test_a_program_fits_at_the_limit_that_is_needed_with_its_headroom(fn, ask):
    workload = fit.Workload.of(fn, ARGS)
    little = fx.MemoryBudget(limit_bytes=100, headroom_frac=0.4, kind="total")
    with pytest.raises(InfeasibleBudgetError) as caught:
        ask(workload, little)
    needed = int(caught.value.needed)
    ask(workload, dataclasses.replace(little, limit_bytes=needed))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(50))
def test_the_search_finds_the_cheapest_of_small_cases(seed):
    rng = np.random.default_rng(seed)
    width, rows = int(rng.choice([16, 32, 64])), int(rng.choice([64, 256, 1024]))
    layers = int(rng.integers(1, 6))

    def net(ws, x):
        for w in ws:
            x = x + jnp.tanh(x @ w)
        return jnp.mean(x**2)

    args = ([f32(width, width)] * layers, f32(rows, width))
    target = Target.of_devices(jax.devices()[: int(rng.choice([1, 2, 8]))])
    workload = fit.Workload.of(net, args)
    plain = fit.compare(workload, [target], "1GiB").rows[0]
    limit = int(plain.predicted * rng.uniform(0.3, 1.1))
    budget = fx.MemoryBudget(limit_bytes=limit, kind="total")
    alone = []
    for kind in get_args(LayoutKind):
        one = dataclasses.replace(workload, layout=kind)
        alone += fit.compare(one, [target], budget).rows
    fitting = [fit.cost(r, target) for r in alone if r.fits]
    if not fitting:
        with pytest.raises(InfeasibleBudgetError) as caught:
            fit.search(workload, target, budget)
        assert caught.value.needed == min(r.predicted for r in alone if not r.problem)
        return
    found = fit.search(workload, target, budget).chosen
    assert found is not None
    assert found.predicted <= limit
    assert fit.cost(found, target) == min(fitting)


def test_a_refusal_lists_the_largest_arrays_and_their_source_lines():
    with pytest.raises(InfeasibleBudgetError) as caught:
        fx.plan(loss, ARGS, "100KiB", target=ONE)
    text = str(caught.value)
    assert re.search(r"At the peak the largest: .*f32\[.*test_fit.py:\d+", text)
    assert "\n" not in text


def test_a_picture_shows_every_byte_at_the_peak():
    workload = fit.Workload.of(loss, ARGS)
    table = fit.compare(workload, [ONE], "1MiB")
    peak = fit.show_why(workload, ONE)
    picture = fit.draw_memory(table, [peak])
    root = ET.fromstring(picture)
    bars = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if len(r)]
    assert len(bars) > 2
    drawn = sum(float(r.attrib["width"]) for r in bars)
    whole = max(peak.bytes, 2**20)
    # 876 px stand for the larger one of the budget and the peak.
    assert drawn == pytest.approx(876 * peak.bytes / whole, abs=0.1)
    assert "test_fit.py" in picture
    assert fit.draw_memory(table, [None]).count("<rect") < picture.count("<rect")


def test_a_batch_that_fails_to_compile_is_not_reported_as_a_lack_of_memory():
    specs = (P("data"), P())  # 32 rows of weights over 3 devices
    workload = fit.Workload.of(loss, ARGS, specs=specs, axes={"data": 3})
    with refuses(ConfigError, 3):
        fit.find_largest_batch(workload, EIGHT, "1GiB")


@pytest.mark.parametrize("budget", ["0%", "101%", "101% of device"])
def test_a_share_is_more_than_nothing_and_at_most_all(budget):
    with refuses(ValueError, "budget"):
        fx.plan(loss, ARGS, budget, target=ONE)


def test_a_share_of_the_program_is_not_one_of_the_device():
    target = Target.of_devices(jax.devices()[:1])
    object.__setattr__(target, "memory_bytes", 10**9)
    plain = fx.plan(loss, ARGS, fx.MemoryBudget("1GiB"), target=ONE).predicted
    half = fx.plan(loss, ARGS, "50%", target=target).budget
    of_device = fx.plan(loss, ARGS, "50% of device", target=target).budget
    assert half == fx.MemoryBudget(limit_bytes=plain // 2, kind="temp")
    assert of_device == fx.MemoryBudget(limit_bytes=10**9 // 2, kind="total")
    temporaries = fx.MemoryBudget.share(0.8, kind="temp")
    assert fx.plan(loss, ARGS, temporaries, target=target).budget == temp(0.8)


WIDE = ([f32(256, 256)] * 6, f32(64, 256))
WIDE_STEP = (WIDE[0], jax.eval_shape(OPTIMIZER.init, WIDE[0]), WIDE[1])


@pytest.mark.parametrize(
    ("donated", "advised", "placed"),
    [((), "arguments state, ws:", "3 MiB"), ((0,), "argument state:", "1.5 MiB")],
)
def test_a_refusal_names_the_arguments_that_could_be_donated(donated, advised, placed):
    workload = fit.Workload.of(step, WIDE_STEP, donate_argnums=donated)
    (row,) = fit.compare(workload, [ONE], "4.5MiB").rows
    assert not row.fits
    assert advised in row.caveat
    assert row.caveat.endswith(placed)
    with refuses(InfeasibleBudgetError, advised, placed, unit="bytes"):
        fx.plan(workload, (), "4.5MiB", target=ONE)
    # The advice, followed.
    both = dataclasses.replace(workload, donate_argnums=(0, 1))
    assert fx.plan(both, (), "4.5MiB", target=ONE).rows[0].fits
    (refused,) = fit.compare(both, [ONE], "1MiB").rows
    assert "donate" not in refused.caveat


def test_a_batch_is_not_advised_to_be_donated():
    step = lambda w, x: (w - 0.1, x * 2)
    (row,) = fit.compare(
        fit.Workload.of(step, (f32(8, 8), f32(64, 8))), [ONE], "1KiB"
    ).rows
    assert "argument w:" in row.caveat


def test_arguments_beyond_the_budget_are_refused_after_one_compilation():
    workload = fit.Workload.of(step, WIDE_STEP)
    fixed = 2 * 12 * 256 * 256 * 4  # weights and momenta, as arguments and results
    with refuses(InfeasibleBudgetError, unit="bytes") as caught:
        fx.plan(workload, (), "5MiB", target=ONE)
    assert caught.value.best is None  # nothing was looked for
    assert caught.value.lower_bound >= fixed
    (row,) = fit.compare(workload, [ONE], "5MiB").rows
    assert row.lower_bound == caught.value.lower_bound
    assert fit.FitPlan.from_json(fit.FitPlan(rows=(row,)).to_json()).rows == (row,)
    enough = fx.MemoryBudget(limit_bytes=int(caught.value.needed), kind="total")
    assert fx.plan(workload, (), enough, target=ONE).rows[0].fits
    # Temporaries alone can be planned, whatever the arguments are.
    assert (
        fit.compare(workload, [ONE], fx.MemoryBudget("4KiB")).rows[0].lower_bound
        is None
    )


def test_each_row_is_told_before_the_next_target_is_asked(monkeypatch):
    told = []

    def try_target(workload, target, budget):
        told.append(("asked", target.name))
        return fit.FitRow(
            target=target.name, budget=budget, fits=True, predicted=0, unplanned_bytes=0
        )

    monkeypatch.setattr("frugax.fit._plan.try_target", try_target)
    fit.compare(
        fit.Workload.of(loss, ARGS),
        [ONE, EIGHT],
        temp(1),
        on_row=lambda row: told.append(("answered", row.target)),
    )
    names = [ONE.name, EIGHT.name]
    assert told == [(what, n) for n in names for what in ("asked", "answered")]


def test_a_target_without_an_answer_does_not_take_those_of_the_others():
    failing = Target.of_devices(jax.devices()[:3])  # 512 rows over 3 devices
    workload = fit.Workload.of(loss, ARGS)
    table = fit.compare(workload, [failing, ONE], "90%")
    assert table.rows[0].problem
    assert table.rows[0].budget is None
    assert table.chosen == table.rows[1]
    assert "cannot tell" in str(table)


@pytest.mark.parametrize(
    ("shift", "share"), [(0, 0.6), pytest.param(1, 0.8, marks=pytest.mark.thorough)]
)
def test_a_step_over_devices_keeps_its_rows_where_they_are(shift, share):
    net = [(f32(64, 256), f32(256, 64))] * 3
    specs = [(P(None, "model"), P("model", None))] * 3

    def whole(ws, x):
        for a, b in ws:
            x = x + jax.nn.gelu(x @ a) @ b
        return jnp.mean(x**2)

    def step(ws, x):
        # Where a shifted batch lies, the compiler decides: it is left whole.
        value, grads = jax.value_and_grad(whole)(ws, x + shift if shift else x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value

    how = {"specs": (specs, P("data")), "axes": {"data": 4, "model": 2}}
    workload = fit.Workload.of(step, (net, f32(1024, 64)), **how)
    plain = fx.plan(workload, (), "1GiB", target=EIGHT).rows[0]
    limit = fx.MemoryBudget(limit_bytes=int(share * plain.predicted), kind="total")
    row = fx.plan(workload, (), limit, target=EIGHT).rows[0]
    assert row.remat is not None
    batch = row.remat.batch
    assert batch is None or (batch.devices == 4 and not shift)
    # Gradients are added up once for each chunk at most.
    assert row.moved_bytes <= 2 * plain.moved_bytes * (batch.count if batch else 1)


def test_a_step_that_returns_loss_and_weights_is_refused_as_a_loss():
    step = lambda w, x: (jnp.mean(x @ w), w - 0.1)
    args = (f32(8, 8), f32(4, 8))
    assert not fit.Workload.of(step, args).is_loss
    with_state = lambda w, x: (jnp.mean(x @ w), (w - 0.1, x.sum()))
    assert not fit.Workload.of(with_state, args).is_loss
    metrics = lambda w, x: (jnp.mean(x @ w), {"sum": x.sum()})
    workload = fit.Workload.of(metrics, args)
    assert workload.is_loss
    assert workload.has_aux


def test_a_budget_beyond_the_device_does_not_make_a_program_fit():
    target = Target.of_devices(jax.devices()[:1])
    object.__setattr__(target, "memory_bytes", 1000)
    for fn in (loss, measured_step):
        with refuses(InfeasibleBudgetError, "memory", unit="bytes") as caught:
            fx.plan(fn, ARGS, "1GiB", target=target)
        assert caught.value.limit == 1000
        assert not fit.compare(fit.Workload.of(fn, ARGS), [target], "1GiB").rows[0].fits


class Net(nnx.Module):
    """A layer whose batch statistics change in each call."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layer = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(jnp.tanh(self.layer(x)))


def test_a_step_of_nnx_is_told_from_a_loss_by_the_weights_that_it_changes():
    loss = lambda net, x: jnp.mean(net(x) ** 2)

    def step(net, optimizer, x):
        value, grads = nnx.value_and_grad(loss)(net, x)
        optimizer.update(net, grads)
        return value

    net = nnx.eval_shape(Net)
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(Net(), OPTIMIZER, wrt=nnx.Param))
    assert fit.Workload.of(loss, (net, f32(64, 8))).is_loss
    workload = fit.Workload.of(step, (net, optimizer, f32(64, 8)))
    assert not workload.is_loss
    # The weights, statistics and optimiser that it changed are among its results.
    results = jax.tree.leaves(jax.eval_shape(workload.fn, *workload.args))
    assert len(results) > len(jax.tree.leaves(nnx.state(net)))
    assert fx.plan(loss, (net, f32(64, 8)), "1GiB", target=ONE).remat is not None


def test_mistakes_of_planning_are_named():
    workload = fit.Workload.of(loss, ARGS)
    for call, named in (
        (lambda: fit.compare(workload, "cpu"), "cpu"),
        (lambda: fx.plan(loss, ARGS, target=["cpu"]), "compare"),  # pyrefly: ignore
        (lambda: fit.compare(loss, [ONE]), "fit.Workload.of"),  # pyrefly: ignore
    ):
        with refuses(TypeError, named):
            call()
    for call, named in (
        (lambda: fx.plan(loss, ARGS, target=ONE, batchargnum=1), "batch_argnum"),
        (lambda: fx.plan(loss, ARGS, target=ONE, batch_argnum="x"), "'x'"),
        (lambda: fit.search(workload, "cpu", over="remat"), "'remat'"),
    ):
        with refuses(ConfigError, named):
            call()
    with refuses(ValueError, "precision"):
        fit.find_largest_batch(workload, ONE, precision=0)


def test_a_refusal_of_temporaries_says_so_and_gives_a_share():
    with refuses(InfeasibleBudgetError, "temporaries", "%", unit="bytes") as caught:
        fx.plan(descend, ARGS, "0.1%", target=ONE)
    enough = fx.MemoryBudget(limit_bytes=int(caught.value.needed), kind="temp")
    assert fx.plan(descend, ARGS, enough, target=ONE).rows[0].fits


def test_the_table_explains_its_words_and_marks_the_choice():
    rows = [
        fit.FitRow(
            target=name, budget=None, fits=True, predicted=1, unplanned_bytes=1, price=p
        )
        for name, p in (("unknown", None), ("dear", 3.0), ("cheap", 1.0))
    ]
    _, dear, cheap, words = str(fit.FitPlan(rows=tuple(rows))).splitlines()[2:]
    assert "chosen" in cheap
    assert "chosen" not in dear
    assert all(f"{word}: " in words for word in ("plain", "planned", "moved", "chosen"))
