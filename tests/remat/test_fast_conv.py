"""`fast_convolutions` keeps the values and derivatives of a function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from draws import normal
from frugax import jaxprs, remat
from frugax.remat.rewrite import active_variables
from frugax.remat.solver import find_residuals
from tiers import mostly_thorough

SPECS = {"NHWC": ("NHWC", "HWIO", "NHWC"), "NCHW": ("NCHW", "OIHW", "NCHW")}


def conv(x, w, spec="NHWC", groups=1):
    return lax.conv_general_dilated(
        x,
        w,
        (1, 1),
        "SAME",
        dimension_numbers=SPECS[spec],
        feature_group_count=groups,
    )


def data(spec="NHWC", groups=1, layers=3):
    x = normal(0, 2, 6, 6, 4)
    w = normal(1, layers, 3, 3, 4 // groups, 4, scale=1 / 6)
    if spec == "NCHW":
        return w.transpose(0, 4, 3, 1, 2), x.transpose(0, 3, 1, 2)
    return w, x


def scanned(w, x, conv=conv):
    return lax.scan(lambda c, w: (jnp.tanh(conv(c, w)), None), x, w)[0].sum()


def branched(w, x, conv=conv):
    for k in w:
        x = lax.cond(x.sum() < 1e6, lambda x, k=k: jnp.sin(conv(x, k)), jnp.cos, x)
    return x.sum()


def looped(w, x, conv=conv):  # as `fori_loop` with a fixed number of iterations: a scan
    one = lambda i, c: jnp.tanh(conv(c, w[i]))
    return lax.fori_loop(0, 3, one, x).sum()


def assert_close(got, wanted, tolerance=1e-5):
    for g, w in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
        assert g.dtype == w.dtype
        scale = np.abs(w).max(initial=0)
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("net", [scanned, branched, looped])
@pytest.mark.parametrize(
    ("spec", "groups"),
    [("NHWC", 2)]
    + [
        pytest.param(spec, groups, marks=pytest.mark.thorough)
        for spec, groups in [("NCHW", 1), ("NHWC", 4)]
    ],
)
def test_gradients_equal_those_of_the_function(net, spec, groups):
    def loss(w, x):
        return net(w, x, conv=lambda x, w: conv(x, w, spec, groups))

    both = jax.value_and_grad(remat.fast_convolutions(loss), (0, 1))
    wanted = jax.jit(jax.value_and_grad(loss, (0, 1)))
    args = data(spec, groups)
    assert_close(both(*args), wanted(*args))
    if net is not scanned:
        return
    with jax.enable_x64(True):
        args = [a.astype("float64") for a in data(spec, groups)]
        assert_close(both(*args), wanted(*args), 1e-12)


W, X = data()
DERIVATIVES = {
    "of a gradient": lambda f: remat.fast_convolutions(jax.grad(f))(W, X),
    "forward": lambda f: jax.jvp(remat.fast_convolutions(f), (W, X), (W, X)),
    "second": lambda f: jax.hessian(lambda s: remat.fast_convolutions(f)(s * W, X))(
        1.0
    ),
    "vmap of data": lambda f: jax.vmap(jax.grad(remat.fast_convolutions(f)), (None, 0))(
        W, X[:, None]
    ),
    "vmap of kernels": lambda f: jax.vmap(jax.grad(remat.fast_convolutions(f)))(
        jnp.stack([W, 2 * W]), X[:, None]
    ),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(remat.fast_convolutions(f)))(W, X),
}


@pytest.mark.parametrize(
    "kind",
    mostly_thorough(
        DERIVATIVES, in_ci=lambda k: k in {"second", "vmap of data", "checkpoint"}
    ),
)
def test_other_derivatives_equal_those_of_the_function(kind, monkeypatch):
    got = DERIVATIVES[kind](scanned)
    monkeypatch.setattr(remat, "fast_convolutions", lambda f: f)
    # Second derivatives cancel: an order of magnitude is lost.
    assert_close(got, DERIVATIVES[kind](scanned), 1e-4 if kind == "second" else 1e-5)


def test_a_loop_whose_rounds_are_not_known_goes_forward():
    def net(w, x):
        return lax.while_loop(lambda c: c.sum() > 0, lambda c: conv(c, w[0]) - 1, x)

    args = W, jnp.abs(X)
    fast = remat.fast_convolutions(net)
    assert_close(fast(*args), net(*args))
    assert_close(jax.jvp(fast, args, args), jax.jvp(net, args, args))


def test_the_gradient_of_the_result_holds_fast_convolutions_only():
    closed = jax.make_jaxpr(jax.grad(remat.fast_convolutions(scanned), (0, 1)))(W, X)
    text = str(closed)
    assert text.count("= fast_convolution[") == 3  # there, and back to both
    assert "conv_general_dilated[" not in text


def test_inside_a_users_loop_the_option_is_needed():
    def steps(fn):
        def one(w, _):
            return w - 0.1 * jax.grad(fn)(w, X), None

        return lambda w: lax.scan(one, w, length=3)[0]

    loss = lambda w, x: conv(x, w).sum()
    seen = remat.fast_convolutions(loss)
    told = remat.fast_convolutions(loss, everywhere=True)
    text = lambda fn: str(jax.make_jaxpr(steps(fn))(W[0]))
    assert "fast_convolution[" not in text(seen)
    assert "conv_general_dilated[" not in text(told)
    assert_close(jax.jit(steps(told))(W[0]), jax.jit(steps(loss))(W[0]))


def test_trees_keywords_and_whole_numbers_pass_through():
    def net(params, *, x, times):
        out = scanned(params["w"], x)
        return {"out": out * times, "times": times, "none": None}

    got = remat.fast_convolutions(net)({"w": W}, x=X, times=jnp.float32(2))
    assert got["none"] is None
    assert got["times"] == 2
    assert_close(got["out"], 2 * scanned(W, X))


def test_it_is_traced_once_for_each_shape():
    traced = []

    @remat.fast_convolutions
    def net(w, x):
        traced.append(x.shape)
        return scanned(w, x)

    for x in (X, X + 1, X[:1]):
        net(W, x)
    assert traced == [X.shape, X[:1].shape]


def test_a_rule_of_the_users_is_kept():
    @jax.custom_vjp
    def own(x, w):
        return conv(x, w)

    own.defvjp(lambda x, w: (own(x, w), w), lambda w, g: (3 * g, jnp.ones_like(w)))
    pull = jax.grad(remat.fast_convolutions(lambda w, x: scanned(w, x, conv=own)))
    np.testing.assert_array_equal(pull(W, X), jnp.ones_like(W))


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_backward_pass_needs_only_data_and_kernel(everywhere):
    graph = jaxprs.trace(lambda x, w: conv(x, w), (X, W[0]))
    graph = jaxprs.use_fast_convolutions(graph, everywhere=everywhere)
    (needs,) = find_residuals(graph, active_variables(graph, graph.args, graph.outputs))
    assert needs.variables == frozenset(graph.args)
    assert needs.hidden_bytes == 0
