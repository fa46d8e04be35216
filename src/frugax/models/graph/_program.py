"""`Program`: a description laid out for one backend, before a library runs it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ._graph import ModelGraph
from ._layer import Layer


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A description laid out for one backend; `JaxModel` and `TorchModel` run it.

    Attributes:
        layer: the description that was compiled.
        backend: where the model runs.
        graph: the flat program, with the shapes of its values.
        param_keys: the keys of arrays that are trained.
        data_keys: the keys of arrays that go in with the data: inputs, and the state.
        compile_options: the other arguments of `compile`, by name.
    """

    layer: Layer
    backend: Any
    graph: ModelGraph
    param_keys: frozenset[str]
    data_keys: frozenset[str]
    compile_options: Mapping[str, Any]
