"""Models as JSON data: `{"kind": "Linear", "features": 8}`, and back again.

The file names a kind from a fixed list; no class outside it can be reached.
"""

from typing import Any

from frugax import budget

from ._containers import Chain, Residual
from ._layers import (
    Conv,
    Flatten,
    Gelu,
    Layer,
    LayerNorm,
    Leaf,
    Linear,
    MeanPool,
    Relu,
    Tanh,
)
from ._walk import join

_LEAVES: dict[str, type[Leaf]] = {
    kind.__name__: kind
    for kind in (Conv, Flatten, Gelu, LayerNorm, Linear, MeanPool, Relu, Tanh)
}


def to_plain(model: Layer) -> dict[str, Any]:
    """The model as data that JSON can hold."""
    kind = type(model).__name__
    match model:
        case Chain(layers=layers):
            return {"kind": kind, "layers": [to_plain(layer) for layer in layers]}
        case Residual(body=body):
            return {"kind": kind, "body": to_plain(body)}
        case _:
            return {"kind": kind, **budget.to_plain(model)}


def from_plain(data: object, *, at: str = "") -> Layer:
    """The model that `to_plain` wrote.

    Args:
        data: what `to_plain`, JSON or YAML gave.
        at: the place of `data` in its file, for the error message.

    Raises:
        ValueError: it is no model; the message starts with the place.
    """
    place = f"{at}: " if at else ""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(data, dict) or kind not in ("Chain", "Residual", *_LEAVES):
        kinds = ", ".join(["Chain", "Residual", *_LEAVES])
        raise ValueError(
            f"{place}expected a layer, a mapping whose kind is one of {kinds}; "
            f"got {data!r:.60}."
        )
    rest = {key: value for key, value in data.items() if key != "kind"}
    if kind in _LEAVES:
        return budget.from_plain(_LEAVES[kind], rest, at=at)
    match kind, rest:
        case "Chain", {"layers": list(layers)} if len(rest) == 1:
            inside = join(at, "layers")
            parts = enumerate(layers)
            return Chain(*[from_plain(v, at=f"{inside}[{i}]") for i, v in parts])
        case "Residual", {"body": body} if len(rest) == 1:
            return Residual(from_plain(body, at=join(at, "body")))
    key = "layers, a list" if kind == "Chain" else "body, a layer"
    raise ValueError(f"{place}{kind} has the one key {key}; got {rest!r:.60}.")
