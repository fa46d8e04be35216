"""Eager calls: by the names of ops, of torch, and of the library itself."""

import importlib.util
from typing import Any

import numpy as np
import pytest

import frugax as ml
from refusals import refuses


def _each_backend(dtype):
    yield ml.JaxBackend(dtype=dtype)
    if importlib.util.find_spec("torch") is not None:
        yield ml.TorchBackend(dtype=dtype)


@pytest.mark.parametrize("backend", [*_each_backend("float64")], ids=lambda b: b.name)
def test_a_name_that_is_no_op_is_the_librarys_own(backend):
    x = backend.array([[0.5, -1.5, 2.0], [1.0, 0.25, -0.75]])
    there = backend.to_numpy(x)
    with backend.scope():
        both = backend.vstack([x, x])
        distances = backend.hypot(x, x)
        values = backend.svd(x)[1]
    np.testing.assert_array_equal(backend.to_numpy(both), np.vstack([there, there]))
    np.testing.assert_allclose(backend.to_numpy(distances), np.hypot(there, there))
    np.testing.assert_allclose(
        backend.to_numpy(values), np.linalg.svd(there, compute_uv=False)
    )
    with pytest.raises(AttributeError, match="softmaxx"):
        backend.softmaxx  # noqa: B018 - the look-up is what is tested


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


def test_a_bound_that_torch_means_otherwise_is_asked_for_by_name():
    backend = ml.JaxBackend()
    with refuses(TypeError, "end_dim=1"):
        backend.flatten(backend.ones(2, 3, 4), 0, 1)
