"""Eager calls by NumPy's names equal NumPy on both libraries."""

import importlib.util
from typing import Any

import numpy as np
import pytest

import frugax as ml
from refusals import refuses
from tiers import mostly_thorough

X = np.array([[0.5, -1.5, 2.0], [1.0, 0.25, -0.75]])
Y = np.array([[1.5, 2.5, -0.5], [0.1, -0.2, 0.3]])
V, W = np.array([1.0, 4.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])
M = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 4.0]])
N = np.array([[1.0, np.nan, 3.0], [0.5, 2.0, np.nan]])
I, J = np.array([3, 1, 2, 1]), np.array([1, 2])

# Each text is evaluated with `m` as NumPy and as a backend.
CALLS = """
m.abs(X)|m.absolute(X)|m.add(X,Y)|m.all(X>0)|m.any(X>0,axis=1)|m.amax(X,0)|m.amin(X,1)
m.append(V,W)|m.append(X,Y,0)|m.arange(5)|m.arange(2,5)|m.arange(0.,1.,.25)|m.arctan2(X,Y)
m.argmax(X)|m.argmax(X,1)|m.argmin(X,0)|m.argsort(V)|m.around(X,1)|m.round(X,1)
m.array_split(V,3)|m.atleast_1d(2.0)|m.atleast_1d(V)|m.atleast_2d(V)|m.atleast_3d(X)
m.average(X)|m.average(X,axis=1,weights=W)|m.ptp(X,0)|m.broadcast_to(V,(2,4))
m.broadcast_arrays(X,W)|m.cbrt(X)|m.ceil(X)|m.clip(X,-1,1)|m.column_stack([V,V])
m.concatenate([X,Y],0)|m.concatenate((X,Y),axis=1)|m.convolve(V,W)|m.convolve(V,W,'same')
m.convolve(V,W,'valid')|m.copysign(X,Y)|m.corrcoef(X)|m.cos(X)|m.count_nonzero(X>0)|m.cov(X)
m.cross(X,Y)|m.cumsum(X,0)|m.cumprod(X,1)|m.deg2rad(X)|m.radians(X)|m.degrees(X)|m.diag(V)
m.diag(V,1)|m.diag(V,-1)|m.diag(M)|m.diag(M,1)|m.diff(V)|m.diff(X,2)|m.diff(X,axis=0)
m.divide(X,Y)|m.true_divide(X,Y)|m.dot(M,W)|m.dstack([X,Y])|m.einsum('ij,kj->ik',X,Y)
m.equal(X,Y)|m.exp(X)|m.exp2(X)|m.expand_dims(X,0)|m.expm1(X)|m.eye(3)|m.eye(2,3)|m.fabs(X)
m.flip(X)|m.flip(X,0)|m.fliplr(X)|m.flipud(X)|m.floor(X)|m.floor_divide(X,Y)|m.fmax(N,X)
m.fmin(N,X)|m.fmod(X,Y)|m.mod(X,Y)|m.full((2,3),1.5)|m.full_like(X,2.0)|m.greater(X,Y)
m.heaviside(X,0.5)|m.hstack([X,Y])|m.hstack([V,W])|m.hypot(X,Y)|m.hypot(1e200*X,1e200*Y)
m.inner(V,V)|m.inner(X,Y)|m.interp(V,np.array([0.,2.,5.]),W)|m.isclose(X,X+1e-9)|m.isnan(N)
m.isfinite(N)|m.kron(M,M)|m.less(X,Y)|m.linspace(0,1,5)|m.linspace(0,1,5,endpoint=False)
m.log(V)|m.log10(V)|m.log1p(V)|m.log2(V)|m.logaddexp(X,Y)|m.logaddexp2(X,Y)|m.logspace(0,2,3)
m.logical_and(X>0,Y>0)|m.logical_xor(X>0,Y>0)|m.matmul(M,M)|m.max(X)|m.maximum(X,Y)
m.mean(X,1)|m.median(X,1)|m.meshgrid(V,W)|m.meshgrid(V,W,indexing='ij')|m.min(X)|m.minimum(X,0)
m.moveaxis(X,0,1)|m.nan_to_num(N)|m.nanmax(N,1)|m.nanmin(N,1)|m.nansum(N)|m.nanmean(N,1)
m.nanprod(N,0)|m.negative(X)|m.ones((2,3))|m.ones_like(X)|m.outer(V,W)|m.pad(X,1)
m.pad(X,((1,0),(0,2)))|m.pad(X,(1,2))|m.percentile(V,30)|m.percentile(X,[10,50],axis=1)
m.quantile(X,0.3)|m.quantile(X,0.9,axis=0)|m.polyval(W,X)|m.power(V,2)|m.prod(X)|m.rad2deg(X)
m.ravel(X)|m.reciprocal(X)|m.remainder(X,Y)|m.repeat(V,2)|m.repeat(X,2,1)|m.reshape(X,(3,2))
m.reshape(X,-1)|m.roll(V,1)|m.roll(X,1,1)|m.rot90(X)|m.rot90(X,2)|m.sign(X)|m.signbit(X)|m.sin(X)
m.sinc(X)|m.sort(V)|m.sort(X,0)|m.split(V,2)|m.split(X,3,1)|m.sqrt(V)|m.square(X)|m.squeeze(X[None])
m.stack([X,Y],0)|m.stack([X,Y],axis=-1)|m.std(X)|m.std(X,0,ddof=1)|m.subtract(X,Y)|m.sum(X,0)
m.sum(X,axis=(0,1))|m.sum(X,1,keepdims=True)|m.swapaxes(X,0,1)|m.take(V,I-1)|m.take(X,J,1)
m.tan(X)|m.tanh(X)|m.tensordot(M,M,1)|m.tile(V,2)|m.tile(X,(2,1))|m.trace(M)|m.transpose(X)
m.transpose(X,(1,0))|m.tri(3)|m.tri(2,3,1)|m.tril(M)|m.triu(M,1)|m.trunc(X)|m.vander(V)
m.vander(V,3)|m.var(X,1)|m.vdot(X,Y)|m.vsplit(X,2)|m.hsplit(V,2)|m.vstack([X,Y])|m.vstack([V,V])
m.where(X>0,X,Y)|m.zeros((2,3))|m.zeros_like(X)|m.identity(3) if m is np else m.eye(3)
m.unique(I)|m.nonzero(X>0)|m.argwhere(X>0)|m.bincount(I)|m.searchsorted(np.sort(V),W)
m.histogram(V,3)[1]|m.isin(I,J)|m.digitize(V,np.array([1.5,2.5]))|m.flatnonzero(X>0)
m.array_equal(X,X)|m.allclose(X,Y)|m.union1d(I,J)|m.shape(X)|m.size(X)|m.ndim(X)
m.linalg.norm(X) if m is np else m.norm(X)|m.linalg.inv(M) if m is np else m.inv(M)
m.linalg.det(M) if m is np else m.det(M)|m.arange(start=1,stop=7)|m.arange(stop=4)
m.argsort(X,axis=None)|m.sort(X,axis=None)|m.concatenate([X,Y],axis=None)|m.zeros(shape=(2,3))
m.full((2,),fill_value=3.0)|m.full_like(X,fill_value=2.0)|m.pad(X,pad_width=((1,0),(0,2)))
m.pad(X,1,constant_values=2.0)|m.pad(X,(1,))|m.clip(X,Y-1,Y+1)|m.clip(X,a_min=-1,a_max=1)
m.repeat(V,[1,2,0,1])|m.atleast_1d(2.0,V)|m.atleast_2d(2.0,V)|m.where(X>0)|m.identity(3)
m.linspace(0,4,3,dtype='int32')|m.eye(N=3,M=2)|m.positive(X)|m.float_power(V,2)
m.bitwise_left_shift(I,1)|m.bitwise_invert(I)|m.cumulative_prod(V,axis=0)|m.trapezoid(V)
m.nanstd(N,1)|m.nanvar(N)|m.nanmedian(N)|m.nanargmax(N)|m.gcd(I,2)|m.lcm(I,2)
m.insert(V,1,9.0)|m.delete(V,1)|m.extract(X>0,X)|m.select([X>0,X<0],[X,Y])|m.modf(X)
m.geomspace(1,8,4)|m.setxor1d(V,W)|m.unravel_index(5,(2,3))|m.partition(V,1)[1]
m.linalg.norm(V,3) if m is np else m.norm(V,3)
m.linalg.norm(X,'fro') if m is np else m.norm(X,'fro')
m.linalg.svd(M)[1] if m is np else m.svd(M)[1]|m.linalg.qr(M) if m is np else m.qr(M)
"""
TEXTS = [t for line in CALLS.strip().split("\n") for t in line.split("|")]


