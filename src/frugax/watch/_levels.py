"""How much is watched: five levels, chosen on the host, so no change recompiles."""

from typing import Literal, TypeAlias

from .sinks import Kind

Level: TypeAlias = Literal["off", "minimal", "standard", "verbose", "full"]

# Numbers are kept every so many steps; 0: never.
_EVERY: dict[Level, int] = {
    "off": 0,
    "minimal": 0,
    "standard": 10,
    "verbose": 5,
    "full": 1,
}
_NONE: frozenset[Kind] = frozenset()
_SUMMARIES: frozenset[Kind] = frozenset({"summary"})
_SELDOM: frozenset[Kind] = frozenset({"summary", "frame"})
_ALL: frozenset[Kind] = frozenset({"summary", "frame", "scalar"})


def check_level(level: str) -> Level:
    """The level, if there is such a one.

    Raises:
        ValueError: there is none of this name.
    """
    for known in _EVERY:
        if level == known:
            return known
    raise ValueError(f"level must be one of {', '.join(_EVERY)}, got {level!r}.")


class LevelDial:
    """The level of a watcher: turned by one, read by all that must know it.

    Attributes:
        level: the level.
        every: numbers are kept every so many steps; 0: never.
    """

    def __init__(self, level: str) -> None:
        """Set it.

        Raises:
            ValueError: there is no such level.
        """
        self.turn(level)

    def turn(self, level: str) -> None:
        """Set it anew.

        Raises:
            ValueError: there is no such level; it stays as it was.
        """
        self.level: Level = check_level(level)
        self.every = _EVERY[self.level]

    def wants(self, kind: Kind, step: int) -> bool:
        """Whether a record of this class is wanted at this step.

        Frames are wanted from "standard" on; whether they can be paid for is not asked.
        """
        return kind in self.wanted(step)

    def wanted(self, step: int) -> frozenset[Kind]:
        """The classes of which records are wanted at this step."""
        every = self.every
        if not every:
            return _NONE if self.level == "off" else _SUMMARIES
        return _SELDOM if step % every else _ALL
