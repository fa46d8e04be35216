"""`frugax plan train.py`: the first training step of a script, which is not run."""

import json
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import forked
from frugax import measure
from frugax.capture import (
    PlannedFunction,
    ShapesOfLargeArrays,
    UnknownArray,
    UnknownValueError,
)
from frugax.fit import answer
from frugax.targets import Target, TargetCompiler, installed_compilers
from refusals import assert_names, refuses

GPU = next(c for c in installed_compilers() if c.platform == "gpu")
needs_gpu_compiler = pytest.mark.skipif(bool(GPU.problem), reason=GPU.problem)

LARGE = (64, 64)  # with this limit
LIMIT = 64 * 64 * 4 - 1

TRAIN = """
    import argparse

    import jax
    import jax.numpy as jnp

    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int)
    width = parser.parse_args().width

    def init(key):
        keys = jax.random.split(key, 8)
        return [jax.random.normal(k, (width, width)) for k in keys]

    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    @jax.jit
    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = jax.jit(init)(jax.random.key(0))
    print("weights:", sum(p.size for p in params))
    params, value = step(params, jnp.ones((2**19, width)))
    print("the step was run")
    """


def run(arguments, folder):
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    return forked.frugax(*arguments, cwd=folder, env=environment)


def write(folder, code):
    (folder / "train.py").write_text(textwrap.dedent(code))


def find_step(fun, *args, **options):
    """The step that a function holds when it is called, as the script's is found."""
    found = []

    def stop(step):
        found.append(step)
        raise StopIteration

    function = PlannedFunction(fun, None, options, needs_gradient=False, on_step=stop)
    with pytest.raises(StopIteration):
        function(*args)
    return found[0]


