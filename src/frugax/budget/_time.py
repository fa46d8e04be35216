"""`TimeBudget`: the most wall-clock seconds, and compilations, of a piece of work."""

# Callers are checked at run time, whatever their annotations say.

import dataclasses

from frugax.options import check_integer

from ._quantities import format_seconds, parse_seconds


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class TimeBudget:
    """The most time that a piece of work may take, and how often it may compile.

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
            TypeError: neither limit is given, or the time is given twice.
            ValueError: a limit is out of range, or the text is not a length of time.
        """
        if text is not None and not isinstance(text, str):
            raise TypeError(
                f"write TimeBudget(seconds={text!r}): a number needs its unit."
            )
        if text is not None and seconds is not None:
            raise TypeError(f"TimeBudget({text!r}) already names the seconds.")
        if text is not None:
            seconds = text
        if seconds is None and compiles is None:
            raise TypeError(
                'TimeBudget needs a limit: TimeBudget("10min"), '
                "TimeBudget(seconds=600) or TimeBudget(compiles=2)."
            )
        # The first call compiles, so a limit of 0 could never be kept.
        if compiles is not None:
            check_integer("compiles", compiles)
        put = object.__setattr__
        if seconds is not None:
            seconds = parse_seconds(seconds, name="seconds")
        put(self, "seconds", seconds)
        put(self, "compiles", compiles)

    def __str__(self) -> str:
        parts: list[str] = []
        if self.seconds is not None:
            parts.append(format_seconds(self.seconds))
        if self.compiles is not None:
            parts.append(f"{self.compiles} compile{'s' * (self.compiles > 1)}")
        return ", ".join(parts)
