"""What compiled models have in common, whatever library runs them."""

import difflib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frugax.errors import ShapeError

from ._views import Views
from .graph import (
    GraphNode,
    Layer,
    LoopNode,
    ModelGraph,
    Normal,
    OpNode,
    Spec,
    Weight,
    block_slices,
)
from .ops import is_floating
from .serialization import ExportedModel, export, save


class CompiledModel(Views):
    """A model laid flat for one backend, with the names and shapes of all it needs.

    Attributes:
        layer: the description it was made from.
        backend: where it runs.
        graph: the flat program, with the shapes that were stated; `infer` fills in
            others.
        weights: the arrays that the layers own, by key.
        param_keys: those that are trained.
        data_keys: everything that goes in with the data: inputs, and the state.
        compile_options: what else `compile` was told, by its arguments' names.
    """

    def __init__(
        self,
        *,
        layer: Layer,
        backend: Any,
        graph: ModelGraph,
        param_keys: frozenset[str],
        data_keys: frozenset[str],
        compile_options: Mapping[str, Any],
    ) -> None:
        self.layer, self.backend = layer, backend
        self.graph = graph
        self.param_keys, self.data_keys = param_keys, data_keys
        self.compile_options = compile_options

    def fields(self) -> dict[str, Any]:
        """What it was made of."""
        names = (
            "layer",
            "backend",
            "graph",
            "param_keys",
            "data_keys",
            "compile_options",
        )
        return {name: getattr(self, name) for name in names}

    @functools.cached_property
    def weights(self) -> Mapping[str, Weight]:
        # An input that is trained starts with normal numbers.
        trained = {
            key: Weight(self.graph.specs[key].shape, Normal(1.0))
            for key in self.graph.inputs
            if key in self.param_keys
        }
        return {**self.graph.weights, **trained}

    @property
    def output_keys(self) -> tuple[str, ...]:
        """Names of what comes out."""
        return tuple(self.graph.outputs)

    @property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Shape of each input, weight and output by key; free dimensions by name."""
        specs = self.graph.specs
        read = self.data_keys | self.param_keys
        own = {k: spec.shape for k, spec in specs.items() if k in read}
        return own | {n: specs[k].shape for n, k in self.graph.outputs.items()}

    def save(
        self,
        path: str | os.PathLike[str],
        params: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the model and its weights to one file; `frugax.models.load` reads it.

        Args:
            path: the file, written whole or not at all; `.safetensors` is its usual
                ending. Its weights have the names of the layers one by one.
            params: an array for each parameter, by key.
            state: an array for each weight that goes in with the data: running
                statistics, and weights named in `data_keys`. Not needed where there is
                none.

        Raises:
            OutputError: the file cannot be written.
            ShapeError: arrays are missing, too many, or of wrong shapes.
            TypeError: a layer cannot be described; see `layer_to_dict`.
            ValueError: the model has state and none is given.
        """
        save(self, path, params, state)

    def export(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        platforms: Sequence[str] | None = None,
        gradients: bool = False,
    ) -> ExportedModel:
        """Turn the model into a StableHLO program; `load_exported` reads its file.

        Free dimensions stay free. JAX promises to run such a program for six months
        after the version that made it.

        Args:
            path: the file, written whole or not at all; None for no file.
            params: parameters that become part of the program; it takes them with
                every call if not given.
            platforms: where it is to run, of `"cpu"`, `"cuda"`, `"rocm"` and `"tpu"`;
                where this process runs if not given.
            gradients: whether the file also holds the program's derivative, so that
                what is loaded can be differentiated once.

        Returns:
            The program.

        Raises:
            MissingExtraError: a file is wanted, and flatbuffers is not installed.
            OutputError: the file cannot be written.
            TypeError: the model was compiled for another library.
            ValueError: a platform is unknown, or params do not suit the model.
        """
        return export(
            self, path, params=params, platforms=platforms, gradients=gradients
        )

    def check_names(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """See that every array is there and none too many.

        Raises:
            ValueError: one is missing, or unknown.
            TypeError: these are no mappings.
        """
        for what, given, wanted in (
            ("params", params, self.param_keys),
            ("data", data, self.data_keys),
        ):
            if not isinstance(given, Mapping):
                raise TypeError(
                    f"{what} must be a dict of arrays by key, got "
                    f"{type(given).__name__}."
                )
            missing = sorted(wanted - set(given))
            if missing:
                hint = self._instead(missing[0], set(given) - wanted)
                raise ValueError(
                    f"{what} lacks {missing[0]!r}, which {self._reader(missing[0])} "
                    f"reads;{hint} it needs: {', '.join(sorted(wanted)[:12])}."
                )
            unknown = sorted(set(given) - wanted)
            if unknown:
                raise ValueError(
                    f"{what} has {unknown[0]!r}, which no layer reads; it takes: "
                    f"{', '.join(sorted(wanted)[:12]) or 'nothing'}."
                )

    def _instead(self, missing: str, unknown: set[Any]) -> str:
        """What was probably meant by a key that is not known."""
        own = {name for _, name in block_slices(self.graph).get(missing, ())}
        if own and own <= unknown:
            return (
                " the arrays given belong to single blocks; stack_params(params) "
                "stacks them;"
            )
        close = difflib.get_close_matches(missing, map(str, unknown), n=1)
        return f" {close[0]!r} is given, which no layer reads;" if close else ""

    def _reader(self, key: str) -> str:
        for node in self.graph.nodes:
            if key in node.inputs.values():
                return node.title
            if isinstance(node, LoopNode) and key in node.stacked.values():
                return node.title
        return "the model"

    def check_weights(
        self,
        graph: ModelGraph,
        given: Mapping[str, Any],
        spec_of: Callable[[Any], Spec],
    ) -> None:
        """See that each weight has the shape its layer needs.

        Raises:
            ShapeError: one has not; its layer is named, with what goes in there.
        """
        for key, weight in graph.weights.items():
            if key not in given:
                continue
            spec = spec_of(given[key])
            if spec.shape != weight.shape:
                node = next(n for n in graph.nodes if _reads(n, key))
                raise ShapeError(
                    f"{node.title}: {key!r} must have shape {weight.shape}, got "
                    f"{spec.shape}{_beside(node, key, graph)}."
                )

    def check_cotangents(
        self, cotangents: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """See that gradients belong to outputs and have their shapes.

        Raises:
            ShapeError: one has another shape.
            ValueError: there is no such output, or it has no gradient.
        """
        for key, value in cotangents.items():
            if key not in outputs:
                raise ValueError(
                    f"output_gradients has {key!r}, but the outputs are: "
                    f"{', '.join(outputs)}."
                )
            self.check_array("output_gradients", key, value)
            if not is_floating(self.graph.specs[self.graph.outputs[key]].dtype):
                raise ValueError(
                    f"output_gradients has {key!r}, which is made of integers and has "
                    "no gradient."
                )
            shape = tuple(getattr(value, "shape", ()))
            if shape != tuple(outputs[key].shape):
                raise ShapeError(
                    f"output_gradients[{key!r}] must have the output's shape "
                    f"{tuple(outputs[key].shape)}, got {shape}."
                )

    def check_array(self, what: str, key: str, value: Any) -> None:
        """See that what is given under a key is an array or a number, and no list.

        Raises:
            TypeError: it is not.
        """
        if isinstance(value, (bool, int, float)):
            return
        dtype = getattr(value, "dtype", None)
        if not hasattr(value, "shape") or dtype is None or str(dtype) == "object":
            raise TypeError(
                f"{what}[{key!r}] must be an array, got {type(value).__name__}; make "
                "one with backend.array(...)."
            )

    def check_scalar(self, value: Any) -> Any:
        """The value of a loss, after seeing that it is one number.

        Raises:
            TypeError: it is not.
        """
        if not hasattr(value, "shape") or tuple(value.shape):
            got = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else value
            raise TypeError(
                f"a loss must be a scalar array, got {got!s:.60}; take its mean or sum."
            )
        if not is_floating(self.backend.xp.dtype_of(value)):
            raise TypeError(
                "a loss must be a floating number to have a gradient, got "
                f"{value.dtype}."
            )
        return value

    def resolve_loss(self, loss: str | Callable[..., Any]) -> Callable[..., Any]:
        """A loss as a function of the outputs and the inputs.

        Args:
            loss: the name of an output, or a function of the outputs, or of the
                outputs and the inputs.

        Raises:
            TypeError: it is neither a name nor a function of one or two arguments.
            ValueError: there is no such output.
        """
        import inspect

        if isinstance(loss, str):
            if loss not in self.output_keys:
                raise ValueError(
                    f"the loss {loss!r} is no output; there are: "
                    f"{', '.join(self.output_keys)}."
                )
            return lambda outputs, inputs: outputs[loss]
        if not callable(loss):
            raise TypeError(
                f"loss must be an output's name or a function, got {loss!r:.60}."
            )
        needed = [
            p
            for p in inspect.signature(loss).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            and p.default is p.empty
        ]
        if len(needed) == 1:
            return lambda outputs, inputs: loss(outputs)
        if len(needed) == 2:
            return loss
        raise TypeError(
            "loss must be a function of the outputs, or of the outputs and the "
            f"inputs; this one needs {len(needed)} arguments."
        )


def _reads(node: GraphNode, key: str) -> bool:
    return key in node.inputs.values() or (
        isinstance(node, LoopNode) and key in node.stacked.values()
    )


def _beside(node: GraphNode, key: str, graph: ModelGraph) -> str:
    if not isinstance(node, OpNode):
        return ""
    inputs = [
        f"{port} {graph.specs[k]}"
        for port, k in node.inputs.items()
        if k in graph.specs and k not in graph.weights
    ]
    return f" (it is given {', '.join(inputs)})" if inputs else ""
