"""`from_torch`: convert a torch module to a model, and measure how much they differ."""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import MissingExtraError, ShapeError, UnsupportedModuleError

from ._compile import compile
from .graph import Model


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """How far an imported model is from its module, as measured under JAX.

    Attributes:
        max_error: the largest difference of an output, over the largest output.
        samples: the number of inputs of the example's shapes that were compared: the
            example and random ones, which have rows that are masked entirely, and of
            modules that index by masks two where these are all true or all false.
        dtype: the dtype that both were computed in.
        other_lengths: the number of inputs of other lengths that were compared.
    """

    max_error: float
    samples: int
    dtype: str
    other_lengths: int = 0


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
    """

    model: Model
    params: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int, ...]]
    certificate: Certificate
    free_shapes: Mapping[str, tuple[int | str, ...]] = dataclasses.field(
        default_factory=dict
    )
    unused: tuple[str, ...] = ()

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

    The module is traced in evaluation mode by `torch.export`. Lengths stay free where
    torch and JAX can both leave them open: of all axes, else of the first axis, else
    none. The model refuses lengths for which `forward` takes another branch than for
    the example. Parameters keep torch's names; buffers become constants. A module in
    16 bits is imported in float32. The result is compared with the module, under JAX,
    before it is returned.

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
        from .to_torch import FREEDOMS, prepare
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
    from .to_jax import JaxBackend
    from .to_torch import convert_module, export_module

    backend = JaxBackend(dtype=traced.float_dtype)
    exported, infer = export_module(traced, freedom), _inference(backend)
    converted = convert_module(exported, traced, infer)
    _refuse_state(traced)
    compiled = _compile(converted, backend)
    # torch traces as if no free length were 1, which Python may ask for.
    if not _agrees_on_ones(traced, compiled, converted, tolerance):
        converted = convert_module(exported, traced, infer, 2)
        compiled = _compile(converted, backend)
    certificate = _compare(traced, compiled, converted, random_samples)
    if not certificate.max_error <= tolerance:
        raise UnsupportedModuleError(
            f"the model differs from the module by {certificate.max_error:.1e} of its "
            f"largest output, more than {tolerance:g}: one of its operations is "
            "converted wrongly, or is not a function of its inputs; from_torch returns "
            "no model that it could not confirm."
        )
    if functions := traced.find_own_backwards():
        warnings.warn(
            f"{', '.join(functions)}: a backward of its own, which from_torch does not "
            "convert; gradients are those of the operations in its forward.",
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
    )


def _compile(converted: Any, backend: Any) -> Any:
    try:
        return compile(converted.model, backend)
    except ShapeError as e:
        raise UnsupportedModuleError(f"JAX cannot leave a length open: {e}") from e


def _refuse_state(traced: Any) -> None:
    """Refuse a module whose outputs depend on the calls before."""
    first, second = (traced.run_example(calls) for calls in (1, 2))
    if any(_error(*pair) > 1e-6 for pair in zip(first, second, strict=True)):
        raise UnsupportedModuleError(
            "the module gives other outputs for the same inputs at its second call: it "
            "keeps state or draws random numbers. A model is a function of its inputs: "
            "let forward take the state as an input, and return the new one."
        )


def _inference(backend: Any) -> Any:
    """Shapes and dtypes of the results of ATen's operations, as JAX computes them."""
    import jax  # here, since describing a model needs no array library

    from .aten import evaluate

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


# --- the certificate --------------------------------------------------------------


def _compare(
    traced: Any, compiled: Any, converted: Any, random_samples: int
) -> Certificate:
    """Run module and model on the given inputs and on random ones."""
    worst, counts = 0.0, {True: 0, False: 0}
    for drafts in _samples(converted, random_samples):
        data, wanted = _first_accepted(traced, drafts)
        if wanted is None:
            continue
        has_shapes = all(
            v.shape == converted.inputs[key].shape for key, v in data.items()
        )
        try:
            error = _largest_error(compiled, converted.params, data, wanted)
        except ShapeError as e:
            if converted.has_conditions and not has_shapes:
                continue
            raise UnsupportedModuleError(f"JAX cannot leave a length open: {e}") from e
        worst = max(worst, error)
        counts[has_shapes] += 1
    dtype = np.dtype(traced.float_dtype).name
    return Certificate(worst, counts[True], dtype, counts[False])


def _largest_error(
    compiled: Any,
    params: Mapping[str, np.ndarray],
    data: Mapping[str, np.ndarray],
    wanted: Sequence[np.ndarray],
) -> float:
    got = compiled.evaluate(params, data).values()
    pairs = zip(wanted, got, strict=True)
    return max((_error(w, np.asarray(g)) for w, g in pairs), default=0.0)


def _agrees_on_ones(
    traced: Any, compiled: Any, converted: Any, tolerance: float
) -> bool:
    """Whether model and module agree where each free length is 1, or first ones are."""
    generator, inputs = np.random.default_rng(1), converted.inputs
    lengths = _free_lengths(converted)
    drafts = [
        _draw_all(inputs, _fill(converted, lengths | ones), generator, bold=False)
        for ones in (
            dict.fromkeys(lengths, 1),
            {name: 1 for name in lengths if name.endswith("_0")},
        )
        if ones
    ]
    data, wanted = _first_accepted(traced, drafts)
    if wanted is None:
        return True
    try:
        return _largest_error(compiled, converted.params, data, wanted) <= tolerance
    except ShapeError:  # no other numbers
        return True


