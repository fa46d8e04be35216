"""Turn loaded arrays into a compiled model's parameters and state, after checks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Shaped

from frugax.errors import ShapeError
from frugax.models.graph import (
    GraphNode,
    LoopNode,
    ModelGraph,
    Program,
    Spec,
    Weight,
    fits_shape,
    join,
    stack_weights,
)
from frugax.models.ops import is_floating

Arrays = dict[str, Any]
HostArrays = Mapping[str, Shaped[np.ndarray, "..."]]


@dataclasses.dataclass(frozen=True, slots=True)
class OwnedWeight:
    """A weight and its readers.

    Attributes:
        weight: its shape and initial values, for one block.
        key: its name in the block.
        readers: the nodes that read it.
        place: the block; empty outside of a loop.
    """

    weight: Weight
    key: str
    readers: tuple[GraphNode, ...]
    place: str

    @property
    def owner(self) -> str:
        """The name of its layer in errors."""
        place = self.key.rpartition(".")[2]
        own = [n for n in self.readers if self.key == join(n.path, place)]
        node = next(iter(own or self.readers), None)
        if node is None or isinstance(node, LoopNode):
            return f"weight {join(self.place, self.key)!r}"
        kind = type(node.layer).__name__
        return f"layer {join(self.place, node.path) or kind!r} ({kind})"


def weights_by_block(graph: ModelGraph, place: str = "") -> dict[str, OwnedWeight]:
    """Every weight of a program, those of looped blocks one by one.

    Files and other libraries name the weights of every block; a `LoopNode` reads one
    stacked array for all of them.
    """
    found: dict[str, OwnedWeight] = {}
    stacked: set[str] = set()
    for node in graph.nodes:
        if not isinstance(node, LoopNode):
            continue
        stacked |= set(node.stacked.values())
        for name in node.names:
            inner = weights_by_block(node.body, join(place, name))
            found |= {join(name, key): owned for key, owned in inner.items()}
    for key, weight in graph.weights.items():
        if key not in stacked:
            readers = tuple(n for n in graph.nodes if key in n.inputs.values())
            found[key] = OwnedWeight(weight, key, readers, place)
    return found


def expected_weights(program: Program) -> dict[str, OwnedWeight | Spec]:
    """The weights and trained inputs that a file of the model's weights must hold."""
    graph = program.graph
    trained = {k: graph.specs[k] for k in program.param_keys if k in graph.inputs}
    return {**weights_by_block(graph), **trained}


def find_mismatches(
    program: Program,
    arrays: HostArrays,
    origin: Mapping[str, str] | None = None,
) -> list[str]:
    """List why arrays cannot be the weights of a model; empty if they fit."""
    needed = expected_weights(program)
    # All problems are collected, because a map of names from another library is seldom
    # right at the first attempt.
    problems: list[str] = []
    missing = sorted(set(needed) - set(arrays))
    if missing:
        texts = (
            f"{k!r} {list(_shape(needed[k]))} of {_owner(needed[k])}" for k in missing
        )
        problems.append(f"it lacks {', '.join(texts)}")
    unknown = sorted(set(arrays) - set(needed))
    if unknown:
        texts = (f"{k!r} {list(arrays[k].shape)}" for k in unknown)
        problems.append(f"no layer reads {', '.join(texts)}")
    for key, need in needed.items():
        array = arrays.get(key)
        if array is None:
            continue
        source = ""
        name = (origin or {}).get(key, key)
        if name != key:
            source = f" from {name!r}"
        # A trained input may have free dimensions, where any length fits.
        if not fits_shape(array.shape, _shape(need)):
            problems.append(
                f"{key!r} of {_owner(need)} must have shape {list(_shape(need))}, got "
                f"{list(array.shape)}{source}"
            )
        # Integers would be cast without a complaint, but they are nearly always codes
        # of a quantised file, whose scales are elsewhere.
        elif not is_floating(array.dtype):
            problems.append(
                f"{key!r} of {_owner(need)} is {array.dtype}{source}, not a float"
            )
    return problems


def check_arrays(program: Program, arrays: HostArrays, source: str) -> None:
    """Check that there is an array of the right shape for each weight, and no other."""
    problems = find_mismatches(program, arrays)
    if problems:
        raise ShapeError(f"{source} does not fit the model: {'; '.join(problems)}.")


def assign_weights(
    program: Program,
    arrays: HostArrays,
    source: str,
    *,
    keep: bool,
    cast: bool,
    allow_non_finite: bool,
) -> tuple[Arrays, Arrays]:
    """Make the parameters and the state of a model of arrays by block."""
    check_arrays(program, arrays, source)
    backend = program.backend
    if not allow_non_finite:
        _check_finite(arrays, source)
    # Checked before anything is placed on a device, so a failed load leaves nothing
    # behind.
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
    # Stacked on the host: on the device every block would exist twice for a moment.
    stacked = stack_weights(program.graph, arrays, np.stack)
    # A copy: JAX may share memory with NumPy, and this may map a file that changes.
    placed = {k: backend.place_weight(np.array(a)) for k, a in stacked.items()}
    params = {k: a for k, a in placed.items() if k in program.param_keys}
    return params, {k: a for k, a in placed.items() if k not in program.param_keys}


def _check_finite(arrays: Mapping[str, np.ndarray], source: str) -> None:
    bad = {
        key: count
        for key, array in arrays.items()
        if (count := array.size - int(np.count_nonzero(np.isfinite(array))))
    }
    if bad:
        texts = (f"{c:,} of {arrays[k].size:,} in {k!r}" for k, c in bad.items())
        raise ValueError(
            f"{source} has numbers that are NaN or infinite: {', '.join(texts)}. Pass "
            "allow_non_finite=True to accept them."
        )


def _widens(one: np.dtype, other: np.dtype) -> bool:
    """Whether every number of one dtype is a number of the other as well."""
    a, b = ml_dtypes.finfo(one), ml_dtypes.finfo(other)
    # Both parts count: bfloat16 has the range of float32 and float16 the finer digits,
    # so neither of them holds all numbers of the other.
    return a.nmant <= b.nmant and a.nexp <= b.nexp


def _shape(need: OwnedWeight | Spec) -> tuple[Any, ...]:
    if isinstance(need, Spec):
        return need.shape
    return need.weight.shape


def _owner(need: OwnedWeight | Spec) -> str:
    if isinstance(need, Spec):
        return "a trained input"
    return need.owner
