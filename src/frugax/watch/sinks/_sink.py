"""Where records go besides the journal: a terminal, a page, another tool."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ._event import Event


@runtime_checkable
class Sink(Protocol):
    """Takes records; runs in a worker thread of its own and may fail or be slow.

    Whatever `write` raises is counted and shown, and never reaches the program.

    Attributes:
        name: for the receipt.
    """

    name: str

    def write(self, events: Sequence[Event]) -> None:
        """Take some records, in the order in which they were made.

        Args:
            events: at least one.
        """
        ...

    def close(self) -> None:
        """Write what is held back and let go of files."""
        ...
