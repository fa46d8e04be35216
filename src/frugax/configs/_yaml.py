"""Load YAML as plain data with the line of each key; apply `key=value` overrides."""

import re
from typing import Any

import yaml

from frugax.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with two rules of YAML 1.2.

    `1e-3` is a number, and only `true` and `false` are booleans: `off` stays text.
    """


# PyYAML reads YAML 1.1, in which `no` and `off` are booleans (the country code of
# Norway among them) and 1e-3 is text, as it lacks a dot.
_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d[\d_]*)(?:\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def read_mapping(text: str, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Load a YAML file that is a mapping.

    Raises:
        ConfigError: `text` is not YAML or not a mapping, or a key is repeated.
    """
    try:
        # Parsed twice: only the nodes have lines, and only `load` builds the data.
        node = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = ""
        if mark:
            line = f":{mark.line + 1}"
        problem = getattr(e, "problem", None) or str(e).splitlines()[0]
        raise ConfigError(f"{name}{line}: this is not YAML: {problem}.") from e
    except RecursionError:
        raise ConfigError(f"{name}: lists and mappings are nested too deep.") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: a config is a mapping of keys to values.")
    lines: dict[str, int] = {}
    _index(node, "", lines, name)
    return data, lines


def replace_value(data: dict[str, Any], override: str) -> str:
    """Replace one value of the data in place."""
    key, sign, value = override.partition("=")
    path = key.strip()
    if not sign or not all(path.split(".")):
        raise ConfigError(
            f"override {override!r}: write key=value, such as train.steps=10."
        )
    *parents, last = path.split(".")
    for parent in parents:
        # Missing parents are added: budgets.size=6x also works on a file without
        # budgets.
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {parent} is not a mapping.")
        data = inner
    try:
        data[last] = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as e:
        raise ConfigError(f"override {override!r}: the value is not YAML.") from e
    except RecursionError:
        raise ConfigError(f"override {key!r}: the value is nested too deep.") from None
    return path


def _index(node: Any, at: str, lines: dict[str, int], name: str) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = f"{at}.{key.value}".removeprefix(".")
        line = key.start_mark.line + 1
        # PyYAML lets the last of equal keys win, which would ignore a part of the file.
        if path in lines:
            raise ConfigError(
                f"{name}:{line}: {path}: this key is repeated, first on line "
                f"{lines[path]}; remove one."
            )
        lines[path] = line
        _index(value, path, lines, name)