def loss(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def sgd(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def test_a_script_is_planned_up_to_its_step_without_its_weights(tmp_path):
    write(tmp_path, TRAIN)
    # 38 GiB of activations, which this machine could not hold.
    options = ["--target", "cpu", "--budget", "50%", "--json", "plan.json"]
    found = run(["plan", "train.py", *options, "--", "--width", "2304"], tmp_path)
    assert found.returncode == 0, found.stderr
    assert "weights:" in found.stderr  # of the script
    assert "the step was run" not in found.stderr
    assert_names(found.stdout, "step (train.py:20)", "train.py:27", "cpu")
    (row,) = json.loads((tmp_path / "plan.json").read_text())["rows"]
    assert row["budget"]["kind"] == "temp"
    assert row["predicted"] <= 0.5 * row["unplanned_bytes"]
    assert row["unplanned_bytes"] > 32 * 2**30


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (
            "import jax.numpy as jnp\nw = jnp.ones((4096, 4096))\nx = float(w[0, 0])",
            ("train.py:3", "float32[]", "--execute"),
        ),
        pytest.param(
            "import jax.numpy as jnp\nw = jnp.ones((4096, 4096))\nw[w > 0]",
            ("train.py:3", "--execute"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "import jax\nprint(1)", ("train.py", "gradient"), marks=pytest.mark.thorough
        ),
        (
            "import jax\nloss = jax.jit(lambda w: w**2)\njax.grad(loss)(1.0)",
            ("train.py:3", "outside", "jit"),
        ),
        ("raise SystemExit(3)", ("train.py", "exit status 3")),
    ],
)
def test_a_script_without_a_step_is_refused_in_one_line(tmp_path, code, named):
    write(tmp_path, code)
    found = run(["plan", "train.py"], tmp_path)
    assert found.returncode == 2
    last = [x for x in found.stderr.splitlines() if x.startswith("frugax:")]
    assert len(last) == 1
    assert_names(last[0], *named)


def test_an_error_of_the_script_is_its_own(tmp_path):
    write(tmp_path, "import jax\nraise KeyError('of the script')")
    found = run(["plan", "train.py"], tmp_path)
    assert found.returncode == 2
    assert_names(found.stderr, "KeyError", "of the script", "train.py")
    assert_names(found.stderr.splitlines()[-1], "train.py:2", "KeyError")


@needs_gpu_compiler
def test_a_target_with_too_few_devices_for_the_script_has_a_row(tmp_path):
    code = """
        import jax
        import jax.numpy as jnp
        import numpy as np

        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 2), ("a", "b"))
        w = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, jax.P("a")))
        jax.jit(jax.grad(lambda w: jnp.sum(w**2)))(w)
        """
    write(tmp_path, code)
    found = run(["plan", "train.py", "--target", "h100,h100x2"], tmp_path)
    assert found.returncode == 0, found.stderr
    assert_names(found.stdout, "cannot tell: train.py:6 raised ValueError", "fits")


def test_of_several_steps_the_first_is_planned_or_the_one_that_is_named(tmp_path):
    second = """
        @jax.jit
        def other(params, x):
            return jax.grad(loss)(params, x)

        params = jax.jit(init)(jax.random.key(0))"""
    code = textwrap.dedent(TRAIN).replace(
        "params = jax.jit(init)(jax.random.key(0))", textwrap.dedent(second)
    )
    write(tmp_path, f"{code}other(params, jnp.ones((8, width)))\n")
    ask = lambda *more: run(
        ["plan", "train.py", "--target", "cpu", *more, "--", "--width", "64"], tmp_path
    )
    found = ask()
    assert_names(found.stdout, "step (train.py:20)", "other (train.py:26)", "--step")
    found = ask("--step", "other")
    assert_names(found.stdout, "other (train.py:26), called at train.py:", "fits")
    assert "not planned" not in found.stdout
    found = ask("--step", "none")
    assert found.returncode == 2
    assert_names(found.stderr, "step (train.py:20)", "other (train.py:26)", "'none'")


@needs_gpu_compiler
def test_a_script_that_asks_for_a_gpu_finds_the_one_of_the_target(tmp_path):
    setting = 'import os\n    os.environ["JAX_PLATFORMS"] = "cuda"\n    import jax\n'
    asking = 'assert jax.devices("gpu")[0].platform == jax.default_backend() == "gpu"'
    code = TRAIN.replace("import jax\n", setting, 1)
    write(tmp_path, code.replace("parser =", f"{asking}\n    parser =", 1))
    command = ["plan", "train.py", "--target", "h100", "--", "--width", "64"]
    found = run(command, tmp_path)
    assert found.returncode == 0, found.stderr
    assert_names(found.stdout, "h100", "fits")


def test_with_execute_values_of_large_arrays_are_there(tmp_path):
    code = """
        import jax
        import jax.numpy as jnp

        w = jnp.ones((4096, 2048))
        print("sum", float(w.sum()))
        jax.jit(jax.grad(lambda w: jnp.sum(w**2)))(w)
        """
    write(tmp_path, code)
    found = run(["plan", "--execute", "train.py"], tmp_path)
    assert found.returncode == 0, found.stderr
    assert "sum 8388608.0" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "missing.py"], "missing.py"),
        (["plan", "train.py", "--search", "batch"], "--search"),
        (["plan", "train.py", "--steps", "3"], "follow --"),
        (["plan", "train.py", "--budget", "0%"], "budget"),
        (["plan", "train.py", "--target", "h1000"], "h1000"),
        (["plan", "train.py", "--price", "h100=2.5"], "--price"),
        (["plan", "train.py", "--target", "h100", "--price", "l4=2.5"], "l4"),
        (["plan", "model.yaml", "--", "--lr"], "model.yaml"),
    ],
)
def test_a_wrong_command_line_is_refused(tmp_path, arguments, named):
    write(tmp_path, "raise SystemExit('was run')")
    found = forked.inline(*arguments, cwd=tmp_path)
    assert found.returncode == 2
    assert "was run" not in found.stderr
    assert found.stderr.count("\n") == 1
    assert_names(found.stderr, named)


def test_a_missing_compiler_is_named_before_the_script_runs(tmp_path, monkeypatch):
    none = TargetCompiler(platform="gpu", version=None, problem="pip install it")
    monkeypatch.setattr("frugax.targets.installed_compilers", lambda: (none,))
    write(tmp_path, "raise SystemExit('was run')")
    found = forked.inline("plan", "train.py", "--target", "h100", cwd=tmp_path)
    assert found.returncode == 2
    assert "was run" not in found.stderr
    assert_names(found.stderr, "train.py", none.problem)


def test_a_step_has_one_answer_for_the_devices_here_and_as_jax_jit_compiles_it():
    params, x = [jnp.ones((64, 64))] * 8, jnp.ones((512, 64))
    step = find_step(sgd, params, x, donate_argnums=0)
    row, peak = answer(step, Target("cpu"), "1GiB", why=True)
    compiled = jax.jit(sgd, donate_argnums=0).lower(params, x).compile()
    assert row.fits
    assert row.predicted == measure.program(compiled).bytes_of("total")
    assert peak is not None
    assert "params[0]" in {h.name for h in peak.held}


