"""Wrong states and batches are refused before compiling, and named."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict

from frugax import MemoryBudget, train
from frugax.errors import InfeasibleBudgetError
from refusals import refuses

WEIGHTS = {"w": jnp.ones((3, 2))}
BATCH = {"x": jnp.ones((8, 3))}


def loss(params, batch):
    return ((batch["x"] @ params["w"]) ** 2).mean()


def new(optimizer=None, of=loss, **options):
    return train.make_train_step(of, optimizer or optax.adam(0.1), **options)


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        (optax.sgd(0.1), optax.adam(0.1), "opt_state[0].count"),
        (
            optax.adam(0.1),
            optax.sgd(0.1),
            "opt_state[0].count",
        ),
        (
            optax.adam(0.1),
            optax.adamw(0.1),
            "ScaleByAdamState",
        ),
    ],
)
def test_a_state_of_another_optimiser_is_refused(made, given, message):
    step = new(given)
    with refuses(TypeError, message):
        step(new(made).init(WEIGHTS), BATCH)
    assert step.compiles == 0


def test_a_state_whose_params_were_exchanged_is_refused():
    step = new()
    state = step.init(WEIGHTS)._replace(params={"w": jnp.ones((3, 4))})
    named = "opt_state[0].mu['w']"
    with refuses(TypeError, named):
        step(state, BATCH)


class Metrics(NamedTuple):
    accuracy: Any


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda x: {"a": {"b": x.mean()}}, ("'a'", "'b'", "float32[]", "each")),
        (lambda x: {"n": x.size, "rows": x}, ("'rows'", "float32[8,3]", "mean")),
        (lambda x: {"ids": None}, ("'ids'", "None", "leave it out")),
        (lambda x: Metrics(x.mean()), ("Metrics(accuracy=", "in a dict")),
        (lambda x: (x.mean(), x.sum()), ("float32[]", "in a dict")),
        (lambda x: x, ("float32[8,3]", "in a dict", "leave out")),
    ],
)
def test_metrics_that_are_no_scalars_are_named_with_the_remedy(make, named):
    step = new(of=lambda params, batch: (loss(params, batch), make(batch["x"])))
    with refuses(TypeError, *named) as refused:
        step(step.init(WEIGHTS), BATCH)
    assert "\n" not in str(refused.value)


def test_metrics_may_be_in_another_kind_of_dict():
    accuracy = lambda batch: FrozenDict(accuracy=batch["x"].mean())
    step = new(of=lambda params, batch: (loss(params, batch), accuracy(batch)))
    _, metrics = step(step.init(WEIGHTS), BATCH)
    assert float(metrics["accuracy"]) == 1.0


def test_optimisers_with_functions_or_that_need_real_arrays_are_accepted():
    class Memory(eqx.Module):
        count: jax.Array
        how: object = eqx.field(static=True)

    def init(params: Any) -> Any:
        # Another function each time, and a number that no tracer has.
        scale = float(params["w"].sum())
        return Memory(jnp.zeros(()), lambda x: x * scale)

    def update(updates, state, params=None):
        return updates, state

    starts: list[Any] = [init, lambda params: Memory(jnp.zeros(()), lambda x: x)]
    for start in starts:
        step = new(optax.GradientTransformation(start, update))
        step.prepare(step.init(WEIGHTS), BATCH)
        assert step.compiles == 1


@pytest.mark.parametrize(
    ("made", "given", "named"),
    [
        ("f16", "f32", "f32"),
        ("f32", "f16", "precision"),
    ],
)
def test_a_state_of_another_precision_is_refused(made, given, named):
    state = new(precision=made).init(WEIGHTS)
    with refuses(TypeError, named):
        new(precision=given)(state, BATCH)


def test_objects_that_are_not_models_are_refused_by_init():
    step = new()
    with refuses(TypeError, "TrainState"):
        step.init(step.init(WEIGHTS))
    with refuses(TypeError, "init"):
        step.init({})
    with refuses(TypeError, "init"):
        step.init_shapes(jax.nn.relu)
    variables = {"params": WEIGHTS, "batch_stats": {"mean": jnp.zeros(2)}}
    with refuses(TypeError, 'variables["params"]', "init"):
        step.init(variables)
    with refuses(TypeError, "'n'", "dtype"):
        step.init({**WEIGHTS, "n": np.array([{}], dtype=object)})


def test_a_step_inside_a_transformation_is_refused():
    step = new(donate=False)
    state = step.init(WEIGHTS)
    calls = [
        lambda: jax.jit(step)(state, BATCH),
        lambda: jax.vmap(lambda x: step(state, {"x": x}))(jnp.ones((2, 8, 3))),
        lambda: jax.grad(lambda x: step(state, {"x": x})[1]["loss"])(BATCH["x"]),
    ]
    for prepared in (False, True):  # each way checks the arguments elsewhere
        if prepared:
            step.prepare(state, BATCH)
        for call in calls:
            with refuses(TypeError, "jax.jit"):
                call()


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (np.array(["a", "b"]), "<U1"),
        (np.array([{}]), "object"),
        (b"a", "bytes"),
    ],
)
def test_a_leaf_that_jax_cannot_take_is_named(leaf, message):
    step = new()
    with refuses(TypeError, message):
        step(step.init(WEIGHTS), {**BATCH, "names": [leaf]})


def test_a_batch_without_rows_is_refused():
    data = np.ones((8, 3), np.float32)
    step = new()
    with refuses(ValueError, "'x'", "(0, 3)"):
        step(step.init(WEIGHTS), {"x": data[8:16]})
    assert step.compiles == 0


@pytest.mark.parametrize("name", ["loss", "gradient_norm", "loss_scale", "skipped"])
def test_the_names_of_the_steps_own_metrics_are_reserved(name):
    of = lambda p, b: (loss(p, b), {name: p["w"].sum()})
    step = new(of=of, clip=1.0, precision="f16")
    with refuses(TypeError, name):
        step(step.init(WEIGHTS), BATCH)


def test_names_that_the_step_does_not_report_are_free():
    step = new(of=lambda p, b: (loss(p, b), {"gradient_norm": p["w"].sum()}))
    _, metrics = step(step.init(WEIGHTS), BATCH)
    assert float(metrics["gradient_norm"]) == 6.0


@pytest.mark.parametrize("parts", [1, 4])
def test_a_memory_budget_with_a_layout_is_of_each_device(parts):
    layout = train.distributed.Layout.over((parts,))
    step = new(budget=MemoryBudget("16B"), layout=layout)
    state = step.init(WEIGHTS)
    with refuses(InfeasibleBudgetError, limit=16) as e:
        step(state, BATCH)
    assert f"on each of {parts} devices" in e.value.what
    assert e.value.limit == 16
    enough = MemoryBudget(limit_bytes=int(e.value.needed))
    step = new(budget=enough, layout=layout)
    step(step.init(WEIGHTS), BATCH)
    (spend,) = step.report().spends
    assert spend.measured is not None
    assert spend.measured <= spend.limit == e.value.needed


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["temp", "total"])
def test_the_bytes_of_a_plan_with_a_layout_are_of_one_device(kind):
    def deep(params, batch):
        x = batch["x"]
        for _ in range(6):
            x = jnp.tanh(x @ params["w"])
        return (x**2).mean()

    weights, batch = {"w": jnp.eye(64)}, {"x": jnp.ones((512, 64))}
    options = {"of": deep, "layout": train.distributed.Layout.over((4,))}
    plain = new(**options)
    plain.prepare(plain.init(weights), batch)
    needed = plain.program.bytes_of(kind)
    budget = MemoryBudget(limit_bytes=needed * 7 // 10, kind=kind)
    step = new(**options, budget=budget)
    step.prepare(step.init(weights), batch)
    assert step.unplanned_bytes == needed
    (spend,) = step.report().spends
    measured = step.program.bytes_of(kind)
    assert spend.predicted == spend.measured == measured <= budget.limit_bytes


@pytest.mark.parametrize(
    ("kind", "shape", "share"),
    [
        pytest.param("data", (4,), 0.7, marks=pytest.mark.thorough),
        ("tensor", (1, 4), 1.0),
    ],
)
def test_the_program_of_one_device_is_the_one_that_is_planned(kind, shape, share):
    """The plan of all devices together was refused here, with too much as needed."""
    key, width = jax.random.key(0), 64
    weights = {
        f"{i}{side}": jax.random.normal(key, (width, 4 * width)) / 9
        for i in range(3)
        for side in "ab"
    }

    def loss(w, b):
        x = b["x"]
        for i in range(3):
            x = x + jnp.tanh(x @ w[f"{i}a"]) @ w[f"{i}b"].T
        return (x**2).mean()

    layout = train.distributed.Layout.over(shape, kind)
    batch = {"x": jnp.ones((64, width))}
    plain = new(of=loss, layout=layout)
    plain.prepare(plain.init(weights), batch)
    limit = int(share * plain.program.temp_bytes)
    step = new(of=loss, layout=layout, budget=MemoryBudget(limit_bytes=limit))
    step.prepare(step.init(weights), batch)
    assert step.program.temp_bytes <= limit
    assert step.plan is not None
    assert step.plan.predicted == step.program.temp_bytes
