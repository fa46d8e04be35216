"""A loss that is one `shard_map`, and planned gradients inside of one."""

import pytest

HEAD = """
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from draws import normal
from frugax import MemoryBudget, remat
from remat.checks import assert_same, temp_bytes

mesh = jax.make_mesh(
    (2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2]
)
ws = [(k := normal(i, 32, 128, scale=1 / 8), k.T) for i in range(4)]
x = normal(4, 1024, 32)
row = NamedSharding(mesh, P("d"))

def net(ws, x):
    for a, b in ws:
        x = x + jnp.tanh(x @ a) @ b
    return x

def check(loss, share=0.6, args=(ws, x), **options):
    plan = remat.plan(
        loss, MemoryBudget.share(share), example_args=args, cache=False, **options
    )
    step = remat.apply(loss, remat.RematPlan.from_json(plan.to_json()))
    assert plan.predicted <= plan.budget.limit_bytes < plan.unplanned_bytes
    assert temp_bytes(step, *args) == plan.predicted
    want = jax.jit(jax.value_and_grad(loss))(*args)
    assert_same(step(*args), want)
    return plan
"""
LOSSES = {
    "mean over devices": """
def local(ws, x):
    return lax.pmean(jnp.mean(net(ws, x) ** 2), "d")

loss = jax.shard_map(
    local, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=VMA
)
assert "on each device, in the shard_map" in check(loss, divide_batch=False).explain()
assert check(loss, 0.3).batch
""",
    "a loss of each device, averaged outside": """
def local(ws, x):
    return jnp.mean(net(ws, x) ** 2)[None]

shares = jax.shard_map(
    local, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"), check_vma=VMA
)
assert check(lambda ws, x: shares(ws, x).mean()).shard_map is not None
""",
    "weights divided over devices": """
def local(ws, x):
    for a, b in ws:
        x = x + lax.psum(jnp.tanh(x @ a) @ b, "d")
    return jnp.mean(x**2)

loss = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=([(P(None, "d"), P("d"))] * 4, P()),
    out_specs=P(),
    check_vma=VMA,
)
check(loss, 0.65)
""",
    "a checkpoint around it, and one inside": """
def local(ws, x):
    return lax.pmean(jnp.mean(jax.checkpoint(net)(ws, x) ** 2), "d")

loss = jax.checkpoint(
    jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=VMA
    )
)
assert check(loss).is_opened
""",
    "a planned gradient inside": """
def loss(ws, x):  # normalised weights are marked inside, and not outside
    return jnp.mean(net([(a / jnp.linalg.norm(a), b) for a, b in ws], x) ** 2)

plan = check(loss, args=(ws, x[:512]), divide_batch=False)

def local(ws, x):
    value, grads = remat.apply(loss, plan)(ws, x)
    scale = lambda g: g / 2 if VMA else lax.pmean(g, "d")
    return lax.pmean(value, "d"), jax.tree.map(scale, grads)

step = jax.shard_map(
    local, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=VMA
)
assert_same(jax.jit(step)(ws, x), jax.jit(jax.value_and_grad(loss))(ws, x))
assert temp_bytes(step, ws, x) < 0.75 * plan.unplanned_bytes
""",
}


def run(code):
    exec(HEAD + code, {"__name__": "shard_map"})


# One with marks of varying axes and one without them; `make thorough` runs all.
IN_CI = {("mean over devices", False), ("a planned gradient inside", True)}


@pytest.mark.parametrize(
    ("name", "vma"),
    [
        pytest.param(
            name, vma, marks=[pytest.mark.thorough] * ((name, vma) not in IN_CI)
        )
        for name in LOSSES
        for vma in (True, False)
    ],
)
def test_the_body_of_a_shard_map_is_planned_for_each_device(name, vma):
    run(LOSSES[name].replace("VMA", str(vma)))


@pytest.mark.thorough
def test_a_jit_with_shardings_is_planned_inside():
    run("""
loss = jax.jit(lambda ws, x: jnp.mean(net(ws, x) ** 2), in_shardings=(None, row))
plan = check(loss, args=(ws, jax.device_put(x, row)), divide_batch=False)
assert plan.segments
""")


def test_weights_divided_over_explicit_axes_are_planned():
    run("""
def loss(w, x):
    for _ in range(8):
        x = jax.sharding.reshard(jnp.tanh(x @ w), P())
    return jnp.mean(x**2)

with jax.set_mesh(jax.make_mesh((2,), ("d",))):
    w, x = jax.device_put(jnp.eye(32) / 2, P(None, "d")), jax.device_put(x, P())
    assert check(loss, args=(w, x)).segments
""")
