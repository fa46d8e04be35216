"""Read a run's config and receipt beside its journal, for the live page."""

import json
from pathlib import Path
from typing import Any

import yaml

from frugax.budget import Receipt, amount

# The longest receipt or config to read; those of frugax have some kilobytes.
_MAX_FILE_BYTES = 8 * 2**20
# The place of each budget in a config, its name on the page, and its unit.
_LIMITS = (
    ("memory", "limit_bytes", "memory of one training step", "bytes"),
    ("memory", "share", "memory, of the un-planned step", "share"),
    ("time", "seconds", "time of the whole run", "seconds"),
    ("time", "compiles", "compiles of the training step", "compiles"),
    ("overhead", "share", "time spent watching", "share"),
    ("size", "ratio", "model file, times smaller", ""),
    ("size", "limit_bytes", "model file", "bytes"),
)


def read_facts(folder: Path | None, meta: dict[str, Any]) -> dict[str, Any]:
    """Read config and receipt for JSON; `missing` names the absent parts."""
    missing: list[str] = []
    config = _read_mapping(folder, "config.yaml", missing)
    receipt = _read_mapping(folder, "receipt.json", missing)
    if folder is None:
        missing.append(
            "This is a journal alone, without a config or a receipt beside it."
        )
    if receipt:
        budgets = _describe_spends(receipt, missing)
    else:
        budgets = _describe_limits(config)
    return {
        "name": _of_type(str, config.get("name") or meta.get("name")),
        "steps": _of_type(int, (_part(config, "train") or {}).get("steps")),
        "budgets": budgets,
        "verdict": receipt.get("verdict"),
        "memory": _part(receipt, "memory"),
        "evaluations": _evaluations(receipt),
        "notes": [n for n in _items(receipt, "notes") if isinstance(n, str)],
        "environment": _part(receipt, "environment"),
        "stopped_because": receipt.get("stopped_because"),
        "finished": bool(receipt),
        "missing": missing,
    }


def read_config(folder: Path | None) -> dict[str, Any]:
    """Read the settings of a run; empty if there are none that can be read."""
    return _read_mapping(folder, "config.yaml", [])


def _read_mapping(folder: Path | None, name: str, missing: list[str]) -> dict[str, Any]:
    if folder is None:
        return {}
    try:
        with (folder / name).open("rb") as file:
            # One byte more than allowed tells a file that is too long without reading
            # all of it.
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        message = f"There is no {name}."
        if name == "receipt.json":
            message += " It is written when the run ends."
        missing.append(message)
        return {}
    except OSError as e:
        missing.append(f"{name} cannot be read: {e.strerror}.")
        return {}
    if len(data) > _MAX_FILE_BYTES:
        missing.append(
            f"{name} is longer than {_MAX_FILE_BYTES:,} bytes; it is not shown."
        )
        return {}
    try:
        text = data.decode()
        # The safe loader: the full one of YAML can build any Python object.
        load = json.loads if name.endswith(".json") else yaml.safe_load
        found = load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as e:
        missing.append(f"{name} cannot be read: {' '.join(str(e).split())[:200]}.")
        return {}
    if not isinstance(found, dict):
        missing.append(f"{name} is not a mapping.")
        return {}
    return found


def _describe_spends(
    receipt: dict[str, Any], missing: list[str]
) -> list[dict[str, Any]]:
    try:
        spends = Receipt.from_json(json.dumps(receipt)).spends
    except (ValueError, TypeError) as e:
        missing.append(f"The receipt's spends cannot be read: {e}")
        return []
    described = []
    for s in spends:
        measured = amount(s.measured, s.unit)
        if s.noise:
            measured += f" ± {amount(s.noise, s.unit)}"
        described.append(
            {
                "name": s.name,
                "unit": s.unit,
                "limit": _finite_number(s.limit),
                "measured": _finite_number(s.measured),
                "limit_text": s.limit_text,
                "predicted_text": amount(s.predicted, s.unit),
                "measured_text": measured,
                "verdict": str(s.verdict),
                "source": s.source,
            }
        )
    return described


def _describe_limits(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Describe the limits in a config, for a run without a receipt."""
    budgets = _part(config, "budgets") or {}
    described = []
    for key, inner, name, unit in _LIMITS:
        limit = (_part(budgets, key) or {}).get(inner)
        if isinstance(limit, (int, float)) and not isinstance(limit, bool):
            described.append(
                {
                    "name": name,
                    "unit": unit,
                    "limit": limit,
                    "measured": None,
                    "limit_text": amount(limit, unit),
                    "predicted_text": "-",
                    "measured_text": "not yet",
                    "verdict": "running",
                    "source": "config.yaml; measured when the run ends",
                }
            )
    return described


def _evaluations(receipt: dict[str, Any]) -> dict[str, Any]:
    """Return the evaluations of a finished run as series by figure."""
    found: dict[str, dict[str, list[float]]] = {}
    for entry in _items(receipt, "evaluations"):
        match entry:
            case [int(step), dict(figures)]:
                for name, value in figures.items():
                    if _finite_number(value) is not None:
                        series = found.setdefault(str(name), {"x": [], "y": []})
                        series["x"].append(step)
                        series["y"].append(value)
    return found


# Users may edit a receipt or a config: a value of a wrong type counts as missing.
def _of_type(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else None


def _part(mapping: dict[str, Any], key: str) -> dict[str, Any] | None:
    return _of_type(dict, mapping.get(key))


def _items(mapping: dict[str, Any], key: str) -> list[Any]:
    return _of_type(list, mapping.get(key)) or []


def _finite_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # Not math.isfinite, which overflows for integers that no float can hold.
    return value if value - value == 0 else None
