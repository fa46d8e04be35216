"""Walk an exported program of torch: connections, tensors and numbers of its nodes."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree  # noqa: PLC2701 - it has no public name

from frugax.errors import UnsupportedModuleError
from frugax.models.graph import Connection, IOKey, as_connection, describe_lengths, op
from frugax.models.to_torch import TO_NUMPY

from ._export import table_name
from ._length_conditions import Condition, read_conditions
from ._traced_module import TracedModule, to_numpy
from ._traced_nodes import CHECKS, first_line, place_of

# From the name of an operation, specs of its tensors, arguments and named arguments to
# the specs of its results, as the library computes them that will run the model.
Inference = Callable[..., Sequence[tuple[tuple[int, ...], np.dtype]]]

_LENGTH_ARITHMETIC = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    operator.neg,
)
_CASTS = ("to", "_to_copy")


# Conditions and their values under which the outputs are used: under others no
# gradients reach inputs and parameters.
Gates = Sequence[tuple[Connection, bool]]
# The second array where the first is true, and otherwise the third.
choose = op("aten", function="where.self", arguments=("@0", "@1", "@2"))


class Walk:
    """Values of the nodes of an exported program: connections, tensors and numbers."""

    def __init__(
        self, exported: Any, traced: TracedModule, infer: Inference, gates: Gates
    ) -> None:
        self.exported, self.infer, self.gates = exported, infer, gates
        self.float_dtype = traced.float_dtype
        self.inputs: dict[str, IOKey] = {}
        self.params: dict[str, torch.Tensor] = {}
        self.keys: dict[str, IOKey] = {}
        # Names of free lengths and where they are read, by torch's symbol.
        self.free: dict[Any, str] = {}
        self.free_lengths: dict[Any, Connection] = {}
        self.conditions: tuple[Condition, ...] = ()
        # One tensor under several names is one weight.
        self.tied: dict[int, str] = {}
        module = traced.module
        # torch.export writes the names of arguments in small letters.
        arguments = traced.signature.parameters
        self.arguments = {n.lower(): n for n in arguments if n.lower() not in arguments}
        self.tensors = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
            **exported.constants,
        }
        self.missing: dict[str, str] = {}
        # Places in the module; see `_note_wide`.
        self.narrowed: dict[str, None] = {}
        # What torch traced, by the id of a connection.
        self.traced: dict[int, torch.Tensor] = {}
        self.lengths: dict[int, int] = {}
        self.alive: list[Connection] = []
        self.constants: dict[int, tuple[torch.Tensor, Any]] = {}

    def outputs(self, least_length: int) -> list[tuple[Any, Connection]]:
        """Return the value that torch traced for each output, and its connection."""
        signature = self.exported.graph_signature
        weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        weights |= signature.inputs_to_lifted_tensor_constants
        values: dict[Any, Any] = {}
        for node in self.exported.graph.nodes:
            if node.op != "placeholder":
                continue
            if node.name in weights:
                name = weights[node.name]
                is_trained = node.name in signature.inputs_to_parameters
                values[node] = self._weight(name, is_trained=is_trained)
            elif node.name in signature.input_tokens:  # that order effects
                values[node] = None
            elif isinstance(node.meta.get("val"), torch.Tensor):
                values[node] = self._input(node)
            else:
                values[node] = node.meta.get("val")
        self.conditions = self._read_conditions(values, least_length)
        for node, value in values.items():
            if self.conditions and any(value is key for key in self.inputs.values()):
                check = op(
                    "aten", function="alias.default", arguments=("@0",),
                    conditions=self.conditions,
                )  # fmt: skip
                values[node] = check(value)
            if isinstance(value, Connection):
                values[node] = self._gate(values[node], node.meta["val"].dtype)
            self._note(values[node], node.meta.get("val"))
        outputs = self._run(self.exported.graph_module, values)
        self._raise_missing()
        nodes = self.exported.graph.output_node().args[0]
        for node in filter(_is_tensor, nodes):
            dtype = node.meta["val"].dtype
            if self._narrow(dtype) != dtype:
                raise UnsupportedModuleError(
                    f"an output of {place_of(node)} is of {dtype}, and the module of "
                    f"{self.float_dtype}: give from_torch module.double() and inputs "
                    "in float64, or let forward return float32."
                )
        return [
            (node.meta["val"], self._as_wire(value))
            for spec, node, value in zip(
                signature.output_specs, nodes, outputs, strict=True
            )
            if spec.kind == OutputKind.USER_OUTPUT and _is_tensor(node)
        ]

    def spec(self, value: Any) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of a value in the example, in the model's dtypes."""
        if isinstance(value, Connection):
            value = self.traced[id(value)]
        shape = tuple(map(_hint, value.shape))
        dtype = TO_NUMPY[self._narrow(value.dtype)]
        return shape, _INT if dtype == np.int64 else dtype

    def _narrow(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that numbers of 64 bits have in a model of fewer."""
        return dtype if self.float_dtype == np.float64 else _NARROW.get(dtype, dtype)

    # --- values from outside --------------------------------------------------------

    def _input(self, node: Any) -> IOKey:
        value, name = node.meta["val"], self.arguments.get(node.name, node.name)
        taken = (*self.exported.graph_signature.parameters, *self.inputs)
        while name in taken:  # as that of a parameter
            name += "_input"
        if value.is_complex():
            raise UnsupportedModuleError(
                f"the input {name!r} is complex; give its two parts, as of "
                "torch.view_as_real."
            )
        stated = self._dtype_text(value.dtype).removeprefix("dtype:")
        dtype = {"int": "int32", "float": None}.get(stated, stated)
        shape = tuple(
            length if isinstance(length, int) else self._free_name(name, i, length)
            for i, length in enumerate(value.shape)
        )
        key = self.inputs[name] = IOKey(name, shape, dtype)
        for i, length in enumerate(value.shape):
            if isinstance(shape[i], str):
                self.free_lengths.setdefault(length.node.expr, op("size", axis=i)(key))
        return key

    def _read_conditions(
        self, nodes: Iterable[Any], least_length: int
    ) -> tuple[Condition, ...]:
        """Return the conditions on free lengths under which model and module agree."""
        least = tuple(
            (length, ">=", least_length, f"{self.free[symbol]} >= {least_length}")
            for symbol, length in self.free_lengths.items()
            if least_length > 1
        )
        for node in nodes:
            for length in getattr(node.meta.get("val"), "shape", ()):
                if isinstance(length, torch.SymInt):
                    env = length.node.shape_env
                    return least + read_conditions(env, self.free_lengths, self.free)
        return least

    def _gate(self, wire: Connection, dtype: torch.dtype) -> Connection:
        for condition, value in self.gates:
            if dtype.is_floating_point or dtype.is_complex:
                ways = (wire, _DETACH(wire)) if value else (_DETACH(wire), wire)
                wire = choose(condition, *ways)
        return wire

    def _free_name(self, name: str, axis: int, length: Any) -> Any:
        symbol = length.node.expr
        if symbol.is_Integer:  # torch fixed it after it had named it
            return int(symbol)
        if not symbol.is_Symbol:
            # It follows from others, such as twice as many; torch checks it.
            raise UnsupportedModuleError(f"{name!r} has a length of {symbol}.")
        return self.free.setdefault(symbol, f"{name}_{axis}")

    def _weight(self, name: str, *, is_trained: bool) -> Any:
        tensor = self.tensors[name]
        if not is_trained:
            return tensor.detach()
        name = self.tied.setdefault(id(tensor), name)
        wire: Connection
        if tensor.is_complex():
            # As its real and imaginary parts, on a last axis.
            numbers = torch.view_as_real(tensor.detach().resolve_conj())
            wire = _JOIN(self._parameter(name, numbers))
        else:
            wire = self._parameter(name, tensor)
        return wire if tensor.requires_grad else _DETACH(wire)

    def _parameter(self, name: str, tensor: torch.Tensor) -> IOKey:
        self.params[name] = tensor
        key = IOKey(name, tuple(tensor.shape), trainable=True)
        return self.keys.setdefault(name, key)

    # --- nodes ----------------------------------------------------------------------

    def _run(self, module: torch.fx.GraphModule, values: dict[Any, Any]) -> list[Any]:
        """The outputs of a graph, whose placeholders have values."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                values[node] = _attribute(module, node.target)
            elif node.op == "call_function":
                values[node] = self._call(node, values)
                self._note(values[node], node.meta.get("val"))
            elif node.op == "output":
                outputs = node.args[0]
                return [
                    values[n] if isinstance(n, torch.fx.Node) else n for n in outputs
                ]
        raise AssertionError("a graph has an output")

    def _call(self, node: Any, values: Mapping[Any, Any]) -> Any:
        known = lambda v: values[v] if isinstance(v, torch.fx.Node) else v
        args = torch.fx.map_arg(node.args, known)
        named = torch.fx.map_arg(node.kwargs, known)
        held = [args, named]
        if _holds(held, _Missing):
            return _MISSING
        if node.target is operator.getitem and isinstance(args[0], (list, tuple)):
            return args[0][args[1]]
        if str(node.target) in _SUBMODULES:
            return self._inline(node, args)
        if str(node.target) == "with_effects" and _packet(args[1]) in CHECKS:
            return [None]
        packet = _packet(node.target)
        if packet in CHECKS:
            return None
        # What no input and no parameter reaches is computed here and now.
        if not _holds(held, Connection):
            return self._compute(node, args, named)
        if packet == "sym_size":
            return op("size", axis=args[1])(args[0])
        if node.target in _LENGTH_ARITHMETIC:
            return node.target(*args)
        name = table_name(node.target)
        if name is None and _draws(node):
            raise _refuse_draws(node)
        if name is None:
            self.missing.setdefault(str(node.target), place_of(node))
            return _MISSING
        try:
            return self._convert(node, name, args, named)
        except (
            ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError,
        ) as e:  # fmt: skip
            self._raise_missing()
            raise UnsupportedModuleError(
                f"from_torch cannot convert {node.target} in {place_of(node)}: "
                f"{first_line(e)}. Replace this layer, or build this part of the "
                "model in frugax."
            ) from e

    def _compute(self, node: Any, args: Any, named: Any) -> Any:
        if _draws(node) and not _is_off_dropout(node):
            raise _refuse_draws(node)
        found = node.target(*args, **named)
        # What its memory held before is none of the module's numbers.
        return found.zero_() if "empty" in _packet(node.target) else found

    def _inline(self, node: Any, args: Any) -> Any:
        """Run the body of a region, such as one without gradients, as if outside."""
        at = next(i for i, a in enumerate(args) if isinstance(a, torch.fx.GraphModule))
        flags, body, given = args[:at], args[at], args[at + 1 :]
        if "autocast" in str(node.target) and flags[2]:
            raise UnsupportedModuleError(
                f"torch.autocast in {place_of(node)}: cast the module beforehand."
            )
        places = [n for n in body.graph.nodes if n.op == "placeholder"]
        outputs = self._run(body, dict(zip(places, given, strict=True)))
        if "grad" in str(node.target) and not flags[0]:
            outputs = [_DETACH(v) if isinstance(v, Connection) else v for v in outputs]
        return outputs

    def _note_wide(self, node: Any) -> None:
        """Remember where the module has numbers of 64 bits, and the model of 32."""
        for value in pytree.tree_leaves(node.meta["val"]):
            dtype = getattr(value, "dtype", None)
            if dtype is not None and self._narrow(dtype) != dtype:
                self.narrowed.setdefault(place_of(node))

    def _convert(self, node: Any, name: str, args: Any, named: Any) -> Any:
        """The operation as a layer, whose results are those that torch traced."""
        self._note_wide(node)
        if name.partition(".")[0] in _CASTS:
            # Where and how it is stored changes no number.
            dtype = node.meta["val"].dtype
            name, args, named = "_to_copy.default", args[:1], {"dtype": dtype}
        elif name.startswith("as_strided") and not _fills_memory(node.args[0]):
            raise NotImplementedError("strides over a part or another order of memory")
        tensors: list[Any] = []
        lengths: list[Connection] = []

        def describe(value: Any) -> Any:
            if isinstance(value, complex):
                dtype = np.result_type(self.float_dtype, np.complex64)
                value = torch.from_numpy(np.array(value, dtype))
            if isinstance(value, torch.Tensor) or (
                isinstance(value, Connection) and id(value) not in self.lengths
            ):
                value = self._as_wire(value)
                place = next((i for i, t in enumerate(tensors) if t is value), None)
                if place is None:
                    place = len(tensors)
                    tensors.append(value)
                return f"@{place}"
            if isinstance(value, Connection):
                lengths.append(value)
                return value
            if isinstance(value, torch.dtype):
                return self._dtype_text(value)
            if isinstance(value, (list, tuple)):
                return tuple(map(describe, value))
            if value is None or isinstance(value, (bool, int, float, str)):
                return value
            raise TypeError(f"an argument of the kind {type(value).__name__}")

        arguments = tuple(map(describe, args))
        keywords = tuple(
            (key, describe(value))
            for key, value in named.items()
            if key not in _STORAGE_ARGUMENTS
        )
        traced = node.meta["val"]
        if not tensors:  # a new tensor, whose dtype torch may take from its settings
            keywords = (
                *(p for p in keywords if p[0] != "dtype"),
                ("dtype", self._dtype_text(traced.dtype)),
            )
        many = isinstance(traced, (list, tuple))
        self._check(node, name, tensors, arguments, keywords)
        layer = op(
            "aten", function=name, arguments=arguments, named=keywords,
            results=len(traced) if many else 1,
        )  # fmt: skip
        # A new tensor reads the array of which it takes a length.
        wires = tensors or _sources(lengths)
        results = layer(*wires)
        if many:
            return list(results) if isinstance(results, tuple) else [results]
        return results

    def _check(
        self,
        node: Any,
        name: str,
        tensors: Sequence[Any],
        arguments: Any,
        keywords: Any,
    ) -> None:
        """Compare shapes and dtypes of the results that are read with torch's."""
        specs = [self.spec(t) for t in tensors]
        fill = lambda v: self._fill_lengths(v)
        found = self.infer(name, specs, fill(arguments), fill(keywords))
        traced = node.meta["val"]
        if not isinstance(traced, (list, tuple)):
            traced, read = [traced], {0}
        else:
            read = {u.args[1] for u in node.users if u.target is operator.getitem}
        for i in sorted(read):
            wanted = self.spec(traced[i])
            shape, dtype = found[i]
            if (shape, _INT if dtype == np.int64 else dtype) != wanted:
                raise ValueError(
                    f"JAX's result is {_format(found[i])}, torch's {_format(wanted)}"
                )

    def _fill_lengths(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._fill_lengths, value))
        return self.lengths.get(id(value), value)

    def _note(self, value: Any, traced: Any) -> None:
        """Remember the value that torch traced for a connection."""
        if isinstance(traced, (list, tuple)) and isinstance(value, (list, tuple)):
            for one, other in zip(value, traced, strict=False):
                self._note(one, other)
        if not isinstance(value, Connection):
            return
        if isinstance(traced, torch.SymInt):
            self.lengths[id(value)] = _hint(traced)
        elif isinstance(traced, torch.Tensor):
            self.traced[id(value)] = traced
        self.alive.append(value)  # an id may be used again

    def _dtype_text(self, dtype: torch.dtype) -> str:
        """A dtype as an argument: `"float"` where the backend decides how wide."""
        known = TO_NUMPY.get(self._narrow(dtype))
        if known is None:
            raise TypeError(f"the dtype {dtype}")
        if known == self.float_dtype:
            return "dtype:float"
        if known == np.int64:
            return "dtype:int"
        if known == np.result_type(self.float_dtype, np.complex64):
            return "dtype:complex"
        return f"dtype:{known.name}"

    def _as_wire(self, value: Any) -> Any:
        """A tensor as a constant, which of complex numbers is made of two."""
        if not isinstance(value, torch.Tensor):
            return value
        before = self.constants.get(id(value))
        if before is not None:
            return before[1]
        narrow = value.to(self._narrow(value.dtype))
        if value.is_complex():
            parts = to_numpy(torch.view_as_real(narrow.resolve_conj()))
            wire = _JOIN(parts)
        else:
            wire = as_connection(to_numpy(narrow))
        self.constants[id(value)] = (value, wire)
        self._note(wire, value)
        return wire

    def _raise_missing(self) -> None:
        if self.missing:
            listed = "; ".join(f"{op} in {at}" for op, at in self.missing.items())
            raise UnsupportedModuleError(
                f"from_torch has no conversion for {listed}: replace these layers, or "
                "build this part of the model in frugax."
            )


