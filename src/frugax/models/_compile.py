"""`models.compile`: turn a model's description into functions of JAX or torch."""

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from frugax.budget import MemoryBudget, MemoryShare, SizeBudget, check_budget

from ._input_specs import input_specs
from ._select import bind, check_bound, prune
from .graph import (
    Connection,
    IOKey,
    Layer,
    ModelGraph,
    Program,
    flatten,
)
from .ops import is_floating

if TYPE_CHECKING:
    from .to_jax import JaxBackend, JaxModel
    from .to_torch import TorchBackend

# Class names and not imports: importing a backend imports its array library.
_MODEL_CLASSES = {"jax": "JaxModel", "torch": "TorchModel"}


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
    target: Any = None,
) -> "JaxModel":
    """Turn a description into functions of a backend's library.

    Args:
        model: a `Model` or a single layer.
        backend: a `JaxBackend` or `TorchBackend`.
        shapes: the shape of each input by key: lengths, names of free dimensions, or
            None for a free dimension without a name. Needed for inputs whose shape the
            model does not state.
        jit: compile by XLA, or by `torch.compile`; the backend's default if not given.
        verbose: print every layer with its shapes, parameters and costs.
        inference: leave out layers that act in training only, such as dropout.
        constant_keys: arrays that inputs or weights are fixed to.
        data_keys: weights that go in with the data instead of being trained.
        discard_keys: outputs to leave out.
        trainable_keys: inputs that are parameters.
        scan_from: how many blocks of a `Repeat` become one loop on JAX, whose body is
            compiled once; their weights are then stacked under one key. None: never.
        budget: a `frugax.MemoryBudget` that the program with gradients must fit in, on
            JAX; every length must be stated. The compiled model then has a `plan` and a
            `report()`. The same as `models.plan` followed by `models.apply`.
        target: the devices to plan for, which need not be here, such as `"h100"`; their
            compiler counts the bytes. Without a budget, all memory of one of them.

    Returns:
        An object with `evaluate`, `value_and_grad`, `randomize_params` and `summary`.

    Raises:
        ShapeError: a layer cannot take its inputs.
        ValueError: a shape is missing, a key is unknown, or names clash.
        TypeError: the model is not a layer, the backend not a backend, or the budget
            not a MemoryBudget.
        ConfigError: there is no such target.
        MissingExtraError: the compiler of the target is not installed.
        InfeasibleBudgetError: nothing that was tried fits the budget.

    Example:
        >>> import frugax as fx
        >>> model = fx.models.MLP(input_size=4, hidden_sizes=[8], output_size=3)
        >>> compiled = fx.compile(model, fx.JaxBackend())
        >>> params = compiled.randomize_params()
        >>> inputs = {"input": fx.JaxBackend().ones(2, 4)}
        >>> compiled.evaluate(params, inputs)["output"].shape
        (2, 3)
    """
    for name, flag in (("jit", jit), ("verbose", verbose)):
        if flag not in (True, False) and not (name == "jit" and flag is None):
            raise TypeError(f"{name} must be True or False, got {flag!r}.")
    program = build_program(
        model,
        backend,
        shapes=shapes,
        inference=inference,
        constant_keys=constant_keys,
        data_keys=data_keys,
        discard_keys=discard_keys,
        trainable_keys=trainable_keys,
        scan_from=scan_from,
    )
    library = importlib.import_module(f"frugax.models.to_{backend.name}")
    if jit is None:
        jit = backend.jit
    if budget is None and target is None:
        model_class = getattr(library, _MODEL_CLASSES[backend.name])
        compiled = model_class(program, jit=jit)
    else:
        target, budget = resolve_target(target, budget)
        check_memory_budget(budget, program.graph, backend, jit=jit)
        compiled = library.BudgetedJaxModel(program, budget=budget, target=target)
    if verbose:
        print(compiled.summary())  # noqa: T201 - asked for
    return compiled


def build_program(
    model: Any,
    backend: Any,
    *,
    shapes: Mapping[str, Any] | None = None,
    inference: bool = False,
    constant_keys: Mapping[str, Any] | None = None,
    data_keys: Iterable[str] = (),
    discard_keys: Iterable[str] = (),
    trainable_keys: Iterable[str] = (),
    scan_from: int | None = 8,
) -> Program:
    """Flatten a model and record its shapes; the arguments are those of `compile`."""
    if isinstance(model, Connection):
        raise TypeError(
            "compile takes a model or a layer; this one is wired already: add it to a "
            "model with `model |= ...`, or make one with Model.create(output=...)."
        )
    if not isinstance(model, Layer):
        raise TypeError(f"compile takes a model or a layer, got {model!r:.60}.")
    if inference not in (True, False):
        raise TypeError(f"inference must be True or False, got {inference!r}.")
    name = getattr(backend, "name", None)
    if name not in _MODEL_CLASSES or isinstance(backend, type):
        raise TypeError(
            f"backend must be a JaxBackend or a TorchBackend, got {backend!r:.60}."
        )
    if name == "torch":
        scan_from = None  # eager torch runs a loop no faster than its steps
    if scan_from is not None and scan_from < 2:
        raise ValueError(f"scan_from must be at least 2, or None, got {scan_from}.")
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
    constants = dict(constant_keys or {})
    # Iterators are read more than once below, and are kept for `save`.
    data_keys, discard_keys = tuple(data_keys), tuple(discard_keys)
    trainable_keys = tuple(trainable_keys)
    shapes = {k: v for k, v in (shapes or {}).items() if k not in constants}
    with backend.scope():
        flat = flatten(model, inference=inference, scan_from=scan_from)
        flat = bind(prune(flat, discard_keys), constants, backend.array)
        flat, stated = _state_named_shapes(flat, shapes)
        graph = backend.record_shapes(flat, input_specs(flat, stated, backend))
        check_bound(graph, constants)
    params, data = _assign_roles(graph, set(data_keys), set(trainable_keys))
    return Program(
        layer=model,
        backend=backend,
        graph=graph,
        param_keys=params,
        data_keys=data,
        compile_options={
            "inference": inference,
            "constant_keys": constants,
            "data_keys": data_keys,
            "discard_keys": discard_keys,
            "trainable_keys": trainable_keys,
        },
    )