def _each_backend(dtype):
    yield ml.JaxBackend(dtype=dtype)
    if importlib.util.find_spec("torch") is not None:
        yield ml.TorchBackend(dtype=dtype)


def _leaves(value):
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in _leaves(part)]
    return [np.asarray(value)]


@pytest.mark.parametrize(
    "backend",
    mostly_thorough(_each_backend("float64"), in_ci=lambda b: b.name != "jax"),
    ids=lambda b: b.name,
)
def test_everyday_names_equal_numpy(backend):
    names = {"X", "Y", "V", "W", "M", "N", "I", "J"}
    here = {k: v for k, v in globals().items() if k in names}
    there = {k: backend.array(v) for k, v in here.items()}
    wrong = []
    with backend.scope():
        for text in TEXTS:
            want = _leaves(eval(text, {"m": np, "np": np} | here))
            try:
                got = _leaves(eval(text, {"m": backend, "np": np} | there))
            except Exception as e:
                wrong.append(f"{text}: {type(e).__name__} {e}"[:200])
                continue
            if text.startswith("m.shape"):
                got = _leaves(tuple(got[0]))
            if [g.shape for g in got] != [w.shape for w in want]:
                wrong.append(f"{text}: {[g.shape for g in got]}")
            elif not all(
                np.allclose(g, w, 1e-12, 1e-12, equal_nan=True)
                for g, w in zip(got, want, strict=True)
            ):
                wrong.append(f"{text}: {got}, not {want}")
            elif any(
                (g.dtype.kind, g.dtype.itemsize) != (w.dtype.kind, w.dtype.itemsize)
                for g, w in zip(got, want, strict=True)
            ):
                wrong.append(f"{text}: {[g.dtype for g in got]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("backend", [*_each_backend("float32")], ids=lambda b: b.name)
def test_integers_are_as_wide_as_the_numbers(backend):
    wide = type(backend)(dtype="float64")
    for b, dtype in ((backend, "int32"), (wide, "int64")):
        for made in (
            b.arange(3),
            b.argmax(b.ones(3)),
            b.count_nonzero(b.ones(3)),
            b.randint(0, 5, 3),
            b.array(1),
            b.shape(b.ones(2)),
        ):
            assert np.asarray(made).dtype == dtype


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda b, x: b.sum(x, foo=1),
            "foo",
        ),
        (lambda b, x: b.add(x), "add"),
        (lambda b, x: b.add(x, x, x), "add"),
        (lambda b, x: b.reshape(x), "reshape"),
        (lambda b, x: b.sum(x, input=x), "input"),
    ],
)
def test_a_wrong_eager_call_shows_the_signature(call, named):
    for b in _each_backend("float32"):
        with refuses(TypeError, named):
            call(b, b.ones(2, 2))


