"""Hash a run's code, data, versions and program, to find what changed on resume."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from frugax.jaxprs import digest
from frugax.trees import PyTree, key_to_data

from ._environment import describe_environment

# The machine and the date are not part of the comparison, only of the report.
_VERSIONS = ("frugax", "jax", "jaxlib", "numpy", "optax", "device")


def code_fingerprint(config_folder: Path) -> dict[str, str]:
    """Hash the user's own modules that were imported, without comments and layout."""
    roots = {config_folder.resolve(), Path.cwd()}
    stdlib = Path(sysconfig.get_path("stdlib"))
    found: dict[str, str] = {}
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        is_own = file.suffix == ".py" and any(root in file.parents for root in roots)
        is_library = "site-packages" in file.parts or stdlib in file.parents
        if not is_own or is_library or name.split(".")[0] == "frugax":
            continue
        try:
            text = ast.dump(ast.parse(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError):
            continue  # it is loaded, but its source cannot be read any more
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


def version_fingerprint() -> dict[str, str]:
    """Return the versions and the device that the numbers depend on."""
    environment = describe_environment()
    return {name: environment[name] for name in _VERSIONS}


def data_fingerprint(batches: Mapping[str, PyTree], length: int | None) -> dict:
    """Hash some batches by their name, and state the length of the data."""
    found = {name: hash_tree(batch) for name, batch in batches.items()}
    if length is not None:
        found["number of batches"] = str(length)
    return found


def program_fingerprint(loss: Any, *args: PyTree) -> str:
    """Hash a function as JAX traces it."""
    return digest(jax.make_jaxpr(loss)(*args))[:16]


class Change(NamedTuple):
    """A fingerprint that differs.

    Attributes:
        text: the change, for people.
        is_device_count: whether it is only the number of devices.
    """

    text: str
    is_device_count: bool = False


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Name what differs between two sets of fingerprints, by topic.

    Topics that one of the two does not know are not compared: an older run has fewer.
    """
    changes: list[Change] = []
    for topic in before.keys() & now.keys():
        old, new = before[topic], now[topic]
        if not isinstance(old, Mapping):
            if old != new:
                changes.append(Change(f"the {topic} has changed"))
            continue
        # Of modules that only one of two processes has imported nothing is known: some
        # are imported late, for example when the model is evaluated.
        keys = old.keys() & new.keys() if topic == "code" else old | new
        for key in keys:
            if old.get(key) == new.get(key):
                continue
            match topic:
                case "config" | "versions":
                    values = [str(side.get(key, "unset")) for side in (old, new)]
                    parts = [value.partition(" x ") for value in values]
                    is_count = key == "device" and parts[0][2] == parts[1][2]
                    if is_count:
                        key, values = "number of devices", [p[0] for p in parts]
                    changes.append(Change(f"{key}: {' -> '.join(values)}", is_count))
                case "code":
                    changes.append(Change(f"the code of {key} has changed"))
                case _:
                    changes.append(Change(f"the {key} of the {topic} has changed"))
    return sorted(changes)


def hash_tree(tree: PyTree) -> str:
    """Hash the arrays of a tree with their names, types and shapes."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(key_to_data(leaf))
        header = f"{jax.tree_util.keystr(path)} {array.dtype}{array.shape}"
        digest.update(header.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
