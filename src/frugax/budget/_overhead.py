"""`OverheadBudget`: the largest share of running time that watching may add."""

# Callers are checked at run time, whatever their annotations say.

import dataclasses

from ._quantities import format_share, parse_share


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class OverheadBudget:
    """The largest share of a program's own running time that watching it may add.

    Written `OverheadBudget("1%")` or `OverheadBudget(share=0.01)`.

    Attributes:
        share: added time over the time without watching; in [0, 1].
    """

    share: float

    def __init__(
        self, text: str | None = None, /, *, share: float | str | None = None
    ) -> None:
        """Read and check the share; see the class.

        Raises:
            TypeError: no share is given, or two are.
            ValueError: the share is outside [0, 1], or the text is not a percentage.
        """
        # 1 would be 1 % for one reader and all of the time for another.
        if text is not None and not isinstance(text, str):
            raise TypeError(
                f"write OverheadBudget(share={text!r}): a number needs its unit."
            )
        if (text is None) == (share is None):
            raise TypeError(
                'OverheadBudget needs one share: OverheadBudget("1%") or '
                "OverheadBudget(share=0.01)."
            )
        if text is not None:
            share = text
        assert share is not None  # by the check above; for the type checker
        object.__setattr__(self, "share", parse_share(share, name="share"))

    def __str__(self) -> str:
        return f"{format_share(self.share)} of the running time"
