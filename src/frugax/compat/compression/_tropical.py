"""Strategy "tropical": fewer hidden units where a ReLU stands between two layers."""

from collections.abc import Mapping, Sequence

import numpy as np

from frugax.compress import reduce_relu

# The share of hidden units that each mode keeps.
_KEPT = {"conservative": 3 / 4, "balanced": 1 / 2, "aggressive": 1 / 4}
# The inputs that the bound is for; what a layer really meets is not known here.
_BOX = (-1.0, 1.0)


def narrowed(
    arrays: Mapping[str, np.ndarray], pairs: Sequence[tuple[str, str]], *, mode: str
) -> tuple[dict[str, np.ndarray], list[str], list[str]]:
    """Merge the hidden units of every Linear -> ReLU -> Linear.

    Args:
        arrays: the model's weights by name, as torch has them.
        pairs: the names of the two layers of each, in the order of the model.
        mode: the profile's mode; it says how many units stay.

    Returns:
        The weights, the names of those that changed, and a sentence for each pair.
    """
    found = dict(arrays)
    changed: list[str] = []
    notes: list[str] = []
    for first, second in pairs:
        w1, w2 = (found[f"{name}.weight"] for name in (first, second))
        b1, b2 = (
            found.get(f"{name}.bias", np.zeros(len(w), w.dtype))
            for name, w in ((first, w1), (second, w2))
        )
        if not all(np.isfinite(a).all() for a in (w1, b1, w2, b2)):
            notes.append(f"tropical: {first} and {second} hold numbers not finite.")
            continue
        hidden = max(1, round(_KEPT[mode] * len(b1)))
        small = reduce_relu((w1.T, b1, w2.T, b2), hidden=hidden, box=_BOX)
        new = {
            f"{first}.weight": np.ascontiguousarray(small.w1.T),
            f"{first}.bias": small.b1,
            f"{second}.weight": np.ascontiguousarray(small.w2.T),
        }
        new = {name: array for name, array in new.items() if name in found}
        found |= new
        changed += new
        notes.append(
            f"tropical: {len(b1)} hidden units between {first} and {second} became "
            f"{hidden}; for inputs in [-1, 1] this changes no output of {second} by "
            f"more than {float(small.bound.max()):.4g}; the codec's error comes on top."
        )
    if not pairs:
        notes.append(
            "tropical: not applicable, for no Linear, ReLU, Linear stand in a row in "
            "a Sequential; all went to the other codecs."
        )
    return found, changed, notes
