"""Neural-network ops where tables of values end: edges, errors, dtypes, programs.

Values and gradients: `test_nn_ops.py`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.models.ops import OPS
from frugax.models.to_jax import JaxNamespace
from refusals import refuses

pytest.importorskip("torch")

from frugax.models.to_torch import TorchNamespace

NAMESPACES = [JaxNamespace(), TorchNamespace()]


def leaves(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple) else [out]


def run(xp: Any, op: str, *arrays: Any, **attributes: Any) -> Any:
    """Outputs as NumPy arrays, float32."""
    given = [None if a is None else xp.asarray(np.asarray(a)) for a in arrays]
    call = lambda *given: leaves(OPS[op](xp, *given, **attributes))
    # One compilation for the op, and not one for each of its steps.
    outs = (jax.jit(call) if isinstance(xp, JaxNamespace) else call)(*given)
    outs = [np.asarray(xp.cast(o, "float32")) for o in outs]
    return outs[0] if len(outs) == 1 else outs


on_both = pytest.mark.parametrize("xp", NAMESPACES, ids=["jax", "torch"])


@on_both
def test_a_query_that_may_look_nowhere_gets_zeros_and_no_gradient(xp):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 3, 2, 4)).astype(np.float32) for _ in range(3))
    mask = np.array([[True, False, True], [False] * 3, [True] * 3])
    out = run(xp, "attention", q, k, v, mask)
    assert (out[0, 1] == 0).all()
    assert (out[0, [0, 2]] != 0).all()
    additive = np.where(mask, 0.0, -np.inf).astype(np.float32)
    np.testing.assert_allclose(run(xp, "attention", q, k, v, additive), out, 1e-6)
    # More queries than keys: the first queries have no key.
    out = run(xp, "attention", q, k[:, :1], v[:, :1], causal=True)
    assert (out[0, :2] == 0).all()
    np.testing.assert_allclose(out[0, 2], v[0, 0], 1e-6)


def test_gradients_of_masked_attention_are_finite():
    q = jnp.ones((1, 3, 1, 2))
    mask = jnp.array([[True, False, False], [False] * 3, [True] * 3])
    attend = lambda q: OPS["attention"](NAMESPACES[0], q, q, q, mask).sum()
    gradient = jax.jit(jax.grad(attend))(q)
    assert jnp.isfinite(gradient).all()


@on_both
@pytest.mark.parametrize("op", ["cross_entropy", "nll", "perplexity"])
@pytest.mark.parametrize("label", [-1, 5, 99])
def test_a_label_out_of_range_gives_nan(xp, op, label):
    z = np.zeros((2, 5), np.float32)
    assert np.isnan(run(xp, op, z, np.array([0, label], np.int32)))


@on_both
def test_losses_of_only_ignored_labels_are_zero(xp):
    z, y = np.ones((2, 5), np.float32), np.full(2, 255, np.int32)
    for op in ("cross_entropy", "nll", "accuracy", "top_k_accuracy"):
        assert run(xp, op, z, y, ignore_index=255) == 0


def test_jitted_cross_entropy_of_ignored_labels_has_finite_gradients():
    y = jnp.array([255, 1])
    loss = lambda z: OPS["cross_entropy"](NAMESPACES[0], z, y, ignore_index=255)
    gradient = jax.jit(jax.grad(loss))(jnp.ones((2, 5)))
    np.testing.assert_allclose(gradient[0], 0)
    np.testing.assert_allclose(gradient[1], [0.2, -0.8, 0.2, 0.2, 0.2], 1e-6)


@on_both
def test_losses_are_right_far_from_zero(xp):
    z = np.array([[1e4, 1e4 + 1, -1e4]], np.float32)
    loss = run(xp, "cross_entropy", z, np.array([0], np.int32))
    np.testing.assert_allclose(loss, math.log1p(math.e), 1e-5)
    loss = run(xp, "binary_cross_entropy", np.array([200.0, -200]), np.array([1.0, 1]))
    np.testing.assert_allclose(loss, 100, 1e-6)
    x = np.array([1e4, 1e4 + 1, 1e4 + 2], np.float32)
    np.testing.assert_allclose(run(xp, "layer_norm", x), [-1.2247, 0, 1.2247], 0, 1e-3)


@on_both
def test_an_index_that_is_not_in_the_table_gives_nan(xp):
    rows = run(
        xp, "embedding", np.array([-1, 0, 3, 2], np.int32), np.ones((3, 2), np.float32)
    )
    assert np.isnan(rows[[0, 2]]).all()
    assert (rows[[1, 3]] == 1).all()


@on_both
def test_binary_metrics(xp):
    scores = np.array([2.0, 1, -1, 3, -2, -3], np.float32)
    labels = np.array([1, 0, 1, 1, 0, 1], np.int32)
    # Claimed: 3, of them 2 true; there: 4.
    assert run(xp, "precision", scores, labels) == pytest.approx(2 / 3)
    assert run(xp, "recall", scores, labels) == pytest.approx(2 / 4)
    assert run(xp, "f1", scores, labels) == pytest.approx(2 * 2 / 7)
    assert run(xp, "recall", scores, labels, threshold=2.5) == pytest.approx(1 / 4)
    for op in ("precision", "recall", "f1"):
        assert run(xp, op, -np.ones(3, np.float32), np.zeros(3, np.int32)) == 0


@on_both
def test_equal_scores_rank_the_lower_class_first(xp):
    z = np.array([[1.0, 1, 1, 0]] * 4, np.float32)
    y = np.arange(4, dtype=np.int32)
    right = [run(xp, "top_k_accuracy", z, y, k=k) for k in (1, 2, 3, 4)]
    assert right == [0.25, 0.5, 0.75, 1]
    assert run(xp, "accuracy", z, y) == right[0]
    assert run(xp, "top_k_accuracy", z, np.array([4, -1, 9, 5], np.int32), k=4) == 0


HALF_CASES = {
    "layer_norm": ((4, 64), (64,), (64,)),
    "rms_norm": ((4, 64), (64,)),
    "instance_norm": ((2, 8, 4),),
    "attention": ((2, 4, 2, 8), (2, 4, 2, 8), (2, 4, 2, 8)),
    "conv2d": ((1, 5, 5, 4), (3, 3, 4, 2)),
    "linear": ((3, 8), (4, 8), (4,)),
    "lstm": ((2, 3, 4), (8, 4), (8, 2), (8,)),
    "mse": ((3, 4), (3, 4)),
}


@on_both
@pytest.mark.parametrize("op", HALF_CASES)
def test_bfloat16_stays_and_is_near_float32(xp, op):
    rng = np.random.default_rng(1)
    # Far from 0: statistics taken in bfloat16 would be wrong by far more.
    arrays = [rng.normal(size=s).astype(np.float32) * 0.5 for s in HALF_CASES[op]]
    if "norm" in op:
        arrays[0] += 3
    halves = [xp.cast(xp.asarray(a), "bfloat16") for a in arrays]
    call = lambda *given: leaves(OPS[op](xp, *given))[0]
    call = jax.jit(call) if isinstance(xp, JaxNamespace) else call
    out = call(*halves)
    is_loss = op == "mse"
    assert str(xp.dtype_of(out)) == ("float32" if is_loss else "bfloat16")
    exact = call(*(xp.cast(h, "float32") for h in halves))
    near = np.asarray(xp.cast(out, "float32"))
    np.testing.assert_allclose(near, np.asarray(exact), 0.02, 0.02)


@on_both
@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "shape"),
    [
        ("linear", ((0, 4), (5, 4)), {}, (0, 5)),
        ("layer_norm", ((0, 4),), {}, (0, 4)),
        ("conv2d", ((0, 5, 5, 2), (3, 3, 2, 3)), {}, (0, 5, 5, 3)),
        ("max_pool2d", ((0, 4, 4, 2),), {"window": 2}, (0, 2, 2, 2)),
        ("attention", ((0, 3, 2, 4), (0, 3, 2, 4), (0, 3, 2, 4)), {}, (0, 3, 2, 4)),
        ("gru", ((0, 3, 2), (6, 2), (6, 2)), {}, (0, 3, 2)),
    ],
)
def test_an_empty_batch(xp, op, shapes, attributes, shape):
    out = run(xp, op, *(np.ones(s, np.float32) for s in shapes), **attributes)
    assert (out[0] if isinstance(out, list) else out).shape == shape


def test_convolutions_and_pools_have_both_modes_and_batches():
    xp = NAMESPACES[0]
    rng = np.random.default_rng(2)
    one = lambda *s: jnp.asarray(rng.normal(size=s), jnp.float32)
    x, w, dx, dw = one(2, 6, 6, 3), one(3, 3, 3, 4), one(2, 6, 6, 3), one(3, 3, 3, 4)

    def net(x, w):
        y = OPS["conv2d"](xp, x, w, stride=2)
        return OPS["max_pool2d"](xp, y, window=2, stride=1)

    forward = jax.jit(lambda *a: jax.jvp(net, a, (dx, dw))[1])(x, w)
    backward = jax.jit(jax.grad(lambda *a: net(*a).sum(), (0, 1)))(x, w)
    both = (dx * backward[0]).sum() + (dw * backward[1]).sum()
    np.testing.assert_allclose(forward.sum(), both, 1e-4)
    many = jax.jit(jax.vmap(net, (None, 0)))(x, jnp.stack([w, 2 * w]))
    np.testing.assert_allclose(many[1], 2 * many[0], 1e-5)


@pytest.mark.parametrize(
    "op", ["conv1d", "conv2d", "conv1d_transpose", "conv2d_transpose"]
)
def test_convolutions_are_the_operation_that_is_fast_in_loops(op):
    axes = int(op[4])
    x, w = jnp.ones((1, *[5] * axes, 2)), jnp.ones((*[3] * axes, 2, 2))
    f = lambda x, w: OPS[op](NAMESPACES[0], x, w).sum()
    for g in (f, jax.grad(f, (0, 1))):
        text = str(jax.make_jaxpr(g)(x, w))
        assert "fast_convolution" in text
        assert "conv_general_dilated[" not in text


def test_pools_hold_no_slow_reduction():
    x = jnp.ones((1, 8, 8, 2))
    for op, window in (("max_pool2d", 3), ("avg_pool2d", 16)):
        f = lambda x, op=op, w=window: OPS[op](
            NAMESPACES[0], x, window=w, stride=1, padding="same"
        ).sum()
        text = str(jax.make_jaxpr(jax.grad(f))(x))
        assert "reduce_window" not in text
        assert "select_and" not in text


WRONG = [
    ("conv2d", ((1, 5, 5, 2), (3, 3, 3, 4)), {}, "2 channels"),
    ("conv2d", ((1, 5, 5, 4), (3, 3, 2, 3)), {"groups": 2}, "groups"),
    ("conv2d", ((5, 5, 2), (3, 3, 2, 4)), {}, "2 axes of space"),
    ("conv2d", ((1, 5, 5, 2), (3, 3, 2, 4)), {"padding": "full"}, "'full'"),
    ("conv2d", ((1, 5, 5, 2), (3, 3, 2, 4)), {"padding": (1, 2, 3)}, "(1, 2, 3)"),
    ("conv2d", ((1, 5, 5, 2), (3, 3, 2, 4)), {"padding": -1}, "-1"),
    ("conv2d", ((1, 5, 5, 2), (3, 3, 2, 4)), {"stride": 0}, "stride"),
    ("conv2d", ((1, 5, 5, 2), (7, 3, 2, 4)), {"padding": "valid"}, "does not fit"),
    ("max_pool2d", ((1, 5, 5, 2),), {"window": (2, 2, 2)}, "window"),
    ("max_pool2d", ((1, 5, 5, 2),), {"window": 2, "padding": 2}, "pad less"),
    ("max_pool1d", ((1, 5, 5, 2),), {"window": 2}, "1 axes of space"),
    ("group_norm", ((1, 5, 5),), {"groups": 2}, "2 groups"),
    ("mse", ((3,), (3, 1)), {}, "does not broadcast"),
    ("mse", ((3,), (3,)), {"reduction": "avg"}, "'avg'"),
    ("cross_entropy", ((3, 4), (4,)), {}, "(4,)"),
    ("cross_entropy", ((3, 4), (3, 4)), {"ignore_index": 0}, "ignore_index"),
    ("precision", ((3,), (4,)), {}, "(4,)"),
    ("attention", ((2, 3, 4), (2, 3, 4), (2, 4, 4)), {}, "agree"),
    ("attention", ((2, 3, 4, 4), (2, 3, 3, 4), (2, 3, 3, 4)), {}, "divide"),
    ("attention", ((3, 4), (3, 4), (3, 4)), {}, "without heads"),
    ("rotary_positions", ((1, 2, 1, 3),), {}, "even"),
    ("learned_positions", ((1, 5, 3), (4, 3)), {}, "position 4"),
    ("rnn", ((1, 2, 3), (4, 3), (4, 4)), {"activation": "gelu"}, "'gelu'"),
]


@pytest.mark.parametrize(("op", "shapes", "attributes", "said"), WRONG)
def test_arguments_that_conflict_are_reported_in_one_line(op, shapes, attributes, said):
    with refuses(ValueError, said) as caught:
        OPS[op](NAMESPACES[0], *map(jnp.ones, shapes), **attributes)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{op}: ")
