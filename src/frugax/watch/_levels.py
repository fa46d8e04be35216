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


def check_level(level: str) -> Level:
    """The level, if there is such a one.

    Raises:
        ValueError: there is none of this name.
    """
    for known in _EVERY:
        if level == known:
            return known
    raise ValueError(f"level must be one of {', '.join(_EVERY)}, got {level!r}.")


def every_of(level: Level) -> int:
    """Numbers are kept every so many steps; 0: never."""
    return _EVERY[level]


def is_asked_for(level: Level, kind: Kind, step: int) -> bool:
    """Whether a level wants a record of this class at this step.

    Frames are wanted from "standard" on; whether they can be paid for is not asked.
    """
    if level == "off":
        return False
    if kind == "summary":
        return True
    every = _EVERY[level]
    return every > 0 and (kind == "frame" or step % every == 0)
