"""A budget that cannot be met, said in the words of the config."""

import contextlib
import math
from collections.abc import Callable, Iterator

from frugax.budget import SizeBudget
from frugax.errors import InfeasibleBudgetError

from ._config import MemorySetting


@contextlib.contextmanager
def in_config_terms(key: str, remedy: Callable[[float], str]) -> Iterator[None]:
    """Name the config's key in an error of a room, and what to write there instead.

    Args:
        key: the key, such as `"budgets.memory"`.
        remedy: from what is needed to the text that would do, such as `"memory: 52%"`.

    Raises:
        InfeasibleBudgetError: the block did; said anew.
    """
    try:
        yield
    except InfeasibleBudgetError as e:
        raise InfeasibleBudgetError(
            f"{key}: {e.what}",
            needed=e.needed,
            limit=e.limit,
            unit=e.unit,
            hint=f"write {remedy(e.needed)}, or {e.hint or 'shrink the problem.'}",
        ) from e


def memory_remedy(setting: MemorySetting, unplanned: int) -> Callable[[float], str]:
    """The memory that would do: as a share, if the config gave a share."""
    if setting.share is None:
        return lambda needed: f"memory: {needed:.0f}B"
    # Rounded up to a tenth of a percent, so that it is enough.
    return lambda needed: f"memory: {math.ceil(1000 * needed / unplanned) / 10:g}%"


def size_remedy(budget: SizeBudget, original: int) -> Callable[[float], str]:
    """The size that would do: as a ratio, if the config gave a ratio."""
    if budget.ratio is None:
        return lambda needed: f"size: {needed:.0f}B"
    # Rounded down to a hundredth, so that it is enough.
    return lambda needed: f"size: {math.floor(100 * original / needed) / 100:g}x"
