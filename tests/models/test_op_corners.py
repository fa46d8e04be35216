"""Ops at kinks, at infinities, with integers, with empty arrays, and when misused.

docs/ops.md lists the gradients at kinks, and the three that differ on purpose.
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

torch = pytest.importorskip("torch")

from frugax.models.to_torch import TorchNamespace  # noqa: E402

NAN, INF = math.nan, math.inf
SELU = 1.0507009873554805 * 1.6732632423543772

# op, tensors, attributes, gradient of the sum of the results for each tensor.
KINKS = [
    ("relu", [[0.0]], {}, [[0.0]]),
    ("relu6", [[0.0, 6.0, 3.0]], {}, [[0.0, 0.0, 1.0]]),
    ("hard_tanh", [[-1.0, 1.0, 0.0]], {}, [[0.0, 0.0, 1.0]]),
    ("hard_sigmoid", [[-3.0, 3.0]], {}, [[0.0, 0.0]]),
    ("hard_swish", [[-3.0, 3.0]], {}, [[0.0, 1.0]]),
    ("clip", [[-1.0, 2.0, 0.5]], {"min": -1.0, "max": 2.0}, [[0.0, 0.0, 1.0]]),
    ("clip", [[-1.0, 2.0]], {"min": -1.0}, [[0.0, 1.0]]),
    ("leaky_relu", [[0.0]], {"slope": 0.3}, [[0.3]]),
    ("prelu", [[0.0], [0.3]], {}, [[0.3], [0.0]]),
    ("elu", [[0.0]], {"alpha": 0.5}, [[0.5]]),
    ("celu", [[0.0]], {"alpha": 0.5}, [[1.0]]),
    ("selu", [[0.0]], {}, [[SELU]]),
    ("elu", [[200.0, -200.0]], {}, [[1.0, 0.0]]),
    ("celu", [[200.0, -200.0]], {}, [[1.0, 0.0]]),
    ("selu", [[200.0, -200.0]], {}, [[1.0507009873554805, 0.0]]),
    ("softplus", [[-200.0, 0.0, 200.0]], {}, [[0.0, 0.5, 1.0]]),
    ("log_sigmoid", [[-200.0, 0.0, 200.0]], {}, [[1.0, 0.5, 0.0]]),
    ("mish", [[0.0, 200.0, -200.0]], {}, [[0.6, 1.0, 0.0]]),
    ("silu", [[200.0, -200.0]], {}, [[1.0, 0.0]]),
    ("absolute", [[0.0]], {}, [[0.0]]),
    ("sign", [[0.0, 1.0]], {}, [[0.0, 0.0]]),
    ("floor", [[1.0]], {}, [[0.0]]),
    ("ceil", [[1.0]], {}, [[0.0]]),
    ("trunc", [[1.0]], {}, [[0.0]]),
    ("round", [[0.5]], {}, [[0.0]]),
    ("floor_divide", [[3.0], [2.0]], {}, [[0.0], [0.0]]),
    ("remainder", [[3.0, -3.0], [2.0, 2.0]], {}, [[1.0, 1.0], [-1.0, 2.0]]),
    ("maximum", [[1.0, 2.0], [1.0, 1.0]], {}, [[0.5, 1.0], [0.5, 0.0]]),
    ("minimum", [[1.0, 2.0], [1.0, 1.0]], {}, [[0.5, 0.0], [0.5, 1.0]]),
    ("max", [[4.0, 1.0, 4.0]], {}, [[0.5, 0.0, 0.5]]),
    ("min", [[[4.0, 1.0], [1.0, 1.0]]], {"axis": 0}, [[[0.0, 0.5], [1.0, 0.5]]]),
    ("norm", [[0.0, 0.0]], {}, [[0.0, 0.0]]),
    ("norm", [[0.0, -2.0]], {"ord": 1}, [[0.0, -1.0]]),
    ("norm", [[2.0, -2.0]], {"ord": "inf"}, [[0.5, -0.5]]),
    ("std", [[3.0, 3.0]], {}, [[0.0, 0.0]]),
    ("var", [[3.0, 3.0]], {}, [[0.0, 0.0]]),
    ("sqrt", [[0.0, -1.0]], {}, [[INF, NAN]]),
    ("rsqrt", [[0.0]], {}, [[-INF]]),
    ("log", [[0.0]], {}, [[INF]]),
    ("reciprocal", [[0.0]], {}, [[-INF]]),
    ("arcsin", [[1.0]], {}, [[INF]]),
    ("power", [[0.0, 0.0], [2.0, 0.0]], {}, [[0.0, 0.0], [0.0, 0.0]]),
    ("power", [[0.0, 0.0], 2], {}, [[0.0, 0.0]]),
    ("logaddexp", [[1.0, -INF], [1.0, 0.0]], {}, [[0.5, 0.0], [0.5, 1.0]]),
    ("logsumexp", [[1.0, 1.0, -INF]], {}, [[0.5, 0.5, 0.0]]),
    ("sort", [[2.0, 1.0, 2.0]], {}, [[1.0, 1.0, 1.0]]),
    ("median", [[2.0, 1.0, 2.0]], {}, [[1.0, 0.0, 0.0]]),
    ("top_k", [[2.0, 1.0, 2.0]], {"k": 1}, [[1.0, 0.0, 0.0]]),
    ("prod", [[0.0, 2.0, 3.0]], {}, [[6.0, 0.0, 0.0]]),
    ("cumprod", [[0.0, 2.0]], {}, [[3.0, 0.0]]),
    ("nan_to_num", [[NAN, INF, 1.0]], {}, [[0.0, 0.0, 1.0]]),
    ("stop_gradient", [[1.0]], {}, [[0.0]]),
    ("take", [[1.0, 2.0], np.array([0, 0, 5, -1])], {"axis": 0}, [[2.0, 1.0]]),
    ("cast", [[1.5]], {"dtype": "bfloat16"}, [[1.0]]),
    ("softmax", [[1.0, 1.0]], {}, [[0.0, 0.0]]),
    ("gelu", [[40.0, -40.0]], {}, [[1.0, 0.0]]),
    ("gelu", [[40.0, -40.0]], {"approximate": True}, [[1.0, 0.0]]),
]  # fmt: skip


def as_arrays(tensors):
    return [np.array(t, "f") if isinstance(t, list) else t for t in tensors]


@pytest.fixture(scope="module")
def jax_gradients():
    """All of them in one program: compiling each alone takes a minute."""
    xp = JaxNamespace()

    def one(op, tensors, attrs):
        arrays = as_arrays(tensors)
        floats = [i for i, a in enumerate(arrays) if isinstance(tensors[i], list)]

        def loss(given):
            filled = list(arrays)
            for i, x in zip(floats, given, strict=True):
                filled[i] = x
            out = OPS[op](xp, *filled, **attrs)
            out = out[0] if isinstance(out, tuple) else out
            return out.sum().astype(jnp.float32)

        return jax.grad(loss), [arrays[i] for i in floats]

    made = [one(op, tensors, attrs) for op, tensors, attrs, _ in KINKS]
    run = jax.jit(lambda given: [g(x) for (g, _), x in zip(made, given, strict=True)])
    return run([[jnp.asarray(a) for a in arrays] for _, arrays in made])


@pytest.mark.parametrize("i", range(len(KINKS)), ids=lambda i: f"{KINKS[i][0]}-{i}")
def test_gradients_at_kinks(i, jax_gradients):
    op, tensors, attrs, want = KINKS[i]
    xp = TorchNamespace()
    arrays: list[Any] = [
        a if isinstance(a, int) else xp.asarray(a) for a in as_arrays(tensors)
    ]
    floats = [a for a, t in zip(arrays, tensors, strict=True) if isinstance(t, list)]
    for a in floats:
        a.requires_grad_(True)
    out = OPS[op](xp, *arrays, **attrs)
    out = out[0] if isinstance(out, tuple) else out
    if out.requires_grad:
        grads = torch.autograd.grad(out.sum(), floats, allow_unused=True)
    else:
        grads = [torch.zeros_like(a) for a in floats]
    eps = 4 * float(np.finfo("f").eps)
    for j, t, w in zip(jax_gradients[i], grads, want, strict=True):
        np.testing.assert_allclose(j, w, rtol=eps, atol=eps, err_msg="JAX")
        np.testing.assert_allclose(t, w, rtol=eps, atol=eps, err_msg="torch")


I32 = lambda *x: np.array(x, np.int32)
U8 = lambda *x: np.array(x, np.uint8)
B = lambda *x: np.array(x, np.bool_)
F = lambda *x: np.array(x, np.float32)

# op, tensors, attributes, exact result.
VALUES = [
    ("add", [B(True, False), B(True, True)], {}, B(True, True)),
    ("multiply", [B(True, False), B(True, True)], {}, B(True, False)),
    ("add", [B(True, False), 1], {}, I32(2, 1)),
    ("divide", [I32(1, 7), I32(2, 2)], {}, F(0.5, 3.5)),
    ("divide", [I32(1, -1, 0), 0], {}, F(INF, -INF, NAN)),
    ("floor_divide", [I32(7, -7, 7, -7), I32(3, 3, -3, -3)], {}, I32(2, -3, -3, 2)),
    ("remainder", [I32(7, -7, 7, -7), I32(3, 3, -3, -3)], {}, I32(1, 2, -2, -1)),
    ("floor_divide", [I32(7, -7), I32(0, 0)], {}, I32(0, 0)),
    ("remainder", [I32(7, -7), I32(0, 0)], {}, I32(0, 0)),
    ("remainder", [I32(7), 0], {}, I32(0)),
    ("floor_divide", [F(1, -1, 0, 5), F(0, 0, 0, INF)], {}, F(INF, -INF, NAN, 0)),
    ("remainder", [F(1, 5.5, -5.5, 5), F(0, -2, 2, INF)], {}, F(NAN, -0.5, 0.5, 5)),
    ("power", [I32(2, -3, 0), I32(10, 3, 0)], {}, I32(1024, -27, 1)),
    ("power", [I32(2, -1, 1), I32(-1, -3, -2)], {}, I32(0, -1, 1)),
    ("power", [I32(3, -2), 2], {}, I32(9, 4)),
    ("power", [F(0, -8, 2, INF), F(0, 1 / 3, -INF, 0)], {}, F(1, NAN, 0, 1)),
    ("square", [I32(-3)], {}, I32(9)),
    ("negative", [U8(1, 0)], {}, U8(255, 0)),
    ("absolute", [I32(-3)], {}, I32(3)),
    ("sign", [I32(-3, 0, 9)], {}, I32(-1, 0, 1)),
    ("sign", [F(-3, NAN, INF)], {}, F(-1, NAN, 1)),
    ("floor", [I32(3)], {}, I32(3)),
    ("ceil", [I32(3)], {}, I32(3)),
    ("trunc", [I32(3)], {}, I32(3)),
    ("round", [I32(3)], {}, I32(3)),
    ("round", [F(0.5, 1.5, 2.5, -0.5)], {}, F(0, 2, 2, -0.0)),
    ("sqrt", [I32(4, 9)], {}, F(2, 3)),
    ("isnan", [I32(1)], {}, B(False)),
    ("isfinite", [B(True)], {}, B(True)),
    ("clip", [I32(-5, 5, 9)], {"min": 0, "max": 7}, I32(0, 5, 7)),
    ("clip", [I32(-5, 5)], {"min": 0.5}, F(0.5, 5)),
    ("clip", [F(NAN, INF, -INF)], {"min": -1, "max": 1}, F(NAN, 1, -1)),
    ("clip", [I32(-5, 5)], {"max": 1}, I32(-5, 1)),
    ("nan_to_num", [F(NAN, INF, -INF)], {}, F(0, 3.4028235e38, -3.4028235e38)),
    ("nan_to_num", [I32(3)], {}, I32(3)),
    ("maximum", [F(NAN, 1, INF), F(1, NAN, 2)], {}, F(NAN, NAN, INF)),
    ("minimum", [F(NAN, 1, -INF), F(1, NAN, 2)], {}, F(NAN, NAN, -INF)),
    ("max", [F(1, NAN, 3)], {}, np.float32(NAN)),
    ("min", [F(1, NAN, 3)], {}, np.float32(NAN)),
    ("max", [B(True, False)], {}, np.bool_(True)),
    ("relu", [F(NAN, -INF, INF)], {}, F(NAN, 0, INF)),
    ("relu6", [F(NAN, -INF, INF)], {}, F(NAN, 0, 6)),
    ("logaddexp", [F(-INF, INF, 0), F(-INF, INF, -INF)], {}, F(-INF, INF, 0)),
    ("logsumexp", [F(-INF, -INF)], {}, np.float32(-INF)),
    ("softplus", [F(-INF, INF)], {}, F(0, INF)),
    ("where", [I32(2, 0), 1, 0], {}, I32(1, 0)),
    ("where", [B(True, False), I32(1, 2), 0.5], {}, F(1, 0.5)),
    ("sum", [B(True, True, False)], {}, np.int32(2)),
    ("sum", [U8(200, 100)], {}, np.int32(300)),
    ("prod", [B(True, True)], {}, np.int32(1)),
    ("cumsum", [B(True, True)], {}, I32(1, 2)),
    ("mean", [I32(1, 2)], {}, np.float32(1.5)),
    ("mean", [B(True, False)], {}, np.float32(0.5)),
    ("median", [I32(1, 2, 4, 3)], {}, np.float32(2.5)),
    ("sum", [np.zeros((0, 2), "f")], {"axis": 0}, F(0, 0)),
    ("prod", [np.zeros((0, 2), "f")], {}, np.float32(1)),
    ("mean", [np.zeros((0, 2), "f")], {"axis": 0}, F(NAN, NAN)),
    ("var", [np.zeros((0,), "f")], {}, np.float32(NAN)),
    ("var", [F(3)], {"ddof": 1}, np.float32(NAN)),
    ("std", [np.float32(3)], {}, np.float32(0)),
    ("median", [np.zeros((2, 0), "f")], {"axis": 1}, F(NAN, NAN)),
    ("any", [np.zeros((2, 0), "f")], {"axis": 1}, B(False, False)),
    ("all", [np.zeros((2, 0), "f")], {"axis": 1}, B(True, True)),
    ("all", [np.float32(2)], {}, np.bool_(True)),
    ("logsumexp", [np.zeros((0,), "f")], {}, np.float32(-INF)),
    ("norm", [np.zeros((0,), "f")], {}, np.float32(0)),
    ("max", [np.zeros((2, 0), "f")], {"axis": 0}, np.zeros(0, "f")),
    ("argmax", [np.float32(2)], {}, np.int32(0)),
    ("argmin", [U8(9, 3, 3)], {}, np.int32(1)),
    ("sort", [B(True, False)], {}, B(False, True)),
    ("sort", [F(1, NAN, 0)], {"descending": True}, F(NAN, 1, 0)),
    ("argsort", [F(NAN, 1, NAN, 1)], {}, I32(1, 3, 0, 2)),
    ("argsort", [F(1, NAN, 1)], {"descending": True}, I32(1, 0, 2)),
    ("matmul", [I32([1, 2]), I32([3], [4])], {}, I32([11])),
    ("matmul", [B([True, False]), B([True], [True])], {}, B([True])),
    ("matmul", [I32([1, 2]), F([0.5], [1])], {}, F([2.5])),
    ("matmul", [np.zeros((2, 0), "f"), np.zeros((0, 1), "f")], {}, F([0], [0])),
    ("take", [F(1, 2), I32(5, -1, -2, -3)], {"axis": 0}, F(NAN, 2, 1, NAN)),
    ("take", [I32(1, 2), I32(5)], {"axis": 0}, I32(-(2**31))),
    ("take", [U8(1, 2), I32(5)], {"axis": 0}, U8(255)),
    ("take", [F(1, 2), U8(1)], {}, F(2)),
    ("take_along_axis", [F(1, 2), I32(5, -1)], {}, F(NAN, 2)),
    ("scatter_add", [I32(1, 2), I32(0, -1, 7, 0), I32(1, 1, 1, 1)], {}, I32(3, 3)),
    ("one_hot", [U8(1)], {"classes": 2, "dtype": "bool"}, B([False, True])),
    ("one_hot", [I32(-1)], {"classes": 2}, F([0, 0])),
    ("cast", [F(1.9, -1.9)], {"dtype": "int8"}, np.array([1, -1], np.int8)),
    ("cast", [2.5], {"dtype": "int32"}, np.int32(2)),
    ("concat", [I32(1), F(2.5), B(True)], {}, F(1, 2.5, 1)),
    ("getitem", [I32(1, 2, 3)], {"index": ("slice", None, None, -1)}, I32(3, 2, 1)),
    ("getitem", [I32(1, 2, 3)], {"index": -1}, np.int32(3)),
    ("getitem", [np.zeros((0, 2), "f")], {"index": (("slice", None, None, -1),)},
     np.zeros((0, 2), "f")),
    ("arange", [], {"start": 3, "stop": 0}, I32()),
    ("add", [2, 0.5], {}, np.float32(2.5)),
    ("sum", [3], {}, np.int32(3)),
    ("tril", [B([True, True], [True, True])], {}, B([True, False], [True, True])),
    ("pad", [I32(1)], {"widths": ((1, 1),), "value": 9}, I32(9, 1, 9)),
    ("repeat", [I32(1, 2)], {"repeats": 0}, I32()),
    ("cholesky", [F([-1, 0], [0, 1])], {}, F([NAN, 0], [NAN, NAN])),
    ("dropout", [np.int64(0), F(1, 2)], {"inference": True}, F(1, 2)),
    ("dropout", [np.int64(0), F(1, NAN)], {"rate": 1.0}, F(0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(VALUES)), ids=lambda i: f"{VALUES[i][0]}-{i}")
@pytest.mark.parametrize("library", ["jax", "torch"])
def test_exact_values(i, library):
    op, tensors, attrs, want = VALUES[i]
    xp = JaxNamespace() if library == "jax" else TorchNamespace()
    got = OPS[op](xp, *tensors, **attrs)
    assert xp.dtype_of(got) == want.dtype
    np.testing.assert_array_equal(np.asarray(got), want)


# op, tensors, attributes, what the error names.
MISTAKES = [
    ("max", [np.zeros((0,), "f")], {}, ""),
    ("argmax", [np.zeros((2, 0), "f")], {"axis": 1}, ""),
    ("clip", [F(1)], {"min": 2, "max": 1}, "min=2"),
    ("norm", [F(1)], {"ord": -3}, -3),
    ("matmul", [F(1), np.float32(2)], {}, "right"),
    ("split", [F(1, 2, 3)], {"sections": 2}, 3),
    ("split", [F(1, 2, 3)], {"sections": (1, 1)}, 3),
    ("pad", [F(1)], {"widths": ((1, 1), (0, 0))}, 1),
    ("pad", [F(1)], {"widths": ((-1, 1),)}, "widths"),
    ("pad", [F(1)], {"widths": ((1, 1),), "mode": "wrap"}, "wrap"),
    ("squeeze", [F(1, 2)], {"axis": 0}, ""),
    ("glu", [F(1, 2, 3)], {}, 0),
    ("take", [F(1), I32(0)], {"mode": "wrap"}, "wrap"),
    ("scatter_add", [F(1), np.int32(0), F(1)], {}, "indices"),
    ("getitem", [F(1)], {"index": ("x",)}, "'x'"),
    ("top_k", [F(1)], {"k": 2}, "k=2"),
    ("dropout", [np.int64(0), F(1)], {"rate": 1.5}, "[0, 1]"),
    ("bernoulli", [np.int64(0)], {"shape": (), "p": -0.5}, -0.5),
    ("random_integers", [np.int64(0)], {"shape": (), "high": 0}, "low=0"),
]


@pytest.mark.parametrize(
    "i", range(len(MISTAKES)), ids=lambda i: f"{MISTAKES[i][0]}-{i}"
)
@pytest.mark.parametrize("library", ["jax", "torch"])
def test_mistakes_are_refused(i, library):
    op, tensors, attrs, say = MISTAKES[i]
    xp = JaxNamespace() if library == "jax" else TorchNamespace()
    tensors = [t if op in RANDOM else xp.asarray(t) for t in tensors]
    with refuses(ValueError, say):
        OPS[op](xp, *tensors, **attrs)


RANDOM = ("dropout", "bernoulli", "random_integers")


def test_the_unselected_side_of_where_has_zero_gradient():
    j = jax.grad(lambda x: OPS["where"](JaxNamespace(), x > 1, x, 0.0).sum())
    np.testing.assert_array_equal(j(jnp.array([NAN, 2.0])), [0, 1])
    x = torch.tensor([NAN, 2.0], requires_grad=True)
    OPS["where"](TorchNamespace(), x > 1, x, 0.0).sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 1])
