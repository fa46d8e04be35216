"""A config is checked before anything is done; a mistake is named with its place."""

import pytest

from frugax.budget import MemoryBudget, SizeBudget, TimeBudget, from_plain, to_plain
from frugax.errors import ConfigError
from frugax.run import RunConfig, load_config

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
    assert config.budgets.memory is not None
    assert config.budgets.memory.to_budget(1001) == MemoryBudget(limit_bytes=500)


def test_a_config_survives_plain_data(write):
    config = load_config(write(GOOD))
    assert from_plain(RunConfig, to_plain(config)) == config


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps: 10", "stepz: 10", r"c\.yaml:5: train\.stepz: .*Did you mean 'steps'"),
        ("steps: 10", "steps: 0", r"c\.yaml:5: train\.steps: must be >= 1, got 0"),
        ("steps: 10", "steps: ten", r"c\.yaml:5: train\.steps: .*whole number, got"),
        ("steps: 10", "steps: 1.5", r"c\.yaml:5: .*whole number, got 1\.5"),
        ("steps: 10", "steps: 10\n  steps: 11", r"c\.yaml:6: .*is repeated.*line 5"),
        ("1e-3", "-1", r"c\.yaml:6: train\.learning_rate: must be > 0"),
        ("50%", "lots", r"c\.yaml:8: budgets\.memory"),
        ("50%", "0%", r"c\.yaml:8: budgets\.memory: memory must be > 0"),
        ("2min", "2 moons", r"c\.yaml:9: budgets\.time: .*'moons'"),
        ("6x", "6 times", r"c\.yaml:10: budgets\.size: .*'6 times' has the unit"),
        ("mlp", "mlq", r"c\.yaml:3: model\.name: .*Did you mean 'mlp'"),
        (
            "name: small",
            "name: a/b",
            r"c\.yaml:1: name: must start with a letter.*'a/b'",
        ),
        ("name: small", "nam: small", r"c\.yaml:1: nam: .*Did you mean 'name'"),
        ("name: small\n", "", r"c\.yaml: name: this key is missing"),
        ("model: {name: mlp}\n", "", "either data and model, or task"),
        ("model: {name: mlp}", "task: 'a:b'", "leave those keys out"),
        *(
            ("data: {name: digits}\nmodel: {name: mlp}", f"task: '{name}'", message)
            for message in [r"c\.yaml:2: task: .*write \"module:function\""]
            for name in ("a", "a:", ":b", ".a:b", "..:b", "a.py:b", "a :b", "a:b:c")
        ),
        ("1e-3", "1e39", "must be > 0 and finite"),
        ("{name: mlp}", "{name: mlp", r"c\.yaml:4: this is not YAML"),
        ("size: 6x", "accuracy_drop: 0.1", "needs a size budget"),
        (GOOD, "- 1", "a config is a mapping"),
        (GOOD, "", "a config is a mapping"),
    ],
)
def test_a_config_error_names_its_place(write, old, new, message):
    assert old in GOOD
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(GOOD.replace(old, new, 1)))
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        load_config(tmp_path / "none.yaml")


def test_a_binary_file(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        load_config(tmp_path / "c.yaml")


def test_overrides_replace_single_values(write):
    config = load_config(
        write(GOOD), overrides=["train.steps=3", "budgets.memory=null", "model.depth=2"]
    )
    assert (config.train.steps, config.budgets.memory) == (3, None)
    assert config.model is not None
    assert config.model.depth == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps", "write key=value"),
        ("=3", "write key=value"),
        (
            "train.stepz=3",
            r"^override 'train\.stepz=3': train\.stepz: .*Did you mean 'steps'",
        ),
        ("train.steps=-3", r"^override 'train\.steps=-3': train\.steps: must be >= 1"),
        ("name.x=3", "name is not a mapping"),
        ("train.steps=[1", "is not YAML"),
    ],
)
def test_a_wrong_override_is_named(write, override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(write(GOOD), overrides=[override])
