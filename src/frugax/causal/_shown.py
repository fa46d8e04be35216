"""How names are listed where a model or a table shows itself in one line."""

from collections.abc import Sequence


def count_and_names(names: Sequence[str], most: int = 8) -> str:
    """How many variables there are and what they are called, the first of many.

    Args:
        names: of the variables.
        most: how many are named.
    """
    more = ", ..." if len(names) > most else ""
    plural = "s" if len(names) != 1 else ""
    return f"{len(names)} variable{plural} {', '.join(names[:most])}{more}"
