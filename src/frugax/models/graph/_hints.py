"""Say what would fit, for the mistakes in wiring that users meet most."""

from collections.abc import Callable
from typing import Any


def suggest_fix(op: str, tensors: list[Any], attrs: dict[str, Any]) -> str:
    """A sentence on what would fit; empty where the library's own words are better."""
    # Only for ops whose errors users meet most. The messages of the libraries name
    # primitives such as dot_general, which a user never wrote.
    hint = _HINTS.get(op)
    if hint is None:
        return ""
    shapes = [getattr(t, "shape", ()) for t in tensors if t is not None]
    return hint(*shapes, **attrs)


def _hint_linear(input: Any = (), weight: Any = (), bias: Any = (), **_: Any) -> str:
    if not input:
        return "input needs at least one axis."
    if len(weight) != 2:
        return f"weight must be (features, {input[-1]}), got {tuple(weight)}."
    if weight[1] != input[-1]:
        return f"weight must be ({weight[0]}, {input[-1]}), got {tuple(weight)}."
    if bias and tuple(bias) != (weight[0],):
        return f"bias must be ({weight[0]},), got {tuple(bias)}."
    return ""


def _hint_matmul(left: Any = (), right: Any = (), **_: Any) -> str:
    if not left or not right:
        return "both need at least one axis."
    inner, which = right[0], "only one"
    if len(right) > 1:
        inner, which = right[-2], "second last"
    if left[-1] != inner:
        return (
            f"left's last dimension is {left[-1]} and right's {which} is {inner}; they "
            "must be equal."
        )
    return ""


def _hint_broadcast(*shapes: Any, **_: Any) -> str:
    longest = max(map(len, shapes), default=0)
    for i in range(1, longest + 1):
        # From the last dimension on, as broadcasting aligns shapes.
        lengths = [s[-i] for s in shapes if len(s) >= i and s[-i] != 1]
        if any(n != lengths[0] for n in lengths[1:]):
            return (
                f"dimension {-i} is {' and '.join(map(str, lengths))}; it must be the "
                "same or 1."
            )
    return ""


def _hint_concat(*shapes: Any, axis: int = 0, **_: Any) -> str:
    ranks = {len(s) for s in shapes}
    if len(ranks) > 1:
        return f"all must have as many axes, got {sorted(ranks)}."
    rank = ranks.pop()
    for i in range(rank):
        if i != axis % rank and len({s[i] for s in shapes}) > 1:
            return (
                f"dimension {i} is {' and '.join(str(s[i]) for s in shapes)}; all but "
                f"dimension {axis} must be the same."
            )
    return ""


def _hint_embedding(input: Any = (), weight: Any = (), **_: Any) -> str:
    rows = next(iter(weight), "the table")
    return f"indices must be integers below {rows}, such as int32."


_ELEMENTWISE = """
    add subtract multiply divide floor_divide remainder power maximum minimum equal
    not_equal less less_equal greater greater_equal where logical_and logical_or
    logical_xor arctan2 logaddexp
"""

_HINTS: dict[str, Callable[..., str]] = {
    "embedding": _hint_embedding,
    "linear": _hint_linear,
    "matmul": _hint_matmul,
    "concat": _hint_concat,
    **dict.fromkeys(_ELEMENTWISE.split(), _hint_broadcast),
}
