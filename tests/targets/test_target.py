"""Names of targets, and the devices, meshes and answers that they give."""

import errno
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec as P

import frugax as fx
from frugax import fit, measure, remat
from frugax.errors import CompilerRefusedError, ConfigError, InfeasibleBudgetError
from frugax.targets import (
    CompiledAnswer,
    Target,
    find_caveat,
    find_platform,
    find_target,
    installed_compilers,
    known_devices,
)
from frugax.targets._ask_compiler import WITHOUT_TRITON
from refusals import refuses, warns


def f32(*shape, sharding=None):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def loss(w, x):
    for i in range(3):
        x = x + jnp.tanh(x @ w[i])
    return jnp.mean(x**2)


ARGS = (f32(3, 64, 64), f32(256, 64))


def ask(target, jitted, *args, **options):
    answer = target.compile(jitted, *args, **options)
    assert isinstance(answer, CompiledAnswer)
    return answer


@pytest.mark.parametrize(
    ("name", "canonical", "devices", "hosts"),
    [
        ("h100", "h100", 1, 1),
        ("NVIDIA H100", "h100", 1, 1),
        ("h100x8", "h100x8", 8, 1),
        ("h100x256", "h100x256", 256, 32),
        ("32 x 8 h100", "h100x256", 256, 32),
        ("8 x 32 h100", "h100x256", 256, 32),
        ("4 x 2 l4", "l4x8", 8, 4),
        ("rtx 4090", "rtx-4090", 1, 1),
        ("a100", "a100-80", 1, 1),
        ("tpu-v5e:4x4", "tpu-v5e:4x4", 16, 4),
        ("v5p:2x2x2", "tpu-v5p:2x2x2", 8, 2),
        ("tpu-v7x", "tpu-v7x", 2, 1),
    ],
)
def test_a_name_states_devices_and_hosts(name, canonical, devices, hosts):
    target = Target(name)
    assert target.name == canonical
    assert (target.num_devices, target.num_hosts) == (devices, hosts)
    assert not target.is_here
    assert target.memory_bytes is not None
    assert target.source


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("h10", "h10"),
        ("h100x9", "h100x9"),
        ("h100x0", "h100x0"),
        ("tpu-v5e:3", "named"),
        ("tpu-v5e:4x4x4", "'tpu-v5e:4x4x4'"),
        ("h100:2x2", "'h100:2x2'"),
        ("v5e x 8", "named"),
        ("", "''"),
        (
            "h100x1000000",
            "h100x1000000",
        ),
    ],
)
def test_a_wrong_name_is_one_line_with_the_remedy(name, named):
    with refuses(ConfigError, named) as caught:
        Target(name)
    assert "\n" not in str(caught.value)


def test_every_known_device_is_a_target():
    for facts in known_devices():
        assert Target(facts.name).memory_bytes == facts.memory_bytes


def test_a_users_device_description_is_read_and_checked(tmp_path):
    text = """name: small
memory_bytes: 8000000000
compute_capability: 8.9
cores: 20
fpus_per_core: 128
shared_memory_per_core: 102400
shared_memory_per_block: 101376
threads_per_core: 1536
l2_cache: 33554432
bandwidth: 200000000000
clock_ghz: 2.0
"""
    file = tmp_path / "small.yaml"
    file.write_text(text)
    target = Target(str(file))
    assert (target.name, target.memory_bytes) == ("small", 8_000_000_000)
    assert target.source == str(file)
    for wrong, named in (
        (text.replace("cores:", "coers:", 1), "coers"),
        (text.replace("cores: 20\n", ""), "small.yaml"),
        (
            text.replace("cores: 20", "cores: -1"),
            -1,
        ),
        (text.replace("cores: 20", "cores: 20.5"), 20.5),
        (text.replace("cores: 20", "cores: true"), "small.yaml"),
        (
            text + "cores: 30\n",
            "small.yaml",
        ),
        ("- 1", "small.yaml"),
        ("a: [", "YAML"),
    ):
        file.write_text(wrong)
        with refuses(ConfigError, named):
            Target(str(file))


def test_arguments_tell_where_they_live():
    assert find_target(ARGS).name == "cpu"
    assert find_platform(ARGS) == "cpu"
    mesh = jax.make_mesh((4,), ("data",))
    sharded = f32(8, sharding=NamedSharding(mesh, P("data")))
    assert find_target((f32(3), sharded)).num_devices == 4
    with Target("h100").tracing():
        assert find_platform(ARGS) == "gpu"
        assert find_platform(jax.device_put(jnp.ones(3))) == "cpu"


