"""One reader of YAML for every config: its words, its places, its overrides."""

import dataclasses
from typing import Any

import pytest

from frugax.configs import parse_config, read_text
from frugax.errors import ConfigError
from refusals import refuses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    level: str = "full"
    rate: float = 1.0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_yaml_is_read_as_everybody_but_yaml_1_1_reads_it():
    text = "level: off\nrate: 1e-3\noptions: {a: no, b: true, c: 1_000, d: 1e3}\n"
    config = parse_config(Config, text, "c.yaml")
    assert config == Config(
        level="off", rate=0.001, options={"a": "no", "b": True, "c": 1000, "d": 1e3}
    )


@pytest.mark.parametrize("written", ["1:30", "010", "-07", "1:30.5"])
def test_numbers_of_yaml_1_1_stay_as_they_are_written(written):
    text = f"options: {{a: {written}, b: -0, c: .5, d: 0x1f, e: [1.5e3, .inf]}}"
    read = {"a": written, "b": 0, "c": 0.5, "d": 31, "e": [1500.0, float("inf")]}
    assert parse_config(Config, text, "c.yaml").options == read
    with refuses(ConfigError, "rate", f"'{written}'"):
        parse_config(Config, f"rate: {written}", "c.yaml")


def test_the_later_of_two_overrides_wins_and_is_named():
    said = ["rate=2", "rate=3"]
    assert parse_config(Config, "{}", "c.yaml", overrides=said).rate == 3
    with refuses(ConfigError, "'rate=y'"):
        parse_config(Config, "{}", "c.yaml", overrides=["rate=x", "rate=y"])


def test_errors_of_the_file_name_its_line_in_spite_of_overrides():
    with refuses(ConfigError, "c.yaml:2", "rate"):
        parse_config(Config, "level: a\nrate: x\n", "c.yaml", overrides=["level=b"])


def test_a_missing_file_is_named(tmp_path):
    with refuses(ConfigError, "none.yaml"):
        read_text(tmp_path / "none.yaml")


_BOMB = "options:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"rate: {'9' * 5000}", r"^c\.yaml:1: .*the value '9+' cannot be read"),
        (f"rate: 1\nrate2: {'9' * 5000}", r"^c\.yaml:2: .*cannot be read"),
        (f"rate: {'9' * 400}", r"^c\.yaml:1: rate: expected a number, got"),
        (f"rate: 0x{'f' * 5000}", r"the value '0xf+' cannot be read"),
        ("level: !!int abc", r"^c\.yaml:1: .*the value 'abc' cannot be read"),
        ("level: !!bool abc", "cannot be read"),
        ("level: !!timestamp abc", "cannot be read"),
        ("level: 2001-99-99", r"the value '2001-99-99' cannot be read"),
        ("options: &a {b: *a}", "nested too deep"),
        ("&a {options: {b: *a}}", "nested too deep"),
        ("options: &a [*a]", "nested too deep"),
        (_BOMB, "repeat too many values"),
        ("level: a\nlevel: b", r"^c\.yaml:2: level: .*line 1"),
        ("level: a\nrate: [", r"^c\.yaml:2: this is not YAML"),
        ("- a", r"^c\.yaml: a config is a mapping"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_yaml_that_cannot_become_data_is_one_line(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(Config, text, "c.yaml")
    if "\n" not in text and text.startswith("options"):
        override = text.replace(": ", "=", 1)
        with pytest.raises(ConfigError, match=message):
            parse_config(Config, "{}", "c.yaml", overrides=[override])


def test_a_key_that_is_repeated_in_an_override_is_refused():
    with refuses(ConfigError, "'options'", "a"):
        parse_config(Config, "{}", "c.yaml", overrides=["options={a: 1, a: 2}"])


def test_aliases_and_merged_keys_are_read():
    text = "options: {a: &a {x: 1}, b: *a, c: {<<: *a, y: 2}}"
    found = parse_config(Config, text, "c.yaml").options
    assert found == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


@pytest.mark.parametrize("merged", ["*a", "[*b, *a]"])
def test_a_merged_value_is_refused_at_its_own_line(merged):
    text = f"options:\n  a: &a {{rate: x}}\n  b: &b {{level: y}}\n<<: {merged}\n"
    with refuses(ConfigError, "c.yaml:2", "rate"):
        parse_config(Config, text, "c.yaml")
