"""Every cause of a compile is named, by `explain_recompiles` and by a training step."""

import functools
import itertools
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import train
from frugax.errors import BudgetExceededError
from refusals import refuses

X = jnp.ones((4, 2))
LINES = itertools.count(1000)


def mesh():
    return jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def scaled(x, *, by=2.0, static=None):
    del static
    return {k: v * by for k, v in x.items()} if isinstance(x, dict) else (x @ x.T) * by


def jitted(function=scaled, **options):
    # JAX keeps programs by function, and we their causes by the line they come from:
    # each test has its own.
    code = function.__code__.replace(co_firstlineno=next(LINES))
    own = types.FunctionType(code, globals(), "scaled")
    own.__kwdefaults__ = function.__kwdefaults__
    return jax.jit(own, **options)


def change(first, second, **options):
    """The message about the second call; each call is a pair of args and kwargs."""
    f = train.explain_recompiles(jitted(static_argnames="static", **options))
    for args, kwargs in (first, second, second):
        f(*args, **kwargs)
    assert [c.kinds for c in f.compiles][:1] == [("first",)]
    assert len(f.compiles) == 2
    return f.compiles[1]


def on(*args, **kwargs):
    return args, kwargs


CAUSES = {
    "shape": (on(X), on(jnp.ones((5, 2))), "shape", "x: float32[4,2] -> float32[5,2]"),
    "dtype": (
        on(X),
        on(X.astype(jnp.bfloat16)),
        "dtype",
        "x: float32[4,2] -> bfloat16[4,2]",
    ),
    "tree keys": (
        on({"a": X}),
        on({"a": X, "b": X}),
        "structure",
        "x['b']: absent -> float32[4,2]",
    ),
    "weak type": (
        on(X, by=2.0),
        on(X, by=jnp.float32(2.0)),
        "weak type",
        "by: float32[] weak -> float32[]",
    ),
    "static value": (
        on(X, static=("adam", 1)),
        on(X, static=("sgd", 1)),
        "static value",
        "static: ('adam', 1) -> ('sgd', 1)",
    ),
    "sharding": (
        on(X),
        on(jax.device_put(X, jax.NamedSharding(mesh(), jax.P("data")))),
        "placement",
        "x: float32[4,2] -> float32[4,2] sharded as "
        "PartitionSpec('data',) over {'data': 2}",
    ),
    "device": (
        on(X),
        on(jax.device_put(X, jax.devices()[1])),
        "placement",
        "x: float32[4,2] -> float32[4,2] on cpu:1",
    ),
    "committed-ness": (
        on(X),
        on(jax.device_put(X, jax.devices()[0])),
        "committed",
        "x: float32[4,2] -> float32[4,2] committed",
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_of_a_recompile_names_its_leaf(name):
    first, second, kind, message = CAUSES[name]
    found = change(first, second)
    assert found.kinds == (kind,)
    assert found.cause.startswith(message.partition("PartitionSpec(")[0])
    assert found.place.startswith("test_explain.py:")
    assert found.seconds > 0


def test_a_setting_of_jax_is_named():
    f = train.explain_recompiles(jitted())
    f(X)
    with jax.default_matmul_precision("float32"):
        f(X)
    f(X)
    first, second = f.compiles
    assert (first.cause, second.kinds) == ("the first call", ("setting",))
    assert second.cause == "matmul precision: None -> float32"
    mesh_said = train.explain_recompiles(jitted())
    mesh_said(X)
    with jax.set_mesh(mesh()):
        mesh_said(X)
    assert mesh_said.compiles[1].cause.startswith("mesh: ")


def test_a_function_that_is_defined_again_is_named():
    causes = []
    for k in (1.0, 2.0):
        f = train.explain_recompiles(jax.jit(lambda x, k=k: x * k))
        f(X)
        causes += f.compiles
    assert causes[1].kinds == ("function",)
    assert "a new definition of the same" in causes[1].cause
    assert "define it once, outside the loop" in causes[1].cause


def test_changed_closure_variables_are_named():
    def make(k):
        return train.explain_recompiles(jax.jit(lambda x: x * k))

    one, two = make(3.0), make(4.0)
    one(X)
    two(X)
    assert two.compiles[0].kinds == ("function", "static value")
    assert "<lambda> closes over k: 3.0 -> 4.0" in two.compiles[0].cause


def test_a_function_passed_as_static_is_recognised():
    f = train.explain_recompiles(jitted(static_argnames="static"), compile_budget=1)
    make = lambda: lambda: 1
    f(X, static=make())
    with refuses(BudgetExceededError, "static"):
        f(X, static=make())


def test_the_cause_compares_with_the_nearest_program():
    f = train.explain_recompiles(jitted())
    for x in (jnp.ones((5, 2)), X, jnp.ones((5, 2), jnp.bfloat16)):
        f(x)
    assert f.compiles[2].cause == "x: float32[5,2] -> bfloat16[5,2]"


def test_the_same_function_wrapped_again_is_not_compiled_again():
    inner = jitted()
    one, two = train.explain_recompiles(inner), train.explain_recompiles(inner)
    one(X)
    two(X)
    assert (len(one.compiles), len(two.compiles)) == (1, 0)


def test_keyword_arguments_need_another_program_as_in_jax():
    found = change(on(X), on(x=X))
    assert found.cause.startswith("arguments by keyword: ")


def test_a_program_over_budget_is_refused_before_it_is_compiled():
    f = train.explain_recompiles(jitted(), compile_budget=1)
    f(X)
    with (
        train.CompileLedger() as ledger,
        pytest.raises(BudgetExceededError) as refusal,
    ):
        f(np.ones((5, 2), np.float32))
    assert not ledger.functions
    assert "float32[4,2] -> float32[5,2]" in str(refusal.value)
    assert "test_explain.py:" in str(refusal.value)
    f(X)
    assert len(f.compiles) == 1


def test_calls_that_do_not_compile_are_not_recorded():
    f = train.explain_recompiles(jitted())
    f(X, by=2.0)
    with train.CompileLedger() as ledger:
        f(np.ones((4, 2), np.float32), by=3.0)
        # JAX takes these two for one sharding, so there is nothing to tell.
        for spec in (jax.P(), jax.P(None, None)):
            f(jax.device_put(X, jax.NamedSharding(mesh(), spec)))
    assert ledger.functions["scaled"].compiles == 1
    assert len(f.compiles) == 2


def test_it_prints_a_table_and_still_acts_as_the_function():
    f = train.explain_recompiles(jitted())
    f(X)
    f(jnp.ones((6, 2)))
    assert f.__name__ == "scaled"
    assert "float32[4,2] -> float32[6,2]" in str(f)
    assert "test_explain.py:" in str(f)
    np.testing.assert_array_equal(f(X), scaled(X))
    # Inside another jitted function it is a part of that.
    np.testing.assert_array_equal(jax.jit(lambda x: f(x))(X), scaled(X))
    assert len(f.compiles) == 2


def test_a_failed_call_records_no_program():
    f = train.explain_recompiles(jitted())
    with pytest.raises(TypeError):
        f(X, nonsense=1, other="text")
    assert f.compiles == []


def test_wrong_arguments_are_refused():
    with refuses(TypeError, "jax.jit"):
        train.explain_recompiles(lambda x: x)
    with refuses(ValueError, 0):
        train.explain_recompiles(jitted(), compile_budget=0)


# --- the same causes for a training step ----------------------------------------


def step_change(first, second, *, context=None):
    step = train.make_train_step(
        lambda p, b: ((b["x"] @ p["w"]) ** 2).mean(), optax.sgd(0.1), donate=False
    )
    state = step.init({"w": jnp.ones(2)})
    step.prepare(state, first)
    if context is None:
        step.prepare(state, second)
    else:
        with context:
            step.prepare(state, second)
    return step.info.causes


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": jnp.ones((5, 2))}, "batch['x']: float32[4,2] -> float32[5,2]"),
        ({"x": X.astype(jnp.bfloat16)}, "batch['x']: float32[4,2] -> bfloat16[4,2]"),
        ({"x": X, "y": 1.0}, "batch['y']: absent -> float32[] weak"),
        (
            {"x": jax.device_put(X, jax.devices()[1])},
            "batch['x']: float32[4,2] -> float32[4,2] on cpu:1",
        ),
    ],
)
def test_a_step_names_the_same_causes(second, message):
    with jax.numpy_dtype_promotion("standard"):
        assert step_change({"x": X}, second) == (message,)