def resolve_target(target: Any, budget: Any) -> tuple[Any, Any]:
    """Look a target up; without a budget its memory is the limit."""
    if target is None:
        return None, budget
    found, library = target, importlib.import_module("frugax.targets")
    if not isinstance(target, library.Target):
        found = library.Target(target)
    if budget is None:
        budget = MemoryBudget(device="100%")
    return found, budget


def check_memory_budget(
    budget: object, graph: ModelGraph, backend: Any, *, jit: bool
) -> None:
    """Check that a model can be compiled within a memory budget."""
    if isinstance(budget, SizeBudget):
        raise TypeError(
            "a SizeBudget limits weights, which compile does not have: use "
            "frugax.compress on the parameters afterwards."
        )
    if not isinstance(budget, MemoryShare):
        check_budget(budget, MemoryBudget)
    if backend.name != "jax":
        raise ValueError(
            f"budget= works on a JaxBackend; frugax plans no memory for "
            f"{type(backend).__name__}. torch itself has torch.utils.checkpoint, and "
            "under torch.compile torch._functorch.config.activation_memory_budget, a "
            "share from 0 to 1 of the bytes that the backward pass keeps."
        )
    if not jit:
        raise ValueError(
            "budget= limits what XLA reserves for a compiled program, and jit=False "
            "runs op by op: leave out jit=False, here and in the backend."
        )
    if backend.mesh is not None:
        raise ValueError(
            "budget= plans for one device, and this backend spreads over a mesh of "
            f"{backend.mesh.size}: use a JaxBackend without device_mesh."
        )
    for key in sorted(set(graph.inputs) - set(graph.specs)):
        raise ValueError(
            f"budget= needs every shape, and that of {key!r} is not known: state it, "
            f'as in shapes={{"{key}": [32, 128]}}.'
        )
    free = {
        key: graph.specs[key].shape
        for key in graph.inputs
        if not all(isinstance(n, int) for n in graph.specs[key].shape)
    }
    if free:
        _refuse_free_lengths(free)


def _refuse_free_lengths(free: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse free dimensions with an example of `shapes` that states them."""
    names, examples = set(), []
    for key, shape in free.items():
        lengths = []
        for length in shape:
            if isinstance(length, int):
                lengths.append(str(length))
            else:
                names.add(str(length))
                lengths.append("32")
        examples.append(f'"{key}": [{", ".join(lengths)}]')
    inputs = ", ".join(f"{key!r} {shape}" for key, shape in free.items())
    raise ValueError(
        f"budget= needs every length, and {', '.join(sorted(names))} in {inputs} is "
        f"free: state it, as in shapes={{{', '.join(examples)}}}."
    )


def _assign_roles(
    graph: ModelGraph, data_keys: set[str], trainable_keys: set[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The keys that are trained, and those that go in with the data."""
    weights = {k for k, w in graph.weights.items() if w.kind == "param"}
    state = set(graph.weights) - weights
    for what, keys, known in (
        ("data_keys", data_keys, weights),
        ("trainable_keys", trainable_keys, {*graph.inputs, *graph.named_weights}),
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
    params = (weights - data_keys) | (trainable_keys - data_keys)
    data = (set(graph.inputs) - trainable_keys) | state | data_keys
    # The owner of a key is decided here for ever: an array given twice would be read
    # in one place and differentiated in the other.
    assert not params & data, sorted(params & data)
    return frozenset(params), frozenset(data)


def _state_named_shapes(
    flat: ModelGraph, shapes: Mapping[str, Any]
) -> tuple[ModelGraph, dict[str, Any]]:
    """Declare the shapes that are given for named weights; return the others."""
    named = {}
    for key, known in flat.named_weights.items():
        shape = shapes.get(key, known.known_shape)
        shape = getattr(shape, "shape", shape)
        stated = None if shape is None else tuple(shape)
        named[key] = IOKey(key, stated, known.dtype, trainable=known.trainable)
    others = {k: v for k, v in shapes.items() if k not in named}
    return dataclasses.replace(flat, named_weights=named), others
