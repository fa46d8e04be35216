"""The certificate of an imported module: how far the model is from it, as measured."""

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import ShapeError, UnsupportedModuleError


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


def measure(
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
    return max((relative_error(w, np.asarray(g)) for w, g in pairs), default=0.0)


def agrees_on_ones(
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


def relative_error(want: np.ndarray, found: np.ndarray) -> float:
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
