"""Two linear layers with a ReLU between them, and their inputs: checked, in float64."""

from typing import Any, TypeAlias

import numpy as np

from ._arrays import arrays_of

# w1 (inputs, hidden), b1 (hidden,), w2 (hidden, outputs), b2 (outputs,).
Layers: TypeAlias = tuple[Any, Any, Any, Any]


def checked_layers(layers: Layers) -> list[np.ndarray]:
    """The layers in float64.

    Raises:
        ValueError: shapes that do not fit, or weights that are not finite floats.
    """
    arrays = list(arrays_of(tuple(layers)).values())
    shapes = [a.shape for a in arrays]
    ranks = [a.ndim for a in arrays]
    if ranks != [2, 1, 2, 1] or not (
        shapes[0][1] == shapes[1][0] == shapes[2][0] and shapes[2][1] == shapes[3][0]
    ):
        raise ValueError(
            "layers must be (inputs, hidden), (hidden,), (hidden, outputs) and "
            f"(outputs,), got {', '.join(map(str, shapes))}."
        )
    for name, array in zip(("w1", "b1", "w2", "b2"), arrays, strict=True):
        if array.dtype.kind in "iubc":
            raise ValueError(f"{name} must hold floats, got {array.dtype}.")
        if wrong := np.count_nonzero(~np.isfinite(array.astype(float))):
            raise ValueError(
                f"{name} must hold finite floats: {wrong} of its {array.size} numbers "
                "are NaN or infinite."
            )
    return [array.astype(np.float64) for array in arrays]


def corners(box: tuple[Any, Any], inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest of each input.

    Raises:
        TypeError: this is no pair.
        ValueError: a limit is not finite or has the wrong shape, or the box is empty.
    """
    # Callers are checked at run time, whatever their annotations promise.
    pair = isinstance(box, tuple | list) and len(box) == 2
    if not pair:
        raise TypeError(
            f"box must be (low, high), such as (-1, 1) or two arrays ({inputs},), got "
            f"{box!r:.60}."
        )
    low, high = (np.asarray(side, np.float64) for side in box)
    for name, side in (("low", low), ("high", high)):
        if not np.isfinite(side).all():
            raise ValueError(f"box: {name} must be finite, got {side}.")
        if side.shape not in ((), (inputs,)):
            raise ValueError(
                f"box: {name} must be a number or ({inputs},), got shape {side.shape}."
            )
    if (low > high).any():
        raise ValueError("box: low must not be above high.")
    return np.broadcast_to(low, inputs), np.broadcast_to(high, inputs)


def rows_with_one(data: Any, inputs: int) -> np.ndarray:
    """Inputs in float64, with a last number 1.

    Raises:
        ValueError: the shape does not fit, or some are not finite.
    """
    (x,) = arrays_of((data,)).values()
    if x.ndim != 2 or x.shape[1] != inputs or not len(x):
        raise ValueError(f"data must be (rows, {inputs}), got {x.shape}.")
    x = x.astype(np.float64)
    if not np.isfinite(x).all():
        raise ValueError("data must be finite.")
    return np.column_stack([x, np.ones(len(x))])
