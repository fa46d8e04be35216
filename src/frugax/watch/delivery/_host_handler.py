"""`HostHandler`: the protocol of a host function that receives a probe's values."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class HostHandler(Protocol):
    """A handler of a probe that counts, times and limits its own calls.

    A plain function may be a handler too; it is then called with the values, in a
    thread that is abandoned if it hangs.

    Attributes:
        name: its name in the callback statistics.
        is_display: whether it only shows values that a journal or sink shows as well.
    """

    name: str
    is_display: bool

    def handle_callback(self, arrays: Sequence[np.ndarray]) -> None:
        """Handle values inside a callback; the program waits until this returns."""
        ...

    def handle_output(self, arrays: Sequence[np.ndarray]) -> None:
        """Handle values that have left the program as outputs."""
        ...

    def __call__(self, *arrays: np.ndarray) -> None:
        """Handle values as `handle_output` does."""
        ...
