"""Restate an InfeasibleBudgetError with the config's key and a sufficient value."""

import contextlib
import math
from collections.abc import Callable, Iterator

from frugax.budget import MemoryBudget, MemoryShare, SizeBudget
from frugax.errors import InfeasibleBudgetError


@contextlib.contextmanager
def in_config_terms(key: str, remedy: Callable[[float], str]) -> Iterator[None]:
    """Name the config's key in an error, and the value to write there instead."""
    try:
        yield
    # The package names the limit in bytes; the reader wrote a share or a ratio.
    except InfeasibleBudgetError as e:
        if e.unit != "bytes":
            raise  # the time was over meanwhile, which the ledger says itself
        hint = f"write {remedy(e.needed)}, or {e.hint or 'shrink the problem.'}"
        raise e.restate(f"{key}: {e.what}", hint=hint) from e


def memory_remedy(
    setting: MemoryBudget | MemoryShare, unplanned: int
) -> Callable[[float], str]:
    """Format a sufficient memory limit: as a share, if it is one of the program."""
    if not isinstance(setting, MemoryShare) or setting.device is not None:
        return lambda needed: f"memory: {needed:.0f}B"
    # Rounded up to a tenth of a percent, so that it suffices.
    return lambda needed: f"memory: {math.ceil(1000 * needed / unplanned) / 10:g}%"


def size_remedy(budget: SizeBudget, original: int) -> Callable[[float], str]:
    """Format a sufficient size limit: as a ratio, if the config has a ratio."""
    if budget.ratio is None:
        return lambda needed: f"size: {needed:.0f}B"
    # Rounded down to a hundredth, so that it suffices.
    return lambda needed: f"size: {math.floor(100 * original / needed) / 100:g}x"
