"""The operations of a compiled program, and the time that they should take."""

import copy
import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from frugax import MemoryBudget, fit, measure, remat
from frugax.measure import StepTime
from frugax.measure._work import work
from frugax.targets import AcceleratorRates, CpuRates, Target, _measured_rates

H100 = Target("h100")


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def compile_for(fn, *args):
    return jax.jit(fn).lower(*args).compile()


def flops_of(fn, *args):
    return sum(
        o.flops * times for o, times in work(compile_for(fn, *args)).operations()
    )


def test_flops_are_those_of_the_products():
    assert flops_of(jnp.dot, shaped(8, 16), shaped(16, 32)) == 2 * 8 * 16 * 32
    batched = lambda x, w: jnp.einsum("bij,bjk->bik", x, w)
    assert flops_of(batched, shaped(4, 8, 16), shaped(4, 16, 2)) == 2 * 4 * 8 * 16 * 2


@pytest.mark.parametrize("stride", [1, 2])
def test_flops_of_a_convolution_leave_out_the_padding(stride):
    def conv(x, w):
        return lax.conv_general_dilated(x, w, (stride,), "SAME")

    # The window of three lies over an edge at both ends; with strides only at one.
    pairs = {1: 3 * 10 - 2, 2: 3 * 5 - 1}[stride]
    assert flops_of(conv, shaped(2, 4, 10), shaped(5, 4, 3)) == 2 * 2 * 4 * 5 * pairs


def test_a_loop_counts_its_body_as_often_as_it_runs():
    def loop(x, w):
        return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=7)[0]

    assert flops_of(loop, shaped(8, 8), shaped(8, 8)) == 7 * 2 * 8**3


def test_bytes_are_those_that_a_fusion_reads_and_writes():
    add = compile_for(
        lambda x, y: jnp.maximum(x + y, 0) * 2, shaped(1000), shaped(1000)
    )
    assert sum(o.bytes for o, _ in work(add).operations()) == 3 * 4000


def test_the_lower_end_is_the_physical_limit_of_an_accelerator():
    n = 2048
    compiled = compile_for(jnp.dot, shaped(n, n), shaped(n, n))
    found = measure.step_time(compiled, H100)
    rates = H100.rates
    assert isinstance(rates, AcceleratorRates)
    limit = 2 * n**3 / rates.products["f32"]
    assert found.low == pytest.approx(limit + rates.start_seconds)
    assert found.high == 2 * found.low
    # A pass is as slow as the memory.
    passed = measure.step_time(compile_for(lambda x: x + 1, shaped(2**24)), H100)
    assert passed.low == pytest.approx(2 * 2**26 / rates.memory + rates.start_seconds)


def test_work_that_takes_a_processor_longer_is_told_apart():
    def kinds(fn, *args):
        return {o.kind for o, _ in work(compile_for(fn, *args)).operations()}

    side = shaped(256, 512)
    assert "transpose" in kinds(lambda x: x.T + 1, side)
    heads = shaped(8, 16, 4, 32)  # the last side stays where it is
    assert "transpose" not in kinds(lambda x: x.transpose(0, 2, 1, 3) + 1, heads)

    def convolve(kernel, images):
        return lax.conv_general_dilated(images, kernel, (1, 1), "SAME").sum()

    kernel, images = shaped(8, 4, 3, 3), shaped(2, 4, 16, 16)
    assert "kernel_gradient" not in kinds(convolve, kernel, images)
    assert "kernel_gradient" in kinds(jax.grad(convolve), kernel, images)


def test_branches_widen_the_range():
    def branch(which, x):
        return lax.cond(which > 0, lambda x: x @ x @ x, lambda x: x, x)

    found = measure.step_time(compile_for(branch, shaped(), shaped(512, 512)), H100)
    assert found.high > 4 * found.low


def test_small_products_take_one_core_and_start_at_once_in_loops(monkeypatch):
    def low(side, length, **rates):
        """The lower end where all else takes no time."""
        names = [f.name for f in dataclasses.fields(CpuRates)]
        given = dict.fromkeys(names, 1e30) | {"start_seconds": 0.0} | rates
        monkeypatch.setattr(Target, "rates", property(lambda _: CpuRates(**given)))

        def repeat(x, w):
            return lax.scan(lambda x, _: (x @ w, None), x, length=length)[0]

        compiled = compile_for(repeat, *[shaped(side, side)] * 2)
        here = Target("cpu")
        return measure.step_time(compiled, here).low / here.num_devices

    for side, rate in ((64, "small_products"), (256, "products")):
        expected = 0.7 * 10 * 2 * side**3 / 1e9
        assert low(side, 10, **{rate: 1e9}) == pytest.approx(expected, rel=0.1)
    # Of the time of a tiny product, outside of loops 0.3.
    few, many = (low(8, n, start_seconds=1.0) for n in (10, 110))
    operations = (many - few) / (0.7 * 100 * 0.12)
    assert operations == pytest.approx(round(operations))
    assert 2 <= operations <= 5