def test_an_absent_gpu_compiles(gpu_compiler, tmp_path):
    target = Target("h100")
    grad = jax.jit(jax.value_and_grad(loss))
    answer = ask(target, grad, *ARGS, cache=tmp_path)
    costs = measure.program(answer)
    assert costs.argument_bytes == 4 * (3 * 64 * 64 + 256 * 64)
    assert costs.temp_bytes > 0
    assert not answer.remembered
    again = ask(target, grad, *ARGS, cache=tmp_path)
    assert again.remembered
    assert measure.program(again) == costs
    # JAX still runs where it ran before.
    assert jax.default_backend() == "cpu"
    assert find_target(target.place(ARGS)).name == "h100"


def test_a_damaged_answer_is_compiled_again(gpu_compiler, tmp_path):
    grad = jax.jit(lambda x: x * 2)
    target = Target("h100")
    first = target.compile(grad, f32(8), cache=tmp_path)
    (file,) = tmp_path.glob("*.answer")
    file.write_bytes(file.read_bytes()[:-3])
    with warns(UserWarning):
        second = target.compile(grad, f32(8), cache=tmp_path)
    assert measure.program(second) == measure.program(first)


def test_a_full_disk_gives_a_warning_and_an_answer(gpu_compiler, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with warns(UserWarning, "new") as warned:
        answer = ask(Target("h100"), jax.jit(loss), *ARGS, cache=tmp_path / "new")
    assert len(warned) == 1
    assert answer.temp_bytes > 0
    assert list((tmp_path / "new").iterdir()) == []


def test_threads_may_compile_at_once(gpu_compiler, tmp_path):
    programs = [jax.jit(lambda x, n=n: x * n) for n in range(2, 6)]
    with ThreadPoolExecutor(4) as pool:
        compile_one = lambda f: ask(Target("h100"), f, f32(8), cache=tmp_path)
        answers = list(pool.map(compile_one, programs))
    assert len({a.hlo_text for a in answers}) == 4
    assert len(list(tmp_path.glob("*.answer"))) == 4


def test_a_mesh_of_other_devices_becomes_one_of_the_target(gpu_compiler, tmp_path):
    target = Target("h100x8")
    mesh = jax.make_mesh((8,), ("data",))
    x = f32(256, 64, sharding=NamedSharding(mesh, P("data")))
    w, placed = target.place((f32(3, 64, 64), x))
    assert placed.sharding.spec == P("data")
    assert placed.sharding.mesh.devices.flat[0].platform == "gpu"
    assert w.sharding.is_fully_replicated
    answer = ask(target, jax.jit(loss), w, x, cache=tmp_path)
    # Bytes are those of one device.
    assert answer.argument_bytes == 4 * (3 * 64 * 64 + 256 * 64 // 8)
    with refuses(ConfigError, "h100", "data=8"):
        Target("h100").place(x)


def test_operations_that_the_compiler_lacks_are_one_line(gpu_compiler, tmp_path):
    unknown = jax.jit(jax.ffi.ffi_call("unknown_library", f32(8)))
    with refuses(CompilerRefusedError, "h100", "unknown_library") as caught:
        Target("h100").compile(unknown, f32(8), cache=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["h100", "h100x2"])
def test_programs_that_call_back_to_python_are_compiled(gpu_compiler, tmp_path, name):
    def step(x):
        jax.debug.print("{}", x.sum(), ordered=name == "h100")
        io_callback(print, None, x)
        y = lax.scan(lambda c, _: (jax.pure_callback(np.sin, c, c), None), x, length=3)
        return y[0] @ x

    target = Target(name)
    rows = NamedSharding(target.mesh(), P("data"))
    answer = ask(target, jax.jit(step), f32(64, 64, sharding=rows), cache=tmp_path)
    assert answer.as_text().count('custom_call_target="xla_ffi_python_gpu_') == 3
    assert "Python" in measure.step_time(answer, target).problem


def attend(p, v, w):
    """Attention's result times its output matrix, whose rows Triton cannot tile."""
    heads = jnp.einsum("bhqk,bkhd->bqhd", p, v)
    return heads.reshape(-1, 96) @ w


ATTENDED = (f32(32, 4, 64, 64), f32(32, 64, 4, 24), f32(96, 96))


def test_a_product_that_triton_cannot_tile_compiles_without_it(gpu_compiler, tmp_path):
    for remembered in (False, True):
        answer = ask(Target("h100"), jax.jit(attend), *ATTENDED, cache=tmp_path)
        assert answer.remembered is remembered
        assert "cublas" in answer.as_text()
        assert find_caveat(answer) == WITHOUT_TRITON
    workload = fit.Workload(fn=attend, args=ATTENDED, is_loss=False)
    for budget, fits in (("1GiB", True), ("1KiB", False), ("50%", False)):
        (row,) = fit.compare(workload, [Target("h100")], budget).rows
        assert row.fits == fits
        assert row.caveat.count(WITHOUT_TRITON) == 1
    plan = remat.plan(
        lambda p, v, w: jnp.sum(jnp.tanh(attend(p, v, w))),
        fx.MemoryBudget("1GiB"),
        Target("h100").place(ATTENDED),
        argnums=2,
    )
    assert plan.caveat.count(WITHOUT_TRITON) == 1
    plain = ask(Target("h100"), jax.jit(loss), *ARGS, cache=tmp_path)
    assert find_caveat(plain) == ""


def test_a_refusal_names_the_line_and_is_not_cut_in_a_word(gpu_compiler, tmp_path):
    # An option that the caller sets stays.
    options = {"xla_gpu_enable_triton_gemm": True}
    with refuses(CompilerRefusedError, "h100", "test_target.py:") as caught:
        Target("h100").compile(
            jax.jit(attend), *ATTENDED, options=options, cache=tmp_path
        )
    assert "\n" not in str(caught.value)
    row = fit.FitRow(
        target="h100",
        budget=None,
        fits=False,
        predicted=0,
        unplanned_bytes=0,
        problem="no tiles",
        is_refused=True,
    )
    assert isinstance(row.to_error("train.py"), CompilerRefusedError)


def test_linear_solvers_compile_for_a_gpu(gpu_compiler, tmp_path):
    factor = jax.jit(jnp.linalg.cholesky)
    answer = ask(Target("l4"), factor, f32(64, 64), cache=tmp_path)
    assert "cusolver" in answer.as_text()


def test_processes_started_later_do_not_look_for_a_gpu(gpu_compiler, tmp_path):
    Target("h100").compile(jax.jit(loss), *ARGS, cache=tmp_path)
    # `multiprocessing` hands the path down, and JAX asks each plug-in that it finds.
    plugins = [p for p in sys.path if (Path(p) / "jax_plugins" / "xla_cuda12").exists()]
    assert not plugins


def test_waiting_for_a_compiler_can_end(gpu_compiler, tmp_path, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(
        "frugax.targets._target._compile_apart", lambda *_: released.wait()
    )
    try:
        with refuses(TimeoutError, "h100"):
            Target("h100").compile(jax.jit(loss), *ARGS, timeout=0.1, cache=tmp_path)
    finally:
        released.set()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_an_absent_tpu_compiles_or_reports_the_needed_bytes(tpu_compiler, tmp_path):
    target = Target("tpu-v5e")
    costs = measure.program(target.compile(jax.jit(loss), *ARGS, cache=tmp_path))
    assert costs.argument_bytes >= 4 * (3 * 64 * 64 + 256 * 64)
    assert len(Target("tpu-v5e:4x4").devices) == 16
    assert len(Target("tpu-v4:2x2x1").devices) == 4

    def double(x):
        return (x * 2).reshape(2, -1) @ jnp.ones((x.size // 2, 2))

    with pytest.raises(InfeasibleBudgetError) as caught:
        target.compile(jax.jit(double), f32(4 * 2**30), cache=tmp_path)
    assert caught.value.limit == int(15.75 * 2**30)
    assert caught.value.needed > 16 * 2**30


def test_a_missing_compiler_names_its_extra(monkeypatch):
    from frugax.errors import MissingExtraError
    from frugax.targets import _compilers

    monkeypatch.setattr(_compilers, "_version", lambda _: None)
    with refuses(MissingExtraError, '"frugax[cuda-targets]"'):
        Target("h100").compile(jax.jit(loss), *ARGS)


@pytest.mark.parametrize(
    ("generation", "packages"),
    [
        ("12", ("nvidia-cuda-nvcc-cu12",)),
        ("13", ("nvidia-cuda-nvcc", "nvidia-nvvm")),
    ],
)
def test_the_compiler_of_either_cuda_is_found(
    tmp_path, monkeypatch, generation, packages
):
    monkeypatch.setattr("frugax.targets._compilers._search_path", lambda: [tmp_path])
    plugin = f"jax-cuda{generation}-plugin"
    for name in (plugin, plugin.replace("plugin", "pjrt")):
        install(tmp_path, name, jax.__version__)
    missing = installed_compilers()[0].problem
    assert all(name in missing for name in packages)
    for name in packages:
        install(tmp_path, name, "13.0")
    assert installed_compilers()[0].problem == ""
    assert installed_compilers()[0].version == jax.__version__


def install(folder, name, version):
    """Make a package that only says its name and version."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
