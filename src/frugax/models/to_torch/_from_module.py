"""Convert a torch module to a model, operation by operation, through `torch.export`."""

import dataclasses
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from frugax.errors import UnsupportedModuleError
from frugax.models.graph import Connection, IOKey, Model, op

from ._aten import CONVERSIONS, TRACED, note


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """How far an imported model is from its module, as measured.

    Attributes:
        max_error: the largest difference of an output, over the largest output, for the
            given inputs and for random ones of their shapes.
        samples: the number of inputs that were compared.
        dtype: the dtype that both were computed in.
    """

    max_error: float
    samples: int
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class ImportedModule:
    """A torch module as a model.

    Attributes:
        model: the description, for `compile`, `save` and budgets.
        params: NumPy arrays for `evaluate`, by key; a weight with several owners in
            torch is one array.
        shapes: the shape of each input, for which the module was traced.
        certificate: the measured difference of the two.
    """

    model: Model
    params: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int, ...]]
    certificate: Certificate


def from_torch(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    *,
    random_samples: int = 2,
    tolerance: float = 1e-3,
) -> ImportedModule:
    """Import a torch module: its structure, weights and buffers.

    The module is traced in evaluation mode by `torch.export`, for the shapes of the
    example inputs. Parameters keep torch's names; buffers become constants. The result
    is compared with the module before it is returned.

    Args:
        module: any `torch.nn.Module` that `torch.export` can trace.
        example_inputs: the positional arguments of its `forward`: tensors.
        random_samples: the number of random inputs that are compared as well.
        tolerance: the largest difference, over the largest output, that is accepted.

    Raises:
        UnsupportedModuleError: operations have no conversion, which are all named with
            their places; or the result differs from the module.
        TypeError: the module is not a `torch.nn.Module`.

    Example:
        >>> import torch, frugax as ml
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
        >>> imported = ml.models.from_torch(net, (torch.ones(2, 4),))
        >>> compiled = ml.compile(imported.model, ml.JaxBackend())
        >>> data = {key: torch.ones(2, 4).numpy() for key in imported.shapes}
        >>> compiled.evaluate(imported.params, data)["output"].shape
        (2, 8)
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch takes a torch.nn.Module, got {module!r:.60}.")
    was_training = module.training
    module.eval()
    try:
        args = tuple(example_inputs)
        with warnings.catch_warnings():  # about torch's own use of its own names
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, args).run_decompositions({})
        walk = _Walk(exported, module)
        model = walk.convert()
        inputs = dict(zip(walk.inputs, _tensors(args), strict=True))
        params = {k: _to_numpy(t) for k, t in walk.params.items()}
        certificate = _compare(module, args, model, params, inputs, random_samples)
        if not certificate.max_error <= tolerance:
            raise UnsupportedModuleError(
                f"the model differs from the module by {certificate.max_error:.1e} of "
                f"its largest output, more than {tolerance:g}: one of its operations "
                "is converted wrongly, or is not a function of its inputs; from_torch "
                "returns no model that it could not confirm."
            )
    finally:
        TRACED.clear()
        module.train(was_training)
    shapes = {key: tuple(t.shape) for key, t in inputs.items()}
    return ImportedModule(model, params, shapes, certificate)


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
            stack = node.meta.get("nn_module_stack") or {}
            place = next(reversed(list(stack.values())), ("the module", None))[0]
            missing.setdefault(str(node.target), place or "the module")
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
        return convert(
            *map(_to_host, args), **{k: _to_host(v) for k, v in named.items()}
        )


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
    leaves = pytree.tree_leaves(args)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _compare(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    model: Model,
    params: Mapping[str, np.ndarray],
    inputs: Mapping[str, torch.Tensor],
    random_samples: int,
) -> Certificate:
    """Run module and model on the given inputs and on random ones."""
    from frugax.models._compile import compile

    from ._backend import TorchBackend

    compiled = compile(model, TorchBackend())
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for sample in range(1 + random_samples):
        values = dict(inputs)
        if sample:  # integers stay: random ones need not be valid
            values = {
                k: torch.randn(v.shape, generator=generator).to(v.dtype)
                if v.is_floating_point()
                else v
                for k, v in inputs.items()
            }
        leaves, spec = pytree.tree_flatten(args)
        rest = iter(values.values())
        filled = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
        with torch.no_grad():
            wanted = module(*pytree.tree_unflatten(filled, spec))
            data = {k: _to_numpy(v) for k, v in values.items()}
            got = compiled.evaluate(params, data)
        pairs = zip(_tensors(wanted), got.values(), strict=True)
        for want, found in pairs:
            scale = max(float(want.abs().max()), 1e-30) if want.numel() else 1.0
            difference = (want.double() - found.double()).abs()
            worst = max(worst, float(difference.max()) / scale if want.numel() else 0.0)
    return Certificate(worst, 1 + random_samples, "float32")
