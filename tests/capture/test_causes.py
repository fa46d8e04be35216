"""`fx.jit` counts every compilation of JAX's, also those without a trace, and why."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as fx
from frugax.train import CompileLedger

X = jnp.ones((4, 2))


def mesh():
    return jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def scaled(x, *, by=2.0, static=None):
    del static
    return {k: v * by for k, v in x.items()} if isinstance(x, dict) else (x @ x.T) * by


def on(*args, **kwargs):
    return args, kwargs


# Two calls, each a pair of args and kwargs, and the cause of the second program.
CAUSES = {
    "shape": (on(X), on(jnp.ones((5, 2))), "x: float32[4,2] -> float32[5,2]"),
    "dtype": (
        on(X),
        on(X.astype(jnp.bfloat16)),
        "x: float32[4,2] -> bfloat16[4,2]",
    ),
    "tree keys": (
        on({"a": X}),
        on({"a": X, "b": X}),
        "x['b']: absent -> float32[4,2]",
    ),
    "weak type": (
        on(X, by=2.0),
        on(X, by=jnp.float32(2.0)),
        "by: float32[] weak -> float32[]",
    ),
    "static value": (
        on(X, static=("adam", 1)),
        on(X, static=("sgd", 1)),
        "static: ('adam', 1) -> ('sgd', 1)",
    ),
    "sharding": (
        on(X),
        on(jax.device_put(X, jax.NamedSharding(mesh(), jax.P("data")))),
        "x: float32[4,2] -> float32[4,2] sharded as "
        "PartitionSpec('data',) over {'data': 2}",
    ),
    "device": (
        on(X),
        on(jax.device_put(X, jax.devices()[1])),
        "x: float32[4,2] -> float32[4,2] on cpu:1",
    ),
    "committed-ness": (
        on(X),
        on(jax.device_put(X, jax.devices()[0])),
        "x: float32[4,2] -> float32[4,2] committed",
    ),
}


@pytest.mark.filterwarnings("ignore:.*it takes no gradient")
@pytest.mark.parametrize("memory", [None, "60%"])
@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_of_a_compilation_names_its_leaf(name, memory):
    first, second, message = CAUSES[name]
    f = fx.jit(scaled, memory=memory, static_argnames="static")
    with CompileLedger() as ledger:
        for args, kwargs in (first, second, second):
            f(*args, **kwargs)
    if memory is None:  # planning compiles, too
        assert ledger.functions["scaled"] == 2
    _, found = f.compiles
    assert found.cause.startswith(message.partition("PartitionSpec(")[0])
    assert found.place.startswith("test_causes.py:")


def test_a_mesh_that_is_set_is_named():
    f = fx.jit(scaled)
    f(X)
    with jax.set_mesh(mesh()):
        f(X)
    assert f.compiles[1].cause.startswith("mesh: ")


def test_calls_that_do_not_compile_are_not_recorded():
    f = fx.jit(scaled)
    f(X, by=2.0)
    f(np.ones((4, 2), np.float32), by=3.0)
    # JAX takes these two for one sharding.
    for spec in (jax.P(), jax.P(None, None)):
        f(jax.device_put(X, jax.NamedSharding(mesh(), spec)), by=2.0)
    assert len(f.compiles) == 2


def test_a_donated_argument_still_names_the_cause():
    f = fx.jit(lambda x: x + 1, donate_argnums=0)
    f(jnp.ones(3))
    f(jax.device_put(jnp.ones(3), jax.devices()[1]))
    assert f.compiles[1].cause == "x: float32[3] -> float32[3] on cpu:1"


def test_modules_and_other_callables_are_counted():
    f = fx.jit(eqx.nn.Lambda(jnp.tanh))
    for n in (3, 3, 4):
        f(jnp.ones(n))
    assert len(f.compiles) == 2
