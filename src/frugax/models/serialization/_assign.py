"""Arrays for a compiled model's weights: all are checked, then put on its backend."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np

from frugax.errors import ShapeError
from frugax.models.graph import Layer, ModelGraph, Spec, stack_weights
from frugax.models.ops import is_floating

from ._per_block import OwnedWeight, weights_by_block

Arrays = dict[str, Any]


@runtime_checkable
class CompiledWeights(Protocol):
    """What is needed of a compiled model; `CompiledModel` is one."""

    layer: Layer
    backend: Any
    graph: ModelGraph
    param_keys: frozenset[str]
    data_keys: frozenset[str]
    compile_options: Mapping[str, Any]


def to_numpy(value: Any) -> np.ndarray:
    """An array of JAX, torch or NumPy as NumPy's, of the same dtype."""
    if hasattr(value, "detach"):  # torch's; torch itself may not be imported here
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy has none to hand over
            return value.float().numpy().astype(ml_dtypes.bfloat16)
        return value.numpy()
    return np.asarray(value)


def expected_weights(program: CompiledWeights) -> dict[str, OwnedWeight | Spec]:
    """What a file of a model's weights must hold: weights, and inputs that are trained.

    Args:
        program: a compiled model.
    """
    graph = program.graph
    trained = {k: graph.specs[k] for k in program.param_keys if k in graph.inputs}
    return {**weights_by_block(graph), **trained}


def find_mismatches(
    program: CompiledWeights,
    arrays: Mapping[str, np.ndarray],
    origin: Mapping[str, str] | None = None,
) -> list[str]:
    """What keeps arrays from being a model's weights; nothing if they fit.

    Args:
        program: a compiled model.
        arrays: arrays by the blocks' names.
        origin: what an array is called where it comes from, if otherwise.
    """
    needed = expected_weights(program)
    problems: list[str] = []
    missing = sorted(set(needed) - set(arrays))
    if missing:
        said = (
            f"{k!r} {list(_shape(needed[k]))} of {_owner(needed[k])}" for k in missing
        )
        problems.append(f"it lacks {', '.join(said)}")
    unknown = sorted(set(arrays) - set(needed))
    if unknown:
        said = (f"{k!r} {list(arrays[k].shape)}" for k in unknown)
        problems.append(f"no layer reads {', '.join(said)}")
    for key, need in needed.items():
        array = arrays.get(key)
        if array is None:
            continue
        theirs = (origin or {}).get(key, key)
        of = f" from {theirs!r}" if theirs != key else ""
        if not _same_shape(array.shape, _shape(need)):
            problems.append(
                f"{key!r} of {_owner(need)} must have shape {list(_shape(need))}, got "
                f"{list(array.shape)}{of}"
            )
        elif not is_floating(array.dtype):
            problems.append(f"{key!r} of {_owner(need)} is {array.dtype}{of}, no float")
    return problems


def check_arrays(
    program: CompiledWeights, arrays: Mapping[str, np.ndarray], source: str
) -> None:
    """See that there is an array of the right shape for each weight, and no other.

    Args:
        program: a compiled model.
        arrays: arrays by the blocks' names.
        source: where they come from, for errors.

    Raises:
        ShapeError: an array is missing, unknown, of a wrong shape or of integers; all
            are named, with their layers and shapes.
    """
    problems = find_mismatches(program, arrays)
    if problems:
        raise ShapeError(f"{source} does not fit the model: {'; '.join(problems)}.")


def assign_weights(
    program: CompiledWeights,
    arrays: Mapping[str, np.ndarray],
    source: str,
    *,
    keep: bool,
    cast: bool,
    allow_non_finite: bool,
) -> tuple[Arrays, Arrays]:
    """Parameters and state of a model from arrays by the blocks' names.

    Args:
        program: a compiled model.
        arrays: for each weight an array.
        source: where they come from, for errors.
        keep: leave every dtype as it is.
        cast: turn them to the backend's dtype even where digits are lost.
        allow_non_finite: take NaN and infinity too.

    Returns:
        The arrays that are trained, and those that go in with the data, by key.

    Raises:
        ShapeError: arrays are missing, too many, or of wrong shapes.
        ValueError: there are NaN or infinite numbers, or another dtype than the
            backend's.
    """
    check_arrays(program, arrays, source)
    backend = program.backend
    if not allow_non_finite:
        _check_finite(arrays, source)
    if not keep:
        lossy = {
            k: a.dtype for k, a in arrays.items() if not _widens(a.dtype, backend.dtype)
        }
        if lossy and not cast:
            key, dtype = next(iter(lossy.items()))
            raise ValueError(
                f"{source} has {key!r} as {dtype}, and {len(lossy) - 1} more; in the "
                f"backend's {backend.dtype} they would lose digits: pass cast=True, or "
                f'use a backend with dtype="{dtype}".'
            )
        arrays = {k: a.astype(backend.dtype, copy=False) for k, a in arrays.items()}
    placed = {
        k: _place(backend, a)
        for k, a in stack_weights(program.graph, arrays, np.stack).items()
    }
    params = {k: a for k, a in placed.items() if k in program.param_keys}
    return params, {k: a for k, a in placed.items() if k not in program.param_keys}


def _place(backend: Any, array: np.ndarray) -> Any:
    # A copy: JAX may share memory with NumPy, and this may be a file that changes.
    array = np.array(array)
    mesh = getattr(backend, "mesh", None)
    if mesh is None:
        return backend.array(array, dtype=array.dtype)
    axes = tuple(mesh.devices.shape)  # split as `randomize_params` does
    split = next(
        (i for i, n in enumerate(array.shape) if n and n % axes[-1] == 0), None
    )
    return backend.array(
        array,
        dtype=array.dtype,
        device_mesh=axes,
        tensor_split=(*(None,) * (len(axes) - 1), split),
    )


def _check_finite(arrays: Mapping[str, np.ndarray], source: str) -> None:
    bad = {
        key: count
        for key, array in arrays.items()
        if (count := array.size - int(np.count_nonzero(np.isfinite(array))))
    }
    if bad:
        said = (f"{c:,} of {arrays[k].size:,} in {k!r}" for k, c in bad.items())
        raise ValueError(
            f"{source} has numbers that are NaN or infinite: {', '.join(said)}. Pass "
            "allow_non_finite=True to take them all the same."
        )


def _widens(one: np.dtype, other: np.dtype) -> bool:
    """Whether every number of one dtype is also in the other."""
    a, b = ml_dtypes.finfo(one), ml_dtypes.finfo(other)
    return a.nmant <= b.nmant and a.nexp <= b.nexp


def _shape(need: OwnedWeight | Spec) -> tuple[Any, ...]:
    return need.shape if isinstance(need, Spec) else need.weight.shape


def _owner(need: OwnedWeight | Spec) -> str:
    return "a trained input" if isinstance(need, Spec) else need.owner


def _same_shape(given: tuple[int, ...], needed: tuple[Any, ...]) -> bool:
    return len(given) == len(needed) and all(
        g == n or not isinstance(n, int) for g, n in zip(given, needed, strict=True)
    )
