"""Convert the programs of a torch module to a model of ATen's operations."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from frugax.errors import UnsupportedModuleError
from frugax.models.graph import Connection, IOKey, LayerOutput, Model, op

from ._export import Branch, Program
from ._traced_module import TracedModule, to_numpy
from ._walk import Gates, Inference, Walk, choose


@dataclasses.dataclass(frozen=True)
class ConvertedModule:
    """A module as a model.

    Attributes:
        model: the model.
        params: its parameters, by key.
        inputs: the value of each input in the example, by key.
        unused: the names of the parameters that no output depends on.
        frozen: the names of those that have no gradients in torch.
        free_shapes: the shape of each input, with names of free lengths.
        has_masked_rows: whether it selects rows by a mask.
        has_conditions: whether it refuses some values of its free lengths.
        narrowed: the places where the module computes in float64, and the model does
            not.
    """

    model: Model
    params: dict[str, np.ndarray]
    inputs: dict[str, np.ndarray]
    unused: tuple[str, ...]
    frozen: tuple[str, ...]
    free_shapes: dict[str, tuple[int | str, ...]]
    has_masked_rows: bool
    has_conditions: bool
    narrowed: tuple[str, ...]


def convert_module(
    exported: Program | Branch,
    traced: TracedModule,
    infer: Inference,
    least_length: int = 1,
) -> ConvertedModule:
    """Convert a module to a model.

    Args:
        exported: its programs.
        traced: the module.
        infer: computes the specs of the results of an operation.
        least_length: the least length that a free one may have.

    Raises:
        UnsupportedModuleError: it has operations without a conversion.
    """
    conversion = _Conversion(traced, infer, least_length)
    found = conversion.convert(exported)
    if not found.outputs:
        raise UnsupportedModuleError("the module returns no tensor.")
    connections = [op("identity")(wire) for wire in found.outputs]
    # An input that no output needs is an input nevertheless.
    read = _read_keys(connections)
    ignored = [key for key in found.inputs.values() if key.name not in read]
    if ignored:
        pass_on = op("aten", function="alias.default", arguments=("@0",))
        connections[0] = pass_on(connections[0], *ignored)
    # JAX sorts the keys of a dictionary, so that numbers need equally many digits.
    digits = len(str(len(connections) - 1))
    labels = [f"output{i:0{digits}}" for i in range(len(connections))]
    labels = ["output"] if len(connections) == 1 else labels
    results: Any = dict(zip(labels, connections, strict=True))
    shapes: Any = {name: key.known_shape for name, key in found.inputs.items()}
    return ConvertedModule(
        Model.create(**results),
        {name: to_numpy(t) for name, t in found.params.items() if name in read},
        dict(zip(found.inputs, traced.arrays, strict=True)),
        tuple(name for name in found.params if name not in read),
        tuple(
            name
            for name, tensor in traced.module.named_parameters()
            if name in read and not tensor.requires_grad
        ),
        shapes,
        found.has_masked_rows,
        found.has_conditions,
        tuple(conversion.narrowed),
    )


@dataclasses.dataclass(frozen=True)
class _Part:
    """A program, or a choice between programs, as connections.

    Attributes:
        outputs: those of the module.
        specs: their shapes in the example and dtypes.
        inputs: the inputs by name.
        params: the parameters by name, whether outputs need them or not.
        has_masked_rows: whether it selects rows by a mask.
        has_conditions: whether it refuses some values of its free lengths.
    """

    outputs: list[Any]
    specs: list[Any]
    inputs: dict[str, IOKey]
    params: dict[str, torch.Tensor]
    has_masked_rows: bool
    has_conditions: bool


@dataclasses.dataclass(frozen=True)
class _Conversion:
    """The settings that all programs of a module are converted with."""

    traced: TracedModule
    infer: Inference
    least_length: int
    narrowed: dict[str, None] = dataclasses.field(default_factory=dict)

    def convert(self, exported: Program | Branch, gates: Gates = ()) -> _Part:
        if isinstance(exported, Branch):
            return self._choose(exported, gates)
        walk, found = self._walk(exported, gates)
        found = found[: len(found) - len(exported.questions)]
        return _Part(
            [wire for _, wire in found],
            [walk.spec(value) for value, _ in found],
            walk.inputs,
            walk.params,
            exported.has_masked_rows,
            bool(walk.conditions),
        )

    def _walk(self, program: Program, gates: Gates) -> tuple[Walk, list[Any]]:
        walk = Walk(program.exported, self.traced, self.infer, gates)
        outputs = walk.outputs(self.least_length)
        self.narrowed.update(walk.narrowed)
        return walk, outputs

    def _choose(self, branch: Branch, gates: Gates) -> _Part:
        """Both ways, of whose results that is taken which the data say."""
        first = branch.yes
        while isinstance(first, Branch):
            first = first.yes
        _, found = self._walk(first, ())
        condition = found[branch.number - len(first.questions)][1]
        # Gradients of the other way are cut off: 0 of them times infinity would be NaN.
        yes = self.convert(branch.yes, (*gates, (condition, True)))
        no = self.convert(branch.no, (*gates, (condition, False)))
        problem = f"forward branches on data{branch.place}, and its two ways have other"
        if yes.specs != no.specs:
            raise UnsupportedModuleError(
                f"{problem} outputs, {yes.specs} and {no.specs}: use torch.where."
            )
        shapes = [{k: v.known_shape for k, v in p.inputs.items()} for p in (yes, no)]
        if shapes[0] != shapes[1]:
            raise UnsupportedModuleError(f"{problem} free lengths: {shapes}.")
        pairs = zip(yes.outputs, no.outputs, strict=True)
        return _Part(
            [choose(condition, *pair) for pair in pairs],
            yes.specs,
            yes.inputs,
            {**yes.params, **no.params},
            yes.has_masked_rows or no.has_masked_rows,
            yes.has_conditions or no.has_conditions,
        )


def _read_keys(connections: Sequence[Connection]) -> set[str]:
    """The names of the inputs and parameters that connections depend on."""
    names: set[str] = set()
    seen: set[int] = set()
    stack: list[Any] = list(connections)
    while stack:
        wire = stack.pop()
        if isinstance(wire, IOKey):
            names.add(wire.name)
        if isinstance(wire, LayerOutput) and id(wire.call) not in seen:
            seen.add(id(wire.call))
            stack += wire.call.wires.values()
    return names
