"""Records leave a function as outputs; its results do not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from frugax.watch import probes
from frugax.watch.probes import (
    LastValues,
    MaskedValues,
    collect,
    frame,
    record,
    summarise,
)
from refusals import refuses

X = jnp.linspace(0.1, 1.0, 6)


def layer(x):
    record("norm", jnp.linalg.norm(x))
    return jnp.tanh(x * 1.1)


jitted_layer = jax.jit(layer)


def scanned(x):
    def step(x, t):
        record("total", x.sum())
        record("late", x.max(), when=t > 1)
        return jnp.tanh(x + 0.1 * t), x[0]

    return lax.scan(step, x, jnp.arange(4.0))


def looped(x):
    def go_on(x):
        return x.sum() < 40

    def double(x):
        record("small", x.max(), when=x.max() < 8)
        record("at", x[0])
        return 2 * x

    return lax.while_loop(go_on, double, x)


def branched(x):
    def up(x):
        record("both", x[0])
        record("up", x[1])
        return x + 1

    def down(x):
        record("both", x[2])
        return x - 1

    return lax.cond(x.sum() > 0, up, down, x)


def remat(x):
    return jax.checkpoint(layer)(jax.checkpoint(jitted_layer)(x))


def remat_scan(x):
    body = lambda x, _: (jax.checkpoint(layer)(x), None)
    return lax.scan(body, x, None, length=5)[0]


total = lambda fn: lambda x: sum(y.sum() for y in jax.tree.leaves(fn(x)))
PROGRAMS = {
    "plain": layer,
    "jit": lambda x: jitted_layer(jitted_layer(x)),
    "scan": scanned,
    "a constant in a scan": lambda x: lax.scan(
        lambda x, _: (record("rate", 0.1), (x, None))[1], x, None, length=3
    ),
    "while": looped,
    "cond": branched,
    "remat": remat,
    "grad": jax.grad(total(lambda x: jitted_layer(x))),
    "grad of remat": jax.grad(total(remat)),
    "grad of a scan of remat": jax.grad(total(remat_scan)),
    "grad of a scan": jax.grad(total(scanned)),
    "jvp of a while": lambda x: jax.jvp(looped, (x,), (x,)),
    "second derivative": jax.grad(total(jax.grad(total(remat)))),
    "vmap": lambda x: jax.vmap(scanned)(x.reshape(2, 3)),
    "vmap of a while": lambda x: jax.vmap(looped)(x.reshape(2, 3)),
    "vmap of a cond": lambda x: jax.vmap(branched)(x.reshape(2, 3)),
    "nested": lambda x: lax.scan(
        lambda c, _: (lax.cond(c.sum() > 4, scanned, scanned, c)[0], looped(c)),
        x,
        None,
        length=3,
    ),
}


def same_bits(one, other):
    ones, others = jax.tree.leaves(one), jax.tree.leaves(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(ones, others, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_effect_is_left_and_every_result_is_the_same_to_the_last_bit(name):
    fn = PROGRAMS[name]
    assert jax.make_jaxpr(fn)(X).effects
    assert not jax.make_jaxpr(collect(fn))(X).effects
    unwatched, none = jax.jit(collect(fn, keep=()))(X)
    assert none == {}
    out, records = jax.jit(collect(fn))(X)
    assert records
    # Not `jax.jit(fn)`: with callbacks XLA compiles the rest in another way.
    if name == "second derivative":
        # Also with outputs: the same operations are fused otherwise, and rounded so.
        np.testing.assert_allclose(out, unwatched, rtol=1e-6)
        return
    same_bits(out, unwatched)


def test_removing_probes_gives_the_program_without_them():
    def bare(x):
        step = lambda x, t: (jnp.tanh(x + 0.1 * t), x[0])
        return lax.scan(step, x, jnp.arange(4.0))

    def watched(x):
        def step(x, t):
            record("x", x[0])
            return jnp.tanh(x + 0.1 * t), x[0]

        return lax.scan(step, x, jnp.arange(4.0))

    gone = lambda x: collect(watched, keep=())(x)[0]
    text = lambda fn: jax.jit(fn).lower(X).as_text().replace(fn.__name__, "f")
    gone.__name__ = bare.__name__ = "f"
    assert text(gone) == text(bare)


def test_records_of_a_scan_are_stacked_and_a_gate_marks_them():
    _, records = collect(scanned)(X)
    carries = [X]
    for t in range(3):
        carries.append(jnp.tanh(carries[-1] + 0.1 * t))
    # 1e-6: the same sums in float32, in another order.
    np.testing.assert_allclose(records["total"], [c.sum() for c in carries], rtol=1e-6)
    late = records["late"]
    assert isinstance(late, MaskedValues)
    assert late.present.tolist() == [False, False, True, True]
    np.testing.assert_allclose(late.values[2:], [c.max() for c in carries[2:]], 1e-6)


def test_a_while_loop_returns_the_last_values_and_their_number():
    x = jnp.array([1.0, 2.0, 3.0])
    _, records = collect(looped)(x)  # 6, 12, 24, 48
    assert records["at"] == LastValues(4.0, 3)
    assert records["small"] == LastValues(6.0, 2)  # 3, 6, but not 12


def test_a_record_in_the_condition_of_a_loop_stays_a_callback():
    def fn(x):
        go_on = lambda x: (record("asked", x), x < 40)[1]
        return lax.while_loop(go_on, lambda x: (record("x", x), 2 * x)[1], x)

    out, records = collect(fn)(1.0)
    assert (out, sorted(records)) == (64.0, ["x"])
    assert jax.make_jaxpr(collect(fn))(1.0).effects


def test_lanes_of_a_while_loop_end_independently():
    x = jnp.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    out, records = collect(jax.vmap(looped))(x)
    each = [collect(looped)(row) for row in x]
    same_bits(out, jnp.stack([o for o, _ in each]))
    assert records["at"].values.tolist()[0] == each[0][1]["at"].values
    assert records["small"].present.tolist() == [True, False]
    assert records["small"].values.tolist()[0] == 6.0


def test_a_branch_that_did_not_run_is_marked():
    _, records = collect(branched)(X)
    assert records["both"] == X[0]  # in every branch: always there
    assert records["up"] == MaskedValues(X[1], True)
    _, records = collect(branched)(-X)
    assert records["both"] == -X[2]
    assert not records["up"].present


def test_recomputation_by_remat_does_not_record_twice():
    _, records = collect(jax.grad(total(remat)))(X)
    assert sorted(records) == ["norm", "norm.2"]
    _, records = collect(jax.grad(total(remat_scan)))(X)
    assert records["norm"].shape == (5,)


def test_a_record_of_the_backward_pass_inside_remat_is_kept():
    @jax.custom_vjp
    def identity(x):
        return x * 1.0

    def backward(_, slope):
        record("slope", slope.sum())
        return (slope,)

    identity.defvjp(lambda x: (x * 1.0, None), backward)

    def loss(x):
        return (jax.checkpoint(lambda x: identity(layer(x)))(x) * 3).sum()

    gradient = jax.grad(loss)
    out, records = jax.jit(collect(gradient))(X)
    assert sorted(records) == ["norm", "slope"]
    assert records["slope"] == 3 * X.size
    assert not jax.make_jaxpr(collect(gradient))(X).effects
    same_bits(out, jax.jit(collect(gradient, keep=()))(X)[0])


def custom(x):
    record("inside", x.sum())
    return x * 2


custom_rule = jax.custom_jvp(custom)
custom_rule.defjvp(lambda p, t: (custom(p[0]), 7 * t[0]))


def test_a_derivative_rule_is_kept_and_its_probe_stays_a_callback():
    with_rule = lambda x: collect(custom_rule)(x)[0].sum()
    assert jax.make_jaxpr(collect(custom_rule))(X).effects
    assert jax.grad(with_rule)(X).tolist() == [7.0] * 6
    out, records = collect(custom_rule, keep_rules=False)(X)
    assert records["inside"] == X.sum()
    same_bits(out, 2 * X)


def test_a_gate_under_vmap_stays_a_gate_and_lanes_are_the_first_rows():
    def fn(x):
        record("v", x.sum(), when=x.sum() > 2, lanes=2)
        return x

    _, records = collect(jax.vmap(fn))(jnp.arange(12.0).reshape(4, 3))
    assert records["v"].values.tolist() == [3.0, 12.0]
    assert records["v"].present.tolist() == [True, True]
    traced = jax.make_jaxpr(jax.vmap(fn))(jnp.ones((4, 3)))
    assert str(traced).count("watch[") == 1  # one for all lanes

    nested = jax.vmap(jax.vmap(fn))
    _, records = collect(nested)(jnp.arange(60.0).reshape(5, 4, 3))
    assert records["v"].values.shape == records["v"].present.shape == (2, 2)


def test_a_field_that_does_not_depend_on_the_lane_has_its_axis_too():
    def fn(x, mask):
        frame("grid", {"x": x, "mask": mask})
        return x

    _, records = collect(jax.vmap(fn, (0, None)))(jnp.ones((4, 3)), jnp.ones(3, bool))
    assert records["grid"]["mask"].shape == records["grid"]["x"].shape == (4, 3)


def test_shards_give_a_row_each():
    mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("a")

    def shard(x):
        record("sum", x.sum())
        return scanned(x)[0], looped(x), branched(x)

    for checked in (True, False):
        fn = jax.shard_map(
            shard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=checked
        )
        assert not jax.make_jaxpr(collect(fn))(X).effects
        out, records = jax.jit(collect(fn))(X)
        same_bits(out, jax.jit(collect(fn, keep=()))(X)[0])
        np.testing.assert_allclose(
            records["sum"], [X[:3].sum(), X[3:].sum()], rtol=1e-6
        )
        assert records["total"].shape == (2, 4)
        assert records["at"].count.shape == (2,)


def test_kinds_can_be_left_out():
    def fn(x):
        record("number", x.sum())
        summarise("summary", {"a": x[0], "b": x})
        frame("frame", x)
        return x

    assert sorted(collect(fn)(X)[1]) == ["frame", "number", "summary"]
    _, records = collect(fn, keep={"summary"})(X)
    assert sorted(records) == ["summary"]
    assert sorted(records["summary"]) == ["a", "b"]
    with refuses(ValueError, "frames"):
        collect(fn, keep={"frames"})


def test_a_repeated_name_gets_a_unique_number():
    def fn(x):
        record("a", x[0])
        record("a", x[1])
        record("a.2", x[2])
        record("a", x[3])
        return x

    _, records = collect(fn)(X)
    assert list(records) == ["a", "a.3", "a.2", "a.4"]
    assert [float(v) for v in records.values()] == X[:4].tolist()


def test_a_function_called_twice_stays_one_function():
    fn = lambda x: jitted_layer(jitted_layer(jitted_layer(x)))
    text = jax.jit(collect(fn)).lower(X).as_text()
    assert text.count("func.func private @layer") == 1


def _frame_of_2_gib():
    probes.frame("v", jnp.zeros((2**15, 2**14), jnp.float32))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: record("v", jnp.ones(3)), ValueError, "'v'"),
        (lambda: record("", 1.0), ValueError, "''"),
        (lambda: record("v", "text"), TypeError, "'v'"),
        (lambda: record("v", jax.random.key(0)), TypeError, "'v'"),
        (lambda: record("v", jnp.complex64(1)), TypeError, "'v'"),
        (lambda: jax.eval_shape(_frame_of_2_gib), ValueError, "2,147,483,648"),
        (lambda: record("v", 1.0, when=1), TypeError, "when"),
        (lambda: record("v", 1.0, when=jnp.ones(2, bool)), TypeError, "when"),
        (lambda: record("v", 1.0, lanes=0), ValueError, "lanes"),
        (lambda: record("v", None), ValueError, "'v'"),
        (lambda: probes.Probe.of("v", "other", None, 1.0), ValueError, "'v'"),
        (
            lambda: probes.emit(probes.Probe.of("v", "call", None, (1, 2)), 1.0),
            ValueError,
            1,
        ),
    ],
)
def test_an_unsupported_program_is_refused_with_a_remedy(call, error, match):
    with refuses(error, match):
        call()
