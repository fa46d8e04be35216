"""Who watches a run from outside: the command line draws bars, a test listens."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class Observer(Protocol):
    """Told what a run is doing. Calls come from the run's thread, a few a second."""

    def stage(self, text: str) -> None:
        """A new part of the run begins, for example `"planning memory"`."""

    def told(self, text: str) -> None:
        """A fact worth a line, for example what the memory plan saves."""

    def memory(self, used_bytes: int, limit_bytes: int | None) -> None:
        """Bytes of the compiled step, and its budget if there is one."""

    def training(self, step: int, steps: int, latest: Mapping[str, float]) -> None:
        """Training has come so far.

        Args:
            step: steps done, those before a resume included.
            steps: steps asked for.
            latest: the newest metrics that have reached the host; may lag behind.
        """


class Silent:
    """An observer that shows nothing."""

    def stage(self, text: str) -> None:
        """Nothing."""

    def told(self, text: str) -> None:
        """Nothing."""

    def memory(self, used_bytes: int, limit_bytes: int | None) -> None:
        """Nothing."""

    def training(self, step: int, steps: int, latest: Mapping[str, float]) -> None:
        """Nothing."""
