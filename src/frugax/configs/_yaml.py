"""Load YAML as plain data with the line of each key; apply `key=value` overrides."""

import re
from typing import Any

import yaml

from frugax.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with three rules of YAML 1.2.

    `1e-3` is a number, `1:30` and `010` are text, and only `true` and `false` are
    booleans: `off` stays text.
    """

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Build a value; a malformed one is an error of YAML."""
        try:
            value = super().construct_object(node, deep)
            str(value if isinstance(value, int) else "")  # 0xff... of any length
            return value
        # PyYAML's errors of `!!int x`, of the 40th of a month, of 5,000 digits.
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            problem = f"the value {str(node.value)[:40]!r} cannot be read"
            raise yaml.constructor.ConstructorError(
                None, None, problem, node.start_mark
            ) from e


# More than any config has; a list of as many values belongs in a file of data.
_MOST_NODES, _MOST_DEPTH = 100_000, 100


# PyYAML reads YAML 1.1, in which `no` and `off` are booleans (the country code of
# Norway among them), 1e-3 is text, as it lacks a dot, 1:30 is 90 and 010 is 8.
_RESOLVERS = {
    "bool": (r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][\d_]*|0x[\da-fA-F_]+|0b[01_]+)$", "-+0123456789"),
    "float": (
        r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+"
        r"|\.\d[\d_]*(?:[eE][-+]?\d+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$",
        "-+0123456789.",
    ),
}
_TAG = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, old) for tag, old in pairs if tag[len(_TAG) :] not in _RESOLVERS]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for kind, (pattern, firsts) in _RESOLVERS.items():
    _Loader.add_implicit_resolver(_TAG + kind, re.compile(pattern), list(firsts))


def read_mapping(text: str, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Load a YAML file that is a mapping.

    Raises:
        ConfigError: `text` is not YAML or not a mapping, or a key is repeated.
    """
    data, lines = _load(text, name)
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: a config is a mapping of keys to values.")
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
    data[last], _ = _load(value, f"override {key!r}")
    return path


def _load(text: str, name: str) -> tuple[Any, dict[str, int]]:
    """Load YAML, with the line of each key by its dotted path."""
    loader, lines = None, dict[str, int]()
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, lines
        _index(node, "", lines, name, [_MOST_NODES], depth=0)
        return loader.construct_document(node), lines
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = ""
        if mark:
            line = f":{mark.line + 1}"
        problem = getattr(e, "problem", None) or str(e).splitlines()[0]
        raise ConfigError(f"{name}{line}: this is not YAML: {problem}.") from e
    except RecursionError:
        raise ConfigError(f"{name}: lists and mappings are nested too deep.") from None
    finally:
        if loader is not None:
            loader.dispose()


def _index(
    node: Any, at: str, lines: dict[str, int], name: str, left: list[int], *, depth: int
) -> None:
    # Aliases make a short text a tree without an end, or with 9**9 leaves.
    left[0] -= 1
    if left[0] < 0:
        raise ConfigError(f"{name}: aliases (*name) repeat too many values.")
    if depth > _MOST_DEPTH:
        raise RecursionError
    if isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines[f"{at}[{i}]"] = value.start_mark.line + 1
            _index(value, f"{at}[{i}]", lines, name, left, depth=depth + 1)
    if not isinstance(node, yaml.MappingNode):
        return
    merged: dict[str, int] = {}
    for key, value in node.value:
        if key.tag == f"{_TAG}merge":  # << takes the keys of one mapping, or of several
            several = isinstance(value, yaml.SequenceNode)
            for each in value.value if several else [value]:
                found: dict[str, int] = {}
                _index(each, at, found, name, left, depth=depth + 1)
                merged = found | merged
            continue
        path = f"{at}.{key.value}".removeprefix(".")
        line = key.start_mark.line + 1
        # PyYAML lets the last of equal keys win, which would ignore a part of the file.
        if path in lines:
            raise ConfigError(
                f"{name}:{line}: {path}: this key is repeated, first on line "
                f"{lines[path]}; remove one."
            )
        lines[path] = line
        _index(value, path, lines, name, left, depth=depth + 1)
    for path, line in merged.items():
        lines.setdefault(path, line)
