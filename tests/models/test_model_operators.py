"""Operators, indexing and methods on connections make layers."""

import operator

import numpy as np
import pytest

from frugax.models import (
    Model,
)

from .model_cases import X, evaluate, x

BOTH = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]


@pytest.mark.parametrize("f", BOTH, ids=lambda f: f.__name__)
def test_operators_on_either_side(f):
    other = np.array([1, 2, 4], "float32")
    model = Model.create(
        left=f(x(), 2.0),
        right=f(2.0, x() + 3.5),
        array=f(x(), other),
        before=f(other, x() + 3.5),
        two=f(x(), x() + 1.5),
    )
    made = evaluate(model)
    np.testing.assert_allclose(made["left"], f(X, 2), rtol=1e-6)
    np.testing.assert_allclose(made["right"], f(2, X + 3.5), rtol=1e-6)
    np.testing.assert_allclose(made["array"], f(X, other), rtol=1e-6)
    np.testing.assert_allclose(made["before"], f(other, X + 3.5), rtol=1e-6)
    np.testing.assert_allclose(made["two"], f(X, X + 1.5), rtol=1e-6)


def test_other_operators():
    m = np.array([[1, 2], [3, 4], [5, 6]], "float32")
    y = x((2, 3))
    positive = y + 3.0
    made = evaluate(
        Model.create(
            power=positive**2,
            rpower=2.0**positive,
            matmul=y @ m,
            rmatmul=m @ y,
            negative=-y,
            absolute=abs(y),
            both=(y > 0) & (y < 2),
            one_of=(y < 0) | (y > 2),
            rand=True & (y > 0),
            ror=False | (y > 0),
            neither=~(y > 0),
        )
    )
    want = {
        "power": (X + 3) ** 2,
        "rpower": 2 ** (X + 3),
        "matmul": X @ m,
        "rmatmul": m @ X,
        "negative": -X,
        "absolute": abs(X),
        "both": (X > 0) & (X < 2),
        "one_of": (X < 0) | (X > 2),
        "rand": X > 0,
        "ror": X > 0,
        "neither": ~(X > 0),
    }
    assert set(made) == set(want)
    for key, value in want.items():
        np.testing.assert_allclose(made[key], value, rtol=1e-6, err_msg=key)


def test_indexing_and_methods():
    y = x((2, 3))
    made = evaluate(
        Model.create(
            row=y[0],
            last=y[..., -1],
            part=y[:, 1:3],
            new=y[:, None, ::2],
            total=y.sum(),
            sums=y.sum(0, keepdims=True),
            means=y.mean(-1),
            largest=y.max(axis=1),
            least=y.min(),
            flat=y.reshape(-1),
            tall=y.reshape((3, 2)),
            turned=y.transpose(),
            same=y.transpose(0, 1),
            whole=y.cast("int32"),
        )
    )
    want = {
        "row": X[0],
        "last": X[..., -1],
        "part": X[:, 1:3],
        "new": X[:, None, ::2],
        "total": X.sum(),
        "sums": X.sum(0, keepdims=True),
        "means": X.mean(-1),
        "largest": X.max(1),
        "least": X.min(),
        "flat": X.reshape(-1),
        "tall": X.reshape(3, 2),
        "turned": X.T,
        "same": X,
        "whole": X.astype("int32"),
    }
    assert set(made) == set(want)
    for key, value in want.items():
        np.testing.assert_allclose(made[key], value, rtol=1e-6, err_msg=key)
        assert made[key].shape == value.shape
    assert made["whole"].dtype == np.int32


def test_a_connection_has_no_truth_value():
    y = x()
    with pytest.raises(TypeError, match="no value"):
        bool(y == 3)
    with pytest.raises(TypeError, match="iterated"):
        list(y)
    with pytest.raises(TypeError, match="integers, slices"):
        y["first"]
    assert len({y, x()}) == 2  # hashed by identity