@pytest.mark.thorough
@needs_gpu_compiler
def test_no_more_chunks_are_taken_than_fit_where_the_model_counts_too_many_bytes():
    def layer(p, x):
        return x @ p["w"] + p["b"][None]

    def error(p, x, noise):  # of flax's example of a VAE
        hidden = jax.nn.relu(layer(p["in"], x))
        mean, scale = layer(p["mean"], hidden), jnp.exp(layer(p["scale"], hidden))
        hidden = jax.nn.relu(layer(p["back"], mean + scale * noise))
        found = layer(p["out"], hidden)
        far = jnp.mean(-jnp.log(scale**2) - 1 + scale**2 + mean**2, axis=-1)
        right = optax.sigmoid_binary_cross_entropy(found, x)
        return jnp.mean(right) + 0.1 * jnp.mean(0.5 * far)

    def step(params, state, x, key):
        noise = jax.random.normal(key, (64, 32))
        value, grads = jax.value_and_grad(error)(params, x, noise)
        updates, state = optax.adam(1e-3).update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    sizes = {"in": (784, 256), "mean": (256, 32), "scale": (256, 32)}
    sizes |= {"back": (32, 256), "out": (256, 784)}
    params = {k: {"w": jnp.ones(s), "b": jnp.ones(s[1])} for k, s in sizes.items()}
    state = optax.adam(1e-3).init(params)
    with jax.numpy_dtype_promotion("standard"):
        args = (params, state, jnp.ones((64, 784)), jax.random.key(0))
        row, _ = answer(find_step(step, *args), Target("h100"), "60%")
    assert row.fits, row.answer
    # With 64 chunks of one row each the step takes twice as long.
    assert row.answer.endswith(tuple(f"in {n} chunks" for n in (2, 4, 8, 16, 32)))


def test_a_share_of_the_temporaries_leaves_out_arguments_and_results():
    params, x = [jnp.ones((64, 64))] * 8, jnp.ones((256, 64))
    row, _ = answer(find_step(sgd, params, x), Target("cpu"), "30%")
    assert row.budget is not None
    assert row.predicted < row.budget.limit_bytes < 2 * 8 * 64 * 64 * 4
    assert (row.fits, row.lower_bound) == (True, None)


def test_a_step_that_takes_a_mutable_array_is_planned_here_and_elsewhere():
    def update(ref, x):
        ref[...] -= 0.1 * jax.grad(loss)([ref[...]] * 4, x)[0]

    pure = lambda w, x: w - 0.1 * jax.grad(loss)([w] * 4, x)[0]
    w, x = jnp.ones((64, 64)), jnp.ones((512, 64))
    found = find_step(update, jax.new_ref(w), x)
    donating = find_step(pure, w, x, donate_argnums=0)
    for target in ["cpu", *(["h100"] if not GPU.problem else [])]:
        row, _ = answer(found, Target(target), "60%")
        assert row.fits
        assert row.predicted < row.unplanned_bytes
        row, same = (answer(s, Target(target), "1GiB")[0] for s in (found, donating))
        assert row.unplanned_bytes == pytest.approx(same.unplanned_bytes, rel=0.02)


def test_the_advice_names_arguments_that_could_be_donated():
    params, x = [jnp.ones((64, 64))] * 8, jnp.ones((512, 64))
    row, _ = answer(find_step(sgd, params, x), Target("cpu"), "1KiB")
    assert not row.fits
    assert row.lower_bound is not None
    assert_names(row.caveat, "params", "128 KiB")
    row, _ = answer(find_step(sgd, params, x, donate_argnums=0), Target("cpu"), "1KiB")
    assert "donate" not in row.caveat


@needs_gpu_compiler
def test_a_sharded_step_keeps_its_sharding_on_other_devices():
    mesh = Mesh(jax.devices()[:4], "data")
    rows = NamedSharding(mesh, PartitionSpec("data"))

    def inner(params, x):
        for w in params:
            x = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), rows)
        return jnp.mean(x**2)

    step = jax.value_and_grad(inner)
    params, x = [jnp.ones((64, 64))] * 2, jax.device_put(jnp.ones((512, 64)), rows)
    found = find_step(step, params, x)
    assert found.num_devices == 4
    row, _ = answer(found, Target("h100x4"), "1GiB")
    assert not row.problem
    assert row.fits
    assert row.moved_bytes > 0
    whole = jax.value_and_grad(loss)
    one, _ = answer(
        find_step(whole, params, jnp.ones((512, 64))), Target("h100"), "1GiB"
    )
    assert row.unplanned_bytes < one.unplanned_bytes


