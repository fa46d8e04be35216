"""Convolutions are replaced where XLA:CPU runs them badly, and mean the same."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax

from frugax import jaxprs

NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


def normal(shape, dtype, seed):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def fast(fn, *args, everywhere=False):
    graph = jaxprs.use_fast_convolutions(jaxprs.trace(fn, args), everywhere=everywhere)
    run = graph.run(graph.eqns, graph.inputs, graph.outputs)
    return lambda *xs: jax.tree.unflatten(graph.out_tree, run(*graph.const_values, *xs))


def names(jaxpr):
    """The operations of a program, with those inside loops and branches."""
    return [e.primitive.name for e in jaxpr.eqns] + [
        name
        for e in jaxpr.eqns
        for j in jax.tree.leaves(list(e.params.values()), is_leaf=is_program)
        if is_program(j)
        for name in names(getattr(j, "jaxpr", j))
    ]


def is_program(x):
    return isinstance(x, (jaxprs.Jaxpr, jaxprs.ClosedJaxpr))


def assert_close(got, wanted, tolerance):
    """Within `tolerance` of the largest number; sums of other lengths round alike."""
    wide = lambda x: np.asarray(x, np.result_type(np.asarray(x).dtype, np.float32))
    for g, w in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        scale = np.abs(wide(w)).max(initial=0)
        np.testing.assert_allclose(wide(g), wide(w), rtol=0, atol=tolerance * scale)


@st.composite
def convolutions(draw):
    """Shapes of data and kernel, and the parameters of one valid convolution."""
    spatial = draw(st.integers(1, 2))
    some = lambda low, high: draw(st.lists(st.integers(low, high), **of_each))
    of_each = {"min_size": spatial, "max_size": spatial}
    window, spread, holes = some(1, 3), some(1, 2), some(1, 2)
    space, before, after = some(3, 6), some(-1, 2), some(-1, 2)
    kind = draw(st.sampled_from(["plain", "features", "batch"]))
    groups = 1 if kind == "plain" else draw(st.sampled_from([2, 3]))
    inputs, outputs = draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    batch = draw(st.integers(1, 2)) * (groups if kind == "batch" else 1)
    features = inputs * (groups if kind == "features" else 1)
    # The rest of the data must hold the kernel once.
    for i in range(spatial):
        covered = (window[i] - 1) * spread[i] + 1
        there = (space[i] - 1) * holes[i] + 1 + before[i] + after[i]
        before[i] += max(0, covered - there)
    orders = [draw(st.permutations(range(spatial + 2))) for _ in range(3)]
    sizes = (batch, features, *space), (outputs, inputs, *window)
    placed = [np.empty(spatial + 2, int) for _ in sizes]
    for at, order, size in zip(placed, orders[:2], sizes, strict=True):
        at[order] = size
    data, kernel, out = map(tuple, orders)
    params = {
        "window_strides": some(1, 3),
        "padding": list(zip(before, after, strict=True)),
        "lhs_dilation": holes,
        "rhs_dilation": spread,
        "dimension_numbers": lax.ConvDimensionNumbers(data, kernel, out),
        "feature_group_count": groups if kind == "features" else 1,
        "batch_group_count": groups if kind == "batch" else 1,
    }
    return *(tuple(p.tolist()) for p in placed), params


def value_and_gradients(fn):
    """From (data, kernel): the convolution, and the gradients of a sum over it."""

    def both(x, w):
        out, pull = jax.vjp(fn, x, w)
        return out, pull(jnp.cos(out))

    return both


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(convolutions(), st.sampled_from([("float32", 1e-5), ("float64", 1e-12)]))
def test_any_convolution_and_its_gradients_keep_their_values(drawn, kind):
    (data, kernel, params), (dtype, tolerance) = drawn, kind
    fn = value_and_gradients(lambda x, w: lax.conv_general_dilated(x, w, **params))
    with jax.enable_x64(dtype == "float64"):
        x, w = normal(data, dtype, 0), normal(kernel, dtype, 1)
        in_fast_form = fast(fn, x, w, everywhere=True)
        # One program, compiled in haste: the time goes into compiling.
        both = jax.jit(
            lambda x, w: (in_fast_form(x, w), fn(x, w)),
            compiler_options={"xla_backend_optimization_level": 0},
        )
        got, wanted = both(x, w)
        assert_close(got, wanted, tolerance)


@pytest.mark.parametrize(
    ("dtype", "made", "tolerance"),
    [
        # One rounding of the result, where sums of another order fall differently.
        ("bfloat16", None, 2.0**-7),
        ("bfloat16", "float32", 1e-5),
        ("float16", None, 2.0**-10),
        ("complex64", None, 1e-5),
    ],
)
def test_dtypes_are_kept(dtype, made, tolerance):
    def conv(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            (2, 1),
            "SAME",
            dimension_numbers=NCHW,
            precision="highest",
            preferred_element_type=made,
        )

    x, w = normal((2, 3, 8, 8), dtype, 0), normal((4, 3, 3, 3), dtype, 1)
    got = jax.jit(fast(conv, x, w, everywhere=True))(x, w)
    assert_close(got, jax.jit(conv)(x, w), tolerance)
    pull = lambda x, w: jax.linear_transpose(lambda w: conv(x, w), w)(conv(x, w))
    got = jax.jit(fast(pull, x, w, everywhere=True))(x, w)
    assert_close(got, jax.jit(pull)(x, w), tolerance)


def conv(x, w, groups=1, spec=NHWC):
    return lax.conv_general_dilated(
        x,
        w,
        (1, 1),
        "SAME",
        dimension_numbers=spec,
        feature_group_count=groups,
    )


X, W = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 4))

INSIDE = {
    "scan": lambda x, w: lax.scan(lambda c, _: (conv(c, w), None), x, length=2)[0],
    "while": lambda x, w: lax.fori_loop(0, x.size, lambda _, c: conv(c, w), x),
    "cond": lambda x, w: lax.cond(x.sum() > 0, conv, lambda x, w: x, x, w),
    "checkpoint": lambda x, w: INSIDE["scan"](jax.checkpoint(conv)(x, w), w),
    "own rule": lambda x, w: INSIDE["scan"](x, jax.nn.relu(w)),
}


@pytest.mark.parametrize("where", INSIDE)
def test_convolutions_in_loops_and_branches_are_replaced_and_no_others(where):
    def fn(x, w):
        return INSIDE[where](conv(x, w), w)

    graph = jaxprs.trace(fn, (X, W))
    before = names(graph.jaxpr)
    after = names(jaxprs.use_fast_convolutions(graph).jaxpr)
    outside = 1 + (where == "checkpoint")
    assert before.count("conv_general_dilated") == outside + 1
    assert after.count("conv_general_dilated") == outside
    assert after.count("fast_convolution") == 1
    every = names(jaxprs.use_fast_convolutions(graph, everywhere=True).jaxpr)
    assert every.count("fast_convolution") == outside + 1


@pytest.mark.parametrize(
    ("groups", "made", "replaced"), [(1, 4, False), (2, 4, True), (4, 4, False)]
)
def test_outside_of_loops_only_groups_of_several_channels_are(groups, made, replaced):
    kernel = jnp.ones((3, 3, 4 // groups, made))
    pull = jax.grad(lambda x, w: conv(x, w, groups).sum(), (0, 1))
    for fn, count in ((lambda x, w: conv(x, w, groups), 1), (pull, 2)):
        graph = jaxprs.use_fast_convolutions(jaxprs.trace(fn, (X, kernel)))
        found = names(jaxprs.remove_dead_code(graph.jaxpr, [True] * count)[0])
        assert found.count("fast_convolution") == count * replaced


def test_outside_of_loops_those_that_make_data_wider_are():
    up = lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME")
    down = lambda x, w: lax.conv_general_dilated(x, w, (2, 2), "SAME", None, None, NHWC)
    kernel = lambda fn: lambda x, w: jax.grad(lambda w: fn(x, w).sum())(w)
    for fn, count in ((up, 1), (kernel(up), 1), (down, 0), (kernel(down), 0)):
        graph = jaxprs.use_fast_convolutions(jaxprs.trace(fn, (X, W)))
        live, _ = jaxprs.remove_dead_code(graph.jaxpr, [True])
        assert names(live).count("fast_convolution") == count


def test_a_program_without_convolutions_in_loops_is_unchanged():
    loop = lambda x: lax.scan(lambda c, _: (jnp.tanh(c), None), x, length=3)[0]
    graph = jaxprs.trace(lambda x, w: loop(conv(x, w)), (X, W))
    after = jaxprs.use_fast_convolutions(graph)
    assert all(a is b for a, b in zip(graph.eqns, after.eqns, strict=True))


def test_replaced_convolutions_count_the_same_flops():
    graph = jaxprs.trace(lambda x, w: conv(x, w, 2), (X, jnp.ones((3, 3, 2, 6))))
    (before,), (after,) = graph.eqns, jaxprs.use_fast_convolutions(graph).eqns
    assert after.primitive.name == "fast_convolution"
    assert jaxprs.flops_of(after) == jaxprs.flops_of(before) > 0
    assert jaxprs.is_heavy(after)
    assert jaxprs.has_convolution(after)
    assert jaxprs.count_heavy(jaxprs.use_fast_convolutions(graph).jaxpr) == 1


def layouts(compiled):
    """How each convolution that is left for the CPU is laid out."""
    return set(re.findall(r"dim_labels=(\S+?)[,\s]", compiled.as_text()))


@pytest.mark.parametrize("spec", [NHWC, NCHW])
def test_gradients_in_a_loop_reach_the_cpu_in_the_form_that_it_is_fast_at(spec):
    def net(x, w):
        layer = lambda c, w: (jnp.tanh(conv(c, w, spec=spec)), None)
        return lax.scan(layer, x, w)[0].sum()

    x, w = jnp.ones((2, 8, 8, 8)), jnp.ones((4, 8, 8, 3, 3))
    w = w if spec == NCHW else w.transpose(0, 3, 4, 1, 2)
    pull = jax.grad(net, (0, 1))
    compiled = jax.jit(fast(pull, x, w)).lower(x, w).compile()
    assert layouts(compiled) == {"b01f_01io->b01f"}
    # Should this fail, XLA has learned it: see _fast_convolution.py.
    assert layouts(jax.jit(pull).lower(x, w).compile()) - {"b01f_01io->b01f"}
    again = jax.jit(jax.grad(fast(net, x, w), (0, 1))).lower(x, w).compile()
    assert layouts(again) == {"b01f_01io->b01f"}


def test_few_products_in_each_group_are_left_to_plain_loops():
    x, w = jnp.ones((2, 8, 8, 8)), jnp.ones((3, 3, 1, 8))
    loop = lambda x, w: lax.scan(lambda c, _: (conv(c, w, 8), None), x, length=3)[0]
    compiled = jax.jit(fast(loop, x, w)).lower(x, w).compile()
    assert layouts(compiled) == {"b01f_01oi->b01f"}


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_backends_get_the_original_program(platform):
    def net(x, w):
        return lax.scan(lambda c, _: (conv(c, w), None), x, length=3)[0].sum()

    def lowered(fn, on):
        text = jax.jit(fn).trace(X, W).lower(lowering_platforms=(on,)).as_text()
        return [
            re.sub(r"%\w+", "%", line).strip()
            for line in text.splitlines()
            if "convolution" in line or "transpose" in line
        ]

    fn = jax.grad(net, (0, 1))
    assert lowered(fast(fn, X, W), platform) == lowered(fn, platform)
    assert lowered(fast(fn, X, W), "cpu") != lowered(fn, "cpu")
