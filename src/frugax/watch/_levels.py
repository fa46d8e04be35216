"""The five watch levels: what is recorded; a change of level compiles nothing."""

from typing import Literal, TypeAlias

from .sinks import Kind

Level: TypeAlias = Literal["off", "minimal", "standard", "verbose", "full"]

# Steps between two frames at least; 0 for neither frames nor numbers. Numbers are kept
# as often as `Rate` says at every level that keeps them.
_STEPS_BETWEEN: dict[Level, int] = {
    "off": 0,
    "minimal": 0,
    "standard": 10,
    "verbose": 5,
    "full": 1,
}
_NO_KINDS: frozenset[Kind] = frozenset()
_SUMMARIES: frozenset[Kind] = frozenset({"summary"})
_ALL_KINDS: frozenset[Kind] = frozenset({"summary", "frame", "scalar"})


class LevelDial:
    """The level of a watcher, set by one thread and read by many.

    Attributes:
        level: the current level.
        every: steps between two frames, at least; 0 for no frames and no numbers.
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

    def wanted_kinds(self) -> frozenset[Kind]:
        """Return the classes of records that are wanted.

        Frames are wanted from "standard" on; whether they are affordable is a question
        for `Watcher.wants_frames`.
        """
        if not self.every:
            return _NO_KINDS if self.level == "off" else _SUMMARIES
        return _ALL_KINDS
