"""Is this a budget, or only something that describes one?"""

from ._experiments import ExperimentBudget
from ._memory import MemoryBudget
from ._overhead import OverheadBudget
from ._size import SizeBudget
from ._time import TimeBudget

_EXAMPLES = {
    ExperimentBudget: "ExperimentBudget(cost=5.0)",
    MemoryBudget: 'MemoryBudget("1MiB")',
    OverheadBudget: 'OverheadBudget("1%")',
    SizeBudget: 'SizeBudget("6x")',
    TimeBudget: 'TimeBudget("10min")',
}


def check_budget(budget: object, kind: type) -> None:
    """Refuse text or a number where a budget is wanted, before it is misread.

    Args:
        budget: what a caller gave.
        kind: the budget class that is wanted.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(budget, kind):
        article = "an" if kind.__name__[0] in "EO" else "a"
        raise TypeError(
            f"budget must be {article} {kind.__name__}, such as {_EXAMPLES[kind]}, got "
            f"{budget!r:.99}."
        )
