"""List a config's settings by dotted key (`train.steps`), for compare and resume."""

from collections.abc import Mapping
from typing import Any

from frugax.budget import to_plain

from ._config import RunConfig

# Settings that a resumed run may change: the trained numbers do not depend on them.
CHANGEABLE = (
    "budgets.time",
    "budgets.overhead",
    "budgets.size",
    "budgets.accuracy_drop",
)


def config_fingerprint(config: RunConfig) -> dict[str, str]:
    """List every setting that the numbers depend on, by its dotted key."""
    found = flatten_keys(to_plain(config))
    return {
        key: value
        for key, value in found.items()
        if not any(f"{key}.".startswith(f"{name}.") for name in CHANGEABLE)
    }


def flatten_keys(value: Any, at: str = "") -> dict[str, str]:
    """Return the values of nested mappings as text, by their dotted keys."""
    if not (isinstance(value, Mapping) and value):
        return {at: str(value)}
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= flatten_keys(inner, f"{at}.{key}".removeprefix("."))
    return found
