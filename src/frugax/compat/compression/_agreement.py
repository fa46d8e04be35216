"""How far a restored model's answers are the original's."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """A measurement on the data that was given, not a promise about other data.

    Attributes:
        same_frac: the share of rows whose largest output is in the same place.
        rel_error: ||outputs - original outputs|| / ||original outputs||.
    """

    same_frac: float
    rel_error: float
