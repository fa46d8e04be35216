"""`from_torch`: convert a torch module to a model, and measure how much they differ."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import MissingExtraError, UnsupportedModuleError

from ._compile import compile
from .graph import Model


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """How far an imported model is from its module, as measured.

    Attributes:
        max_error: the largest difference of an output, over the largest output, for the
            given inputs and for random ones of their shapes.
        samples: the number of inputs that were compared.
        dtype: the dtype that both were computed in.
    """

    max_error: float
    samples: int
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class ImportedModule:
    """A torch module as a model.

    Attributes:
        model: the description, for `compile`, `save` and budgets.
        params: NumPy arrays for `evaluate`, by key; a weight with several owners in
            torch is one array.
        shapes: the shape of each input, for which the module was traced.
        certificate: the measured difference of the two.
    """

    model: Model
    params: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int, ...]]
    certificate: Certificate

    def __repr__(self) -> str:
        count = sum(array.size for array in self.params.values())
        return (
            f"ImportedModule({len(self.params)} arrays of {count:,} numbers, "
            f"shapes={dict(self.shapes)}, {self.certificate})"
        )


def from_torch(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    random_samples: int = 2,
    tolerance: float = 1e-3,
) -> ImportedModule:
    """Import a torch module: its structure, weights and buffers.

    The module is traced in evaluation mode by `torch.export`, for the shapes of the
    example inputs. Parameters keep torch's names; buffers become constants. The result
    is compared with the module before it is returned.

    Args:
        module: any `torch.nn.Module` that `torch.export` can trace.
        example_inputs: the positional arguments of its `forward`: tensors.
        random_samples: the number of random inputs that are compared as well.
        tolerance: the largest difference, over the largest output, that is accepted.

    Raises:
        UnsupportedModuleError: operations have no conversion, which are all named with
            their places; or the result differs from the module.
        TypeError: the module is not a `torch.nn.Module`.
        MissingExtraError: torch is not installed.

    Example:
        >>> import torch, frugax as ml
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
        >>> imported = ml.models.from_torch(net, (torch.ones(2, 4),))
        >>> compiled = ml.compile(imported.model, ml.JaxBackend())
        >>> data = {key: torch.ones(2, 4).numpy() for key in imported.shapes}
        >>> compiled.evaluate(imported.params, data)["output"].shape
        (2, 8)
    """
    try:
        from .to_torch import convert_module
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
    was_training, args = module.training, tuple(example_inputs)
    module.eval()
    try:
        model, params, inputs = convert_module(module, args)
        certificate = _compare(module, args, model, params, inputs, random_samples)
    finally:
        module.train(was_training)
    if not certificate.max_error <= tolerance:
        raise UnsupportedModuleError(
            f"the model differs from the module by {certificate.max_error:.1e} of its "
            f"largest output, more than {tolerance:g}: one of its operations is "
            "converted wrongly, or is not a function of its inputs; from_torch returns "
            "no model that it could not confirm."
        )
    shapes = {key: array.shape for key, array in inputs.items()}
    return ImportedModule(model, params, shapes, certificate)


def _compare(
    module: Any,
    args: tuple[Any, ...],
    model: Model,
    params: Mapping[str, np.ndarray],
    inputs: Mapping[str, np.ndarray],
    random_samples: int,
) -> Certificate:
    """Run module and model on the given inputs and on random ones."""
    from .to_torch import TorchBackend, run_module

    compiled = compile(model, TorchBackend())
    generator = np.random.default_rng(0)
    worst = 0.0
    for sample in range(1 + random_samples):
        data = dict(inputs)
        for key, array in inputs.items():
            # Integers stay, since random ones need not be valid indices.
            if sample and array.dtype.kind == "f":
                data[key] = generator.normal(size=array.shape).astype(array.dtype)
        wanted = run_module(module, args, list(data.values()))
        got = [np.asarray(v) for v in compiled.evaluate(params, data).values()]
        for want, found in zip(wanted, got, strict=True):
            if want.size:
                gap = np.abs(want.astype(np.float64) - found.astype(np.float64)).max()
                error = float(gap / max(np.abs(want).max(), 1e-30))
                # max() of a number and NaN depends on their order.
                worst = error if np.isnan(error) else max(worst, error)
    return Certificate(worst, 1 + random_samples, "float32")
