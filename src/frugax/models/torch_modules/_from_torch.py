"""`from_torch`: convert a torch module to a model, and measure how much they differ."""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import MissingExtraError, ShapeError, UnsupportedModuleError
from frugax.models._compile import compile
from frugax.models.graph import Model

from ._certificate import Certificate, agrees_on_ones, measure, relative_error


@dataclasses.dataclass(frozen=True, slots=True)
class ImportedModule:
    """A torch module as a model.

    Attributes:
        model: the description, for `compile`, `save` and budgets.
        params: NumPy arrays for `evaluate`, by key; a weight with several owners in
            torch is one array.
        shapes: the shape of each input in the example.
        certificate: the measured difference of the two.
        free_shapes: the shape of each input, with names for lengths that may differ
            from the example's; equal names are equal lengths.
        unused: the parameters that no output depends on, which are left out.
        frozen: the parameters without `requires_grad`, whose gradients are zero. With
            `compile(..., data_keys=imported.frozen)` they go in with the data, and no
            optimiser sees them.
    """

    model: Model
    params: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int, ...]]
    certificate: Certificate
    free_shapes: Mapping[str, tuple[int | str, ...]] = dataclasses.field(
        default_factory=dict
    )
    unused: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    def __repr__(self) -> str:
        count = sum(array.size for array in self.params.values())
        return (
            f"ImportedModule({len(self.params)} arrays of {count:,} numbers, "
            f"shapes={dict(self.free_shapes)}, {self.certificate})"
        )


def from_torch(
    module: Any,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    random_samples: int = 2,
    tolerance: float = 1e-3,
) -> ImportedModule:
    """Import a torch module: its structure, weights and buffers.

    The module is traced in evaluation mode by `torch.export`, with a warning if it was
    in training mode and gives other outputs there. Lengths stay free where torch and
    JAX can both leave them open: of all axes, else of the batch, the most frequent
    first length, else none. The model refuses lengths for which `forward` takes another
    branch than for the example. Parameters keep torch's names; buffers become
    constants. A module in 16 bits is imported in float32, and of a module in float32
    what it computes in float64 is too, with a warning. The result is compared with the
    module, under JAX, before it is returned.

    Args:
        module: any `torch.nn.Module` that `torch.export` can trace.
        example_inputs: the positional arguments of its `forward`: tensors, or
            containers of them.
        example_kwargs: the arguments of its `forward` by name.
        random_samples: the number of random inputs that are compared as well.
        tolerance: the largest difference, over the largest output, that is accepted.

    Raises:
        UnsupportedModuleError: operations have no conversion, which are all named with
            their places; or the result differs from the module; or the module keeps
            state from call to call.
        TypeError: the module is not a `torch.nn.Module`.
        MissingExtraError: torch is not installed.

    Example:
        >>> import torch, frugax as ml
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
        >>> imported = ml.models.from_torch(net, (torch.ones(2, 4),))
        >>> imported.free_shapes
        {'input': ('input_0', 4)}
        >>> compiled = ml.compile(imported.model, ml.JaxBackend())
        >>> data = {key: torch.ones(3, 4).numpy() for key in imported.shapes}
        >>> compiled.evaluate(imported.params, data)["output"].shape
        (3, 8)
    """
    try:
        from ._export import FREEDOMS
        from ._traced_module import prepare
    except ImportError as e:
        raise MissingExtraError(
            'from_torch needs torch: pip install "frugax[torch]".'
        ) from e
    names = ("forward", "named_parameters", "training")  # a class lacks the last
    if not all(hasattr(module, name) for name in names):
        raise TypeError(f"from_torch takes a torch.nn.Module, got {module!r:.60}.")
    if not isinstance(example_inputs, Sequence):
        raise TypeError(
            "from_torch: example_inputs must be a tuple of tensors, such as (x,), got "
            f"{type(example_inputs).__name__}."
        )
    traced = prepare(module, example_inputs, example_kwargs or {})
    *freer, fixed = FREEDOMS
    try:
        for freedom in freer:
            # With fewer free lengths less may be in the way.
            with contextlib.suppress(UnsupportedModuleError):
                return _convert(traced, freedom, random_samples, tolerance)
        return _convert(traced, fixed, random_samples, tolerance)
    except OverflowError as e:
        raise UnsupportedModuleError(f"from_torch has integers of 32 bits: {e}") from e


