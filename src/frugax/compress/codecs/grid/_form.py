"""`Form`: how the integers of a quantised tensor are chosen and arranged."""

import dataclasses
import itertools


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """How the integers of a tensor are chosen and arranged; its text names the codec.

    Attributes:
        trellis: whether a trellis chose the integers; otherwise each is the nearest.
        columns: whether they are coded column by column; otherwise row by row.
        scaled: whether each run of them has a scale.
    """

    trellis: bool = True
    columns: bool = False
    scaled: bool = False

    def __str__(self) -> str:
        words = ["trellis" if self.trellis else "uniform"]
        words += ["columns"] * self.columns + ["scaled"] * self.scaled
        return " ".join(words)


_FORMS = {
    str(form): form
    for form in itertools.starmap(Form, itertools.product((False, True), repeat=3))
}


def find_form(codec: str) -> Form | None:
    """Return the form that a codec names; None if it names an exact one, or nothing.

    >>> find_form("trellis scaled"), find_form("lossless")
    (Form(trellis=True, columns=False, scaled=True), None)
    """
    return _FORMS.get(codec)