def test_a_step_names_settings_and_needs_no_program_for_committed_arrays():
    told = step_change(
        {"x": X}, {"x": X}, context=jax.default_matmul_precision("float32")
    )
    assert told == ("matmul precision: None -> float32",)
    put = {"x": jax.device_put(X, jax.devices()[0])}
    assert step_change({"x": X}, put) == ()


def test_more_containers_without_leaves_are_named():
    (told,) = step_change({"x": X, "e": ()}, {"x": X, "e": ((),)})
    assert told.startswith("structure: ")


class Doubling:
    def __call__(self, x):
        return x * 2.0


@pytest.mark.parametrize(
    "function", [functools.partial(lambda y, x: y * x, 3.0), Doubling()]
)
def test_partial_functions_and_objects_are_counted(function):
    watched = train.explain_recompiles(jax.jit(function), compile_budget=2)
    for n in (3, 3, 4):
        watched(jnp.ones(n))
    assert [c.kinds for c in watched.compiles] == [("first",), ("shape",)]
    with refuses(BudgetExceededError, "float32[5]"):
        watched(jnp.ones(5))


def test_functions_that_jax_did_not_jit_are_refused():
    with refuses(TypeError, "Doubling"):
        train.explain_recompiles(eqx.filter_jit(Doubling()))
