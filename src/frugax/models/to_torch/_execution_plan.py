"""The execution plan of a model in eager torch: the calls of a run, to repeat them.

A `Run` looks everything up as it goes, which costs nothing when JAX traces it once.
Eager torch would pay every time; so later calls of the same shapes repeat the steps of
the first, with constants as tensors and without looking at dtypes again.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from frugax.models.graph import Run, find_dead_keys

from ._namespace import TorchNamespace


class Plan:
    """The steps of a run, for inputs and weights of one set of shapes.

    Attributes:
        outputs: the key of the value behind each output's name.
    """

    def __init__(self, run: Run, xp: TorchNamespace) -> None:
        graph = run.graph
        self.outputs = dict(graph.outputs)
        self._constants: dict[str | None, Any] = {
            key: xp.asarray(v) if isinstance(v, (np.ndarray, np.generic)) else v
            for key, v in graph.constants.items()
        }
        # An open port has the key None, so a step looks all arguments up in one way.
        self._constants[None] = None
        dead = find_dead_keys(graph)
        self._steps = [(step, dead.get(i, ())) for i, step in enumerate(run.steps)]

    def __call__(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute the outputs from a tensor for each input and weight."""
        env: dict[str | None, Any] = {**self._constants, **values}
        for step, dead in self._steps:
            made = step.function(*[env[key] for key in step.inputs])
            if isinstance(made, (tuple, list)):
                env.update(zip(step.outputs, made, strict=False))
            else:
                env[step.outputs[0]] = made
            # Without this an eager run would hold all intermediate results until the
            # end.
            for key in dead:
                del env[key]
        return {name: env[key] for name, key in self.outputs.items()}