def _first_accepted(
    traced: Any, drafts: Sequence[Mapping[str, np.ndarray]]
) -> tuple[Mapping[str, np.ndarray], list[np.ndarray] | None]:
    """The first of some inputs that the module takes, and its outputs."""
    data: Mapping[str, np.ndarray] = {}
    for data in drafts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about inputs that were made up
                return data, traced.run(list(data.values()))
        except Exception:  # whatever the module raises on inputs that were made up
            continue
    return data, None


def _error(want: np.ndarray, found: np.ndarray) -> float:
    """The largest difference over the largest number; infinite where one is not one."""
    if want.shape != found.shape:
        return float("inf")
    kind = np.complex128 if want.dtype.kind == "c" else np.float64
    want, found = want.astype(kind), found.astype(kind)
    is_finite = np.isfinite(want)
    same = np.where(is_finite, np.isfinite(found), _same_limit(want, found))
    if not same.all():
        return float("inf")
    if not is_finite.any():
        return 0.0
    gap = np.abs(want[is_finite] - found[is_finite]).max()
    return float(gap / max(np.abs(want[is_finite]).max(), 1e-30))


def _same_limit(want: np.ndarray, found: np.ndarray) -> np.ndarray:
    return (want == found) | (np.isnan(want) & np.isnan(found))


def _samples(
    converted: Any, random_samples: int
) -> Iterator[Sequence[Mapping[str, np.ndarray]]]:
    """The example, random inputs of its shapes, and some of other lengths.

    Each is drawn twice, since the module may refuse the first. Where rows are selected
    by a mask, inputs of one sign or number each select all of them, or none.
    """
    inputs = converted.inputs
    yield (inputs,)
    generator = np.random.default_rng(0)
    shapes = {key: array.shape for key, array in inputs.items()}
    for number in range(random_samples):
        yield tuple(
            _draw_all(inputs, shapes, generator, has_edges=number % 2 == 1, bold=bold)
            for bold in (True, False)
        )
    if converted.has_masked_rows:
        for pick in (np.max, np.min):
            yield ({k: _make_uniform(v, pick, generator) for k, v in inputs.items()},)
    if lengths := _free_lengths(converted):
        # Lengths of different names differ, or are equal where those of the example
        # are, which is less bold.
        yield tuple(
            _draw_all(
                inputs,
                _fill(
                    converted,
                    {k: n + 1 + bold * i for i, (k, n) in enumerate(lengths.items())},
                ),
                generator,
                bold=bold,
            )
            for bold in (True, False)
        )


def _make_uniform(
    example: np.ndarray, pick: Any, generator: np.random.Generator
) -> np.ndarray:
    """An input of positive or negative numbers, or of one integer or boolean."""
    if example.dtype.kind == "f" and len(np.unique(example)) != 2:
        size = np.abs(generator.normal(size=example.shape))
        return (pick([-1, 1]) * size).astype(example.dtype)
    values = [False, True] if example.dtype == np.bool_ else example
    return np.full_like(example, pick(values) if np.size(values) else 0)


def _free_lengths(converted: Any) -> dict[str, int]:
    """The free lengths by name, as they are in the example."""
    return {
        name: length
        for key, shape in converted.free_shapes.items()
        for name, length in zip(shape, converted.inputs[key].shape, strict=True)
        if isinstance(name, str)
    }


def _fill(converted: Any, lengths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs for some free lengths."""
    return {
        key: tuple(lengths[n] if isinstance(n, str) else n for n in shape)
        for key, shape in converted.free_shapes.items()
    }


def _draw_all(
    inputs: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    generator: np.random.Generator,
    *,
    has_edges: bool = False,
    bold: bool,
) -> dict[str, np.ndarray]:
    return {
        key: _draw(array, shapes[key], generator, has_edges=has_edges, bold=bold)
        for key, array in inputs.items()
    }


def _draw(
    example: np.ndarray,
    shape: tuple[int, ...],
    generator: np.random.Generator,
    *,
    has_edges: bool,
    bold: bool,
) -> np.ndarray:
    """A random input such as the example.

    Integers are drawn from those of the example, since others need not be valid
    indices; so are the numbers of a float mask, which has two different ones. Zeros or
    ones alone are a mask too, of zeros and ones, unless that is too `bold`.
    """
    values = np.unique(example)
    if example.dtype.kind == "f" and len(values) != 2:
        return generator.normal(size=shape).astype(example.dtype)
    if not values.size:
        return np.zeros(shape, example.dtype)
    if example.dtype == np.bool_ or (bold and set(values.tolist()) <= {0, 1}):
        values = np.array([0, 1])
    drawn = generator.choice(values, size=shape)
    if has_edges and len(values) == 2 and drawn.ndim and drawn.shape[0]:
        drawn[0], drawn[-1] = values[1], values[0]
    return drawn.astype(example.dtype)
