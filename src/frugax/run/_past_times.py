"""The durations of earlier runs on disk, to refuse a hopeless time budget at once."""

import contextlib
import hashlib
import json
import os
from typing import Any

from frugax.budget import to_json
from frugax.errors import FrugaxError
from frugax.fileio import cache_folder, make_folder, write_whole

from ._config import RunConfig
from ._config_keys import config_fingerprint
from ._ledger import Ledger, process_seconds

# The parts that every run of a config has, whatever its limit.
_NEEDED = ("building the model", "planning and compiling", "planning the model file")
_AFTER = ("compressing",)
_MARGIN = 1.1


def start_ledger(config: RunConfig, *, resume: bool = False) -> Ledger:
    """Start the ledger of a run with this process, before the slow imports.

    Args:
        config: the run's config.
        resume: whether the run has results already, and ends with them.

    Raises:
        InfeasibleBudgetError: the run cannot end in time.
    """
    time = config.budgets.time
    limit = None if time is None else time.seconds
    ledger = Ledger(limit, elapsed_s=process_seconds(), refuses=not resume)
    if not resume:
        check_past_times(config, ledger)
    return ledger


def check_past_times(config: RunConfig, ledger: Ledger) -> None:
    """Refuse a limit that even the fastest earlier run of this config would break."""
    past = _read(config)
    if ledger.limit_s is None or not past:
        return
    ledger.reserved["compressing"] = sum(past.get(part, 0.0) for part in _AFTER)
    before_s = sum(past.get(part, 0.0) for part in _NEEDED)
    if before_s > ledger.left_s:
        needed_s = _MARGIN * (ledger.total + before_s + ledger.reserve_s)
        raise ledger.refusal("the first stage", needed_s=needed_s)


def store_times(config: RunConfig, ledger: Ledger) -> None:
    """Keep the shortest times seen; best effort, as it only saves waiting."""
    past = _read(config)
    for part in (*_NEEDED, *_AFTER):
        if part in ledger.spent:
            past[part] = min(past.get(part, float("inf")), ledger.spent[part])
    with contextlib.suppress(OSError, FrugaxError):
        make_folder(_path(config).parent)
        write_whole(_path(config), to_json(past))


def _read(config: RunConfig) -> dict[str, float]:
    try:
        found: Any = json.loads(_path(config).read_text())
        return {str(part): float(seconds) for part, seconds in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _path(config: RunConfig) -> Any:
    facts = json.dumps([config_fingerprint(config), os.getcwd()], sort_keys=True)
    name = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return cache_folder("runs") / f"{name}.json"
