"""What an intervention asks of one model: of variables it has, and states they can be.

Reads: a model, an intervention. Gives: its arrays, or an error that says what can be
set. Both samplers and `expectation` ask here.
"""

import numpy as np
from jaxtyping import ArrayLike, Float

from ..checks import check_kind
from ._intervention import Intervention
from ._scm import SCM


def changes_of(
    scm: SCM, intervention: Intervention, d: int
) -> Float[np.ndarray, "4 {d}"]:
    """`Intervention.arrays` for a model.

    Args:
        scm: the model.
        intervention: what is changed.
        d: columns with padding.

    Raises:
        TypeError: this is no intervention.
        ValueError: it changes no variable of the model, or sets a discrete one to what
            is no state.
    """
    check_kind("intervention", intervention, Intervention, "intervene(x=1.0) makes one")
    table = intervention.arrays(scm.variables, d)
    for change in intervention.changes:
        # A state that is shifted, scaled or missed by some noise is none.
        sets = change.kind in ("perfect", "imperfect") and not change.sd
        check_states(scm, change.target, change.value if sets else np.nan, intervention)
    return table


def check_states(scm: SCM, name: str, values: ArrayLike, where: object) -> None:
    """Refuse values that a discrete variable cannot have.

    Args:
        scm: the model.
        name: the variable; every value will do for one without states.
        values: one, or an array.
        where: what sets it, for the message.

    Raises:
        ValueError: one is no number of a state.
    """
    states = scm.states(name)
    if states and not np.isin(values, range(len(states))).all():
        each = ", ".join(f"{number} ({state})" for number, state in enumerate(states))
        raise ValueError(
            f"{where}: {name!r} has states and can only be set to one, by its number: "
            f"{each:.200}."
        )
