"""From a description to functions of the chosen library."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ._compiled_model import CompiledModel
from ._passes import bind, check_bound, fold_constants, merge_equal, prune
from ._plan import check_memory_budget
from .graph import Layer, LoopShapeError, ModelGraph, WiredLayer, flatten, infer
from .ops import is_floating

if TYPE_CHECKING:
    from .to_jax import JaxBackend, JaxModel
    from .to_torch import TorchBackend


def compile(
    model: Layer,
    backend: "JaxBackend | TorchBackend",
    *,
    shapes: Mapping[str, Any] | None = None,
    jit: bool | None = None,
    verbose: bool = False,
    inference: bool = False,
    constant_keys: Mapping[str, Any] | None = None,
    data_keys: Iterable[str] = (),
    discard_keys: Iterable[str] = (),
    trainable_keys: Iterable[str] = (),
    scan_from: int | None = 8,
    budget: Any = None,
) -> "JaxModel":
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
        budget: a `frugax.MemoryBudget` that the program with gradients must fit in, on
            JAX; needs every length. What is returned then has a `plan` and a `report`.

    Returns:
        An object with `evaluate`, `value_and_grad`, `randomize_params` and `summary`.

    Raises:
        ShapeError: a layer cannot take what it is given.
        ValueError: a shape is missing, a key is unknown, or names clash.
        TypeError: the model is no layer, the backend no backend, the budget none.
        InfeasibleBudgetError: no way that was tried fits the budget.

    Example:
        >>> import frugax as ml
        >>> model = ml.models.MLP(input_size=4, hidden_sizes=[8], output_size=3)
        >>> compiled = ml.compile(model, ml.JaxBackend())
        >>> params = compiled.randomize_params()
        >>> inputs = {"input": ml.JaxBackend().ones(2, 4)}
        >>> compiled.evaluate(params, inputs)["output"].shape
        (2, 3)
    """
    if isinstance(model, WiredLayer):
        raise TypeError(
            "compile takes a model or a layer; this one is wired already: add it to a "
            "model with `model |= ...`."
        )
    if not isinstance(model, Layer):
        raise TypeError(f"compile takes a model or a layer, got {model!r:.60}.")
    for what, flag in (("jit", jit), ("verbose", verbose), ("inference", inference)):
        if flag not in (True, False) and not (what == "jit" and flag is None):
            raise TypeError(f"{what} must be True or False, got {flag!r}.")
    home = getattr(backend, "name", None)
    if home not in ("jax", "torch") or isinstance(backend, type):
        raise TypeError(
            f"backend must be a JaxBackend or a TorchBackend, got {backend!r:.60}."
        )
    library = importlib.import_module(f"frugax.models.to_{home}")
    if home == "torch":  # it has no loop that is faster than its steps
        scan_from = None
    if scan_from is not None and scan_from < 2:
        raise ValueError(f"scan_from must be at least 2, or None, got {scan_from}.")
    fixed = dict(constant_keys or {})
    for what, keys in (
        ("data_keys", data_keys),
        ("discard_keys", discard_keys),
        ("trainable_keys", trainable_keys),
    ):
        if isinstance(keys, str):
            raise TypeError(f"{what} must be a list of keys, got the text {keys!r}.")
    for what, given in (("shapes", shapes), ("constant_keys", constant_keys)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f'{what} must be a dict by key, such as {{"input": ...}}, got '
                f"{given!r:.60}."
            )
    data_keys, discard_keys = tuple(data_keys), tuple(discard_keys)
    trainable_keys = tuple(trainable_keys)
    shapes = {k: v for k, v in (shapes or {}).items() if k not in fixed}
    with backend.scope():
        rules = library.rules_of(backend)

        def shaped(unlooped: frozenset[str]) -> ModelGraph:
            flat = flatten(
                model, inference=inference, scan_from=scan_from, unlooped=unlooped
            )
            flat = bind(prune(flat, discard_keys), fixed, backend.array)
            return infer(flat, library.input_specs(flat, shapes, backend), rules)

        graph = _with_loops(shaped)
        check_bound(graph, fixed)
        graph = merge_equal(graph)
        graph = prune(fold_constants(graph, backend.xp, backend.find))
    params, data = _roles(graph, set(data_keys), set(trainable_keys))
    program = CompiledModel(
        layer=model,
        backend=backend,
        graph=graph,
        param_keys=params,
        data_keys=data,
        compile_options={
            "inference": inference,
            "constant_keys": fixed,
            "data_keys": data_keys,
            "discard_keys": discard_keys,
            "trainable_keys": trainable_keys,
        },
    )
    jit = backend.jit if jit is None else jit
    if budget is None:
        model_class = {"jax": "JaxModel", "torch": "TorchModel"}[home]
        compiled = getattr(library, model_class)(program, jit=jit)
    else:
        check_memory_budget(budget, graph, backend, jit=jit)
        compiled = library.BudgetedJaxModel(program, budget=budget)
    if verbose:
        print(compiled.summary())  # noqa: T201 - asked for
    return compiled


def _with_loops(shaped: Callable[[frozenset[str]], ModelGraph]) -> ModelGraph:
    """The program with as many loops as shapes allow.

    Equal layers are not equal blocks where one turns its input into another shape: the
    first often does, all the others seldom.
    """
    unlooped: frozenset[str] = frozenset()
    tried: set[str] = set()
    while True:
        try:
            return shaped(unlooped)
        except LoopShapeError as e:
            again = e.places[0] in tried
            unlooped |= set(e.places) if again else {e.places[0]}
            tried |= set(e.places)


def _roles(
    graph: ModelGraph, data_keys: set[str], trainable_keys: set[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Which keys are trained and which go in with the data.

    Raises:
        ValueError: there is no such weight or input, or it cannot be trained.
    """
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
    for key in sorted(trainable_keys):
        spec = graph.specs[key]
        if not is_floating(spec.dtype) or not all(
            isinstance(d, int) for d in spec.shape
        ):
            raise ValueError(
                f"trainable_keys: {key!r} is {spec}, but a parameter has floating "
                "numbers and a shape without free dimensions."
            )
    params = (weights - data_keys) | trainable_keys
    data = (set(graph.inputs) - trainable_keys) | state | data_keys
    return frozenset(params), frozenset(data)
