"""The five watch levels: how much is recorded; a change of level compiles nothing."""

from typing import Literal, TypeAlias

from .sinks import Kind

Level: TypeAlias = Literal["off", "minimal", "standard", "verbose", "full"]

# Reading numbers is the main cost of watching, so the levels differ in how often it is
# done. Steps between two steps whose numbers are kept; 0 for never.
_STEPS_BETWEEN: dict[Level, int] = {
    "off": 0,
    "minimal": 0,
    "standard": 10,
    "verbose": 5,
    "full": 1,
}
_NO_KINDS: frozenset[Kind] = frozenset()
_SUMMARIES: frozenset[Kind] = frozenset({"summary"})
_SUMMARIES_AND_FRAMES: frozenset[Kind] = frozenset({"summary", "frame"})
_ALL_KINDS: frozenset[Kind] = frozenset({"summary", "frame", "scalar"})


class LevelDial:
    """The level of a watcher, set by one thread and read by many.

    Attributes:
        level: the current level.
        every: steps between two steps whose numbers are kept; 0 for never.
    """

    def __init__(self, level: str) -> None:
        """Set the initial level; see `set`."""
        self.set(level)

    def set(self, level: str) -> None:
        """Change the level."""
        for known in _STEPS_BETWEEN:
            if level == known:
                self.level: Level = known
                self.every = _STEPS_BETWEEN[known]
                return
        known_levels = ", ".join(_STEPS_BETWEEN)
        raise ValueError(f"level must be one of {known_levels}, got {level!r}.")

    def wanted_kinds(self, step: int) -> frozenset[Kind]:
        """Return the classes of records that are wanted at this step.

        Frames are wanted from "standard" on; whether they are affordable is a question
        for `Watcher.wants_frames`.
        """
        if not self.every:
            return _NO_KINDS if self.level == "off" else _SUMMARIES
        return _SUMMARIES_AND_FRAMES if step % self.every else _ALL_KINDS