@pytest.mark.thorough
@needs_gpu_compiler
def test_a_shard_map_is_planned_for_other_devices():
    mesh = Mesh(jax.devices()[:4], "data")

    def step(params, x):
        params, value = sgd(params, x)
        return params, jax.lax.pmean(value, "data")

    rows = PartitionSpec("data")
    specs: Any = {"in_specs": (PartitionSpec(), rows), "out_specs": PartitionSpec()}
    mapped = jax.shard_map(step, mesh=mesh, **specs)
    params, x = [jnp.ones((64, 64))] * 2, jnp.ones((512, 64))
    row, _ = answer(find_step(mapped, params, x), Target("h100x4"), "1GiB")
    assert not row.problem
    assert row.fits
    assert row.moved_bytes > 0
    whole, _ = answer(find_step(sgd, params, x), Target("h100"), "1GiB")
    assert row.device_flops == pytest.approx(whole.device_flops / 4, rel=0.1)

    # Recomputed where types vary between devices, by a rule that is traced already.
    def deep(w, x):
        for _ in range(8):
            x = jax.nn.relu(x @ w)
        return jnp.mean(x**2)

    each = lambda w, x: jax.lax.pmean(jax.value_and_grad(deep)(w, x), "data")
    mapped = jax.shard_map(each, mesh=mesh, **specs)
    row, _ = answer(
        find_step(mapped, params[0], jnp.ones((4096, 64))), Target("h100x4"), "60%"
    )
    assert row.fits
    assert row.predicted < row.unplanned_bytes


@jax.tree_util.register_pytree_node_class
class Scaled:
    """Weights, in a class that computes whenever JAX puts them together."""

    def __init__(self, w, scale):
        self.w, self.scale = w, scale

    def tree_flatten(self):
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(jnp.asarray(children[0]), 1 + jnp.zeros(()))


@needs_gpu_compiler
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_script_may_set_a_mesh(kind):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=jax.devices()[:4])
    with ShapesOfLargeArrays(LIMIT).current(), jax.set_mesh(mesh):
        assert jax.sharding.get_mesh() == mesh
        w = jax.jit(lambda: jnp.ones(LARGE))()
        x = jax.device_put(jnp.ones((512, 64)), PartitionSpec("data"))
        assert isinstance(w, UnknownArray)
        mean = lambda net, x: jnp.mean(jnp.tanh(x @ net.w) ** 2)
        step = find_step(jax.grad(mean), Scaled(w, 1.0), x)
        assert step.num_devices == 4
        with ShapesOfLargeArrays.suspended():
            for target in ("cpu", "h100x4"):
                row, _ = answer(step, Target(target), "1GiB")
                assert row.fits
                assert row.moved_bytes > 0


@needs_gpu_compiler
def test_in_shardings_put_arguments_on_axes_that_their_types_do_not_have():
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])  # explicit axes
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    step = find_step(
        jax.value_and_grad(loss),
        [jnp.ones((64, 64))] * 2,
        jnp.ones((512, 64)),
        in_shardings=(everywhere, rows),
        out_shardings=everywhere,
    )
    for target in ("cpu", "h100x4"):
        row, _ = answer(step, Target(target), "1GiB")
        assert row.fits
        assert row.moved_bytes > 0


def test_what_follows_from_large_arrays_is_unknown_and_small_values_are_there():
    with ShapesOfLargeArrays(LIMIT).current():
        init = jax.jit(
            lambda key: {
                "w": jax.random.normal(key, LARGE),
                "b": jnp.arange(3.0),
                "n": jnp.asarray(7),
            }
        )
        params = init(jax.random.key(0))
        assert isinstance(params["w"], UnknownArray)
        assert isinstance(params["w"], jax.Array)
        assert (params["w"].shape, params["w"].dtype) == (LARGE, jnp.float32)
        np.testing.assert_array_equal(params["b"], [0, 1, 2])
        assert int(params["n"]) == 7
        state: Any = optax.adam(0.1).init(params["w"])
        assert int(state[0].count) == 0
        assert isinstance(state[0].mu, UnknownArray)
        total = params["w"].sum()
        for read in (float, int, bool, np.asarray, "{:.2f}".format):
            with refuses(UnknownValueError):
                read(total)


def test_an_unknown_array_that_a_step_closes_over_is_an_argument_of_it():
    with ShapesOfLargeArrays(LIMIT).current():
        w, scale = jnp.ones(LARGE), jnp.arange(64.0)
        step = find_step(
            jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w) @ scale)), jnp.ones(LARGE)
        )
        with ShapesOfLargeArrays.suspended():
            row, _ = answer(step, Target("cpu"), "1GiB")
    assert row.fits
    assert row.predicted >= 3 * 64 * 64 * 4
