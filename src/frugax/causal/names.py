"""Format the names of variables for error messages."""

from collections.abc import Sequence


def count_and_names(names: Sequence[str], most: int = 8) -> str:
    """Format variables as `3 variables a, b, c`, with at most `most` names."""
    plural = "s" if len(names) != 1 else ""
    more = ", ..." if len(names) > most else ""
    return f"{len(names)} variable{plural} {', '.join(names[:most])}{more}"
