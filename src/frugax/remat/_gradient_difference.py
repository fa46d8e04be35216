"""How far planned gradients are from those without a plan, array by array."""

import dataclasses
from typing import Any

import jax
import numpy as np

from frugax.budget import table
from frugax.trees import PyTree


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayDifference:
    """The difference of one array of the gradient.

    Attributes:
        name: its place among the arguments, such as `args[0]['weight']`.
        largest: the largest |planned - plain|.
        of_array: that over the array's largest |plain|. Where a gradient is zero up to
            rounding, as those of some biases are, it says nothing.
        of_gradient: ||planned - plain|| over the norm of the whole gradient.
    """

    name: str
    largest: float
    of_array: float
    of_gradient: float


@dataclasses.dataclass(frozen=True, slots=True)
class GradientDifference:
    """The difference of a loss and its gradients with and without a plan.

    Attributes:
        loss: |planned - plain| over |plain|.
        gradient: ||planned - plain|| over ||plain||, of all arrays as one vector.
        arrays: that of each array, the largest share of the gradient first.
    """

    loss: float
    gradient: float
    arrays: tuple[ArrayDifference, ...]

    @classmethod
    def of(
        cls, planned: tuple[Any, PyTree], plain: tuple[Any, PyTree]
    ) -> "GradientDifference":
        """Compare two losses with their gradients, trees of the same structure."""
        places = jax.tree_util.tree_leaves_with_path(plain[1])
        got = [_to_float(g) for g in jax.tree.leaves(planned[1])]
        want = [_to_float(w) for _, w in places]
        norm = _norm(want)
        errors = [g - w for g, w in zip(got, want, strict=True)]
        arrays = [
            ArrayDifference(
                name=f"args{jax.tree_util.keystr(path)}",
                largest=_largest(error),
                of_array=_ratio(_largest(error), _largest(w)),
                of_gradient=_ratio(_norm([error]), norm),
            )
            for (path, _), w, error in zip(places, want, errors, strict=True)
        ]
        got_loss, want_loss = map(_to_float, (planned[0], plain[0]))
        return cls(
            loss=_ratio(_largest(got_loss - want_loss), _largest(want_loss)),
            gradient=_ratio(_norm(errors), norm),
            arrays=tuple(sorted(arrays, key=lambda a: -a.of_gradient)),
        )

    def __str__(self) -> str:
        rows = [
            [a.name, f"{a.largest:.2g}", f"{a.of_array:.2g}", f"{a.of_gradient:.2g}"]
            for a in self.arrays
        ]
        rows.append(["all", "", "", f"{self.gradient:.2g}"])
        rows.append(["loss", "", f"{self.loss:.2g}", ""])
        head = ["planned - plain", "largest", "of the array's", "of the gradient"]
        return table(head, rows)


def _to_float(array: Any) -> np.ndarray:
    kind = np.asarray(array)
    # Half precision overflows in a norm.
    return kind.astype(np.result_type(kind.dtype, np.float64))


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0))


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.abs(a) ** 2)) for a in arrays)))


def _ratio(part: float, whole: float) -> float:
    """Their ratio; 0 for equal zeros, infinite for a part of nothing."""
    if whole == 0:
        return 0.0 if part == 0 else float("inf")
    return part / whole
