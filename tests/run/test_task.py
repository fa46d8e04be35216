"""The user's function becomes a task, or one line with the reason why it cannot."""

from pathlib import Path

import jax
import pytest

from frugax.errors import ConfigError
from frugax.run import RunConfig, Task, TrainConfig, load_task
from refusals import refuses


def own(task: str, **options) -> RunConfig:
    train = TrainConfig(steps=1)
    return RunConfig(name="x", train=train, task=task, options=options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # Module names are unique to this test: Python caches imports.
    (tmp_path / "own_task_a.py").write_text(
        "def good(n=1): return (lambda k: n, lambda m, b: 0.0, [n])\n"
        "def iterator(): return (lambda k: 1, lambda m, b: 0.0, iter([1]))\n"
        "def number(): return 3\n"
        "def no_loss(): return (lambda k: 1, 2, [1])\n"
        "def empty(): return (lambda k: 1, lambda m, b: 0.0, [])\n"
        "def swapped(): return (lambda m, b: 0.0, lambda k: 1, [1])\n"
        "def no_step(): return (lambda k: 1, lambda m, b: 0.0, lambda: 1)\n"
        "value = 3\n"
    )
    (tmp_path / "own_task_b.py").write_text("import no_such_package_of_mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_tuple_is_a_task_and_options_are_arguments(folder):
    task = load_task(own("own_task_a:good", n=5), config_folder=folder)
    assert isinstance(task, Task)
    assert task.init(jax.random.key(0)) == 5
    assert task.summary == "own_task_a:good"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("own_task_zz:f", "own_task_zz"),
        ("own_task_a:god", "good"),
        ("own_task_a:value", "function"),
        ("own_task_a:number", "frugax.run.Task"),
        ("own_task_a:no_loss", "loss"),
        ("own_task_a:empty", "batches"),
        ("own_task_a:swapped", "init"),
        ("own_task_a:no_step", "batches"),
        ("own_task_a:iterator", "batches"),
    ],
)
def test_a_wrong_task_is_refused_with_its_reason(folder, name, named):
    with refuses(ConfigError, named):
        load_task(own(name), config_folder=folder)


def test_an_unknown_option_is_named(folder):
    with refuses(ConfigError, "'n'"):
        load_task(own("own_task_a:good", nn=5), config_folder=folder)


def test_an_import_error_in_user_code_is_named_with_its_line(folder):
    with refuses(ConfigError, "own_task_b.py:1", "no_such_package_of_mine"):
        load_task(own("own_task_b:f"), config_folder=folder)


def test_a_batch_larger_than_the_data_is_refused():
    from frugax.run import DataConfig, ModelConfig

    config = RunConfig(
        name="x",
        train=TrainConfig(steps=1),
        data=DataConfig(batch=5000),
        model=ModelConfig(name="mlp", width=4, depth=1),
    )
    with refuses(ConfigError, "data.batch"):
        load_task(config, config_folder=Path())
