"""The base class of `JaxModel` and `TorchModel`; it checks arrays and saves models."""

import difflib
import functools
import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import ShapeError

from ._backend import leaves
from .dtypes import to_numpy
from .graph import (
    GraphNode,
    LoopNode,
    ModelGraph,
    Normal,
    OpNode,
    Program,
    Run,
    Spec,
    Weight,
    block_slices,
    stack_weights,
    summary,
    unstack_weights,
)
from .ops import is_floating
from .serialization import ExportedModel, export, save


class CompiledModel:
    """A model compiled for any library: the shared names, checks and files.

    Attributes:
        program: the compiled program; its fields are attributes of the model too.
        weights: the arrays that the layers own, by key.
        pure: the model as one function `f(params, data) -> outputs`.
    """

    pure: Any

    def __init__(self, program: Program) -> None:
        self.program = program
        self.layer, self.backend = program.layer, program.backend
        self.graph, self.compile_options = program.graph, program.compile_options
        self.param_keys, self.data_keys = program.param_keys, program.data_keys

    @functools.cached_property
    def weights(self) -> Mapping[str, Weight]:
        # A trained input has no layer that would say how it is initialised.
        trained = {
            key: Weight(self.graph.specs[key].shape, Normal(1.0))
            for key in self.graph.inputs
            if key in self.param_keys
        }
        return {**self.graph.weights, **trained}

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The names of the outputs."""
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
            path: the file, written whole or not at all; its usual ending is
                `.safetensors`. Its weights have the names of the single layers.
            params: an array for each parameter, by key.
            state: an array for each weight that goes in with the data: running
                statistics, and weights named in `data_keys`. Needed only if there is
                any.

        Raises:
            OutputError: the file cannot be written.
            ShapeError: arrays are missing, too many, or of wrong shapes.
            TypeError: a layer cannot be described; see `layer_to_dict`.
            ValueError: the model has state and none is given.

        Weights that are not finite are saved with a warning: `load` refuses them unless
        it is told otherwise.
        """
        is_nan = lambda v: not np.isfinite(to_numpy(v).astype(np.float64)).all()
        bad = [k for k, v in {**params, **(state or {})}.items() if is_nan(v)]
        save(self.program, path, params, state)
        if bad:
            warnings.warn(
                f"{os.fspath(path)}: {bad[0]!r} holds NaN or infinity; models.load "
                "refuses the file unless allow_non_finite=True.",
                stacklevel=2,
            )

    def export(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        platforms: Sequence[str] | None = None,
        gradients: bool = False,
    ) -> ExportedModel:
        """Turn the model into a StableHLO program; `load_exported` reads its file.

        Free dimensions stay free. JAX guarantees to run such a program for six months
        after the release of the JAX version that exported it.

        Args:
            path: the file, written whole or not at all; None for no file.
            params: parameters that become part of the program; without them every call
                takes the parameters.
            platforms: the platforms to run on, of `"cpu"`, `"cuda"`, `"rocm"` and
                `"tpu"`; the platform of this process if not given.
            gradients: whether the file also holds the derivative of the program, so
                that the loaded program can be differentiated once.

        Returns:
            The program.

        Raises:
            MissingExtraError: a file is wanted, and flatbuffers is not installed.
            OutputError: the file cannot be written.
            TypeError: the model was compiled for another library.
            ValueError: a platform is unknown, or `params` do not fit the model.
        """
        return export(
            self.program,
            self.pure,
            path,
            params=params,
            platforms=platforms,
            gradients=gradients,
        )

    def check_names(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Check that no array is missing and none is unknown.

        Raises:
            ValueError: an array is missing or unknown.
            TypeError: an argument is not a mapping.
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
                hint = self._suggest_key(missing[0], set(given) - wanted)
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

    def _suggest_key(self, missing: str, unknown: set[Any]) -> str:
        """A hint at the unknown key that was probably meant by a missing one."""
        own = {name for _, name in block_slices(self.graph).get(missing, ())}
        if own and own <= unknown:
            return (
                " the arrays given belong to single blocks; stack_params(params) "
                "stacks them;"
            )
        close = difflib.get_close_matches(missing, map(str, unknown), n=1)
        if not close:
            return ""
        return f" {close[0]!r} is given, which no layer reads;"

    def _reader(self, key: str) -> str:
        for node in self.graph.nodes:
            if _reads(node, key):
                return node.title
        return "the model"

    def check_inputs(self, given: Mapping[str, Any]) -> None:
        """Check that inputs have the shapes that were declared for them.

        Raises:
            ShapeError: an input has another shape, or two inputs disagree on the length
                of a dimension with a name.
        """
        lengths: dict[str, tuple[str, int]] = {}
        for key in self.graph.inputs:
            if key not in given or key not in self.graph.specs:
                continue
            declared, shape = self.graph.specs[key].shape, np.shape(given[key])
            pairs = list(zip(declared, shape, strict=False))
            wrong = len(declared) != len(shape) or any(
                n != d for d, n in pairs if isinstance(d, int)
            )
            if wrong:
                wanted = ", ".join(map(str, declared))
                raise ShapeError(
                    f"the input {key!r} must have shape ({wanted}), got {tuple(shape)}."
                )
            for d, n in pairs:
                first, length = lengths.setdefault(str(d), (key, n))
                if not isinstance(d, int) and n != length:
                    raise ShapeError(
                        f"the inputs {first!r} and {key!r} must agree on {d!s}, got "
                        f"{length} and {n}."
                    )

    def check_cotangents(
        self, cotangents: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Check that gradients belong to outputs and have their shapes.

        Raises:
            ShapeError: a gradient has another shape.
            TypeError: the gradients are not a dictionary.
            ValueError: there is no such output, or it has no gradient.
        """
        if not isinstance(cotangents, Mapping):
            raise TypeError(
                "output_gradients must be a dictionary by output, such as "
                f'{{"{next(iter(outputs))}": ...}}, not an array.'
            )
        for key, value in cotangents.items():
            if key not in outputs:
                raise ValueError(
                    f"output_gradients has {key!r}, but the outputs are: "
                    f"{', '.join(outputs)}."
                )
            self.check_array("output_gradients", key, value)
            if not is_floating(self.graph.specs[self.graph.outputs[key]].dtype):
                raise ValueError(
                    f"output_gradients has {key!r}, an output of integers, which "
                    "has no gradient."
                )
            shape = tuple(getattr(value, "shape", ()))
            if shape != tuple(outputs[key].shape):
                raise ShapeError(
                    f"output_gradients[{key!r}] must have the output's shape "
                    f"{tuple(outputs[key].shape)}, got {shape}."
                )

    def check_array(self, what: str, key: str, value: Any) -> None:
        """Check that a value is an array or a number.

        Raises:
            TypeError: it is something else, such as a list.
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
        """Return the value of a loss, after checking that it is one float.

        Raises:
            TypeError: it is not.
        """
        if not hasattr(value, "shape"):
            raise TypeError(f"a loss must be a scalar array, got {value!s:.60}.")
        if tuple(value.shape):
            raise TypeError(
                f"a loss must be a scalar array, got shape {tuple(value.shape)}; take "
                "its mean or sum."
            )
        if not is_floating(self.backend.xp.dtype_of(value)):
            raise TypeError(
                "a loss must be a floating number to have a gradient, got "
                f"{value.dtype}."
            )
        return value

    def loss_function(
        self,
        loss: str | Callable[..., Any],
        forward: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """Build the pure function `(params, inputs) -> loss` of `value_and_grad`.

        Args:
            loss: as for `value_and_grad`.
            forward: computes the outputs; the model with its checks if not given.

        Raises:
            ValueError: the loss does not name an output.
            TypeError: the loss takes neither one nor two arguments.
        """
        of = self.resolve_loss(loss)
        run = forward or self._outputs

        def function(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
            # The model refuses superfluous arrays, which catches misspelt keys. Labels
            # are for the loss alone, so they are left out here.
            read = {k: v for k, v in inputs.items() if k in self.data_keys}
            return self.check_scalar(of(run(params, read), inputs))

        return function

    def resolve_loss(self, loss: str | Callable[..., Any]) -> Callable[..., Any]:
        """Turn a loss into a function of the outputs and the inputs.

        Args:
            loss: the name of an output, or a function of the outputs, or of the
                outputs and the inputs.

        Raises:
            TypeError: it is neither a name nor a function of one or two arguments.
            ValueError: there is no such output.
        """
        if isinstance(loss, str):
            if loss not in self.output_keys:
                raise ValueError(
                    f"the loss {loss!r} is not an output; there are: "
                    f"{', '.join(self.output_keys)}."
                )
            return lambda outputs, inputs: outputs[loss]
        if not callable(loss):
            raise TypeError(
                f"loss must be an output's name or a function, got {loss!r:.60}."
            )
        # Arguments with defaults may be bound data, as in `lambda out, w=w: ...`.
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

    def check_finite(
        self,
        outputs: Any,
        params: Mapping[str, Any],
        data: Mapping[str, Any],
        is_finite: Callable[[Any], bool],
    ) -> None:
        """Name the layer that computed the first NaN or infinity, if there is one.

        Args:
            outputs: the results: arrays, and dicts and tuples of arrays.
            params: an array for each parameter, by key.
            data: an array for each input, by key; others are ignored.
            is_finite: whether an array is finite; True for random keys.

        Raises:
            FloatingPointError: a result is not finite.
        """
        if all(map(is_finite, leaves(outputs))):
            return
        values = {**params, **{k: v for k, v in data.items() if k in self.data_keys}}
        for key, value in values.items():
            if not is_finite(value):
                raise FloatingPointError(f"the input {key!r} is not finite.")

        def visit(node: GraphNode, results: tuple[Any, ...]) -> None:
            if not all(map(is_finite, results)):
                raise FloatingPointError(
                    f"{node.title} is the first that gives NaN or infinity."
                )

        # Runs the program again: nothing is kept of the failed run.
        Run(self.graph, values, self.backend.library, visit).outputs()
        raise FloatingPointError(
            "the gradients hold NaN or infinity; the outputs do not."
        )

    def _outputs(self, params: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def check(
        self,
        params: Mapping[str, Any],
        data: Mapping[str, Any],
        *,
        as_declared: bool = True,
    ) -> dict[str, Any]:
        """Check the names of arrays and the shapes of inputs; return all of them.

        Args:
            params: an array for each parameter, by key.
            data: an array for each input, by key.
            as_declared: whether inputs must have the shapes declared for them.

        Raises:
            ShapeError: an input has not the shape declared for it.
            ValueError: an array is missing, or one is superfluous.
        """
        self.check_names(params, data)
        for group, arrays in (("params", params), ("data", data)):
            for key, value in arrays.items():
                self.check_array(group, key, value)
        given = {**params, **data}
        if as_declared:
            self.check_inputs(given)
        return given

    # --- where training starts --------------------------------------------------

    def randomize_params(self, key: Any = None) -> dict[str, Any]:
        """Draw random parameters by key; on JAX in one compiled program.

        On a mesh each one is created split: along its first dimension that the mesh's
        last axis divides, or replicated if there is no such dimension.

        Args:
            key: a random key or a seed; the backend's next one if not given.

        Raises:
            TypeError: it is neither.
        """
        weights = {k: w for k, w in self.weights.items() if k in self.param_keys}
        with self.backend.scope():
            if key is None:
                key = self.backend.get_random_key()
            elif isinstance(key, int):
                key = self.backend.key_of(key)
            if not hasattr(key, "dtype"):
                raise TypeError(
                    f"key must be a seed, such as 0, or a random key, got {key!r:.60}."
                )
            return self.backend.draw_weights(key, weights)

    def initial_state(self) -> dict[str, Any]:
        """Build the state by key before training; empty for a model without state."""
        weights = {k: w for k, w in self.weights.items() if w.kind == "state"}
        with self.backend.scope():
            # State starts from constants, so any key will do.
            return self.backend.draw_weights(self.backend.key_of(0), weights)

    # --- text and names ----------------------------------------------------------

    def summary(self) -> str:
        """A table with one line a layer: its output, weights, bytes and flops.

        Equal blocks that run as one loop take one line. Flops are those of the forward
        pass; a multiplication and an addition are two. A free dimension counts as 1, so
        with a free batch the flops are those of one example.
        """
        count = importlib.import_module("frugax.models.to_jax").flops_of

        def flops(node: OpNode, known: Mapping[str, Any]) -> int | None:
            return count(node, known, self.backend.dtype)

        with self.backend.scope():
            return summary(self.graph, self._fix_free_lengths(), flops)

    def _fix_free_lengths(self) -> ModelGraph | None:
        """The program with every free dimension 1; None if a layer refuses that."""
        specs = {
            key: Spec(
                tuple(d if isinstance(d, int) else 1 for d in spec.shape), spec.dtype
            )
            for key, spec in self.graph.specs.items()
            if key in self.graph.inputs
        }
        try:
            return self.backend.record_shapes(self.graph, specs)
        except ShapeError:
            return None

    def unstack_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Split the parameters of looped blocks into arrays of single blocks.

        `"block_*.weight"` of shape (12, 8, 8) becomes `"block_0.weight"` to
        `"block_11.weight"` of shape (8, 8); others stay as they are.

        Args:
            params: arrays by key, of NumPy or of the backend's library.
        """
        return unstack_weights(self.graph, params)

    def stack_params(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Stack arrays of single blocks; the inverse of `unstack_params`.

        Args:
            flat: arrays by the names of the blocks.

        Raises:
            ValueError: the arrays of some blocks are missing.
        """

        def stack(parts: Sequence[Any]) -> Any:
            if all(isinstance(part, np.ndarray) for part in parts):
                return np.stack(parts)
            return self.backend.xp.stack(parts)

        return stack_weights(self.graph, flat, stack)


def _reads(node: GraphNode, key: str) -> bool:
    return key in node.inputs.values() or (
        isinstance(node, LoopNode) and key in node.stacked.values()
    )
