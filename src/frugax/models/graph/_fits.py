"""What an op would have taken instead, for the commonest mistakes."""

from collections.abc import Callable
from typing import Any

Fits = Callable[..., str]


def suggest_fix(op: str, given: tuple[Any, ...], attrs: dict[str, Any]) -> str:
    """A sentence on what would fit, or nothing where the library's own words do.

    Args:
        op: the op's name.
        given: a spec, a constant or None for each tensor.
        attrs: the op's attributes.
    """
    rule = _RULES.get(op)
    shapes = [getattr(g, "shape", ()) for g in given if g is not None]
    return rule(*shapes, **attrs) if rule else ""


def _linear(input: Any = (), weight: Any = (), bias: Any = (), **_: Any) -> str:
    if not input:
        return "input needs at least one axis."
    if len(weight) != 2 or weight[1] != input[-1]:
        features = weight[0] if len(weight) == 2 else "features"
        return f"weight must be ({features}, {input[-1]}), got {tuple(weight)}."
    if bias and tuple(bias) != (weight[0],):
        return f"bias must be ({weight[0]},), got {tuple(bias)}."
    return ""


def _matmul(left: Any = (), right: Any = (), **_: Any) -> str:
    if not left or not right:
        return "both need at least one axis."
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        return (
            f"left's last dimension is {left[-1]} and right's "
            f"{'second last' if len(right) > 1 else 'only one'} is {inner}; they must "
            "be equal."
        )
    return ""


def _broadcast(*shapes: Any, **_: Any) -> str:
    longest = max(map(len, shapes), default=0)
    for i in range(1, longest + 1):
        lengths = [s[-i] for s in shapes if len(s) >= i and s[-i] != 1]
        if any(n != lengths[0] for n in lengths[1:]):
            return (
                f"dimension {-i} is {' and '.join(map(str, lengths))}; it must be the "
                "same or 1."
            )
    return ""


def _concat(*shapes: Any, axis: int = 0, **_: Any) -> str:
    ranks = {len(s) for s in shapes}
    if len(ranks) > 1:
        return f"all must have as many axes, got {sorted(ranks)}."
    rank = ranks.pop()
    at = axis % rank if rank else 0
    for i in range(rank):
        if i != at and len({s[i] for s in shapes}) > 1:
            return (
                f"dimension {i} is {' and '.join(str(s[i]) for s in shapes)}; all but "
                f"dimension {axis} must be the same."
            )
    return ""


_ELEMENTWISE = """
    add subtract multiply divide floor_divide remainder power maximum minimum equal
    not_equal less less_equal greater greater_equal where logical_and logical_or
    logical_xor arctan2 logaddexp
"""


def _embedding(input: Any = (), weight: Any = (), **_: Any) -> str:
    rows = weight[0] if weight else "the table"
    return f"indices must be integers below {rows}, such as int32."


_RULES: dict[str, Fits] = {
    "embedding": _embedding,
    "linear": _linear,
    "matmul": _matmul,
    "concat": _concat,
    **dict.fromkeys(_ELEMENTWISE.split(), _broadcast),
}
