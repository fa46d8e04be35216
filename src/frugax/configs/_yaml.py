"""A YAML file as plain data, with the line of each key for error messages."""

import re
from typing import Any

import yaml

from frugax.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Safe YAML, with two words read as YAML 1.2 and everybody else read them.

    `1e-3` is a number, and only true and false are booleans: `off` is a level.
    """


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
    """Read a YAML file that holds keys.

    Args:
        text: the file.
        name: its name, for messages.

    Returns:
        Its plain data, and the line on which each key stands, by dotted path.

    Raises:
        ConfigError: it is no YAML or no mapping, or a key stands twice.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(e, "problem", None) or str(e).splitlines()[0]
        raise ConfigError(f"{name}{line}: this is not YAML: {problem}.") from e
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: a config is a mapping of keys to values.")
    lines: dict[str, int] = {}
    _index(node, "", lines, name)
    return data, lines


def replace_value(data: dict[str, Any], override: str) -> str:
    """Replace one value, in place.

    Args:
        data: what `read_mapping` gave.
        override: `key=value`, the key a dotted path, the value YAML.

    Returns:
        The dotted path.

    Raises:
        ConfigError: it is no `key=value`, or what stands above the key is no mapping.
    """
    key, sign, value = override.partition("=")
    path = key.strip()
    if not sign or not all(path.split(".")):
        raise ConfigError(
            f"override {override!r}: say key=value, such as train.steps=10."
        )
    *parents, last = path.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {parent} is no mapping.")
        data = inner
    try:
        data[last] = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as e:
        raise ConfigError(f"override {override!r}: the value is not YAML.") from e
    return path


def _index(node: Any, at: str, lines: dict[str, int], name: str) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = f"{at}.{key.value}" if at else str(key.value)
        line = key.start_mark.line + 1
        if path in lines:
            raise ConfigError(
                f"{name}:{line}: {path}: this key stands twice, first on line "
                f"{lines[path]}; remove one."
            )
        lines[path] = line
        _index(value, path, lines, name)
