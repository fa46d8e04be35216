"""The user's function becomes a task, or one line with the reason why it cannot."""

from pathlib import Path

import jax
import pytest

from frugax.errors import ConfigError
from frugax.run import RunConfig, Task, TrainConfig, load_task


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
    ("name", "message"),
    [
        ("own_task_zz:f", "'own_task_zz' was not found.*Did you mean 'own_task_"),
        ("own_task_a:god", "no function 'god'. Did you mean 'good'. It has: good, it"),
        ("own_task_a:value", "no function 'value'"),
        ("own_task_a:number", "returned a int; return frugax.run.Task"),
        ("own_task_a:no_loss", "loss must be a function, got a int"),
        ("own_task_a:empty", "batches is empty"),
        ("own_task_a:swapped", r"init must take \(key\), but it takes \(m, b\)"),
        ("own_task_a:no_step", r"batches must take \(step\), but it takes \(\)"),
        ("own_task_a:iterator", "batches must be .*got a list_iterator"),
    ],
)
def test_a_wrong_task_is_refused_with_its_reason(folder, name, message):
    with pytest.raises(ConfigError, match=message):
        load_task(own(name), config_folder=folder)


def test_an_unknown_option_is_named(folder):
    with pytest.raises(ConfigError, match="Did you mean 'n'"):
        load_task(own("own_task_a:good", nn=5), config_folder=folder)


def test_an_import_error_in_user_code_is_named_with_its_line(folder):
    message = r"importing own_task_b raised ModuleNotFoundError at own_task_b.py:\d+: "
    with pytest.raises(ConfigError, match=f"{message}.*no_such_package_of_mine"):
        load_task(own("own_task_b:f"), config_folder=folder)


def test_a_batch_larger_than_the_data_is_refused():
    from frugax.run import DataConfig, ModelConfig

    config = RunConfig(
        name="x",
        train=TrainConfig(steps=1),
        data=DataConfig(batch=5000),
        model=ModelConfig(name="mlp", width=4, depth=1),
    )
    with pytest.raises(ConfigError, match=r"data\.batch must be <= 1438"):
        load_task(config, config_folder=Path())
