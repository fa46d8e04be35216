"""The execution plan of a model in eager torch: ops and constants looked up beforehand.

A `Run` looks everything up as it goes, which costs nothing when JAX traces it once.
Eager torch pays every time; so here ops are found, constants become tensors, and dtypes
are compared beforehand. Tests hold the two against each other.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from frugax.models.graph import (
    ModelGraph,
    OpNode,
    Spec,
    find_dead_keys,
    op_arguments,
    op_attributes,
)
from frugax.models.ops import Op, is_floating

from ._namespace import TorchNamespace


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One op, ready to run.

    Attributes:
        function: from the tensors to one or several.
        inputs: the key of each tensor, None where one is left out.
        outputs: the keys of the results.
        dead: the keys that nobody reads any more.
    """

    function: Callable[..., Any]
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    dead: tuple[str, ...]


class Plan:
    """The steps of a program, for inputs and weights of one set of shapes.

    Attributes:
        graph: the program.
        outputs: the key of the value behind each output's name.
    """

    def __init__(
        self,
        graph: ModelGraph,
        specs: Mapping[str, Spec],
        xp: TorchNamespace,
        find: Callable[[str], Op],
    ) -> None:
        """Prepare the steps; `specs` are those of a run with these shapes."""
        self.graph, self.outputs = graph, dict(graph.outputs)
        self._constants: dict[str | None, Any] = {
            key: xp.asarray(v) if isinstance(v, (np.ndarray, np.generic)) else v
            for key, v in graph.constants.items()
        }
        # An open port has the key None, so a step looks all arguments up in one way.
        self._constants[None] = None
        dead = find_dead_keys(graph)
        self._steps = tuple(
            _step(node, specs, xp, find, tuple(dead.get(i, ())))
            for i, node in enumerate(graph.nodes)
        )

    def __call__(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute the outputs from a tensor for each input and weight."""
        env: dict[str | None, Any] = {**self._constants, **values}
        for step in self._steps:
            made = step.function(*[env[key] for key in step.inputs])
            if isinstance(made, (tuple, list)):
                env.update(zip(step.outputs, made, strict=False))
            else:
                env[step.outputs[0]] = made
            # Without this an eager run would hold all intermediate results until the
            # end.
            for key in step.dead:
                del env[key]
        return {name: env[key] for name, key in self.outputs.items()}


def _step(
    node: Any,
    known: Mapping[str, Spec],
    xp: TorchNamespace,
    find: Callable[[str], Op],
    dead: tuple[str, ...],
) -> Step:
    assert isinstance(node, OpNode), "torch runs equal blocks one by one"
    op = find(node.op)
    inputs = op_arguments(op, node.inputs)
    specs = [known.get(key) for key in inputs if key is not None]
    # op.body skips promotion. That is safe only if the dtypes are known beforehand and
    # agree, because `Op.__call__` is where they are brought together.
    start = functools.partial(op.body if _alike(op, specs) else op, xp)
    attributes = op_attributes(node, lambda key: known[key].shape)
    function = functools.partial(start, **attributes) if attributes else start
    return Step(function, inputs, node.outputs, dead)


def _alike(op: Op, specs: list[Spec | None]) -> bool:
    """Whether the tensors have the dtype already that promotion would give them."""
    if op.promote == "none":
        return True
    dtypes = {None if spec is None else spec.dtype for spec in specs}
    if len(dtypes) != 1 or None in dtypes:
        return False
    (dtype,) = dtypes
    assert dtype is not None
    return op.promote == "same" or is_floating(dtype)
