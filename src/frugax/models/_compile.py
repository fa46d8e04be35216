"""From a description to functions of the chosen library."""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._passes import bind, prune
from ._program import Program
from .graph import Graph, Layer, Spec, Wired, flatten, infer

if TYPE_CHECKING:
    from .to_jax import Compiled, JaxBackend
    from .to_torch import TorchBackend


def compile(
    model: Layer,
    backend: "JaxBackend | TorchBackend",
    *,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    jit: bool | None = None,
    verbose: bool = False,
    inference: bool = False,
    constant_keys: Mapping[str, Any] | None = None,
    data_keys: Iterable[str] = (),
    discard_keys: Iterable[str] = (),
    trainable_keys: Iterable[str] = (),
    scan_from: int | None = 8,
) -> "Compiled":
    """Turn a description into functions of a backend's library.

    Args:
        model: a `Model` or a single layer.
        backend: a `JaxBackend` or `TorchBackend`.
        shapes: the shape of each input by key: lengths, names of free dimensions, or
            None for a free one. Needed where the model does not say it itself.
        jit: compile by XLA, or by `torch.compile`; the backend's default if not given.
        verbose: print every layer with its shapes, parameters and costs.
        inference: leave out what serves training only, such as dropout.
        constant_keys: arrays that inputs or weights are fixed to.
        data_keys: weights that go in with the data instead of being trained.
        discard_keys: outputs that are not wanted.
        trainable_keys: inputs that are parameters.
        scan_from: from how many equal blocks in a row one loop is made of them, which
            compiles them once; their weights are then stacked under one key. None:
            never.

    Returns:
        An object with `evaluate`, `value_and_grad`, `randomize_params` and `summary`.

    Raises:
        ShapeError: a layer cannot take what it is given.
        ValueError: a shape is missing, a key is unknown, or names clash.
        TypeError: the model is no layer, or the backend no backend.

    Example:
        >>> import frugax as ml
        >>> model = ml.models.MLP(input_size=4, hidden_sizes=[8], output_size=3)
        >>> compiled = ml.compile(model, ml.JaxBackend())
        >>> params = compiled.randomize_params()
        >>> compiled.evaluate(params, {"input": ml.JaxBackend().ones(2, 4)})["output"].shape
        (2, 3)
    """
    if isinstance(model, Wired):
        raise TypeError(
            "compile takes a model or a layer; this one is wired already: add it to a "
            "model with `model |= ...`."
        )
    if not isinstance(model, Layer):
        raise TypeError(f"compile takes a model or a layer, got {model!r:.60}.")
    home = getattr(backend, "name", None)
    if home not in ("jax", "torch"):
        raise TypeError(
            "backend must be a JaxBackend or a TorchBackend, got "
            f"{backend!r:.60}."
        )
    library = importlib.import_module(f"frugax.models.to_{home}")
    flat = flatten(
        model, inference=inference, scan_from=scan_from if home == "jax" else None
    )
    flat = prune(flat, set(discard_keys))
    with backend.scope():
        rules = library.rules_of(backend)
        specs = library.input_specs(flat, shapes or {}, backend)
        graph = infer(flat, specs, rules)
        flat, graph = bind(flat, graph, dict(constant_keys or {}), rules)
    params, data = _roles(graph, set(data_keys), set(trainable_keys))
    program = Program(
        layer=model,
        backend=backend,
        flat=flat,
        graph=graph,
        param_keys=params,
        data_keys=data,
    )
    compiled = library.Compiled(program, jit=backend.jit if jit is None else jit)
    if verbose:
        print(compiled.summary())  # noqa: T201 - asked for
    return compiled


def _roles(
    graph: Graph, data_keys: set[str], trainable_keys: set[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Which keys are trained and which go in with the data."""
    weights = {k for k, w in graph.weights.items() if w.kind == "param"}
    state = set(graph.weights) - weights
    for what, keys, known in (
        ("data_keys", data_keys, weights),
        ("trainable_keys", trainable_keys, set(graph.inputs)),
    ):
        unknown = sorted(keys - known)
        if unknown:
            raise ValueError(
                f"{what}: there is no {unknown[0]!r}; there are: "
                f"{', '.join(sorted(known)[:12])}."
            )
    params = (weights - data_keys) | trainable_keys
    data = (set(graph.inputs) - trainable_keys) | state | data_keys
    return frozenset(params), frozenset(data)


__all__ = ["Spec", "compile"]
