"""Check that the `budget` argument of a function is of the class that it takes."""

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
    """Refuse text or a number where a budget is expected, before it is misread.

    Args:
        budget: the argument to check.
        kind: the expected budget class.

    Raises:
        TypeError: `budget` is not an instance of `kind`.
    """
    # Two budgets may count the same unit: a size in bytes must not pass for memory.
    if not isinstance(budget, kind):
        article = "a"
        if kind.__name__[0] in "EO":
            article = "an"
        raise TypeError(
            f"budget must be {article} {kind.__name__}, such as {_EXAMPLES[kind]}, got "
            f"{budget!r:.99}."
        )