def _convert(
    traced: Any, freedom: str, random_samples: int, tolerance: float
) -> ImportedModule:
    from frugax.models.to_jax import JaxBackend

    from ._converted_module import convert_module
    from ._export import export_module

    backend = JaxBackend(dtype=traced.float_dtype)
    exported, infer = export_module(traced, freedom), _inference(backend)
    converted = convert_module(exported, traced, infer)
    outputs = _run_twice(traced)
    compiled = _compile(converted, backend)
    # torch traces as if no free length were 1, which Python may ask for.
    if not agrees_on_ones(traced, compiled, converted, tolerance):
        converted = convert_module(exported, traced, infer, 2)
        compiled = _compile(converted, backend)
    certificate = measure(traced, compiled, converted, random_samples)
    if not certificate.max_error <= tolerance:
        raise UnsupportedModuleError(
            f"the model differs from the module by {certificate.max_error:.1e} of its "
            f"largest output, more than {tolerance:g}: one of its operations is "
            "converted wrongly, or is not a function of its inputs; from_torch returns "
            "no model that it could not confirm."
        )
    others, functions = traced.find_omissions()
    if others:
        warnings.warn(
            f"forward also returns {', '.join(dict.fromkeys(others))}: the model "
            "leaves out what is not a tensor.",
            stacklevel=3,
        )
    if functions:
        warnings.warn(
            f"{', '.join(functions)}: a backward of its own, which from_torch does not "
            "convert; gradients are those of the operations in its forward.",
            stacklevel=3,
        )
    if traced.trained is not None and not _are_equal(outputs, traced.trained):
        warnings.warn(
            "the module is in training mode, and is imported in evaluation mode, where "
            "its outputs are others: there is no dropout, and statistics of a batch "
            "are the stored ones. Call module.eval() first to say that you know.",
            stacklevel=3,
        )
    if converted.narrowed:
        warnings.warn(
            f"{', '.join(converted.narrowed)}: computed in float64, and in float32 by "
            "the model. The certificate measures the difference; module.double() and "
            "inputs in float64 give a model in float64.",
            stacklevel=3,
        )
    shapes = {key: array.shape for key, array in converted.inputs.items()}
    return ImportedModule(
        converted.model,
        converted.params,
        shapes,
        certificate,
        converted.free_shapes,
        converted.unused,
        converted.frozen,
    )


def _compile(converted: Any, backend: Any) -> Any:
    try:
        return compile(converted.model, backend)
    except ShapeError as e:
        raise UnsupportedModuleError(f"JAX cannot leave a length open: {e}") from e


def _run_twice(traced: Any) -> list[np.ndarray]:
    """The outputs for the example, of a module that keeps no state between calls."""
    first, second = (traced.run_example(calls) for calls in (1, 2))
    if not _are_equal(first, second):
        raise UnsupportedModuleError(
            "the module gives other outputs for the same inputs at its second call: it "
            "keeps state or draws random numbers. A model is a function of its inputs: "
            "let forward take the state as an input, and return the new one."
        )
    return first


def _are_equal(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> bool:
    return len(left) == len(right) and all(
        relative_error(*pair) <= 1e-6 for pair in zip(left, right, strict=True)
    )


def _inference(backend: Any) -> Any:
    """Shapes and dtypes of the results of ATen's operations, as JAX computes them."""
    import jax  # here, since describing a model needs no array library

    from frugax.models.aten import evaluate

    # Equal layers ask the same questions. The text tells 2 from 2.0.
    @functools.cache
    def infer(name: str, specs: Any, arguments: Any, named: Any, _text: str) -> Any:
        arrays = [jax.ShapeDtypeStruct(*spec) for spec in specs]
        xp = backend.xp
        with backend.scope():
            results = jax.eval_shape(
                lambda *tensors: evaluate(xp, name, tensors, arguments, named), *arrays
            )
        results = results if isinstance(results, tuple) else (results,)
        return tuple((r.shape, r.dtype) for r in results)

    return lambda name, specs, arguments, named: infer(
        name, tuple(specs), arguments, named, repr((arguments, named))
    )
