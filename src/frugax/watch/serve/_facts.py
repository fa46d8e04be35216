"""What lies beside the journal in a run's folder: config, receipt, and who holds it."""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from frugax.budget import Receipt, amount

_MOST_BYTES = 8 * 2**20  # of a receipt or config; ours have some kilobytes
# Where a config keeps each budget, and how the page calls it before there is a receipt.
_LIMITS = (
    ("memory", "limit_bytes", "memory of one training step", "bytes"),
    ("memory", "share", "memory, of the un-planned step", "share"),
    ("time", "seconds", "time of the whole run", "seconds"),
    ("time", "compiles", "compiles of the training step", "compiles"),
    ("overhead", "share", "time spent watching", "share"),
    ("size", "ratio", "model file, times smaller", ""),
    ("size", "limit_bytes", "model file", "bytes"),
)


def facts(folder: Path | None, meta: dict[str, Any]) -> dict[str, Any]:
    """What config and receipt say, for JSON; what is not there is said in `missing`.

    Args:
        folder: the run's; None if only a journal is looked at.
        meta: the journal's.
    """
    missing: list[str] = []
    config = _mapping(folder, "config.yaml", missing)
    receipt = _mapping(folder, "receipt.json", missing)
    if folder is None:
        missing.append("This is a journal alone: no config and no receipt beside it.")
    budgets = _spends(folder, receipt, missing) if receipt else _limits(config)
    name = config.get("name") or meta.get("name")
    train = config.get("train")
    steps = train.get("steps") if isinstance(train, dict) else None
    return {
        "name": name if isinstance(name, str) else None,
        "steps": steps if isinstance(steps, int) else None,
        "budgets": budgets,
        "verdict": receipt.get("verdict"),
        "memory": _part(receipt, "memory"),
        "losses": _part(receipt, "losses") or _part(receipt, "records"),
        "evaluations": _evaluations(receipt),
        "notes": [n for n in _list(receipt.get("notes")) if isinstance(n, str)],
        "environment": _part(receipt, "environment"),
        "stopped_because": receipt.get("stopped_because"),
        "finished": bool(receipt),
        "missing": missing,
    }


def held(lock: Path) -> bool | None:
    """Whether a process holds this lock file; None if that cannot be known.

    Asked of the kernel's list, not by trying: to try would for a moment keep the run
    itself out.
    """
    try:
        about = lock.stat()
    except OSError:
        return False
    try:
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    major, minor = os.major(about.st_dev), os.minor(about.st_dev)
    wanted = f"{major:02x}:{minor:02x}:{about.st_ino}"
    return any(wanted in line.split() for line in locks.splitlines())


def _mapping(folder: Path | None, name: str, missing: list[str]) -> dict[str, Any]:
    if folder is None:
        return {}
    when = " It is written when the run ends." if name == "receipt.json" else ""
    path = folder / name
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        missing.append(f"There is no {name}.{when}")
        return {}
    except OSError as e:
        missing.append(f"{name} cannot be read: {e.strerror}.")
        return {}
    if len(data) > _MOST_BYTES:
        missing.append(f"{name} is longer than {_MOST_BYTES:,} bytes; it is not shown.")
        return {}
    try:
        text = data.decode()
        found = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as e:
        missing.append(f"{name} cannot be read: {' '.join(str(e).split())[:200]}.")
        return {}
    if not isinstance(found, dict):
        missing.append(f"{name} holds no mapping.")
        return {}
    return found


def _spends(
    folder: Path | None, receipt: dict[str, Any], missing: list[str]
) -> list[dict[str, Any]]:
    try:
        spends = Receipt.from_json(json.dumps(receipt)).spends
    except (ValueError, TypeError) as e:
        missing.append(f"The receipt's spends cannot be read: {e}")
        return []
    return [
        {
            "name": s.name,
            "unit": s.unit,
            "limit": _number(s.limit),
            "measured": _number(s.measured),
            "limit_text": amount(s.limit, s.unit),
            "predicted_text": amount(s.predicted, s.unit),
            "measured_text": amount(s.measured, s.unit)
            + (f" ± {amount(s.noise, s.unit)}" if s.noise else ""),
            "verdict": str(s.verdict),
            "source": s.source,
        }
        for s in spends
    ]


def _limits(config: dict[str, Any]) -> list[dict[str, Any]]:
    """What a config allows, of a run that has no receipt yet."""
    budgets = _part(config, "budgets") or {}
    found = []
    for key, inner, name, unit in _LIMITS:
        limit = (_part(budgets, key) or {}).get(inner)
        if isinstance(limit, (int, float)) and not isinstance(limit, bool):
            found.append(
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
    return found


def _evaluations(receipt: dict[str, Any]) -> dict[str, Any]:
    """The evaluations of a finished run as series, by figure."""
    made: dict[str, dict[str, list[float]]] = {}
    for entry in _list(receipt.get("evaluations")):
        match entry:
            case [int(step), dict(figures)]:
                for name, value in figures.items():
                    if _number(value) is not None:
                        series = made.setdefault(str(name), {"x": [], "y": []})
                        series["x"].append(step)
                        series["y"].append(value)
    return made


def _part(mapping: dict[str, Any], key: str) -> dict[str, Any] | None:
    found = mapping.get(key)
    return found if isinstance(found, dict) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if value - value == 0 else None
