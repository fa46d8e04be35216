"""Operators, indexing and methods on connections make layers."""

import importlib.util
import operator
from typing import Any

import numpy as np
import pytest

import frugax as ml
from frugax.models import IOKey, Model, op
from refusals import refuses

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
    with refuses(TypeError, "value"):
        bool(y == 3)
    with refuses(TypeError, "x[i]"):
        list(y)
    with refuses(TypeError, "integers"):
        y["first"]
    assert len({y, x()}) == 2  # hashed by identity


# Expressions of connections, and the same with NumPy: x and y are (2, 3, 4), j is (2,).
EXPRESSIONS = """
x.sum(dim=1,keepdim=True)=x.sum(1,keepdims=True)
x.var(axis=1,correction=1)=x.var(1,ddof=1)
x.T=x.T
x.mT=x.swapaxes(-1,-2)
x.permute(0,2,1)=x.transpose(0,2,1)
x.view(2,12)=x.reshape(2,12)
x.flatten(start_dim=1)=x.reshape(2,12)
x.flatten(start_dim=0,end_dim=1)=x.reshape(6,4)
x.unsqueeze(0)=x[None]
x.split(2,axis=2)[1]=np.split(x,2,2)[1]
x.split((1,3),axis=2)[1]=x[...,1:]
x.chunk(2,-1)[0]=x[...,:2]
x.topk(2)[0]=-np.sort(-x,-1)[...,:2]
x.masked_fill(x>0,0.0)=np.where(x>0,0.0,x)
round(x,1)=np.round(x,1)
x.einsum('bij->bji')=x.swapaxes(1,2)
op('concat',axis=-1)([x,y])=np.concatenate([x,y],-1)
x[[0,1]]=x[[0,1]]
x[[1,0],:,::2]=x[[1,0],:,::2]
x[:,[0,2]]=x[:,[0,2]]
x[[0,1],[1,2]]=x[[0,1],[1,2]]
x[np.array([1,0])]=x[[1,0]]
x[...,j]=x[...,j]
x[0,j]=x[0,j]
x[j,j]=x[j,j]
x[j,:,0]=x[j,:,0]
x[j,1:]=x[j,1:]
x[None,j]=x[None,j]
x[:,j,None,-1]=x[:,j,None,-1]
x[-1,:,[0,3]]=x[-1,:,[0,3]]
x.reshape(6,-1).reshape(x.shape)=x
x.reshape(x.shape[:2]+(2,2))=x.reshape(2,3,2,2)
x.reshape((2,)+x.shape[1:])=x
x.reshape(x.shape[:1]+y.shape[1:])=x
x.reshape(x.shape[::-1])=x.reshape(4,3,2)
x.reshape(x.size(dim=0),-1)=x.reshape(2,12)
x.size(axis=(0,1))=np.asarray(6)
x.norm(ord=3,axis=1)=np.linalg.norm(x,3,axis=1)
x.repeat((1,0,2),axis=1)=np.repeat(x,(1,0,2),1)
"""


def test_expressions_equal_numpy_on_both_libraries():
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(2, 3, 4)), "y": rng.normal(size=(2, 3, 4))}
    arrays["j"] = np.array([1, 0], "int32")
    keys = {k: IOKey(k, shape=v.shape) for k, v in arrays.items()}
    keys["j"] = IOKey("j", shape=(2,), dtype="int32")
    texts = EXPRESSIONS.strip().split("\n")
    pairs = {f"e{i}": _halves(text) for i, text in enumerate(texts)}
    model = Model.create(
        **{k: eval(a, {"np": np, "op": op} | keys) for k, (a, _) in pairs.items()}
    )
    backends: list[Any] = [ml.JaxBackend(dtype="float64", jit=False)]
    if importlib.util.find_spec("torch") is not None:
        backends.append(ml.TorchBackend(dtype="float64"))
    for backend in backends:
        made = ml.compile(model, backend).evaluate({}, arrays)
        for key, (ours, theirs) in pairs.items():
            want, got = eval(theirs, {"np": np} | arrays), np.asarray(made[key])
            assert got.shape == want.shape, (backend, ours)
            np.testing.assert_allclose(got, want, 1e-9, 1e-9, err_msg=ours)


def _halves(text):
    """The two sides of the last `=` that is not inside of brackets."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "=" and not depth:
            return text[:i], text[i + 1 :]
    raise ValueError(text)


def test_an_array_as_an_index_out_of_range_reads_nan():
    y = x((2, 3))
    key = IOKey("j", shape=(2,), dtype="int32")
    model = Model.create(picked=y[key, 1:])
    made = evaluate(model, {"x": X, "j": np.array([-1, 2], "int32")})["picked"]
    np.testing.assert_array_equal(made, [X[-1, 1:], [np.nan, np.nan]])


def test_gradients_of_an_indexed_connection_reach_their_entries():
    w = IOKey("w", shape=(3, 2), trainable=True)
    model = Model.create(y=w[np.array([2, 0, 2]), :1])
    compiled = ml.compile(model, ml.JaxBackend())
    _, grads = compiled.evaluate(
        {"w": np.zeros((3, 2), "f")}, {}, {"y": np.ones((3, 1), "f")}
    )
    np.testing.assert_array_equal(grads["w"], [[1, 0], [0, 0], [2, 0]])


def test_a_split_by_name_is_refused_and_not_cut_short():
    model = Model()
    with refuses(ValueError, "split"):
        model |= op("split", sections=2)(input="x", output="y")


def test_the_text_of_a_connection_stays_short():
    y = x()
    for _ in range(60):
        y = y + y  # written out, each sum would hold two of the one before
    assert repr(y) == "<output of op add>"
    with refuses(TypeError, "IOKey"):
        y.reshape(y, -1)
