"""A finished run can be used: the result of `init` comes back with trained weights."""

import shutil
import sys
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.errors import ConfigError
from frugax.run import RunConfig, RunFolder, TrainConfig, load_trained, run
from refusals import refuses

TASK = """
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
class Net(eqx.Module):
    layer: eqx.nn.Linear
    table: jax.Array
    scale: float
    kind: str = eqx.field(static=True)
def task():
    x = np.ones((4, 3), "float32")
    init = lambda key: Net(eqx.nn.Linear(3, 2, key=key), jnp.arange(3), 0.5, "plain")
    def loss(m, x):
        out = jax.vmap(m.layer)(x) * m.scale + m.table[1].astype(float)
        return out.mean() ** 2
    return init, loss, [x]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    home = tmp_path_factory.mktemp("trained")
    (home / "net_task.py").write_text(TASK)
    config = RunConfig(name="x", train=TrainConfig(steps=7), task="net_task:task")
    folder = RunFolder(home / "x")
    return folder, run(config, folder, config_folder=home)


@contextmanager
def edited(module, old, new):
    """A module that the user has changed since it was imported; then as it was."""
    before = module.read_text()
    with pytest.MonkeyPatch.context() as patch:
        # Python takes bytecode of the same second and size for that of the new text.
        patch.setattr(sys, "dont_write_bytecode", True)
        for cached in (module.parent / "__pycache__").glob(f"{module.stem}.*"):
            cached.unlink()
        module.write_text(before.replace(old, new))
        sys.modules.pop(module.stem, None)
        try:
            yield
        finally:
            module.write_text(before)
            sys.modules.pop(module.stem, None)


def test_floating_point_arrays_are_trained_and_the_rest_is_kept(trained):
    folder, outcome = trained
    model, task = load_trained(folder.path)
    fresh = task.init(jax.random.key(0))
    assert (model.scale, model.kind) == (0.5, "plain")
    np.testing.assert_array_equal(model.table, jnp.arange(3))
    assert not np.array_equal(model.layer.weight, fresh.layer.weight)
    assert outcome.model.weights == 3 * 2 + 2
    x = np.ones((4, 3), "float32")
    assert float(task.loss(model, x)) < float(task.loss(fresh, x))


def test_a_run_that_is_not_finished_is_named(trained, tmp_path):
    folder, _ = trained
    (tmp_path / "config.yaml").write_bytes(folder.config.read_bytes())
    with refuses(ConfigError, "model.fxz"):
        load_trained(tmp_path)


def test_code_that_makes_another_model_now_is_refused(trained):
    folder, _ = trained
    with (
        edited(folder.config_folder() / "net_task.py", "Linear(3, 2", "Linear(3, 5"),
        refuses(ConfigError, "(2,)"),
    ):
        load_trained(folder.path)


def test_a_model_file_that_is_gone_or_another_is_noticed(trained):
    folder, _ = trained
    assert folder.model_is_whole()
    data = folder.model.read_bytes()
    folder.model.write_bytes(data + b"x")
    assert not folder.model_is_whole()
    folder.model.unlink()
    assert not folder.model_is_whole()
    folder.model.write_bytes(data)
    assert folder.model_is_whole()


def test_going_on_with_another_loss_is_refused_or_noted(trained, tmp_path):
    folder, _ = trained
    config_folder = folder.config_folder()
    again = RunFolder(tmp_path / "again")
    shutil.copytree(folder.path, again.path)
    config = RunConfig(name="x", train=TrainConfig(steps=9), task="net_task:task")
    with edited(config_folder / "net_task.py", ".mean() ** 2", ".mean() ** 4"):
        options = {"config_folder": config_folder, "resume": True}
        with refuses(ConfigError, "train.steps"):
            run(config, again, **options)
        outcome = run(config, again, **options, accept_changes=True)
    assert any("code of net_task has changed" in n for n in outcome.notes)
