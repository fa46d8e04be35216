"""What compiled models have in common, whatever library runs them."""

from collections.abc import Callable, Mapping
from typing import Any

from frugax.errors import ShapeError

from .graph import Graph, Layer, Node, Repeat, Spec, Step, Weight, join


class Program:
    """A model laid flat for one backend, with the names and shapes of all it needs.

    Attributes:
        layer: the description it was made from.
        backend: where it runs.
        flat: the flat program, for any shapes.
        graph: the same with every shape filled in, for the shapes that were stated.
        weights: the arrays that the layers own, by key.
        param_keys: those that are trained.
        data_keys: everything that goes in with the data: inputs, and the state.
    """

    def __init__(
        self,
        *,
        layer: Layer,
        backend: Any,
        flat: Graph,
        graph: Graph,
        param_keys: frozenset[str],
        data_keys: frozenset[str],
    ) -> None:
        self.layer, self.backend = layer, backend
        self.flat, self.graph = flat, graph
        self.param_keys, self.data_keys = param_keys, data_keys

    def parts(self) -> dict[str, Any]:
        """What it was made of."""
        names = ("layer", "backend", "flat", "graph", "param_keys", "data_keys")
        return {name: getattr(self, name) for name in names}

    @property
    def weights(self) -> Mapping[str, Weight]:
        return self.graph.weights

    @property
    def output_keys(self) -> tuple[str, ...]:
        """Names of what comes out."""
        return tuple(self.graph.outputs)

    @property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Shape of each input, weight and output by key; free dimensions by name."""
        specs = self.graph.specs
        own = {k: specs[k].shape for k in (*self.data_keys, *self.param_keys)}
        return own | {n: specs[k].shape for n, k in self.graph.outputs.items()}

    def check_names(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """See that every array is there and none too many.

        Raises:
            ValueError: one is missing, or unknown; or these are no mappings.
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
                raise ValueError(
                    f"{what} lacks {missing[0]!r}, which {self._reader(missing[0])} "
                    f"reads; it needs: {', '.join(sorted(wanted)[:12])}."
                )
            unknown = sorted(set(given) - wanted)
            if unknown:
                raise ValueError(
                    f"{what} has {unknown[0]!r}, which no layer reads; it takes: "
                    f"{', '.join(sorted(wanted)[:12]) or 'nothing'}."
                )

    def _reader(self, key: str) -> str:
        for node in self.graph.nodes:
            if key in node.inputs.values():
                return node.title
            if isinstance(node, Repeat) and key in node.stacked.values():
                return node.title
        return "the model"

    def check_weights(
        self,
        graph: Graph,
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
            ValueError: one does not.
        """
        for key, value in cotangents.items():
            if key not in outputs:
                raise ValueError(
                    f"output_gradients has {key!r}, but the outputs are: "
                    f"{', '.join(outputs)}."
                )
            if tuple(value.shape) != tuple(outputs[key].shape):
                raise ShapeError(
                    f"output_gradients[{key!r}] must have the output's shape "
                    f"{tuple(outputs[key].shape)}, got {tuple(value.shape)}."
                )

    def loss_of(self, loss: str | Callable[..., Any]) -> Callable[..., Any]:
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


def _reads(node: Step, key: str) -> bool:
    return key in node.inputs.values() or (
        isinstance(node, Repeat) and key in node.stacked.values()
    )


def _beside(node: Step, key: str, graph: Graph) -> str:
    if not isinstance(node, Node):
        return ""
    inputs = [
        f"{port} {graph.specs[k]}"
        for port, k in node.inputs.items()
        if k != key and k in graph.specs and k != join(node.path, port)
    ]
    return f" (it is given {', '.join(inputs)})" if inputs else ""
