"""Convert a torch module's exported graph to a model, op by op, for `from_torch`."""

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from frugax.errors import UnsupportedModuleError
from frugax.models.graph import Connection, IOKey, Model, op

from .aten import CONVERSIONS, TRACED, note


def convert_module(
    module: torch.nn.Module, args: tuple[Any, ...]
) -> tuple[Model, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The model of a module in evaluation mode, its parameters and its inputs."""
    try:
        with warnings.catch_warnings():  # about torch's own use of its own names
            warnings.simplefilter("ignore")
            try:
                exported = torch.export.export(module, args).run_decompositions({})
            except Exception as e:
                problem = "torch.export cannot trace this module"
                try:
                    run_module(module, args, [_to_numpy(t) for t in _tensors(args)])
                except Exception:  # whatever the user's module raises
                    problem = "the module does not run on the example inputs"
                raise UnsupportedModuleError(
                    f"{problem}: {str(e).strip().splitlines()[0]:.300}"
                ) from e
        walk = _Walk(exported, module)
        model = walk.convert()
    finally:
        TRACED.clear()
    inputs = dict(zip(walk.inputs, map(_to_numpy, _tensors(args)), strict=True))
    return model, {k: _to_numpy(t) for k, t in walk.params.items()}, inputs


def run_module(
    module: torch.nn.Module, args: tuple[Any, ...], values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The outputs of a module for other values of the tensors among its arguments."""
    given, rest = _tensors(args), iter(values)
    tensors = {id(t): torch.as_tensor(next(rest)).to(t.dtype) for t in given}
    filled = tree_map(lambda x: tensors.get(id(x), x), args)
    with torch.no_grad():
        return [_to_numpy(t) for t in _tensors(module(*filled))]


class _Walk:
    """Values of the nodes of an exported program: connections, tensors and numbers."""

    def __init__(self, exported: Any, module: torch.nn.Module) -> None:
        self.exported, self.values = exported, dict[Any, Any]()
        self.inputs: dict[str, IOKey] = {}
        self.params: dict[str, torch.Tensor] = {}
        # One tensor under several names is one weight.
        self.tied: dict[int, str] = {}
        self.tensors = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
            **exported.constants,
        }

    def convert(self) -> Model:
        self._check_supported()
        signature = self.exported.graph_signature
        weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        weights |= signature.inputs_to_lifted_tensor_constants
        trained = signature.inputs_to_parameters
        outputs: Sequence[Any] = ()
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._placeholder(
                    node, weights, node.name in trained
                )
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                outputs = node.args[0]
            if node in self.values:
                _note(self.values[node], node.meta.get("val"))
        user = set(signature.user_outputs)
        kept = [self._value(n) for n in outputs if getattr(n, "name", None) in user]
        names = (
            ["output"] if len(kept) == 1 else [f"output{i}" for i in range(len(kept))]
        )
        results: Any = dict(zip(names, map(_as_connection, kept), strict=True))
        return Model.create(**results)

    def _check_supported(self) -> None:
        missing: dict[str, str] = {}
        for node in self.exported.graph.nodes:
            if node.op != "call_function" or node.target in CONVERSIONS:
                continue
            if node.target is operator.getitem or not _reads_data(node):
                continue
            missing.setdefault(str(node.target), _place_of(node))
        if missing:
            listed = "; ".join(f"{name} in {place}" for name, place in missing.items())
            raise UnsupportedModuleError(
                f"from_torch has no conversion for {listed}: replace these layers, or "
                "build this part of the model in frugax."
            )

    def _placeholder(self, node: Any, weights: Mapping[str, str], trained: bool) -> Any:  # noqa: FBT001
        if node.name not in weights:
            value = node.meta["val"]
            dtype = str(value.dtype).removeprefix("torch.")
            dtype = {"int64": "int32"}.get(dtype, dtype)
            if dtype.startswith("float") or dtype == "bfloat16":
                dtype = None
            key = IOKey(node.name, tuple(value.shape), dtype)
            self.inputs[node.name] = key
            return key
        tensor = self.tensors[weights[node.name]]
        if not trained:
            return tensor.detach()
        name = self.tied.setdefault(id(tensor), weights[node.name])
        self.params[name] = tensor
        return IOKey(name, tuple(tensor.shape), trainable=True)

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, (list, tuple)):
            return [self._value(a) for a in argument]
        return argument

    def _call(self, node: Any) -> Any:
        args = [self._value(a) for a in node.args]
        named = {k: self._value(v) for k, v in node.kwargs.items()}
        if node.target is operator.getitem:
            return args[0][args[1]]
        # What no input and no parameter reaches is computed here and now.
        if not _holds_connection([args, named]):
            return node.target(*args, **named)
        convert: Callable[..., Any] = CONVERSIONS[node.target]
        try:
            return convert(
                *map(_to_host, args), **{k: _to_host(v) for k, v in named.items()}
            )
        except (NotImplementedError, TypeError, ValueError) as e:
            raise UnsupportedModuleError(
                f"from_torch cannot convert {node.target} in {_place_of(node)}: {e}. "
                "Replace this layer, or build this part of the model in frugax."
            ) from e


def _place_of(node: Any) -> str:
    """The path of the module in which an operation is called."""
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed(list(stack.values())), ("", None))[0] or "the module"


def _note(value: Any, traced: Any) -> None:
    """Remember the shapes of connections, as torch traced them."""
    if isinstance(traced, (list, tuple)) and isinstance(value, (list, tuple)):
        for one, other in zip(value, traced, strict=False):
            _note(one, other)
    if isinstance(value, Connection) and isinstance(traced, torch.Tensor):
        note(value, tuple(traced.shape), is_bool=traced.dtype == torch.bool)


def _reads_data(node: Any) -> bool:
    return bool(node.all_input_nodes)


def _holds_connection(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(map(_holds_connection, value))
    return isinstance(value, Connection)


def _to_host(value: Any) -> Any:
    """Tensors as NumPy arrays, which models take as constants."""
    if isinstance(value, torch.Tensor):
        return _to_numpy(value)
    if isinstance(value, list):
        return [_to_host(v) for v in value]
    return value


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.int64:
        tensor = tensor.to(torch.int32)
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.numpy())


def _as_connection(value: Any) -> Connection:
    if isinstance(value, Connection):
        return value
    return op("identity")(_to_host(value))


def _tensors(args: Any) -> list[torch.Tensor]:
    """The tensors among arguments, in the order in which torch.export lists them."""
    found: list[torch.Tensor] = []
    tree_map(lambda x: found.append(x) if isinstance(x, torch.Tensor) else None, args)
    return found


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """A function applied to the leaves of tuples, lists and dicts."""
    if isinstance(tree, dict):
        return type(tree)((k, tree_map(function, v)) for k, v in tree.items())
    if isinstance(tree, (tuple, list)):
        return tuple(tree_map(function, v) for v in tree)
    return function(tree)