def test_connections_have_the_methods_of_the_table():
    from frugax.models import IOKey, Model

    x, z = IOKey("x", shape=("batch", 4, 6)), IOKey("z", shape=(1, 5))
    i = IOKey("i", shape=(2,), dtype="int32")
    flag = x > 1.0
    model = Model.create(
        a=x.reshape(x.shape[0], -1) / x.shape[2],
        b=x.exp().var(axis=0),
        c=x[:, : x.shape[1] - 1],
        d=z.broadcast_to((x.shape[0], 5)),
        e=x.sum(0, keepdims=True).sin() ** 2,
        f=x.shape,
        g=x.size(1) + x.size(),
        h=x[:, i],
        j=flag ^ (x < 3.0),
        k=(i << 2) >> 1,
        l=x.transpose(0, 2, 1).prod(1),
        m=x.abs().max((1, 2)).pow(2),
        n=x.swapaxes(1, 2).reshape(-1, x.shape[1] * 2, 3),
    )
    for n in (2, 3):
        rng = np.random.default_rng(n)
        data: dict[str, Any] = {"x": rng.normal(size=(n, 4, 6))}
        data |= {"z": rng.normal(size=(1, 5)), "i": np.array([2, 0], np.int32)}
        X, Z, I = data.values()
        want = {
            "a": X.reshape(n, -1) / 6,
            "b": np.exp(X).var(0),
            "c": X[:, :3],
            "d": np.broadcast_to(Z, (n, 5)),
            "e": np.sin(X.sum(0, keepdims=True)) ** 2,
            "f": np.array([n, 4, 6]),
            "g": np.array(4 + n * 24),
            "h": X[:, I],
            "j": (X > 1) ^ (X < 3),
            "k": (I << 2) >> 1,
            "l": X.transpose(0, 2, 1).prod(1),
            "m": np.abs(X).max((1, 2)) ** 2,
            "n": X.swapaxes(1, 2).reshape(-1, 8, 3),
        }
        for backend in _each_backend("float64"):
            got = ml.compile(model, backend).evaluate({}, data)
            for key, value in want.items():
                np.testing.assert_allclose(got[key], value, 1e-9, err_msg=key)


