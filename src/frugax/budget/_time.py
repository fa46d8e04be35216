"""The time budget: seconds on the wall, compilation included, and compiles."""

# Callers are checked at run time, whatever their annotations promise.
# pyright: reportUnnecessaryIsInstance=false

import dataclasses

from ._quantities import format_seconds, parse_seconds


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class TimeBudget:
    """Most time a piece of work may take, all in, and how often it may compile.

    Written `TimeBudget("10min")` or `TimeBudget(seconds=600, compiles=2)`.

    Attributes:
        seconds: wall time from start to end, compilation and files included; > 0,
            or None for no limit.
        compiles: how many times the step may be compiled; >= 1, or None.
    """

    seconds: float | None
    compiles: int | None

    def __init__(
        self,
        text: str | None = None,
        /,
        *,
        seconds: float | str | None = None,
        compiles: int | None = None,
    ) -> None:
        """Read and check the limits; see the class.

        Raises:
            TypeError: neither limit, or the time named twice.
            ValueError: a limit out of its range, or text that is no length of time.
        """
        if text is not None and not isinstance(text, str):
            raise TypeError(
                f"write TimeBudget(seconds={text!r}): a number needs its unit."
            )
        if text is not None and seconds is not None:
            raise TypeError(f"TimeBudget({text!r}) already names the seconds.")
        given = seconds if text is None else text
        if given is None and compiles is None:
            raise TypeError(
                'TimeBudget needs a limit: TimeBudget("10min"), '
                "TimeBudget(seconds=600) or TimeBudget(compiles=2)."
            )
        if compiles is not None and (isinstance(compiles, bool) or compiles < 1):
            raise ValueError(f"compiles must be a whole number >= 1, got {compiles!r}.")
        put = object.__setattr__
        limit = None if given is None else parse_seconds(given, name="seconds")
        put(self, "seconds", limit)
        put(self, "compiles", compiles)

    def __str__(self) -> str:
        parts: list[str] = []
        if self.seconds is not None:
            parts.append(format_seconds(self.seconds))
        if self.compiles is not None:
            parts.append(f"{self.compiles} compile{'s' if self.compiles > 1 else ''}")
        return ", ".join(parts)