def _sources(lengths: Sequence[Connection]) -> list[Connection]:
    """The arrays that lengths are taken from."""
    ports: dict[str, Connection] = {}
    for length in lengths:
        describe_lengths(length, ports)
    return list(ports.values())


class _Missing:
    """The value of an operation that the table lacks."""


_MISSING = _Missing()
# Complex numbers of their two parts.
_JOIN = op("aten", function="view_as_complex.default", arguments=("@0",))
_DETACH = op("aten", function="detach.default", arguments=("@0",))
_INT = np.dtype(np.int32)
_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
_SUBMODULES = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
# Arguments that say where and how a result is stored, and change no number.
_STORAGE_ARGUMENTS = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


def _is_tensor(node: Any) -> bool:
    meta = getattr(node, "meta", {})  # an output may be a number
    return isinstance(meta.get("val"), torch.Tensor)


def _fills_memory(node: Any) -> bool:
    """Whether a tensor lies in memory from its start, in the order of its axes."""
    value = node.meta["val"]
    return bool(value.is_contiguous()) and int(value.storage_offset()) == 0


def _packet(target: Any) -> str:
    """The name of an operation without its overload, or nothing."""
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    return target._schema.name.partition("::")[2]


def _holds(value: Any, kind: type) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds(v, kind) for v in value)
    return isinstance(value, kind)


def _hint(length: Any) -> int:
    """A length in the example."""
    if isinstance(length, int):
        return length
    hint = length.node.hint
    if hint is None:
        raise NotImplementedError("a shape that depends on data")
    return int(hint)


def _attribute(module: torch.fx.GraphModule, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _draws(node: Any) -> bool:
    """Whether an operation draws random numbers, or could."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _refuse_draws(node: Any) -> UnsupportedModuleError:
    return UnsupportedModuleError(
        f"{node.target} in {place_of(node)} draws random numbers, which from_torch "
        "does not convert: let forward take them as an input."
    )


def _is_off_dropout(node: Any) -> bool:
    """Whether it is a dropout that lets everything pass."""
    return "dropout" in node.target._schema.name and not all(node.args[1:3])


def _format(spec: tuple[tuple[int, ...], np.dtype]) -> str:
    return f"{spec[1].name}{list(spec[0])}"
