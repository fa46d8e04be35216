"""Where NaN and infinity come from: the first layer that gives one is named."""

from collections.abc import Callable, Mapping
from typing import Any

from .graph import ModelGraph, run


def raise_first_non_finite(
    compiled: Any,
    made: Any,
    params: Mapping[str, Any],
    data: Mapping[str, Any],
    finite: Callable[[Any], bool],
) -> None:
    """Do nothing if all is finite; else run again, one layer further each time.

    Args:
        compiled: the compiled model.
        made: what it gave: arrays, and dicts and tuples of arrays.
        params: an array for each parameter, by key.
        data: an array for each input, by key, and others.
        finite: whether an array is finite; true of what is no number, such as a key.

    Raises:
        FloatingPointError: something is not finite.
    """
    if all(map(finite, _leaves(made))):
        return
    read = {k: v for k, v in data.items() if k in compiled.data_keys}
    for key, value in {**params, **read}.items():
        if not finite(value):
            raise FloatingPointError(f"{key!r}, which goes in, is not finite.")
    graph = compiled.check(params, read)
    backend = compiled.backend
    values = {**params, **read}
    for i, node in enumerate(graph.nodes):
        part = ModelGraph(
            graph.inputs,
            graph.constants,
            graph.nodes[: i + 1],
            {key: key for key in node.outputs},
        )
        results = run(part, values, backend.xp, backend.find)
        if not all(map(finite, results.values())):
            raise FloatingPointError(
                f"{node.title} is the first that gives NaN or infinity."
            )
    raise FloatingPointError("the gradients hold NaN or infinity; the outputs none.")


def _leaves(made: Any) -> list[Any]:
    if isinstance(made, Mapping):
        made = tuple(made.values())
    if not isinstance(made, (tuple, list)):
        return [made]
    return [leaf for part in made for leaf in _leaves(part)]
