"""Layouts on a mesh of eight devices: the same losses, each part in its place."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from frugax import MemoryBudget, measure, train
from frugax.train import distributed
from frugax.train.distributed import Layout
from refusals import refuses

RNG = np.random.default_rng(0)
WEIGHTS = {
    "a": RNG.normal(size=(64, 512)).astype(np.float32) / 8,
    "b": RNG.normal(size=(512, 10)).astype(np.float32) / 20,
}


def loss(params, batch):
    logits = jnp.tanh(batch["x"] @ params["a"]) @ params["b"]
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return losses.mean()


def batch_of(index):
    rng = np.random.default_rng(index)
    x = rng.normal(size=(32, 64)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 10, 32).astype(np.int32)}


def losses(steps, **options):
    step = train.make_train_step(loss, optax.adam(1e-2), **options)
    state = step.init(WEIGHTS)
    told = []
    for i in range(steps):
        state, metrics = step(state, batch_of(i))
        told.append(float(metrics["loss"]))
    return np.array(told), state, step


@pytest.fixture(scope="module")
def on_one_device():
    return losses(50)[0]


LAYOUTS = [
    ("data", (8,)),
    ("data", (4, 2)),
    ("tensor", (4, 2)),
    ("fully-sharded", (4, 2)),
    ("fully-sharded", (8,)),
]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        pytest.param(*layout, marks=[pytest.mark.thorough] * (layout[1] == (8,)))
        for layout in LAYOUTS
    ],
)
def test_fifty_steps_equal_those_of_one_device(kind, shape, on_one_device):
    layout = Layout.over(shape, kind)
    told, state, step = losses(50, layout=layout)
    # In float32, whose sums over devices are rounded in another order.
    assert np.abs(told - on_one_device).max() <= 3e-6
    assert step.compiles == 1
    distributed.audit(state, planned=layout.state_sharding(state)).assert_sound()


def test_more_sharding_needs_less_memory_on_each_device():
    held = {}
    for kind in ("data", "tensor", "fully-sharded"):
        _, _, step = losses(1, layout=Layout.over((4, 2), kind))
        held[kind] = step.program.total_bytes
    assert held["data"] > held["tensor"] > held["fully-sharded"]


def test_a_tensor_layout_splits_weights_or_is_refused():
    layout = Layout.over(kind="tensor")
    assert dict(layout.mesh.shape) == {"data": 1, "model": 8}
    state = layout.place_state(WEIGHTS)
    distributed.audit(state, planned=layout).assert_sound()
    with refuses(ValueError, "(1, 8)"):
        Layout.over((8,), "tensor")


def test_the_audit_finds_an_array_that_is_whole_on_every_device():
    layout = Layout.over(kind="tensor")
    odd = {"w": np.zeros((1001, 77), np.float32), "small": np.zeros(3, np.float32)}
    found = distributed.audit(layout.place_state(odd), planned=layout)
    assert [f.path for f in found.faults] == ["['w']"]
    assert "whole on every device" in found.faults[0].fault
    data = Layout.over((8,), "data")
    assert not distributed.audit(data.place_state(odd), planned=data).faults


def test_accumulation_and_memory_plans_go_with_a_layout(on_one_device):
    told, _, step = losses(
        10, layout=Layout.over((4,), "data"), accum=2, budget=MemoryBudget("8MiB")
    )
    assert np.abs(told - on_one_device[:10]).max() <= 1e-6
    assert step.report().verdict.value == "kept"


def test_micro_batches_leave_every_row_on_its_device():
    step = train.make_train_step(
        loss, optax.sgd(0.1), layout=Layout.over((4,), "data"), accum=2
    )
    compiled = step.lower(step.init(WEIGHTS), batch_of(0)).compile()
    # Gradients are added over devices, and no row of the batch is sent to another.
    moved = set(measure.traffic(compiled).bytes)
    assert moved == {"all-reduce"}


@pytest.mark.parametrize(
    ("kind", "shape", "spec"),
    [
        ("data", (512, 64), PartitionSpec(None, None)),
        ("tensor", (64, 512), PartitionSpec(None, "model")),
        ("fully-sharded", (512, 64), PartitionSpec(("data", "model"), None)),
        ("fully-sharded", (512, 512), PartitionSpec(("data", "model"), None)),
        ("fully-sharded", (1001, 77), PartitionSpec(None, None)),  # cannot be divided
        (
            "fully-sharded",
            (8, 8),
            PartitionSpec(None, None),
        ),  # too small to be worth it
    ],
)
def test_the_longest_divisible_dimension_is_split(kind, shape, spec):
    assert Layout.over((4, 2), kind).array_sharding(shape, 4).spec == spec


def test_the_audit_finds_an_optimiser_state_on_one_device():
    layout = Layout.over((8,), "fully-sharded")
    big = {
        "w": jax.device_put(
            jnp.zeros((1024, 512)), layout.array_sharding((1024, 512), 4)
        )
    }
    optimizer = optax.adam(1e-3)
    trap = jax.jit(optimizer.init)(big)
    found = distributed.audit(trap)
    assert [f.path for f in found.faults] == ["[0].mu['w']", "[0].nu['w']"]
    with refuses(ValueError, "mu['w']"):
        found.assert_sound()
    assert "is on one device of 8" in str(found)
    # Layouts of frugax have no such fault.
    step = train.make_train_step(
        lambda p, b: (p["w"] ** 2).sum() * b, optimizer, layout=layout
    )
    state = step.init({"w": np.zeros((1024, 512), np.float32)})
    distributed.audit(state).assert_sound()
    copied = jax.device_put(jnp.zeros((1024, 512)), layout.replicated)
    (fault,) = distributed.audit({"w": copied}).faults
    assert fault.fault == "is replicated on 8 devices"


def test_indivisible_batches_and_wrong_meshes_are_refused():
    with refuses(ValueError, "(16, 1)"):
        Layout.over((16,))
    with refuses(ValueError, "(4, 2)", "(8,)"):
        Layout.over((2, 2, 2))
    layout = Layout.over((8,))
    step = train.make_train_step(loss, optax.adam(1e-2), layout=layout)
    odd = {k: v[:30] for k, v in batch_of(0).items()}
    with refuses(ValueError, "batch['x']", "(30, 64)"):
        step(step.init(WEIGHTS), odd)


def test_each_process_can_load_its_own_rows_only():
    layout = Layout.over((4, 2), "fully-sharded")
    rows = layout.local_rows(32)
    assert rows == slice(0, 32)  # one process: all of them
    batch = {**batch_of(0), "rate": np.float32(2.0)}
    parts = layout.from_local(batch)
    assert layout.place_batch(parts)["x"] is parts["x"]
    for name, whole in layout.place_batch(batch).items():
        np.testing.assert_array_equal(parts[name], whole)
        assert parts[name].sharding.is_equivalent_to(whole.sharding, whole.ndim)
    with refuses(ValueError, 30):
        layout.local_rows(30)
    with refuses(ValueError, "'x'", "(30, 64)"):
        layout.from_local({"x": batch["x"][:30]})
