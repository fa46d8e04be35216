"""A config is checked before anything is done; a mistake is named with its place."""

import pytest

from frugax.budget import MemoryBudget, SizeBudget, TimeBudget, from_plain, to_plain
from frugax.errors import ConfigError
from frugax.run import RunConfig, load_config
from refusals import refuses

GOOD = """\
name: small
data: {name: digits}
model: {name: mlp}
train:
  steps: 10
  learning_rate: 1e-3
budgets:
  memory: 50%
  time: {seconds: 2min, compiles: 1}
  size: 6x
"""


@pytest.fixture
def write(tmp_path):
    def write_config(text):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return path

    return write_config


def test_human_strings_become_budgets(write):
    config = load_config(write(GOOD))
    assert config.train.learning_rate == 1e-3
    assert config.budgets.time == TimeBudget(seconds=120, compiles=1)
    assert config.budgets.size == SizeBudget(ratio=6)
    assert config.budgets.memory == MemoryBudget.share(0.5)


def test_a_config_survives_plain_data(write):
    config = load_config(write(GOOD))
    assert from_plain(RunConfig, to_plain(config)) == config


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("steps: 10", "stepz: 10", "train.stepz"),
        ("steps: 10", "steps: 0", "train.steps"),
        ("steps: 10", "steps: ten", "train.steps"),
        ("steps: 10", "steps: 1.5", 1),
        ("steps: 10", "steps: 10\n  steps: 11", "c.yaml"),
        ("1e-3", "-1", "train.learning_rate"),
        ("50%", "lots", "budgets.memory"),
        ("50%", "0%", "budgets.memory"),
        ("2min", "2 moons", "budgets.time"),
        ("6x", "6 times", "6 times"),
        ("mlp", "mlq", "mlp"),
        (
            "name: small",
            "name: a/b",
            "c.yaml",
        ),
        ("name: small", "nam: small", "c.yaml"),
        ("name: small\n", "", "c.yaml"),
        ("model: {name: mlp}\n", "", "c.yaml"),
        ("model: {name: mlp}", "task: 'a:b'", "c.yaml"),
        *(
            ("data: {name: digits}\nmodel: {name: mlp}", f"task: '{name}'", named)
            for named in ['"module:function"']
            for name in ("a", "a:", ":b", ".a:b", "..:b", "a.py:b", "a :b", "a:b:c")
        ),
        ("1e-3", "1e39", "1e+39"),
        ("{name: mlp}", "{name: mlp", "c.yaml"),
        ("size: 6x", "accuracy_drop: 0.1", "c.yaml"),
        (GOOD, "- 1", "c.yaml"),
        (GOOD, "", "c.yaml"),
    ],
)
def test_a_config_error_names_its_place(write, old, new, named):
    assert old in GOOD
    with refuses(ConfigError, named) as caught:
        load_config(write(GOOD.replace(old, new, 1)))
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with refuses(ConfigError, "none.yaml"):
        load_config(tmp_path / "none.yaml")


def test_a_binary_file(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    with refuses(ConfigError, "c.yaml"):
        load_config(tmp_path / "c.yaml")


def test_overrides_replace_single_values(write):
    config = load_config(
        write(GOOD), overrides=["train.steps=3", "budgets.memory=null", "model.depth=2"]
    )
    assert (config.train.steps, config.budgets.memory) == (3, None)
    assert config.model is not None
    assert config.model.depth == 2


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("train.steps", "key=value"),
        ("=3", "key=value"),
        (
            "train.stepz=3",
            "'train.stepz=3'",
        ),
        ("train.steps=-3", "'train.steps=-3'"),
        ("name.x=3", "'name.x=3'"),
        ("train.steps=[1", "'<stream end>'"),
    ],
)
def test_a_wrong_override_is_named(write, override, named):
    with refuses(ConfigError, named):
        load_config(write(GOOD), overrides=[override])
