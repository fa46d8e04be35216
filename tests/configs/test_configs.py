"""One reader of YAML for every config: its words, its places, its overrides."""

import dataclasses
from typing import Any

import pytest

from frugax.configs import parse_config, read_text
from frugax.errors import ConfigError


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


def test_the_later_of_two_overrides_wins_and_is_named():
    said = ["rate=2", "rate=3"]
    assert parse_config(Config, "{}", "c.yaml", overrides=said).rate == 3
    with pytest.raises(ConfigError, match=r"^override 'rate=y': rate: "):
        parse_config(Config, "{}", "c.yaml", overrides=["rate=x", "rate=y"])


def test_errors_of_the_file_name_its_line_in_spite_of_overrides():
    with pytest.raises(ConfigError, match=r"^c\.yaml:2: rate: "):
        parse_config(Config, "level: a\nrate: x\n", "c.yaml", overrides=["level=b"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file"):
        read_text(tmp_path / "none.yaml")