def test_lengths_in_attributes_survive_a_file():
    import json

    from frugax.models import IOKey, Model, layer_from_dict, layer_to_dict

    x = IOKey("x", shape=("batch", 4, 6))
    model = Model.create(a=x.reshape(x.shape[0], -1), b=x[:, : x.shape[2] // 2])
    plain = json.loads(json.dumps(layer_to_dict(model)))
    again = ml.compile(layer_from_dict(plain), ml.JaxBackend())
    out = again.evaluate({}, {"x": np.ones((3, 4, 6), np.float32)})
    assert out["a"].shape == (3, 24)
    assert out["b"].shape == (3, 3, 6)


def test_an_attribute_cannot_depend_on_data():
    from frugax.models import IOKey

    x = IOKey("x", shape=("batch", 4))
    with refuses(TypeError, "computed"):
        x.reshape(x.sum(), 2)


# Calls in the words of torch: (ours, torch's), with `b` a backend and `t` a tensor.
IN_TORCH_WORDS = [
    ("b.softmax(x, dim=0)", "torch.softmax(t, 0)"),
    ("b.sum(x, dim=1, keepdim=True)", "t.sum(1, keepdim=True)"),
    ("b.var(x, dim=1, correction=1)", "t.var(1)"),
    ("b.flatten(x, start_dim=0, end_dim=1)", "t.flatten(0, 1)"),
    ("b.cat([x, x], dim=1)", "torch.cat([t, t], 1)"),
    ("b.stack(inputs=[x, x], dim=-1)", "torch.stack([t, t], -1)"),
    ("b.unsqueeze(x, dim=-1)", "t.unsqueeze(-1)"),
    ("b.permute(x, (1, 2, 0))", "t.permute(1, 2, 0)"),
    ("b.topk(x, 2)[0]", "t.topk(2)[0]"),
    ("b.masked_fill(x, x > 0, 0.0)", "t.masked_fill(t > 0, 0.0)"),
    ("b.triu(x, diagonal=1)", "t.triu(1)"),
    ("b.where(cond=x > 0, input1=x, input2=-x)", "torch.where(t > 0, t, -t)"),
    ("b.linspace(0, 1, steps=4)", "torch.linspace(0, 1, 4, dtype=t.dtype)"),
    ("b.logit(b.sigmoid(x))", "t"),
    ("b.vecdot(x, x)", "torch.linalg.vecdot(t, t)"),
    ("b.grad(lambda v: b.sum(v * v))(x)", "2 * t"),
    ("b.value_and_grad(lambda v: b.sum(v * v))(x)[0]", "(t * t).sum()"),
    ("b.vmap(lambda v: b.sum(v))(x)", "t.sum((1, 2))"),
]


@pytest.mark.parametrize("backend", [*_each_backend("float64")], ids=lambda b: b.name)
def test_the_words_of_torch_are_taken(backend):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    wrong = []
    with backend.scope():
        for ours, theirs in IN_TORCH_WORDS:
            want = eval(theirs, {"torch": torch, "t": torch.tensor(x)}).numpy()
            try:
                got = eval(ours, {"b": backend, "x": backend.array(x)})
            except Exception as e:
                wrong.append(f"{ours}: {e}")
                continue
            got = backend.to_numpy(got)
            if got.shape != want.shape or not np.allclose(got, want):
                wrong.append(f"{ours}: {got}, not {want}")
    assert not wrong, "\n".join(wrong)


def test_short_floats_are_factorised():
    for backend in _each_backend("bfloat16"):
        matrix = backend.array([[4.0, 1.0], [1.0, 3.0]])
        for made in (
            backend.inv(matrix),
            backend.cholesky(matrix),
            backend.det(matrix),
        ):
            assert backend.to_numpy(made).dtype.name == "bfloat16"


def test_a_gradient_is_not_lost_on_the_host():
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    with refuses(TypeError, "NumPy", "unique"):
        ml.TorchBackend().unique(x)


def test_a_bound_that_torch_means_otherwise_is_asked_for_by_name():
    backend = ml.JaxBackend()
    with refuses(TypeError, "end_dim=1"):
        backend.flatten(backend.ones(2, 3, 4), 0, 1)
