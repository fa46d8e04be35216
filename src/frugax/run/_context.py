"""`RunContext`: the settings and objects that each stage of a run receives."""

import dataclasses
from pathlib import Path

from ._config import RunConfig
from ._ledger import Ledger
from ._observer import Observer


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RunContext:
    """A run that is trained, planned or verified.

    Attributes:
        config: of the run.
        config_folder: searched for the user's own module.
        resume: whether it goes on from a checkpoint.
        ledger: counts the time.
        observer: receives progress.
    """

    config: RunConfig
    config_folder: Path
    resume: bool = False
    ledger: Ledger
    observer: Observer
