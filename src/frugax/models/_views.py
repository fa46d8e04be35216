"""What a compiled model shows of itself: a table, its source, its weights by name."""

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import ShapeError

from .graph import (
    ModelGraph,
    OpNode,
    Spec,
    array_constants,
    infer,
    source,
    stack_weights,
    summary,
    unstack_weights,
)


class Views:
    """Base of `CompiledModel`."""

    backend: Any
    graph: ModelGraph
    param_keys: frozenset[str]

    def summary(self) -> str:
        """A table: a line a layer, with its result, weights, bytes and flops.

        Equal blocks that run as one loop take one line. Flops are those forwards; a
        product and a sum are two. A free dimension counts as 1, so that if the batch
        is free they are for one example.
        """
        count = importlib.import_module("frugax.models.to_jax").flops_of

        def flops(node: OpNode, known: Mapping[str, Any]) -> int | None:
            return count(node, known, self.backend.dtype)

        with self.backend.scope():
            return summary(self.graph, self._without_free(), flops)

    def _without_free(self) -> ModelGraph | None:
        """The program with every free dimension 1; None if it cannot take that."""
        home = importlib.import_module(f"frugax.models.to_{self.backend.name}")
        specs = {
            key: Spec(
                tuple(d if isinstance(d, int) else 1 for d in spec.shape), spec.dtype
            )
            for key, spec in self.graph.specs.items()
            if key in self.graph.inputs
        }
        try:
            return infer(self.graph, specs, home.rules_of(self.backend))
        except ShapeError:
            return None

    @functools.cached_property
    def source(self) -> str:
        """The model as Python: one line an op, with the shape it gives.

        For reading, and for a debugger: the text is a function of parameters, data and
        the backend that gives what `pure` gives. Nothing in frugax runs it.
        """
        methods = frozenset(dir(type(self.backend)))
        return source(
            self.graph,
            params=self.param_keys,
            find=self.backend.find,
            methods=methods,
        )

    @property
    def constants(self) -> dict[str, Any]:
        """The arrays that are written into the model, by their names in `source`."""
        return array_constants(self.graph)

    def unstack_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters with those of looped blocks under each block's own name.

        `"block_*.weight"` of shape (12, 8, 8) becomes `"block_0.weight"` to
        `"block_11.weight"` of shape (8, 8); others stay as they are.

        Args:
            params: arrays by key, of NumPy or of the backend's library.
        """
        return unstack_weights(self.graph, params)

    def stack_params(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """The inverse of `unstack_params`: what `evaluate` takes.

        Args:
            flat: arrays by each block's own names.

        Raises:
            ValueError: some blocks' arrays are there and others are not.
        """

        def stack(parts: Sequence[Any]) -> Any:
            if all(isinstance(part, np.ndarray) for part in parts):
                return np.stack(parts)
            return self.backend.xp.stack(parts)

        return stack_weights(self.graph, flat, stack)