def test_what_a_plan_computes_again_always_runs():
    def loss(weights, x):
        for w in weights:
            x = x + jax.nn.gelu(x @ w)
        return jnp.mean(x**2)

    args = [shaped(64, 64)] * 6, shaped(512, 64)
    plan = remat.plan(loss, MemoryBudget("60%"), args, first_fit=True)
    planned = compile_for(remat.apply(loss, plan), *args)
    time = measure.step_time(planned, Target("cpu"))
    assert time.high == pytest.approx(2 * time.low)


def test_what_cannot_be_told_is_not_guessed():
    def until(x):
        return lax.while_loop(lambda x: x.sum() < 9, lambda x: x * 2, x)

    def calling(x):
        return jax.pure_callback(lambda x: x, x, x)

    for fn in (until, calling, jnp.linalg.cholesky):
        found = measure.step_time(compile_for(fn, shaped(8, 8)), H100)
        assert found.problem
        assert str(found) == found.judge(1.0) == "cannot tell"
    complex_ = shaped(64, 64, dtype=jnp.complex64)
    product = compile_for(jnp.dot, complex_, complex_)
    assert "c64" in measure.step_time(product, H100).problem
    # The network between processes is no device's rate.
    apart = copy.copy(Target.here())
    object.__setattr__(apart, "num_hosts", 2)
    product = compile_for(jnp.dot, shaped(64, 64), shaped(64, 64))
    assert measure.step_time(product, apart).problem
    assert not measure.step_time(product, Target.here()).problem


def test_a_measured_time_is_judged_by_the_range():
    time = StepTime(0.01, 0.02)
    found = [time.judge(s) for s in (0.005, 0.01, 0.015, 0.03, float("nan"))]
    assert found == ["broken", "kept", "kept", "broken", "cannot tell"]


def test_every_known_device_has_rates():
    from frugax.targets import known_devices
    from frugax.targets._rates import published_rates

    for facts in known_devices():
        rates = published_rates(facts)
        assert rates is not None, facts.name
        assert rates.products["bf16"] > 1e13
        assert rates.memory > 1e11


def test_rates_are_kept_unless_the_machine_is_busy(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = dict.fromkeys
    monkeypatch.setattr(_measured_rates, "_fastest", lambda _, **fns: one(fns, 1e-3))
    measured = _measured_rates.measured_rates.__wrapped__
    for load, kept in ((100.0, 0), (0.0, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0, 0))
        assert measured().products == pytest.approx(2 * 512**3 / 1e-3)
        files = list((tmp_path / "frugax" / "rates").glob("*.json"))
        assert len(files) == kept
    other = json.loads(files[0].read_text()) | {"products": 1.0}
    files[0].write_text(json.dumps(other))
    capsys.readouterr()
    assert measured() == CpuRates(**other)
    assert not capsys.readouterr().err
    files[0].write_text("{")  # damaged: measured again
    assert measured().products > 1.0
    assert "rates of this processor" in capsys.readouterr().err


def test_the_cheapest_job_is_chosen_not_the_cheapest_hour():
    def row(target, price, time):
        return fit.FitRow(
            target=target,
            budget=None,
            fits=True,
            predicted=1,
            unplanned_bytes=1,
            price=price,
            step_time=time,
        )

    fast = row("h100", 2.5, StepTime(0.001, 0.002))
    slow = row("l4", 0.8, StepTime(0.01, 0.02))
    plan = fit.FitPlan(rows=(slow, fast))
    assert plan.chosen == fast
    assert fast.job_price == pytest.approx((2.5 / 3600, 5.0 / 3600))
    assert "1000 steps" in str(plan)
    assert type(plan).from_json(plan.to_json()).rows[1].step_time == fast.step_time
    # Where one time is not known, only the hours can be compared.
    unknown = row("h100", 2.5, StepTime(problem="a custom call"))
    plan = fit.FitPlan(rows=(slow, unknown))
    assert plan.chosen == slow
    assert unknown.job_price is None
    assert "the time of a step cannot be told: a custom call" in str(plan)


def test_tests_do_not_measure_the_rates(monkeypatch):
    # See ../../conftest.py: a file that does not fit is measured again, in silence.
    monkeypatch.setattr(_measured_rates, "_measure", lambda *_, **__: None)
    assert _measured_rates.measured_rates.__wrapped__() is not None


def test_rates_are_measured_inside_of_a_mesh_in_each_process(monkeypatch):
    monkeypatch.setattr(_measured_rates, "_SECONDS", 0.0)
    # The first of all devices is another process's in all but one.
    only = jax.devices()[3]
    monkeypatch.setattr(jax, "local_devices", lambda **_: [only])
    places: list[Any] = []
    put = jax.device_put
    monkeypatch.setattr(
        jax, "device_put", lambda x, at: places.append(at) or put(x, at)
    )
    with jax.set_mesh(jax.make_mesh((2,), ("d",))):
        assert _measured_rates._measure().products > 0
    assert {*places} == {only}
