"""What one probe gave, as its user sees it.

Most values were made whenever the program ran. What stands in a branch, a `while` loop
or a ring says what of it there is.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._probe import Probe


class Partly(NamedTuple):
    """Values of which some may not have been made.

    Attributes:
        values: the values; 0 where none was made.
        present: bool, where there is a value; its axes are the first of the values'.
    """

    values: Any
    present: Any


class Last(NamedTuple):
    """The last values of many, as from a `while` loop; or the last few, from a ring.

    Attributes:
        values: the last ones; 0 if none was made. A ring has one axis in front: its
            newest is at `(count - 1) % rows`, and of what was made
            `max(count - rows, 0)` have been overwritten.
        count: how many times values were made.
    """

    values: Any
    count: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A probe and its values.

    Attributes:
        probe: which.
        meaning: what the mark means, as in `_primitive`.
        mark: an array, or None.
        values: of its fields, in their order.
        axes: what their first axes are, outermost first: `"steps"`, `"lanes"`,
            `"devices"`, `"ring"`; the user's own come after these.
        lanes: the most lanes to keep under a `vmap` further out; None: all.
    """

    probe: Probe
    meaning: str
    mark: Any
    values: Sequence[Any]
    axes: tuple[str, ...] = ()
    lanes: int | None = None


def value_of(made: Made) -> Any:
    """The value as users get it: an array, or a dict of them by field, or marked."""
    fields = made.probe.fields
    alone = len(fields) == 1
    value = made.values[0] if alone else dict(zip(fields, made.values, strict=True))
    match made.meaning:
        case "present":
            return Partly(value, made.mark)
        case "count":
            return Last(value, made.mark)
        case _:
            return value


def by_name(all_made: Sequence[Made]) -> dict[str, Made]:
    """Each under its name; another of the same name is `name.2`, the next `name.3`."""
    found: dict[str, Made] = {}
    taken = {made.probe.name for made in all_made}
    for made in all_made:
        name, number = made.probe.name, 1
        while name in found:
            number += 1
            candidate = f"{made.probe.name}.{number}"
            name = name if candidate in taken else candidate
        found[name] = made
    return found
