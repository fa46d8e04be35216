"""`pack`: quantise weights in a budget to int4 or int8; jitted programs unpack them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from frugax.allocate import multiple_choice_knapsack
from frugax.budget import Receipt, SizeBudget, SpendName, Verdict, check_budget
from frugax.errors import InfeasibleBudgetError
from frugax.trees import PyTree, is_array, named_leaves, replace_leaves

from ._tensor_table import TensorReport, limited, show_error, tensor_table
from .arrays import (
    QUANTISABLE,
    Distortion,
    PackedArray,
    Tensor,
    dtype_from_name,
    find_ties,
    named_arrays,
    register_packed,
    relative_error,
    unwrap_modules,
    warn_of_not_finite,
)
from .codecs.groups import Grouping, decode_groups, quantise_groups
from .search import check_sensitivity

# Smaller tensors stay as they are: programs hardly notice their bytes, and outputs do
# notice their errors.
_SMALL = 1 << 12
_GROUPINGS = tuple(
    Grouping(bits, size, axis)
    for bits in (4, 8)
    for size, axis in ((32, -1), (64, -1), (128, -1), (0, -1), (64, -2), (0, -2))
)
_SAMPLE = 1 << 17  # numbers that stand for a tensor
_MAX_TRIES = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """Weights packed within a budget, and the errors that they were measured to have.

    Attributes:
        tree: the tree that was given, with a `PackedArray` for each packed tensor and
            a JAX array for each other one.
        tensors: one entry for each array, in the tree's order; the codec of one
            that is not packed is `"dense"`.
        receipt: each limit beside the predicted and the measured value.
        bytes: of all arrays in memory.
        original_bytes: of the arrays that were given, of tied ones once.
        rel_error: ||decoded - original|| / ||original|| over all finite float tensors.
    """

    tree: PyTree
    tensors: tuple[TensorReport, ...]
    receipt: Receipt
    bytes: int
    original_bytes: int
    rel_error: float

    @property
    def verdict(self) -> Verdict:
        """Whether the budget was kept."""
        return self.receipt.verdict

    def __str__(self) -> str:
        columns = {"relative error": lambda t: show_error(t.rel_error, 2)}
        return (
            tensor_table(self.tensors, columns) + f"\n{self.bytes:,} bytes in memory, "
            f"{self.original_bytes / max(1, self.bytes):.4g}x smaller, relative error "
            f"{self.rel_error:.3g}\n{self.receipt}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Option:
    """One way to hold a tensor: a grouping, or none for the dense array."""

    grouping: Grouping | None
    bytes: int
    energy: float


def pack(
    tree: PyTree,
    budget: SizeBudget,
    *,
    sensitivity: Mapping[str, float] | None = None,
) -> PackedWeights:
    """Pack a tree of weights for programs that unpack them where they use them.

    Each matrix is held as 4-bit or 8-bit integers with a bfloat16 step for each row,
    column or group of neighbours in one of these, or as it is: for each the way is
    chosen that makes the sum of squared errors least within the budget.

    Args:
        tree: a pytree of arrays, a state dict or a torch module; it is only read.
            Leaves that are not arrays stay.
        budget: the bytes of the arrays in memory (there is no file), or a relative
            error, or both.
        sensitivity: the weight of a squared error in each tensor, by name; of those
            without a name here it is 1.

    Returns:
        The packed tree with its receipt. Give `packed.tree` to a jitted function.

    Raises:
        InfeasibleBudgetError: no choice is within the budget; `needed` is the fewest
            bytes.
        TypeError: a leaf has a dtype that weights cannot have.
        ValueError: the budget limits something else, or `sensitivity` names no tensor.

    >>> import jax
    >>> weights = {"w": np.random.default_rng(0).normal(size=(256, 64)).astype("f4")}
    >>> packed = pack(weights, SizeBudget("7x"))
    >>> jax.jit(lambda p, x: x @ p["w"])(packed.tree, np.ones((2, 256), "f4")).shape
    (2, 64)
    """
    check_budget(budget, SizeBudget)
    if budget.max_abs is not None or budget.output_error is not None:
        raise ValueError(
            f"{budget}: packed weights have integers of 4 or 8 bits, and limits of a "
            "size or a relative error: give SizeBudget one of these."
        )
    register_packed()
    tree = unwrap_modules(tree)
    leaves = named_leaves(tree)
    only_arrays = [leaf if is_array(leaf) else None for _, leaf in leaves]
    arrays = named_arrays(replace_leaves(tree, only_arrays))
    ties = find_ties(arrays)
    sources = {n: Tensor(n, array) for n, array in arrays.items() if n not in ties}
    warn_of_not_finite(sources.values(), stack_level=2)
    check_sensitivity(sensitivity or {}, arrays)
    weights = dict.fromkeys(sources, 0.0)
    for name in arrays:  # errors of a tied tensor count under each of its names
        weights[ties.get(name, name)] += float((sensitivity or {}).get(name, 1.0))
    options = [_list_options(source) for source in sources.values()]
    limit = budget.limit_bytes(
        original_bytes=sum(source.array.nbytes for source in sources.values()),
        weights=sum(source.array.size for source in sources.values()),
    )
    total = math.fsum(source.energy for source in sources.values())
    goal = None if budget.rel_error is None else budget.rel_error**2 * total
    aim = goal
    for _ in range(_MAX_TRIES):
        chosen = _choose([*sources.values()], options, [*weights.values()], limit, aim)
        packed = [
            _pack_tensor(source, option)
            for source, option in zip(sources.values(), chosen, strict=True)
        ]
        energy = math.fsum(error.energy for _, error in packed)
        if goal is None or aim is None or energy <= goal:
            break
        aim *= 0.98 * goal / energy  # estimates from samples were too low
    else:  # all as they are
        chosen = [of_tensor[-1] for of_tensor in options]
        packed = [(None, Distortion()) for _ in chosen]
        energy = 0.0
    rows = {
        source.name: TensorReport(
            name=source.name,
            dtype=source.array.dtype.name,
            shape=source.array.shape,
            rel_error=relative_error(error.energy, source.energy),
            max_abs=error.max_abs,
            codec="dense" if array is None else str(option.grouping),
            bytes=source.array.nbytes if array is None else array.nbytes,
        )
        for source, option, (array, error) in zip(
            sources.values(), chosen, packed, strict=True
        )
    }
    tied = {"codec": "tied", "bytes": 0}
    tensors = tuple(
        dataclasses.replace(rows[ties[name]], name=name, tied=ties[name], **tied)
        if name in ties
        else rows[name]
        for name in arrays
    )
    held = sum(tensor.bytes for tensor in tensors)
    if limit is not None and held > limit:
        _raise_infeasible(held, limit, budget, [*sources.values()])
    rel_error = relative_error(energy, total)
    predicted = math.fsum(option.energy for option in chosen)
    spends = limited(
        limit,
        name="arrays in memory",
        unit="bytes",
        predicted=sum(option.bytes for option in chosen),
        measured=held,
        source="bytes of the packed arrays",
    ) + limited(
        budget.rel_error,
        name=SpendName.REL_ERROR,
        unit="",
        predicted=relative_error(predicted, total),
        measured=rel_error,
        source="decoded from the packed arrays; predicted from samples",
    )
    by_name = {
        name: array
        for name, (array, _) in zip(sources, packed, strict=True)
        if array is not None
    }
    given = dict(leaves)
    names = [ties.get(name, name) for name in given]
    return PackedWeights(
        tree=replace_leaves(tree, [by_name.get(n, given[n]) for n in names]),
        tensors=tensors,
        receipt=Receipt(spends),
        bytes=held,
        original_bytes=sum(source.array.nbytes for source in sources.values()),
        rel_error=rel_error,
    )


def unpack(tree: PyTree) -> PyTree:
    """Replace every `PackedArray` in a tree by its dense array, within `jit`.

    For functions that do more with a weight than `PackedArray` can, such as those of
    flax and equinox: `jax.jit(lambda packed, x: apply_fn(unpack(packed), x))`.

    Args:
        tree: any pytree.

    Returns:
        The tree with JAX arrays in the place of packed ones; other leaves as they are.
    """
    import jax

    return jax.tree.map(
        lambda leaf: leaf.unpack() if isinstance(leaf, PackedArray) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, PackedArray),
    )


def _why_dense(source: Tensor) -> str:
    """Return why a tensor cannot be packed; empty if it can."""
    array = source.array
    if array.ndim < 2:
        return f"it has {array.ndim} axes"
    if array.size < _SMALL:
        return f"it has fewer than {_SMALL:,} numbers"
    if array.dtype.name not in QUANTISABLE:
        return f"it is of {array.dtype.name}"
    if source.count_not_finite():
        return "it has NaN or infinite numbers"
    # Beyond these, float32 and bfloat16 cannot hold the numbers or their steps.
    if not 1e-30 < source.max_abs < 1e37:
        return f"its largest number is {source.max_abs:.3g}"
    return ""


def _list_options(source: Tensor) -> list[_Option]:
    """Return the ways to hold a tensor, with estimated errors; the last is exact."""
    array = source.array
    dense = _Option(None, array.nbytes, 0.0)
    if _why_dense(source):
        return [dense]
    found: dict[tuple[int, tuple[int, ...]], _Option] = {}
    for grouping in _GROUPINGS:
        steps = grouping.steps_shape(array.shape)
        key = grouping.bits, steps
        length = _packed_bytes(array.shape, grouping)
        if key in found or grouping.size > array.shape[grouping.axis]:
            continue
        if length < array.nbytes:
            part = _sample(array, grouping.axis)
            decoded = decode_groups(
                *quantise_groups(part, grouping, _bfloat16()), grouping, array.dtype
            )
            error = Distortion.between(decoded.reshape(-1), part.reshape(-1))
            energy = error.energy * array.size / part.size
            found[key] = _Option(grouping, length, energy)
    return [*found.values(), dense]


def _sample(array: np.ndarray, axis: int) -> np.ndarray:
    """Return whole rows or columns, evenly spread, as a contiguous matrix or more."""
    if array.size <= _SAMPLE:
        return array
    turned = array.reshape(-1, *array.shape[-2:])
    if axis == -1:
        rows = turned.reshape(-1, array.shape[-1])
        count = max(1, _SAMPLE // array.shape[-1])
        return rows[_spread(len(rows), count)]
    count = max(1, _SAMPLE // (array.size // array.shape[-1]))
    return np.ascontiguousarray(turned[:, :, _spread(array.shape[-1], count)])


def _spread(length: int, count: int) -> np.ndarray:
    return np.linspace(0, length - 1, min(length, count)).round().astype(np.intp)


def _packed_bytes(shape: tuple[int, ...], grouping: Grouping) -> int:
    row = shape[-1]
    if grouping.bits == 4:
        row = -(-row // 2)
    steps = math.prod(grouping.steps_shape(shape))
    return math.prod(shape[:-1]) * row + steps * _bfloat16().itemsize


def _choose(
    sources: list[Tensor],
    options: list[list[_Option]],
    weights: list[float],
    limit: int | None,
    goal: float | None,
) -> list[_Option]:
    """Choose an option for each tensor: the best in a size, or least in an error."""
    width = max(map(len, options), default=1)
    cost = np.zeros((len(options), width), np.int64)
    loss = np.full(cost.shape, np.inf)
    energy = np.zeros(cost.shape)
    for row, (of_tensor, weight) in enumerate(zip(options, weights, strict=True)):
        for column, option in enumerate(of_tensor):
            cost[row, column] = option.bytes
            energy[row, column] = option.energy
            loss[row, column] = option.energy * weight
    least = int(np.where(np.isfinite(loss), cost, np.iinfo(np.int64).max).min(1).sum())
    dense = sum(of_tensor[-1].bytes for of_tensor in options)

    def allocate(size: int) -> tuple[list[_Option], float]:
        found = multiple_choice_knapsack(cost, loss, limit=size)
        chosen = [options[i][c] for i, c in enumerate(found.chosen)]
        return chosen, float(sum(energy[i, c] for i, c in enumerate(found.chosen)))

    if goal is None:
        assert limit is not None  # a budget has a size or an error
        if least > limit:
            _raise_infeasible(least, limit, None, sources)
        return allocate(limit)[0]
    low, high = least, dense
    best = [of_tensor[-1] for of_tensor in options]
    # The error falls as the size grows: bisection to a thousandth of the range.
    for _ in range(12):
        chosen, error = allocate((low + high) // 2)
        if error <= goal:
            best, high = chosen, (low + high) // 2
        else:
            low = (low + high) // 2
    return best


def _pack_tensor(
    source: Tensor, option: _Option
) -> tuple[PackedArray | None, Distortion]:
    grouping, array = option.grouping, source.array
    if grouping is None:
        return None, Distortion()
    integers, steps = quantise_groups(array, grouping, _bfloat16())
    decoded = decode_groups(integers, steps, grouping, array.dtype)
    packed = PackedArray.pack(
        integers,
        steps,
        bits=grouping.bits,
        group=grouping.size,
        axis=grouping.axis,
        dtype=array.dtype,
    )
    return packed, Distortion.between(decoded.reshape(-1), array.reshape(-1))


def _raise_infeasible(
    needed: int, limit: int, budget: SizeBudget | None, sources: list[Tensor]
) -> NoReturn:
    what = "packing these weights in at least 4 bits each"
    if budget is not None:
        what = f"packing these weights within {budget}"
    hint = "compress them: frugax.compress.save is not bound to whole bits."
    dense = [source for source in sources if _why_dense(source)]
    if dense:
        largest = max(dense, key=lambda source: source.array.nbytes)
        hint = (
            f"{largest.name or 'the array'!r} stays dense, {largest.array.nbytes:,} "
            f"bytes, because {_why_dense(largest)}; or {hint}"
        )
    raise InfeasibleBudgetError(
        what,
        needed=needed,
        limit=limit,
        unit="bytes",
        hint=hint,
        proven=budget is None,
    )


def _bfloat16() -> "np.dtype[Any]":
    return dtype_from_name("bfloat16")
