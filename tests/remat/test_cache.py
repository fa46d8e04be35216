"""A kept plan is found again for the same program only, and not if damaged."""

import dataclasses
import hashlib
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import MemoryBudget, remat
from frugax.errors import InfeasibleBudgetError
from frugax.remat import _plan_cache
from frugax.remat._plan_cache import (
    SearchResult,
    load_result,
    plan_key,
    recall,
    store_result,
)
from refusals import refuses, warns

from .nets import f32

BUDGET = MemoryBudget("800KiB")
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
@jax.custom_jvp
def own(x):
    return jnp.sin(x)
own.defjvp(lambda p, t: (jnp.sin(p[0]), t[0]))
table = np.arange(16.0, dtype="float32")
def loss(ws, x):
    for w in ws.values():
        x = jax.nn.relu(own(x @ w)) + table[None]
    return jnp.mean(x**2)
w = jax.ShapeDtypeStruct((16, 16), jnp.float32)
args = ({"a": w, "b": w}, jax.ShapeDtypeStruct((8, 16), jnp.float32))
"""


def sums(axis=0, factor=2.0, table=(1.0, 2.0, 3.0, 4.0)):
    table = np.array([table], "float32")
    return lambda w, x: jnp.sum(factor * jnp.sum(w @ x + table, axis=axis) ** 2)


ARGS = (f32(4, 4), f32(4, 4))


@pytest.fixture(scope="module")
def same():
    return plan_key(sums(), BUDGET, ARGS)


@pytest.mark.thorough
def test_the_key_is_the_same_in_every_process():
    code = PROGRAM + (
        "from frugax import MemoryBudget\n"
        "from frugax.remat._plan_cache import plan_key\n"
        "print(plan_key(loss, MemoryBudget('1MiB'), args))\n"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1
    assert len(keys.pop().strip()) == 64


def test_arrays_and_their_shapes_share_a_plan(same):
    arrays = tuple(jnp.full(a.shape, 3.0, a.dtype) for a in ARGS)
    assert plan_key(sums(), BUDGET, arrays) == same


@pytest.mark.parametrize(
    "change",
    [
        {"axis": 1},  # the same shapes: `Graph.fingerprint` does not see it
        {"factor": 3.0},
        {"table": (1.0, 2.0, 3.0, 5.0)},
    ],
)
def test_another_program_has_another_key(same, change):
    assert plan_key(sums(**change), BUDGET, ARGS) != same


@pytest.mark.parametrize(
    "change",
    [
        {"budget": MemoryBudget("801KiB")},
        {"budget": MemoryBudget("800KiB", kind="total")},
        {"budget": MemoryBudget("800KiB", headroom_frac=0.1)},
        {"argnums": 1},
        {"argnums": (0,)},
        {"block_size": 3},
        {"example_args": (f32(4, 4), f32(4, 8))},
    ],
)
def test_the_arguments_of_plan_are_in_the_key(change):
    asked = {"example_args": ARGS, "budget": BUDGET} | change
    loss = lambda w, x: jnp.sum(w @ x)
    assert plan_key(loss, **asked) != plan_key(loss, BUDGET, ARGS)


def test_the_program_around_it_is_in_the_key():
    loss = sums()

    def whole(rate, *donated):
        step = lambda transform: lambda w, x: w - rate * transform(loss)(w, x)[1]
        return remat.EnclosingProgram(build=step, args=ARGS, donate_argnums=donated)

    programs = [None, whole(0.1), whole(0.2), whole(0.1, 0)]
    keys = {plan_key(sums(), BUDGET, ARGS, within=p) for p in programs}
    assert len(keys) == 4
    assert plan_key(sums(), BUDGET, ARGS, within=whole(0.1)) in keys


def test_a_program_that_calls_the_gradient_has_a_key_of_its_own():
    loss = sums()
    using = lambda transform: transform(loss)
    unused = lambda _: jax.value_and_grad(loss)
    programs = [remat.EnclosingProgram(build=b, args=ARGS) for b in (using, unused)]
    assert len({plan_key(loss, BUDGET, ARGS, within=p) for p in programs}) == 2


def test_a_custom_backward_rule_is_in_the_key():
    def with_rule(factor):
        own = jax.custom_vjp(jnp.sin)
        own.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (factor * g * x,))
        return lambda w, x: jnp.sum(own(w @ x))

    one, same, other = (plan_key(with_rule(f), BUDGET, ARGS) for f in (2.0, 2.0, 3.0))
    assert one == same != other


def test_compiler_settings_are_in_the_key(same, monkeypatch):
    with jax.default_matmul_precision("float32"):
        assert plan_key(sums(), BUDGET, ARGS) != same
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert plan_key(sums(), BUDGET, ARGS) != same
    monkeypatch.undo()
    monkeypatch.setattr(_plan_cache, "_planner_digest", lambda: "another planner")
    assert plan_key(sums(), BUDGET, ARGS) != same


def test_a_traced_constant_has_no_key():
    found = []

    @jax.jit
    def outer(scale):
        found.append(plan_key(lambda w, x: jnp.sum(w @ x * scale), BUDGET, ARGS))
        return scale

    outer(2.0)
    assert found == [None]


@pytest.fixture(scope="module")
def found():
    plan = remat.plan(sums(), MemoryBudget("1MiB"), example_args=ARGS)
    return SearchResult(plan=plan)


def test_a_stored_plan_is_loaded_unchanged(found, tmp_path):
    folder = tmp_path / "made" / "on demand"
    assert load_result("k", folder) is None
    store_result("k", found, folder)
    assert load_result("k", folder) == found
    assert load_result("other", folder) is None
    assert [f.name for f in folder.iterdir()] == ["k.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[: len(b) // 2],
        lambda b: b.replace(b'"predicted": ', b'"predicted": 1'),
        lambda b: b"",
        lambda b: b"\xff\xfe" + b,
    ],
    ids=["cut off", "one digit", "empty", "no text"],
)
def test_a_damaged_file_gives_one_warning_and_is_ignored(found, tmp_path, damage):
    store_result("k", found, tmp_path)
    file = tmp_path / "k.json"
    file.write_bytes(damage(file.read_bytes()))
    with warns(UserWarning, "k.json") as told:
        assert load_result("k", tmp_path) is None
    assert len(told) == 1
    store_result("k", found, tmp_path)  # stored again
    assert load_result("k", tmp_path) == found


def test_a_file_of_another_kind_is_ignored(tmp_path):
    text = '{"budget": "1MiB"}'
    digest = hashlib.sha256(text.encode()).hexdigest()
    (tmp_path / "k.json").write_text(f"{digest}\n{text}")
    with warns(UserWarning, "k.json"):
        assert load_result("k", tmp_path) is None


def test_the_least_recently_used_plans_are_deleted(found, tmp_path, monkeypatch):
    for i, key in enumerate("abc"):
        store_result(key, found, tmp_path)
        os.utime(tmp_path / f"{key}.json", (i, i))
    load_result("a", tmp_path)  # used now, so b is the oldest
    size = (tmp_path / "a.json").stat().st_size
    monkeypatch.setattr(_plan_cache, "_MAX_BYTES", 3 * size)
    store_result("d", found, tmp_path)
    assert sorted(f.stem for f in tmp_path.iterdir()) == ["a", "c", "d"]


def test_a_plan_is_made_once(found, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan, made = found.plan, []
    make = lambda: made.append(plan) or plan
    assert recall("k", make, cache=True) == recall("k", make, cache=True) == plan
    assert len(made) == 1
    assert (tmp_path / "frugax" / "plans" / "k.json").is_file()
    recall("k", make, cache=tmp_path / "elsewhere")
    recall("k", make, cache=False)
    recall(None, make, cache=True)
    assert len(made) == 4
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_that_nothing_fits_is_found_once(tmp_path):
    def loss(w, x):
        for _ in range(8):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    args = (f32(16, 16), f32(256, 16))
    ask = lambda **how: remat.plan(
        loss, MemoryBudget("1KiB"), example_args=args, cache=tmp_path, **how
    )
    with refuses(InfeasibleBudgetError) as first:
        ask()
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is searched any more.
        patch.setattr("frugax.remat._planner._PlanSearch.run", None)
        with refuses(InfeasibleBudgetError) as again:
            ask()
    assert str(again.value) == str(first.value)
    assert again.value.best == first.value.best
    assert again.value.needed == first.value.needed


def test_a_search_that_was_cut_short_is_made_again_with_far_more_time(found, tmp_path):
    made = []

    def make_in(seconds):
        def make():
            made.append(seconds)
            return dataclasses.replace(found.plan, cut_after_s=seconds)

        return recall("k", make, cache=tmp_path, within_s=seconds)

    for seconds in (10.0, 5.0, 11.0, 30.0, 10.0, None, None, 1.0):
        make_in(seconds)
    assert made == [10.0, 30.0, None]


def test_a_read_only_folder_gives_a_warning_and_a_plan(found, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with warns(UserWarning, "file"):
        store_result("k", found, tmp_path / "file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert load_result("k", tmp_path / "file") is None
