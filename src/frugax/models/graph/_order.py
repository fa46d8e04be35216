"""The order in which the layers of a model can run."""

from collections.abc import Iterable, Mapping

from ._graph import join
from ._layer import LayerCall, LayerOutput, WeightRef
from ._model import Model


def topological_order(model: Model, path: str) -> list[tuple[str, LayerCall]]:
    """The calls, each after those it reads; as they were added where that will do.

    Args:
        model: the model.
        path: where it is, for an error.

    Raises:
        ValueError: layers feed each other in a circle.
    """
    try:
        return _ordered(model, path, ties=True)
    except ValueError:  # who shares a weight need not come behind its owner
        return _ordered(model, path, ties=False)


def _ordered(model: Model, path: str, *, ties: bool) -> list[tuple[str, LayerCall]]:
    """The calls; with `ties` also each after the owners of weights that it shares.

    Raises:
        ValueError: there is no such order.
    """
    names = {id(call): name for name, call in model.calls}
    done: set[int] = set()
    order: list[tuple[str, LayerCall]] = []
    for _, start in model.calls:
        # A stack and not a recursion: models may be deeper than Python's stack. Its
        # open calls are those whose own inputs are being looked at.
        stack: list[LayerCall] = [start]
        opened: dict[int, LayerCall] = {}
        while stack:
            call = stack[-1]
            if id(call) in done:
                stack.pop()
                continue
            before = [c for c in _read(model, call, ties=ties) if id(c) in names]
            waiting = [c for c in before if id(c) not in done]
            if not waiting:
                done.add(id(call))
                opened.pop(id(call), None)
                order.append((names[id(call)], stack.pop()))
                continue
            opened[id(call)] = call
            for c in waiting:
                if id(c) in opened:
                    raise ValueError(_circle(opened.values(), c, names, path))
            stack += reversed(waiting)
    return order


def _read(model: Model, call: LayerCall, *, ties: bool) -> list[LayerCall]:
    kinds = (LayerOutput, WeightRef) if ties else LayerOutput
    wires = model.wires(call).values()
    return [wire.call for wire in wires if isinstance(wire, kinds)]


def _circle(
    opened: Iterable[LayerCall], back: LayerCall, names: Mapping[int, str], path: str
) -> str:
    calls = list(opened)
    circle = [join(path, names[id(c)]) for c in calls[calls.index(back) :]]
    circle.append(circle[0])
    return (
        f"layers feed each other in a circle: {' -> '.join(reversed(circle))}. One of "
        "their keys must have another name."
    )
