import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils.epath import backend, gpath
from orbax.checkpoint._src.path import gcs_utils

import forked
from frugax.errors import CheckpointError, DivergedError, OutputError
from frugax.train import Checkpoints, TrainState, init_state
from frugax.train.distributed import Layout
from refusals import assert_names, refuses


def state_of(step=3, width=4, **more):
    params = {
        "w": jnp.arange(width, dtype=jnp.float32) + step,
        "half/of.it": jnp.full((2, 3), 1 / 3, jnp.bfloat16),
        "empty": jnp.zeros((0, 5)),
        **more,
    }
    state = init_state(params, optax.adam(0.1))
    return state._replace(step=jnp.int32(step))


def same_bits(a, b):
    raw = lambda x: (
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(
        x.dtype == y.dtype
        and x.shape == y.shape
        and np.asarray(raw(x)).tobytes() == np.asarray(raw(y)).tobytes()
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def files_of(folder):
    return sorted(p for p in Path(folder).rglob("*") if p.is_file())


# Orbax alone cannot hold some of these; an 8-bit float has many NaNs.
BITS = np.arange(256, dtype=np.uint8)
ODD = {
    "nan": jnp.array([jnp.nan, -0.0, jnp.inf]),
    **{n: jnp.asarray(BITS.view(n)) for n in ("float8_e3m4", "float8_e8m0fnu")},
    **{n: jnp.asarray(np.arange(2).astype(n)) for n in ("uint4", "int2")},
    "float4": jnp.asarray(np.array([-6, 0.5], "float4_e2m1fn")),
}


def test_every_leaf_comes_back_bit_equal(tmp_path):
    state = state_of(
        key=jax.random.key(7),
        flag=jnp.array(True),
        wave=jnp.ones(2, jnp.complex64),
    )._replace(carried=ODD)
    saved = Checkpoints(tmp_path)
    saved.save(state, {"note": [1, "two", None]})
    back, extra = Checkpoints(tmp_path).restore(state)
    assert same_bits(back, state)
    assert extra == {"note": [1, "two", None]}
    shapes_only, _ = saved.restore(jax.eval_shape(lambda: state))
    assert same_bits(shapes_only, state)


def test_a_sharded_state_comes_back_on_8_4_and_1_devices(tmp_path):
    wide = {
        "w": np.random.default_rng(0).normal(size=(256, 128)).astype("float32"),
        "half": jnp.full((512, 64), 1 / 3, jnp.bfloat16),
        "key": jax.random.key(3),
    }
    over = lambda n: Layout.over((n,), "fully-sharded", devices=jax.devices()[:n])
    state = over(8).place_state(TrainState(jnp.int32(4), wide, ()))
    assert len({str(s.index) for s in state.params["w"].addressable_shards}) == 8
    expected = jax.tree.map(jnp.copy, state)
    saved = Checkpoints(tmp_path)
    saved.save(state, wait=False)
    # The next step reuses the memory while the copy is being written.
    jax.jit(lambda s: s._replace(step=s.step + 1), donate_argnums=0)(state)
    for devices in (8, 4, 1):
        like = over(devices).place_state(jax.tree.map(jnp.zeros_like, expected))
        back, _ = saved.restore(like)
        assert same_bits(back, expected)
        assert back.params["w"].sharding == like.params["w"].sharding
    alone = jax.tree.map(lambda x: jax.device_put(x, jax.devices()[0]), expected)
    assert same_bits(saved.restore(alone)[0], expected)


class Bucket(type(backend.os_backend)):
    """Objects under gs:// as files of a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if name.startswith("_") or not callable(method):
            return method

        def with_local_paths(*args, **options):
            local = [
                a.replace("gs://", self.folder) if isinstance(a, str) else a
                for a in args
            ]
            return method(*local, **options)

        return with_local_paths


def test_checkpoints_go_into_a_bucket(tmp_path, monkeypatch):
    """A fake of both drivers: etils' of small files, TensorStore's of arrays."""
    monkeypatch.setitem(gpath._PREFIX_TO_BACKEND, "gs", Bucket(f"{tmp_path}/"))

    def as_file(path):
        local = path.replace("gs:/", str(tmp_path))
        return {"driver": "file", "path": local + "/" * ("_sharding" not in path)}

    monkeypatch.setattr(gcs_utils, "get_kvstore_for_gcs", as_file)
    saved = Checkpoints("gs://bucket/run", keep=2)
    assert saved.latest_step() is None
    for step in (1, 2, 3):
        saved.save(state_of(step), {"step": step}, wait=False)
    saved.wait()
    assert Checkpoints("gs://bucket/run").latest_intact_step() == 3
    assert saved.steps() == [2, 3]
    back, extra = saved.restore(state_of())
    assert same_bits(back, state_of(3))
    assert extra == {"step": 3}
    damage(next((tmp_path / "bucket/run/frugax-3").rglob("d/*")))
    assert list(saved.find_damaged()) == [3]
    with refuses(CheckpointError, "step=2"):
        saved.restore(state_of())


def test_other_remote_places_are_refused_by_name():
    with refuses(ValueError, "s3://a/b"):
        Checkpoints("s3://a/b")


def test_only_the_last_few_stay(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)
    assert saved.latest_step() is None
    for step in (1, 5, 12):
        saved.save(state_of(step))
    assert saved.steps() == [5, 12]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frugax-12", "frugax-5"]
    older, _ = saved.restore(state_of(), step=5)
    assert int(older.step) == 5


def test_an_older_step_cannot_follow_a_later_one(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(state_of(5))
    for step in (4, 5):
        with refuses(CheckpointError, 5):
            saved.save(state_of(step))


@pytest.mark.parametrize(
    ("like", "named"),
    [
        (
            state_of(width=5),
            "state.params['w']",
        ),
        (state_of(more=jnp.ones(2)), "more"),
        (
            TrainState(jnp.int32(0), {"w": jnp.zeros(4)}, ()),
            "float32[0,5]",
        ),
    ],
)
def test_a_checkpoint_of_another_state_is_refused_and_the_leaf_named(
    tmp_path, like, named
):
    saved = Checkpoints(tmp_path)
    saved.save(state_of())
    with refuses(CheckpointError, named) as e:
        saved.restore(like)
    assert "\n" not in str(e.value)


def test_any_damage_to_any_file_is_found_and_reported_in_one_line(tmp_path, capfd):
    saved = Checkpoints(tmp_path, keep=2)
    saved.save(state_of(1))
    saved.save(state_of(2), {"a": 1})
    for file in files_of(tmp_path / "frugax-2"):
        whole = file.read_bytes()
        middle = len(whole) // 2
        flipped = bytes([whole[middle] ^ 0x10])
        for damaged in (
            whole[:middle],
            whole[:middle] + flipped + whole[middle + 1 :],
            None,
        ):
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            if file.name == "frugax.json" and damaged is None:
                assert saved.latest_step() == 1  # as if the save had been killed
            else:
                with refuses(CheckpointError, "step=1") as e:
                    saved.restore(state_of())
                assert file.name in str(e.value)
                assert "\n" not in str(e.value)
            file.write_bytes(whole)
    assert int(saved.restore(state_of())[0].step) == 2
    assert capfd.readouterr().err == ""  # nor does Orbax print tracebacks


def damage(file):
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = bytes([whole[middle] ^ 0x10])
    file.write_bytes(whole[:middle] + flipped + whole[middle + 1 :])
    return whole


def test_damaged_checkpoints_are_distinguished_from_intact_ones(tmp_path):
    saved = Checkpoints(tmp_path, keep=3)
    assert saved.latest_intact_step() is None
    for step in (1, 2, 3):
        saved.save(state_of(step))
    assert (saved.find_damaged(), saved.latest_intact_step()) == ({}, 3)
    for file in files_of(tmp_path / "frugax-3"):
        whole = damage(file)
        name = file.relative_to(tmp_path / "frugax-3").as_posix()
        assert saved.find_damaged() == {3: f"{name} is damaged"}
        assert saved.latest_intact_step() == 2
        file.write_bytes(whole)
    damage(files_of(tmp_path / "frugax-2")[0])
    files_of(tmp_path / "frugax-3")[0].unlink()
    assert sorted(saved.find_damaged()) == [2, 3]
    assert saved.find_damaged()[3].endswith(" is missing")
    assert saved.latest_intact_step() == 1
    assert saved.steps() == [1, 2, 3]  # looking deletes nothing
    with refuses(CheckpointError, "step=1"):  # not the damaged step 2
        saved.restore(state_of())
    damage(files_of(tmp_path / "frugax-1")[0])
    assert saved.latest_intact_step() is None
    with refuses(CheckpointError):
        saved.restore(state_of())


def test_a_save_replaces_damaged_checkpoints_of_its_step_and_later_ones(tmp_path):
    saved = Checkpoints(tmp_path, keep=3)
    for step in (1, 5, 9):
        saved.save(state_of(step))
    for step in (5, 9):
        damage(files_of(tmp_path / f"frugax-{step}")[-1])
    saved.save(state_of(5))
    assert (saved.steps(), saved.find_damaged()) == ([1, 5], {})
    assert same_bits(saved.restore(state_of())[0], state_of(5))


def test_a_damaged_step_is_kept_while_an_intact_one_forbids_the_save(tmp_path):
    saved = Checkpoints(tmp_path, keep=3)
    for step in (1, 5, 9):
        saved.save(state_of(step))
    damage(files_of(tmp_path / "frugax-9")[0])
    with refuses(CheckpointError, 4):
        saved.save(state_of(4))
    assert saved.steps() == [1, 5, 9]


def test_unreadable_checkpoints_are_skipped_but_never_deleted(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(state_of(1))
    saved.save(state_of(5))
    manifest = tmp_path / "frugax-5" / "frugax.json"
    manifest.rename(tmp_path / "aside")
    manifest.mkdir()  # reading it is an OSError
    assert list(saved.find_damaged()) == [5]
    assert saved.latest_intact_step() == 1
    with refuses(CheckpointError, "step=1"):
        saved.restore(state_of())
    with pytest.raises(OutputError):
        saved.save(state_of(3))
    manifest.rmdir()
    (tmp_path / "aside").rename(manifest)
    assert same_bits(saved.restore(state_of())[0], state_of(5))


def test_a_checkpoint_of_another_format_does_not_count_as_damaged(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(state_of(5))
    manifest = tmp_path / "frugax-5" / "frugax.json"
    body = json.loads(json.loads(manifest.read_text())["manifest"])
    text = json.dumps(body | {"version": 9, "files": "elsewhere"})
    sealed = {"crc32": zlib.crc32(text.encode()), "manifest": text}
    manifest.write_text(json.dumps(sealed))
    assert (saved.find_damaged(), saved.latest_intact_step()) == ({}, 5)
    with refuses(CheckpointError):
        saved.restore(state_of())
    with refuses(CheckpointError, 5):
        saved.save(state_of(4))


def test_an_interrupted_save_is_ignored_and_deleted_later(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(state_of(1))
    saved.save(state_of(2))
    (tmp_path / "frugax-2" / "frugax.json").unlink()  # killed before the manifest
    (tmp_path / "frugax-3.orbax-checkpoint-tmp").mkdir()  # killed within Orbax
    (tmp_path / "2024").mkdir()  # not ours
    assert saved.latest_step() == 1
    saved.save(state_of(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "2024",
        "frugax-1",
        "frugax-2",
    ]
    assert same_bits(saved.restore(state_of())[0], state_of(2))


def test_a_folder_without_checkpoints_is_reported(tmp_path):
    with refuses(CheckpointError, "none"):
        Checkpoints(tmp_path / "none").restore(state_of())
    saved = Checkpoints(tmp_path)
    saved.save(state_of(3))
    with refuses(CheckpointError, "step"):
        saved.restore(state_of(), step=2)


def test_a_file_in_the_way_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with refuses(OutputError, "file"):
        Checkpoints(tmp_path / "file").save(state_of())


def test_a_file_in_the_place_of_a_step_is_an_output_error(tmp_path):
    (tmp_path / "frugax-3").write_text("")
    with refuses(OutputError, 3):
        Checkpoints(tmp_path).save(state_of(3))
    assert (tmp_path / "frugax-3").read_text() == ""


def test_a_name_that_is_too_long_is_an_output_error(tmp_path):
    saved = Checkpoints(tmp_path / ("x" * 300))
    for look in (saved.latest_step, lambda: saved.save(state_of())):
        with refuses(OutputError):
            look()


def test_a_folder_that_may_not_be_changed_is_an_output_error(tmp_path, monkeypatch):
    # As a file system mounted read-only does it; tests may run as root, who may all.
    def refuse(path, *more, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    saved = Checkpoints(tmp_path, keep=1)
    saved.save(state_of(1))
    monkeypatch.setattr(shutil, "rmtree", refuse)
    with refuses(OutputError, "frugax-1.deleted"):
        saved.save(state_of(2))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_weights_that_are_not_finite_are_never_saved(tmp_path, bad):
    saved = Checkpoints(tmp_path)
    with refuses(DivergedError, "'b'"):
        saved.save(state_of(3, a={"b": jnp.array([0.0, bad])}))
    assert not list(tmp_path.iterdir())


def test_extra_that_json_cannot_hold_is_refused_before_writing(tmp_path):
    with pytest.raises(TypeError):
        Checkpoints(tmp_path).save(state_of(), {"array": np.zeros(3)})
    assert not list(tmp_path.iterdir())


FILL_THE_DISK = """
import resource, signal, sys
import jax, jax.numpy as jnp
from frugax import errors, train

# What Python and JAX cache may not be cut off as well: others would read it.
sys.dont_write_bytecode = True
jax.config.update("jax_enable_compilation_cache", False)

def state(step):
    noise = jax.random.normal(jax.random.key(0), (200, 200))  # does not compress
    return train.TrainState(jnp.int32(step), {"w": noise}, ())

checkpoints = train.Checkpoints(sys.argv[1])
checkpoints.save(state(1))
# No file may pass 50 kB from here on: to Orbax that looks like a full disk.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
try:
    checkpoints.save(state(2))
except errors.OutputError as e:
    print(e)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
print(checkpoints.steps())
checkpoints.save(state(3))
print(checkpoints.steps())
"""


@pytest.mark.slow
def test_a_full_disk_is_an_output_error_and_leaves_the_older_checkpoint(tmp_path):
    run = forked.python(FILL_THE_DISK, tmp_path)
    assert run.returncode == 0, run.stderr
    error, after, later = run.stdout.splitlines()
    # 200 x 200 weights and the number of the step, and nothing of Orbax's own words.
    assert_names(error, f"{tmp_path}/frugax-2:", "156.3 KiB", "free")
    assert "orbax" not in error.lower().replace(str(tmp_path).lower(), "")
    assert "\\" not in error
    assert len(error) < 250 + len(str(tmp_path))
    assert (after, later) == ("[1]", "[1, 3]")


def test_files_deleted_by_others_and_leftovers_do_not_fail_a_save(
    tmp_path, monkeypatch
):
    for left in ("frugax-2", "frugax-2.deleted", "frugax-3.orbax-checkpoint-tmp"):
        (tmp_path / left / "array").mkdir(parents=True)
        (tmp_path / left / "array" / "lock").touch()
    rmtree, first = shutil.rmtree, []

    def beside_others(place):
        if place not in first:  # another thread is there before us
            first.append(place)
            (place / "array" / "lock").unlink()
            raise FileNotFoundError(errno.ENOENT, "gone", "lock")
        rmtree(place)

    monkeypatch.setattr(shutil, "rmtree", beside_others)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state_of(4))
    assert checkpoints.steps() == [4]
    assert [p.name for p in tmp_path.iterdir()] == ["frugax-4"]
    assert len(first) == 2


# Importing JAX takes seconds, so it is done once; every run is a fork of that process,
# made before JAX starts its backend, and so has its own from the beginning.
TRAIN_AND_KILL = """
import json, os, signal, sys, time
import jax, jax.numpy as jnp, optax, orbax.checkpoint
from frugax import train

def run(folder):
    optimizer = optax.adam(1e-2)
    loss = lambda p, b: ((jnp.tanh(b @ p["w"]) @ p["v"]) ** 2).mean()
    normal = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
    step = train.make_train_step(loss, optimizer)
    params = {"w": normal(-1, 8, 32), "v": normal(-2, 32, 4)}
    state = train.init_state(params, optimizer)
    checkpoints = train.Checkpoints(folder)
    if checkpoints.latest_step() is not None:
        state, _ = checkpoints.restore(state)
    train.fit(step, state, lambda i: normal(i, 16, 8), steps=24,
              checkpoints=checkpoints, save_every=2,
              on_step=lambda i, metrics, state: print(i, flush=True))

for folder, kill_after, wait_s in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if not (child := os.fork()):
        os.dup2(write, 1)
        os.close(read)
        run(folder)
        os._exit(0)
    os.close(write)
    with open(read) as lines:
        if kill_after:
            for _ in range(kill_after):
                lines.readline()
            time.sleep(wait_s)
            os.kill(child, signal.SIGKILL)
        lines.read()
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


def last_state(folder):
    like = init_state(
        {"w": jnp.zeros((8, 32)), "v": jnp.zeros((32, 4))}, optax.adam(1e-2)
    )
    return Checkpoints(folder).restore(like)[0]


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_bit_equal_to_an_uninterrupted_one(tmp_path):
    rng = np.random.default_rng(0)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    # Up to 8 lines and 50 ms after the start: somewhere in a step or in a save. At
    # least 3 lines, so that every run saves once and gets further.
    kills = [
        (str(broken), int(rng.integers(3, 9)), rng.uniform(0, 0.05)) for _ in range(2)
    ]
    runs = [(str(straight), 0, 0.0), *kills, (str(broken), 0, 0.0)]
    message = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_KILL, json.dumps(runs)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    ).stdout
    assert [int(code) for code in message.split()] == [0, *[-signal.SIGKILL] * 2, 0]
    assert same_bits(last_state(broken), last_state(straight))
