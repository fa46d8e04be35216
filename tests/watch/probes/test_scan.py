"""A scan that gives its records back: numbers of every step, frames once in a block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from frugax.jaxprs import remove_dead_code
from frugax.watch import probes
from frugax.watch.probes import collect, frame, record
from refusals import refuses

XS = jnp.linspace(0, 1, 40).reshape(10, 4)
START = jnp.zeros(4)


def step(h, x):
    h = jnp.tanh(h + x)
    record("norm", jnp.linalg.norm(h))
    frame("outer", jnp.outer(h, h))
    return h, h[0]


def bare(h, x):
    h = jnp.tanh(h + x)
    return h, h[0]


def states(reverse):
    """The state after each step, in the order of the steps."""
    found, h = [], START
    for x in XS[::-1] if reverse else XS:
        h, _ = bare(h, x)
        found.append(h)
    return found


@pytest.mark.usefixtures("as_users_compile")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("every", [None, 1, 3, 5, 10, 11])
def test_results_equal_lax_scan_and_frames_come_once_a_block(every, reverse):
    run = lambda h: probes.scan(step, h, XS, every=every, reverse=reverse)
    assert not jax.make_jaxpr(run)(START).effects
    (h, ys), records = jax.jit(run)(START)
    plain = jax.jit(lambda h: lax.scan(bare, h, XS, reverse=reverse))
    for a, b in zip((h, ys), plain(START), strict=True):
        np.testing.assert_array_equal(a, b)

    made = states(reverse)
    in_place = lambda xs: np.stack(xs[::-1] if reverse else xs)
    norms = in_place([jnp.linalg.norm(h) for h in made])
    # 1e-6: the same sums in float32, perhaps in another order.
    np.testing.assert_allclose(records["norm"], norms, rtol=1e-6)
    size = 10 if every is None else every
    due = [jnp.outer(h, h) for h in made[size - 1 :: size]]
    outer = records["outer"]
    assert outer.shape == (len(due), 4, 4)
    if due:
        np.testing.assert_allclose(outer, in_place(due), rtol=1e-6)


def test_a_scan_without_frames_is_one_scan_with_one_more_result():
    def fn(h, x):
        record("norm", jnp.linalg.norm(h))
        return bare(h, x)

    traced = jax.make_jaxpr(lambda h: probes.scan(fn, h, XS, every=3))(START)
    assert str(traced).count("scan[") == 1


def test_frames_add_no_operation_to_the_other_steps():
    def numbers(h, x):
        h = jnp.tanh(h + x)
        record("norm", jnp.linalg.norm(h))
        return h, h[0]

    def round_of(fn, depth, **given):
        jaxpr = jax.make_jaxpr(lambda h: probes.scan(fn, h, XS, **given))(START).jaxpr
        jaxpr, _ = remove_dead_code(jaxpr, [True] * len(jaxpr.outvars))
        for _ in range(depth):
            (loop,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
            jaxpr = loop.params["jaxpr"].jaxpr
        return [str(e.primitive) for e in jaxpr.eqns]

    assert round_of(step, 2, every=5) == round_of(numbers, 1)


def test_frames_that_nobody_takes_are_not_worked_out():
    def dear(h, _):
        frame("dear", jnp.sort(h))
        return h + 1, None

    run = jax.jit(lambda h: probes.scan(dear, h, length=6, every=2)[0][0])
    lowered = run.lower(START)
    assert "sort" in lowered.as_text()
    assert "sort" not in str(lowered.compile().as_text())
    np.testing.assert_array_equal(run(START), START + 6)


def test_gates_and_lanes_inside_of_frames():
    def fn(h, x):
        frame("gated", h, when=x[0] > 0.5)
        frame("lanes", h * 2, lanes=2)
        return bare(h, x)

    run = lambda h: probes.scan(fn, h, XS, every=2)[1]
    records = run(START)
    odd = np.asarray(XS[1::2, 0] > 0.5)
    assert records["gated"].present.tolist() == odd.tolist()
    records = jax.vmap(run)(jnp.zeros((3, 4)))
    assert records["gated"].values.shape == (3, 5, 4)
    assert records["lanes"].shape == (3, 5, 4)  # a separate program: all lanes


def test_an_enclosing_collector_gets_the_records():
    unused = lambda h: probes.scan(step, h, XS, every=5)[0][0]
    assert not jax.make_jaxpr(unused)(START).effects
    out, records = jax.jit(collect(unused))(START)
    assert records["norm"].shape == (10,)
    assert records["outer"].shape == (2, 4, 4)
    np.testing.assert_array_equal(out, lax.scan(bare, START, XS)[0])

    gradient = jax.grad(lambda h: unused(h).sum())
    out, records = jax.jit(collect(gradient))(START)
    assert records["norm"].shape == (10,)
    expected = jax.grad(lambda h: lax.scan(bare, h, XS)[0].sum())(START)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    again = jax.grad(lambda h: jax.checkpoint(unused)(h).sum())
    _, records = jax.jit(collect(again))(START)
    assert sorted(records) == ["norm", "outer"]

    twice = lambda h: probes.scan(lambda h, _: (unused(h), None), h, length=3)
    _, records = twice(START)
    assert records["norm"].shape == (3, 10)


def test_numbers_and_weak_types_are_taken_as_by_lax_scan():
    def fn(x, _):
        record("x", x)
        frame("f", x[None])
        return x * jnp.float32(2), x

    (x, ys), records = probes.scan(fn, 1.0, length=5, every=2)
    assert x == 32.0
    assert ys.tolist() == records["x"].tolist() == [1, 2, 4, 8, 16]
    assert records["f"].ravel().tolist() == [2, 8]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"every": 0}, ValueError),
        ({"every": True}, TypeError),
        ({"length": 3}, ValueError),
    ],
)
def test_an_unsupported_scan_is_refused_with_a_remedy(given, error):
    with refuses(error, *given):
        probes.scan(step, START, XS, **given)
    with refuses(ValueError, "scan"):
        probes.scan(step, START)


def test_an_enclosing_collector_gets_the_first_lanes_only():
    def run(x):
        def step(x, _):
            record("first", x[0], lanes=2)
            frame("all", x * 2, lanes=3)
            return x + 1, None

        return probes.scan(step, x, length=4, every=2)[0][0]

    xs = jnp.arange(10.0).reshape(5, 2)
    out, records = collect(jax.vmap(run))(xs)
    np.testing.assert_array_equal(out, xs + 4)
    np.testing.assert_array_equal(records["first"], [[0, 1, 2, 3], [2, 3, 4, 5]])
    values = records["all"]
    np.testing.assert_array_equal(values[:, 0], 2 * (xs[:3] + 1))
    assert values.shape == (3, 2, 2)
