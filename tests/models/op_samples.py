"""Arguments of every op of the table (but the neural-network ones), and what they give.

Run on both libraries by `test_ops.py`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np


def numbers(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    """Numbers in [low, high] that are all different and no kink of any op."""
    n = math.prod(shape)
    spread = np.random.default_rng([seed, n]).permutation(n) + 0.37
    return (low + (high - low) * spread / n).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Sample:
    """Arguments of an op, and its expected result.

    Attributes:
        args: its tensors; float64 ones are cast to the dtype under test.
        attrs: its attributes.
        want: the same in NumPy; None where there is no reference but the other library.
        roundings: how many epsilons of the largest result it may be off.
        halves: whether it is also run in bfloat16 and float16.
        gradient: whether it is differentiated.
        free: whether the first axis of all tensors may be one of unknown length.
    """

    args: tuple[Any, ...]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    want: Callable[..., Any] | None = None
    roundings: float = 8.0
    halves: bool = False
    gradient: bool = True
    free: bool = True


def unary(want: Any, low: float = -2.0, high: float = 2.0, **more: Any) -> list[Sample]:
    return [Sample((numbers(3, 5, low=low, high=high),), {}, want, halves=True, **more)]


def binary(
    want: Any, low: float = -2.0, high: float = 2.0, **more: Any
) -> list[Sample]:
    """Two of one shape, and two of different ranks."""

    def make(*shape: int, seed: int = 0) -> Any:
        return numbers(*shape, low=low, high=high, seed=seed)

    more = {"halves": True, **more}
    return [
        Sample((make(3, 5), make(3, 5, seed=1)), {}, want, **more),
        Sample((make(2, 1, 5), make(3, 1, seed=1)), {}, want, **more, free=False),
        Sample((make(5), np.array(0.7)), {}, want, **more, free=False),
    ]


def compared(want: Any) -> list[Sample]:
    x = np.array([[1.0, 2.0, np.nan, -0.0], [3.0, -1.0, np.inf, 5.0]])
    y = np.array([1.0, 3.0, np.nan, 0.0])
    return [
        Sample((x, y), {}, want, halves=True, gradient=False, free=False),
        Sample((x, x[::-1].copy()), {}, want, gradient=False),
    ]


def logic(want: Any) -> list[Sample]:
    x, y = np.array([[True, False], [True, False]]), np.array([True, True])
    return [
        Sample((x, y), {}, want, gradient=False, free=False),
        Sample((np.array([0.0, 2.0, np.nan]), ints(1, 0, 0)), {}, want,
               gradient=False),
    ]  # fmt: skip


def bits(want: Any) -> list[Sample]:
    x, y = np.array([[6, -3, 0]], np.int32), np.array([3, 5, 1], np.int32)
    small = np.array([200, 7], np.uint8)
    return [
        Sample((x, y), {}, want, gradient=False, free=False),
        Sample((small, np.array([3, 1], np.uint8)), {}, want, gradient=False),
    ]


def reduced(want: Any, low: float = -2.0, high: float = 2.0, **more: Any) -> Any:
    x = numbers(3, 4, 5, low=low, high=high)
    cases: list[dict[str, Any]] = [
        {},
        {"axis": 1},
        {"axis": -1, "keepdims": True},
        {"axis": (0, 2)},
        {"axis": (-1, 0), "keepdims": True},
    ]
    found = [Sample((x,), c, want, **more) for c in cases]
    # Of one number alone, and with all axes kept.
    return [
        *found,
        Sample((x,), {"keepdims": True}, want, **more),
        Sample((np.array(1.3),), {}, want, **{**more, "free": False}),
    ]


def one_axis(want: Any, **more: Any) -> list[Sample]:
    x = numbers(3, 4, 5)
    return [
        Sample((x,), {"axis": a}, want, **more) for a in (0, 1, -1)
    ] + [Sample((x,), {}, want, **more, free=False)]  # fmt: skip


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.logaddexp(x, 0)


def softmax(x: Any, axis: Any = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def logsumexp(x: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    return np.log(np.exp(x).sum(axis, keepdims=keepdims))


def norm(x: Any, ord: Any = 2, axis: Any = None, *, keepdims: Any = False) -> Any:
    if ord == "inf":
        return np.abs(x).max(axis, keepdims=keepdims)
    return (np.abs(x) ** ord).sum(axis, keepdims=keepdims) ** (1 / ord)


def pad(x: Any, widths: Any, mode: Any) -> Any:
    return np.pad(x, widths, mode)


def hard_sigmoid(x: Any) -> Any:
    return np.clip(x + 3, 0, 6) / 6


erf = np.vectorize(math.erf)
selu_scale, selu_alpha = 1.0507009873554805, 1.6732632423543772
SQUARE = numbers(2, 3, 3) + 3 * np.eye(3)
POSITIVE = SQUARE @ np.swapaxes(SQUARE, 1, 2)
S = Sample

SAMPLES: dict[str, list[Sample]] = {
    # arithmetic
    "add": binary(np.add),
    "subtract": binary(np.subtract),
    "multiply": binary(np.multiply),
    "divide": binary(np.divide, 0.5),
    "floor_divide": binary(np.floor_divide, 0.3, gradient=True),
    "remainder": binary(np.remainder, 0.3) + binary(np.remainder, -9.0, -0.8),
    "power": [
        *binary(np.power, 0.3),
        S((numbers(3, 5), 3), {}, np.power, halves=True),
        S((numbers(3, 5), -2), {}, np.power, 64),
        S((2.5, numbers(3, 5)), {}, np.power, halves=True),
    ],
    "maximum": binary(np.maximum),
    "minimum": binary(np.minimum),
    "arctan2": binary(np.arctan2),
    "logaddexp": binary(np.logaddexp),
    "negative": unary(np.negative),
    "absolute": unary(np.absolute),
    "sign": unary(np.sign),
    "reciprocal": unary(np.reciprocal, 0.3),
    "square": unary(np.square),
    "sqrt": unary(np.sqrt, 0.1),
    "rsqrt": unary(lambda x: 1 / np.sqrt(x), 0.1, roundings=16),
    "exp": unary(np.exp),
    "expm1": unary(np.expm1),
    "log": unary(np.log, 0.1),
    "log1p": unary(np.log1p, -0.7),
    "log2": unary(np.log2, 0.1),
    "sin": unary(np.sin),
    "cos": unary(np.cos),
    "tan": unary(np.tan, -1.2, 1.2, roundings=16),
    "sinh": unary(np.sinh),
    "cosh": unary(np.cosh),
    "tanh": unary(np.tanh),
    "arcsin": unary(np.arcsin, -0.9, 0.9, roundings=16),
    "arccos": unary(np.arccos, -0.9, 0.9, roundings=16),
    "arctan": unary(np.arctan),
    "arcsinh": unary(np.arcsinh),
    "arccosh": unary(np.arccosh, 1.3, 4, roundings=16),
    "arctanh": unary(np.arctanh, -0.9, 0.9, roundings=32),
    "erf": unary(erf),
    "floor": unary(np.floor),
    "ceil": unary(np.ceil),
    "trunc": unary(np.trunc),
    "round": [*unary(np.round), S((numbers(5) * 40,), {"decimals": -1}, np.round)],
    "clip": [
        S((numbers(3, 5),), a, lambda x, **k: np.clip(x, k.get("min"), k.get("max")),
          halves=True)
        for a in ({"min": -0.8, "max": 1.1}, {"min": 0.1}, {"max": 0.1}, {})
    ],
    "nan_to_num": [
        S((np.array([1.0, np.nan, np.inf, -np.inf]),), a, np.nan_to_num, halves=True)
        for a in ({"posinf": 9.0, "neginf": -9.0}, {"nan": 2.0, "posinf": 3.0,
                                                    "neginf": -1.0})
    ],
    "masked_fill": [
        S(
            (numbers(3, 5), numbers(3, 5, seed=1) > 0),
            {"value": 2.0},
            lambda x, m, value: np.where(m, value, x),
        ),
    ],
    "where": [
        S((numbers(3, 5) > 0, numbers(3, 5), numbers(3, 5, seed=1)), {}, np.where),
        S((numbers(3, 1) > 0, numbers(5), 1), {}, np.where, free=False),
        S((numbers(3, 1) > 0, 0.5, numbers(2, 1, 5)), {}, np.where, free=False),
    ],
    # comparison, logic, bits
    "equal": compared(np.equal),
    "not_equal": compared(np.not_equal),
    "less": compared(np.less),
    "less_equal": compared(np.less_equal),
    "greater": compared(np.greater),
    "greater_equal": compared(np.greater_equal),
    "isnan": compared(None)[:1] and [
        S(c.args[:1], {}, np.isnan, gradient=False) for c in compared(None)
    ],
    "isinf": [S(c.args[:1], {}, np.isinf, gradient=False) for c in compared(None)],
    "isfinite": [S(c.args[:1], {}, np.isfinite, gradient=False)
                 for c in compared(None)],
    "logical_and": logic(np.logical_and),
    "logical_or": logic(np.logical_or),
    "logical_xor": logic(np.logical_xor),
    "logical_not": [S(c.args[:1], {}, np.logical_not, gradient=False)
                    for c in logic(None)],
    "bitwise_and": bits(np.bitwise_and),
    "bitwise_or": bits(np.bitwise_or),
    "bitwise_xor": bits(np.bitwise_xor),
    "bitwise_not": [S(c.args[:1], {}, np.bitwise_not, gradient=False)
                    for c in bits(None) + logic(None)[:1]],
    "left_shift": bits(np.left_shift),
    "right_shift": bits(np.right_shift),
    # reductions
    "sum": reduced(np.sum),
    "mean": reduced(np.mean),
    "prod": [
        *reduced(np.prod, 0.5, 1.6, roundings=64),
        S((np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0]]),), {"axis": 1}, np.prod),
    ],
    "max": reduced(np.max),
    "min": reduced(np.min),
    "var": [
        *reduced(np.var, roundings=16),
        S((numbers(3, 5),), {"axis": 1, "ddof": 1}, np.var),
    ],
    "std": [*reduced(np.std, roundings=16), S((numbers(3, 5),), {"ddof": 1}, np.std)],
    "any": [S((x,), a, np.any, gradient=False)
            for x in (numbers(3, 5) > 1.5, np.array([[0.0, np.nan], [0.0, -0.0]]))
            for a in ({}, {"axis": 1}, {"axis": (0, 1), "keepdims": True})],
    "all": [S((x,), a, np.all, gradient=False)
            for x in (numbers(3, 5) > -1.5, np.array([[1.0, np.nan], [0.0, 1.0]]))
            for a in ({}, {"axis": 1}, {"axis": (0, 1), "keepdims": True})],
    "argmax": [
        *one_axis(np.argmax, gradient=False),
        S((ints([3, 9, 9], [7, 7, 1]),), {"axis": 1, "keepdims": True}, np.argmax,
          gradient=False),
        S((np.array([1.0, np.nan, 5.0, np.nan]),), {}, np.argmax, gradient=False),
        S((np.array([[False, True], [True, True]]),), {}, np.argmax, gradient=False),
    ],
    "argmin": [
        *one_axis(np.argmin, gradient=False),
        S((ints([3, 1, 1], [7, 7, 9]),), {"axis": 1, "keepdims": True}, np.argmin,
          gradient=False),
        S((np.array([1.0, np.nan, -5.0, np.nan]),), {}, np.argmin, gradient=False),
    ],
    "logsumexp": reduced(logsumexp),
    "norm": [
        *(s for o in (1, 2, "inf") for s in [
            S((numbers(3, 5),), {"ord": o}, norm),
            S((numbers(3, 4, 5),), {"ord": o, "axis": (0, 2), "keepdims": True}, norm),
        ]),
    ],
    "count_nonzero": [
        S((ints([0, 2, -1], [0, 0, 5]),), a, np.count_nonzero, gradient=False)
        for a in ({}, {"axis": 0}, {"axis": (0, 1), "keepdims": True})
    ],
    "cumsum": one_axis(np.cumsum),
    "cumprod": one_axis(np.cumprod, roundings=64),
    "median": [
        S((numbers(3, 4, 5),), {}, np.median, free=False),
        S((numbers(3, 4, 5),), {"axis": 1}, np.median),
        S((numbers(3, 4, 5),), {"axis": -1, "keepdims": True}, np.median),
        S((numbers(3, 4),), {"keepdims": True}, np.median, free=False),
        S((np.array([[1.0, np.nan, 2.0], [4.0, 3.0, 9.0]]),), {"axis": 1}, np.median,
          gradient=False),
    ],
    # shapes
    "identity": unary(lambda x: x),
    "shape": [
        Sample((numbers(3, 5),), {}, lambda x: np.array(x.shape), gradient=False)
    ],
    "size": [
        Sample((numbers(3, 5),), {}, lambda x: np.array(x.size), gradient=False),
        Sample((numbers(3, 5),), {"axis": 1}, lambda x, axis: np.array(5),
               gradient=False),
    ],
    "reshape": [
        S((numbers(4, 6),), {"shape": (2, 12)}, np.reshape, free=False),
        S((numbers(4, 6),), {"shape": (-1, 2, 3)}, np.reshape),
        S((numbers(1),), {"shape": ()}, np.reshape, free=False),
    ],
    "flatten": [
        S((numbers(2, 3, 4),), {}, np.ravel),
        S((numbers(2, 3, 4),), {"start": 1}, lambda x, **_: x.reshape(2, 12)),
        S((numbers(2, 3, 4),), {"start": -3, "stop": -1},
          lambda x, **_: x.reshape(6, 4)),
        S((np.array(2.0),), {}, np.ravel, free=False),
    ],
    "unflatten": [
        S((numbers(2, 3, 4),), {"sizes": (2, -1)},
          lambda x, **_: x.reshape(2, 3, 2, 2)),
        S((numbers(2, 6, 4),), {"axis": 1, "sizes": (2, 3)},
          lambda x, **_: x.reshape(2, 2, 3, 4)),
    ],
    "transpose": [
        S((numbers(2, 3, 4),), {}, np.transpose),
        S((numbers(2, 3, 4),), {"axes": (1, 2, 0)}, np.transpose),
        S((numbers(2, 3, 4),), {"axes": (0, -1, 1)}, np.transpose),
    ],
    "swapaxes": [
        S((numbers(2, 3, 4),), {}, lambda x: np.swapaxes(x, 1, 2)),
        S((numbers(2, 3, 4),), {"axis1": 0, "axis2": -1}, np.swapaxes),
    ],
    "moveaxis": [
        S((numbers(2, 3, 4),), {"source": 0, "destination": -1}, np.moveaxis),
        S((numbers(2, 3, 4),), {"source": (0, 1), "destination": (2, 0)}, np.moveaxis),
    ],
    "squeeze": [
        S((numbers(3, 1, 1),), {"axis": 1}, np.squeeze),
        S((numbers(3, 1, 1),), {"axis": (1, -1)}, np.squeeze),
        S((numbers(3, 1, 2, 1),), {}, np.squeeze, free=False),
    ],
    "expand_dims": [
        S((numbers(3, 2),), {"axis": a}, np.expand_dims)
        for a in (0, -1, (0, 2), (1, -1))
    ],
    "broadcast_to": [
        S((numbers(3, 1),), {"shape": (2, 3, 4)}, np.broadcast_to, free=False),
        S((numbers(3, 1),), {"shape": (-1, 4)},
          lambda x, **_: np.broadcast_to(x, (3, 4))),
    ],
    "concat": [
        S((numbers(3, 2), numbers(3, 4)), {"axis": 1},
          lambda *x, axis: np.concatenate(x, axis)),
        S((numbers(3, 2), ints([1, 2]), numbers(1, 2)), {},
          lambda *x: np.concatenate(x), free=False),
    ],
    "stack": [
        S((numbers(3, 2), numbers(3, 2, seed=1)), {"axis": a},
          lambda *x, axis: np.stack(x, axis)) for a in (0, 1, -1)
    ],
    "split": [
        S((numbers(3, 6),), {"sections": 3, "index": 1, "axis": 1},
          lambda x, **_: x[:, 2:4]),
        S((numbers(3, 6),), {"sections": (1, 5), "index": -1, "axis": -1},
          lambda x, **_: x[:, 1:]),
    ],
    "flip": [S((numbers(3, 4, 5),), {"axis": a}, np.flip) for a in (None, 0, (1, -1))],
    "roll": [
        S((numbers(3, 4),), {"shift": 2, "axis": -1}, np.roll),
        S((numbers(3, 4),), {"shift": (1, -2), "axis": (0, 1)}, np.roll, free=False),
        S((numbers(3, 4),), {"shift": 1, "axis": (0, 1)}, np.roll, free=False),
        S((numbers(3, 4),), {"shift": -5}, np.roll, free=False),
    ],
    "tile": [
        S((numbers(3, 2),), {"reps": r}, np.tile, free=False)
        for r in (2, (2, 1, 2), (3,))
    ],
    "repeat": [
        S((numbers(3, 2),), {"repeats": 2, "axis": a}, np.repeat, free=False)
        for a in (None, 0, -1)
    ],
    "pad": [
        S((numbers(4, 5),), {"widths": ((0, 0), (2, 1)), "value": 7.0},
          lambda x, widths, value: np.pad(x, widths, constant_values=value)),
        S((numbers(4, 5),), {"widths": ((1, 2), (3, 0)), "mode": "edge"}, pad,
          free=False),
        S((numbers(4, 5),), {"widths": ((3, 0), (6, 1)), "mode": "reflect"}, pad,
          free=False),
        S((numbers(4, 5),), {"widths": ((0, 1), (2, 6)), "mode": "symmetric"}, pad,
          free=False),
    ],
    "zeros_like": [
        S((numbers(3, 2),), {}, np.zeros_like),
        S((numbers(3, 2),), {"dtype": "int32"}, np.zeros_like),
    ],
    "ones_like": [
        S((ints(3, 2),), {}, np.ones_like, gradient=False),
        S((numbers(3, 2),), {"dtype": "bool"}, np.ones_like),
    ],
    "full_like": [
        S((numbers(3, 2),), {"value": 2.5},
          lambda x, value: np.full_like(x, value)),
    ],
    "zeros": [S((), {"shape": (2, 3)}, np.zeros, gradient=False)],
    "ones": [S((), {"shape": (2,), "dtype": "int32"}, np.ones, gradient=False)],
    "full": [
        S((), {"shape": (2,), "value": 3},
          lambda shape, value: np.full(shape, value, np.int32), gradient=False),
        S((), {"shape": (), "value": 2.5},
          lambda shape, value: np.full(shape, value), gradient=False),
    ],
    "arange": [
        S((), {"stop": 4}, lambda **_: np.arange(4, dtype=np.int32), gradient=False),
        S((), {"start": 7, "stop": 1, "step": -2},
          lambda **_: np.arange(7, 1, -2, dtype=np.int32), gradient=False),
        S((), {"start": 7, "stop": 1},
          lambda **_: np.arange(7, 1, dtype=np.int32), gradient=False),
        S((), {"start": 1, "stop": 2.0, "step": 0.25},
          lambda **_: np.arange(1, 2.0, 0.25), gradient=False),
    ],
    "eye": [
        S((), {"rows": 3}, lambda **_: np.eye(3), gradient=False),
        S((), {"rows": 2, "columns": 4, "k": 1, "dtype": "int32"},
          lambda **_: np.eye(2, 4, 1, dtype=np.int32), gradient=False),
    ],
    "cast": [
        S((numbers(3, 2) * 9,), {"dtype": "int32"}, lambda x, dtype: x.astype(dtype)),
        S((np.array([0.0, 0.5, np.nan]),), {"dtype": "bool"},
          lambda x, dtype: x.astype(dtype)),
        S((numbers(3, 2),), {"dtype": "bfloat16"},
          lambda x, dtype: x.astype(np.float32).astype(ml_dtypes.bfloat16)),
        S((ints(1, 2),), {"dtype": "float16"}, lambda x, dtype: x.astype(dtype),
          gradient=False),
    ],
    "stop_gradient": unary(lambda x: x),
    # indexing
    "index_by_arrays": [
        S((numbers(3, 4, 5), *at), {"index": i}, lambda x, *at, index, k=k: x[k(*at)])
        for at, i, k in [
            (
                (np.array([2, 0]), np.array([-1, 1])),
                (("array", 0), ("array", 1)),
                lambda a, b: (a, b),
            ),
            (
                (np.array([[1, 0]]),),
                (("slice", 1, None, None), ("array", 0), None),
                lambda a: np.s_[1:, a, None],
            ),
            (
                (np.array([1, 0]),),
                (0, "...", ("array", 0)),
                lambda a: np.s_[0, ..., a],
            ),
        ]
    ],
    "getitem": [
        S((numbers(3, 4, 5),), {"index": i}, lambda x, index, k=k: x[k])
        for i, k in [
            ((1,), 1),
            ((("slice", None, None, None), -1), np.s_[:, -1]),
            (("...", None, ("slice", 1, 4, 2)), np.s_[..., None, 1:4:2]),
            ((None, ("slice", 0, None, None), 2, "..."), np.s_[None, 0:, 2, ...]),
            ((("slice", None, 2, None), ("slice", None, None, -1)), np.s_[:2, ::-1]),
            (("...", ("slice", 3, 0, -2), ("slice", -1, None, -3)),
             np.s_[..., 3:0:-2, -1::-3]),
            ((0, 1, ("slice", 1, 4, -1)), np.s_[0, 1, 1:4:-1]),
            ((), np.s_[()]),
        ]
    ],
    "take": [
        S((numbers(3, 4), ints([2, 0], [-1, 2])), {"axis": a}, np.take, free=False)
        for a in (0, 1, -1, None)
    ] + [
        S((numbers(3, 4), ints(2, 9, -1)), {"axis": 0, "mode": "clip"}, np.take,
          free=False),
        S((numbers(3, 4), np.array(1, np.int32)), {"axis": 1}, np.take, free=False),
    ],
    "take_along_axis": [
        S((numbers(3, 4), ints([0, -1], [3, 1], [2, 2])), {}, np.take_along_axis),
        S((numbers(3, 4), ints([0, 2, 1, -3])), {"axis": 0}, np.take_along_axis,
          free=False),
    ],
    "scatter_add": [
        S((numbers(3, 4), ints(2, 0, 2, -1), numbers(4, 4, seed=1)), {}, None,
          free=False),
        S((numbers(3, 4), ints(1, 1), numbers(3, 2, seed=1)), {"axis": 1}, None,
          free=False),
        S((numbers(3, 4), ints(1, 7), numbers(2, 4, seed=1)), {}, None, free=False),
    ],
    "one_hot": [
        S((ints([0, 2], [1, 5]),), {"classes": 3},
          lambda x, classes: np.append(np.eye(3), np.zeros((3, 3)), 0)[x],
          gradient=False),
        S((ints(0, 2),), {"classes": 3, "axis": 0, "dtype": "int32"},
          lambda x, **_: np.eye(3, dtype=np.int32)[x].T, gradient=False),
    ],
    "sort": [
        *one_axis(lambda x, axis=-1: np.sort(x, axis)),
        S((numbers(3, 4),), {"descending": True}, lambda x, **_: -np.sort(-x, -1)),
        S((np.array([1.0, np.nan, -np.inf, np.inf, 0.0]),), {}, np.sort,
          gradient=False),
    ],
    "argsort": [
        S((ints([3, 1, 3, 1], [0, 0, 2, 0]),), {}, None, gradient=False),
        S((ints([3, 1, 3, 1], [0, 0, 2, 0]),), {"axis": 0}, None, gradient=False),
        S((ints([3, 1, 3, 1], [0, 0, 2, 0]),), {"descending": True}, None,
          gradient=False),
    ],
    "top_k": [
        S((numbers(3, 4),), {"k": 2}, lambda x, k: -np.sort(-x, -1)[:, :k]),
        S((ints([3, 9, 9, 1, 9],),), {"k": 3}, None, gradient=False),
    ],
    "tril": [S((numbers(3, 4, 4),), {"k": k}, np.tril) for k in (0, -1, 2)],
    "triu": [S((numbers(3, 4, 4),), {"k": k}, np.triu) for k in (0, -1, 2)],
    "diagonal": [
        S((numbers(3, 4, 5),), {}, np.diagonal, free=False),
        S((numbers(3, 4, 5),), {"offset": -1, "axis1": 1, "axis2": -1}, np.diagonal),
    ],
    # linear algebra
    "matmul": [
        S((numbers(*a), numbers(*b, seed=1)), {}, np.matmul, 32, free=len(b) == 3)
        for a, b in [
            ((4, 3), (3, 2)), ((3,), (3,)), ((3,), (3, 2)), ((4, 3), (3,)),
            ((2, 4, 3), (2, 3, 2)), ((2, 4, 3), (3, 2)), ((5, 1, 4, 3), (2, 3, 2)),
            ((2, 4, 3), (3,)),
        ]
    ],
    "dot": [
        S((numbers(*a), numbers(*b, seed=1)), {}, np.dot, 32, free=False)
        for a, b in [
            ((4, 3), (3, 2)), ((3,), (3,)), ((2, 4, 3), (5, 3, 2)), ((4, 3), (3,)),
            ((), (3,)),
        ]
    ],
    "outer": [S((numbers(2, 2), numbers(3, seed=1)), {}, np.outer)],
    "einsum": [
        S((numbers(2, 3), numbers(3, 4, seed=1)), {"equation": "ij,jk->ki"},
          lambda x, y, equation: np.einsum(equation, x, y), 32, free=False),
        S((numbers(2, 3, 3),), {"equation": "bii->b"},
          lambda x, equation: np.einsum(equation, x), 32),
        S((numbers(2, 3), numbers(2, 4), numbers(2, 5)), {"equation": "bi,bj,bk->b"},
          lambda *x, equation: np.einsum(equation, *x), 64),
    ],
    "tensordot": [
        S((numbers(2, 3, 4), numbers(3, 4, 2)), {}, np.tensordot, 32, free=False),
        S((numbers(2, 3, 4), numbers(4, 5)), {"axes": 1}, np.tensordot, 32, free=False),
        S((numbers(2, 3), numbers(4, 2)), {"axes": (0, 1)}, np.tensordot, 32,
          free=False),
    ],
    "trace": [
        S((numbers(3, 4, 5),), {"offset": 1, "axis1": 1, "axis2": 2}, np.trace),
        S((numbers(4, 4),), {}, np.trace, free=False),
    ],
    "cholesky": [S((POSITIVE,), {}, np.linalg.cholesky, 256)],
    "solve": [
        S((SQUARE, numbers(2, 3, 4)), {}, np.linalg.solve, 512),
        S((SQUARE[0], numbers(3)), {}, np.linalg.solve, 512, free=False),
    ],
    "inverse": [S((SQUARE,), {}, np.linalg.inv, 512)],
    "determinant": [S((SQUARE,), {}, np.linalg.det, 512)],
    # activations
    "relu": unary(lambda x: np.maximum(x, 0)),
    "relu6": unary(lambda x: np.clip(x, 0, 6), -4, 9),
    "leaky_relu": [
        *unary(lambda x: np.where(x > 0, x, 0.01 * x)),
        S((numbers(3, 5),), {"slope": 0.3},
          lambda x, slope: np.where(x > 0, x, 0.3 * x)),
    ],
    "prelu": [S((numbers(3, 5), numbers(5, seed=1)), {},
                lambda x, w: np.where(x > 0, x, w * x), halves=True, free=False)],
    "elu": [
        *unary(lambda x: np.where(x > 0, x, np.expm1(x))),
        S((numbers(3, 5),), {"alpha": 0.4},
          lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x))),
    ],
    "celu": [
        S((numbers(3, 5),), {"alpha": 0.4},
          lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x / alpha)),
          halves=True),
        *unary(lambda x: np.where(x > 0, x, np.expm1(x))),
    ],
    "selu": unary(
        lambda x: selu_scale * np.where(x > 0, x, selu_alpha * np.expm1(x))),
    "silu": unary(lambda x: x * sigmoid(x)),
    "swish": [
        *unary(lambda x: x * sigmoid(x)),
        S((numbers(3, 5),), {"beta": 1.7}, lambda x, beta: x * sigmoid(beta * x)),
    ],
    "gelu": [
        *unary(lambda x: x * (1 + erf(x / 2 ** 0.5)) / 2, -6, 6),
        S((numbers(3, 5),), {"approximate": True},
          lambda x, **_: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715
          * x ** 3))), halves=True),
    ],
    "sigmoid": unary(sigmoid, -9, 9),
    "log_sigmoid": unary(lambda x: -softplus(-x), -30, 30),
    "hard_sigmoid": unary(hard_sigmoid, -5, 5),
    "hard_swish": unary(lambda x: x * hard_sigmoid(x), -5, 5),
    "hard_tanh": unary(lambda x: np.clip(x, -1, 1)),
    "softplus": unary(softplus, -30, 30),
    "softsign": unary(lambda x: x / (1 + np.abs(x))),
    "mish": unary(lambda x: x * np.tanh(softplus(x)), -9, 9),
    "softmax": [S((numbers(3, 5),), {}, softmax, halves=True),
                S((numbers(3, 4, 5),), {"axis": 1}, softmax),
                S((numbers(3, 4, 5),), {"axis": (1, -1)}, softmax, 32)],
    "log_softmax": [
        S((numbers(3, 5),), {}, lambda x: np.log(softmax(x)), halves=True),
        S((numbers(3, 4, 5),), {"axis": 1}, lambda x, axis: np.log(softmax(x, axis))),
        S((numbers(3, 4, 5),), {"axis": (1, -1)},
          lambda x, axis: np.log(softmax(x, axis)), 32)],
    "glu": [S((numbers(3, 6),), {}, lambda x: x[:, :3] * sigmoid(x[:, 3:])),
            S((numbers(3, 4, 5),), {"axis": 1},
              lambda x, axis: x[:, :2] * sigmoid(x[:, 2:]))],
}  # fmt: skip
