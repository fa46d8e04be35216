"""Rules for running operations on part of a batch: one for each kind of operation.

Each value either is the same for every part of the batch, or lies along the batch in
one of its axes, or is a sum over the batch of which a part of the batch gives one term.
The rules say which of these the result of an operation is. They are those of `jax.vmap`
read backwards: `vmap` adds an axis to a program, and here an axis that the program has
is made shorter. An operation that mixes rows of the batch raises `MixesBatchError`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.jaxprs import Graph, JaxprEqn, shape_of, variables


class MixesBatchError(Exception):
    """The program cannot be run on a part of the batch; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Along:
    """A value with the batch in one axis, of length `outer * batch * inner`."""

    axis: int
    outer: int = 1
    inner: int = 1

    def at(self, axis: int) -> "Along":
        """The same in another axis."""
        return dataclasses.replace(self, axis=axis)

    def without(self, axes: Sequence[int]) -> "Along":
        """The same once these other axes are gone."""
        return self.at(self.axis - sum(a < self.axis for a in axes))


# None: the same for every part. "sum": the sum over all parts is the value.
State: TypeAlias = Along | str | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the program on a part of the batch."""

    state: State
    array: Any


# Every number of the result depends on the numbers at its own place.
_ELEMENTWISE_NAMES = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt
ceil clamp complex conj convert_element_type copy copy_p cos cosh digamma div eq erf
erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow is_finite le
lgamma log log1p logistic lt max min mul name ne neg nextafter not or pbroadcast pcast
polygamma pow pvary real
reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left
shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub
tan tanh xor zeta clz log2 mulhi one_minus_square population_count
"""
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())
# Linear in all operands together, so that the terms of a sum may be added up after it.
_LINEAR_NAMES = """
add add_any broadcast_in_dim concatenate convert_element_type copy copy_p device_put neg
reduce_sum reshape rev sharding_constraint slice squeeze stack sub tile transpose
unstack
"""
_LINEAR = frozenset(_LINEAR_NAMES.split())
_REDUCTIONS = """
argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum
reduce_xor
"""
_ONE_AXIS = {
    "cumlogsumexp": "axis",
    "cummax": "axis",
    "cummin": "axis",
    "cumprod": "axis",
    "cumsum": "axis",
    "concatenate": "dimension",
    "sort": "dimension",
    "split": "axis",
}
_WINDOWS = """
reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add
select_and_scatter_add
"""
# Operations on the last axes, for each place of the leading ones; the number of these.
_ON_MATRICES = "cholesky eigh householder_product lu qr svd triangular_solve"
_TRAILING = dict.fromkeys(_ON_MATRICES.split(), 2)
_TRAILING |= {"lu_pivots_to_permutation": 1, "top_k": 1}


class BatchRows:
    """One of several equal parts of the batch, and arrays on it.

    Attributes:
        batch: the length of the whole batch.
        part: the length of a part.
        index: which part it is, as an array.
        is_spread: whether a part has rows from everywhere: of `count` neighbours one.
            Of a batch that is divided over devices, each device then has its own share
            of every part.
    """

    def __init__(
        self, batch: int, count: int, index: Any, *, is_spread: bool = False
    ) -> None:
        self.batch, self.part, self.index = batch, batch // count, index
        self.is_spread = is_spread

    def coerce(self, value: Value, state: State) -> Value:
        """The same value in another state, if that is possible."""
        if value.state == state:
            return value
        if value.state is not None:
            raise MixesBatchError("two different axes hold the batch")
        if isinstance(state, Along):
            return Value(state, self.slice(value.array, state))
        # The first part contributes the whole value, and the others nothing.
        zero = jnp.zeros_like(value.array)
        return Value("sum", jnp.where(self.index == 0, value.array, zero))

    def slice(self, array: Any, along: Along) -> Any:
        """This part's rows of a whole array."""
        axis, shape = along.axis, array.shape
        rows, mine = self.batch * along.inner, self.part * along.inner
        if not array.ndim or shape[axis] != along.outer * rows:
            raise MixesBatchError("an array does not lie along the batch")
        if self.is_spread:
            count = self.batch // self.part
            split = array.reshape(
                *shape[:axis],
                along.outer,
                self.part,
                count,
                along.inner,
                *shape[axis + 1 :],
            )
            part = lax.dynamic_index_in_dim(split, self.index, axis + 2, keepdims=False)
            return part.reshape(*shape[:axis], along.outer * mine, *shape[axis + 1 :])
        start = self.index * mine
        if along.outer == 1:
            return lax.dynamic_slice_in_dim(array, start, mine, axis)
        split = array.reshape(*shape[:axis], along.outer, rows, *shape[axis + 1 :])
        part = lax.dynamic_slice_in_dim(split, start, mine, axis + 1)
        return part.reshape(*shape[:axis], along.outer * mine, *shape[axis + 1 :])

    def shorten(self, shape: Sequence[int], along: Along) -> tuple[int, ...]:
        """The shape of a whole array as it is in this part."""
        length = along.outer * self.part * along.inner
        return (*shape[: along.axis], length, *shape[along.axis + 1 :])


def join_parts(
    parts: Any, along: Along, shape: Sequence[int], *, is_spread: bool = False
) -> Any:
    """The whole array of this shape, from the rows of all parts, stacked."""
    axis, rest = along.axis, shape[along.axis + 1 :]
    # Written out: -1 is undefined for arrays without elements.
    rows = [shape[axis] // (along.outer * len(parts))]
    if is_spread:
        rows = [rows[0] // along.inner, along.inner]
    split = parts.reshape(len(parts), *shape[:axis], along.outer, *rows, *rest)
    return jnp.moveaxis(split, 0, axis + len(rows)).reshape(shape)


def apply_rule(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    """Run an operation on arrays, some of which lie along the batch."""
    name, changed = eqn.primitive.name, dict[str, Any]()
    if any(v.state == "sum" for v in values):
        return _sums(part, eqn, values)
    if name in _ELEMENTWISE:
        return _elementwise(part, eqn, values)
    if name in _OF_SEVERAL:
        return _OF_SEVERAL[name](part, graph, eqn, values)
    arrays = [v.array for v in values]
    along = next(v.state for v in values if isinstance(v.state, Along))
    if name in _OF_FIRST:
        first, *rest = [v.state for v in values]
        if first is None or any(state is not None for state in rest):
            raise MixesBatchError(f"an operand of {name} depends on the batch")
        state, changed = _OF_FIRST[name](part, eqn, along)
    elif name in _OF_ALL:
        state = _OF_ALL[name](eqn, along)
        arrays = [part.coerce(v, along).array for v in values]
    else:
        raise MixesBatchError(f"{name} is not known to keep rows apart")
    return [Value(state, o) for o in bind(eqn, arrays, **changed)]


def _sums(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    name, arrays = eqn.primitive.name, [v.array for v in values]
    is_sum = [v.state == "sum" for v in values]
    inexact = [jnp.issubdtype(shape_of(v).dtype, jnp.inexact) for v in eqn.outvars]
    scales = (name == "mul" and is_sum.count(True) == 1) or (
        name in ("div", "dot_general") and is_sum == [True, False]
    )
    scales = scales or (name == "dot_general" and is_sum == [False, True])
    if any(isinstance(v.state, Along) for v in values) or not all(inexact):
        raise MixesBatchError(f"{name} reads a sum over the batch again")
    if name in _LINEAR:
        arrays = [part.coerce(v, "sum").array for v in values]
    elif not scales:
        raise MixesBatchError(f"{name} is not linear in a sum over the batch")
    return [Value("sum", o) for o in bind(eqn, arrays)]


def _elementwise(
    part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    along = next(v.state for v in values if isinstance(v.state, Along))
    same: list[Value] = []
    for v, atom in zip(values, eqn.invars, strict=True):
        # A scalar, or an axis of length 1, holds for all rows.
        holds = not shape_of(atom).ndim or shape_of(atom).shape[along.axis] == 1
        same.append(v if v.state is None and holds else part.coerce(v, along))
    return [Value(along, o) for o in bind(eqn, [v.array for v in same])]


# --- operations of one array along the batch, and others that are the same for all rows
# Each rule says how the result lies, and which parameters change.

Change = tuple[State, dict[str, Any]]


def _reduction(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    axes, name = eqn.params["axes"], eqn.primitive.name
    if along.axis not in axes:
        return along.without(axes), {}
    if name != "reduce_sum":
        raise MixesBatchError(f"{name} is taken over the batch")
    return "sum", {}


def _constrain(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    _check_sharding(part, eqn.invars[0], along, eqn.params["sharding"])
    return along, {}


def _check_sharding(part: BatchRows, whole: Any, along: Along, sharding: Any) -> None:
    try:
        sharding.shard_shape(part.shorten(shape_of(whole).shape, along))
    except ValueError as e:
        raise MixesBatchError("a part cannot be sharded like the batch") from e


def _broadcast(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    state = along.at(eqn.params["broadcast_dimensions"][along.axis])
    return state, {"shape": part.shorten(eqn.params["shape"], state)}


def _reshape(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    old, new = shape_of(eqn.invars[0]).shape, eqn.params["new_sizes"]
    if eqn.params.get("dimensions") is not None:
        raise MixesBatchError("a reshape also transposes")
    # Flattened, the batch repeats `before` times, and each row has `after` numbers.
    before = math.prod(old[: along.axis]) * along.outer
    for axis, length in enumerate(new):
        prefix = math.prod(new[:axis])
        if not prefix or before % prefix or length % (before // prefix * part.batch):
            continue
        outer = before // prefix
        state = Along(axis, outer, length // (outer * part.batch))
        return state, {"new_sizes": part.shorten(new, state)}
    raise MixesBatchError("a reshape tears rows of the batch apart")


def _transpose(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    return along.at(eqn.params["permutation"].index(along.axis)), {}


def _squeeze(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    return along.without(eqn.params["dimensions"]), {}


def _reverse(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    if along.axis in eqn.params["dimensions"]:
        raise MixesBatchError("the batch is reversed")
    return along, {}


def _slice(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    p, axis = eqn.params, along.axis
    stride = 1 if p["strides"] is None else p["strides"][axis]
    whole = 0, shape_of(eqn.invars[0]).shape[axis], 1
    if (p["start_indices"][axis], p["limit_indices"][axis], stride) != whole:
        raise MixesBatchError("rows of the batch are left out")
    return along, {"limit_indices": part.shorten(p["limit_indices"], along)}


def _dynamic_slice(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    sizes = eqn.params["slice_sizes"]
    if sizes[along.axis] != shape_of(eqn.invars[0]).shape[along.axis]:
        raise MixesBatchError("rows of the batch are left out")
    return along, {"slice_sizes": part.shorten(sizes, along)}


def _pad(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    if tuple(eqn.params["padding_config"][along.axis]) != (0, 0, 0):
        raise MixesBatchError("the batch is padded")
    return along, {}


def _convolution(part: BatchRows, eqn: JaxprEqn, along: Along) -> Change:
    numbers = eqn.params["dimension_numbers"]
    if along.axis != numbers.lhs_spec[0] or eqn.params["batch_group_count"] != 1:
        raise MixesBatchError("a convolution mixes rows of the batch")
    return along.at(numbers.out_spec[0]), {}


# --- operations whose arrays all lie along the same axis ------------------------------


def _one_axis(eqn: JaxprEqn, along: Along) -> State:
    name = eqn.primitive.name
    if eqn.params[_ONE_AXIS[name]] == along.axis:
        raise MixesBatchError(f"{name} goes along the batch")
    return along


def _stack(eqn: JaxprEqn, along: Along) -> State:
    return along.at(along.axis + (eqn.params["axis"] <= along.axis))


def _unstack(eqn: JaxprEqn, along: Along) -> State:
    if eqn.params["axis"] == along.axis:
        raise MixesBatchError("the batch is unstacked")
    return along.without([eqn.params["axis"]])


def _tile(eqn: JaxprEqn, along: Along) -> State:
    times = eqn.params["reps"][along.axis]
    return dataclasses.replace(along, outer=times * along.outer)


def _trailing(eqn: JaxprEqn, along: Along) -> State:
    name = eqn.primitive.name
    own = _TRAILING[name] if name in _TRAILING else len(eqn.params["fft_lengths"])
    if along.axis >= shape_of(eqn.invars[0]).ndim - own:
        raise MixesBatchError(f"{name} goes along the batch")
    return along


def _window(eqn: JaxprEqn, along: Along) -> State:
    p, axis = eqn.params, along.axis
    sizes = [p["window_dimensions"][axis], p["window_strides"][axis]]
    sizes += [p.get(n, {axis: 1})[axis] for n in ("base_dilation",)]
    if set(sizes) != {1} or tuple(p["padding"][axis]) != (0, 0):
        raise MixesBatchError("a window goes along the batch")
    return along


# --- operations of several arrays, of which any may lie along the batch ---------------


def _barrier(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    outs = bind(eqn, [v.array for v in values])
    return [Value(v.state, o) for v, o in zip(values, outs, strict=True)]


def _device_put(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    for v, atom, place in zip(values, eqn.invars, eqn.params["devices"], strict=True):
        if isinstance(v.state, Along) and isinstance(place, jax.sharding.Sharding):
            _check_sharding(part, atom, v.state, place)
    return _barrier(part, graph, eqn, values)


def _triangular_solve(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    matrix, known = values
    # Each column, or row, of the known side is solved by itself.
    free = shape_of(eqn.invars[1]).ndim - (1 if eqn.params["left_side"] else 2)
    along = next(v.state for v in values if isinstance(v.state, Along))
    if matrix.state is not None or along.axis != free:
        _trailing(eqn, along)
        matrix, known = (part.coerce(v, along) for v in values)
    return [Value(along, o) for o in bind(eqn, [matrix.array, known.array])]


def _collective(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    """Over named axes of devices, or over an axis of the array that `vmap` named."""
    own = [axis for axis in eqn.params["axes"] if isinstance(axis, int)]
    if not own:
        return _elementwise(part, eqn, values)
    along = next(v.state for v in values if isinstance(v.state, Along))
    name = eqn.primitive.name
    if along.axis in own and name != "psum":
        raise MixesBatchError(f"{name} is taken over the batch")
    outs = bind(eqn, [part.coerce(v, along).array for v in values])
    state = "sum" if along.axis in own else along.without(own)
    return [Value(state, o) for o in outs]


def _dynamic_update_slice(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    target, update, *starts = values
    if any(v.state is not None for v in starts):
        raise MixesBatchError("the place of a slice depends on the batch")
    along = next(v.state for v in (target, update) if isinstance(v.state, Along))
    whole, new = (shape_of(v).shape[along.axis] for v in eqn.invars[:2])
    if whole != new:
        raise MixesBatchError("some rows of the batch are replaced")
    pair = [part.coerce(v, along) for v in (target, update)]
    outs = bind(eqn, [v.array for v in (*pair, *starts)])
    return [Value(along, o) for o in outs]


def _scatter(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    """Windows that hold all rows are replaced or added to, or each row adds its own."""
    target, indices, update = values
    n = eqn.params["dimension_numbers"]
    whole, new = shape_of(eqn.invars[0]).shape, shape_of(eqn.invars[2]).shape
    left_out = {*n.inserted_window_dims, *n.operand_batching_dims}
    inside = [a for a in range(len(whole)) if a not in left_out]
    # The axes of the windows, in the target and in the update.
    axes = dict(zip(inside, n.update_window_dims, strict=True))
    # The axes of the update that say which window, in the order of the indices' axes.
    places = [a for a in range(len(new)) if a not in n.update_window_dims]
    rows: State = update.state
    if isinstance(indices.state, Along):
        if indices.state.axis == len(places):
            raise MixesBatchError("the place of a scatter depends on the batch")
        rows = indices.state.at(places[indices.state.axis])
    if isinstance(rows, Along) and rows.axis in places:
        at = places.index(rows.axis)
        indices, update = part.coerce(indices, rows.at(at)), part.coerce(update, rows)
        state: State = "sum"
        if at in n.scatter_indices_batching_dims:
            place = list(n.scatter_indices_batching_dims).index(at)
            state = rows.at(n.operand_batching_dims[place])
        elif eqn.primitive.name not in ("scatter-add", "scatter-sub"):
            raise MixesBatchError("a scatter picks rows of the batch")
        target = part.coerce(target, state)
        outs = bind(eqn, [target.array, indices.array, update.array])
        return [Value(state, o) for o in outs]
    if isinstance(target.state, Along):
        along, axis = target.state, target.state.axis
    else:
        along = update.state
        assert isinstance(along, Along)
        axis = next((a for a, b in axes.items() if b == along.axis), -1)
    if axis not in axes or axis in n.scatter_dims_to_operand_dims:
        raise MixesBatchError("a scatter picks rows of the batch")
    if whole[axis] != new[axes[axis]]:
        raise MixesBatchError("some rows of the batch are replaced")
    target = part.coerce(target, along.at(axis))
    update = part.coerce(update, along.at(axes[axis]))
    outs = bind(eqn, [target.array, indices.array, update.array])
    return [Value(along.at(axis), o) for o in outs]


def _dot(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    contracted, batched = eqn.params["dimension_numbers"]
    side = next(i for i in (0, 1) if isinstance(values[i].state, Along))
    along, other = values[side].state, values[1 - side]
    assert isinstance(along, Along)
    pair = list(values)
    for axes, state in ((contracted, "sum"), (batched, None)):
        if along.axis not in axes[side]:
            continue
        place = list(axes[side]).index(along.axis)
        pair[1 - side] = part.coerce(other, along.at(axes[1 - side][place]))
        outs = bind(eqn, [v.array for v in pair])
        return [Value(state or along.at(place), o) for o in outs]
    if other.state is not None:
        raise MixesBatchError("a product compares rows of the batch")
    # The result has the batch axes, then those of the left that are left, then
    # those of the right.
    free = [
        [
            a
            for a in range(shape_of(v).ndim)
            if a not in contracted[i] and a not in batched[i]
        ]
        for i, v in enumerate(eqn.invars)
    ]
    axis = len(batched[0]) + free[side].index(along.axis) + side * len(free[0])
    return [Value(along.at(axis), o) for o in bind(eqn, [v.array for v in values])]


def _gather(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    operand, indices = values
    p, n = eqn.params, eqn.params["dimension_numbers"]
    out_ndim = shape_of(eqn.outvars[0]).ndim
    not_offset = [a for a in range(out_ndim) if a not in n.offset_dims]
    at = operand.state
    if at is None:
        along = indices.state
        assert isinstance(along, Along)
        if along.axis == shape_of(eqn.invars[1]).ndim - 1:
            raise MixesBatchError("a gather is indexed by the batch")
        if along.axis in n.start_indices_batching_dims:
            place = list(n.start_indices_batching_dims).index(along.axis)
            operand = part.coerce(operand, along.at(n.operand_batching_dims[place]))
        state = along.at(not_offset[along.axis])
        return [Value(state, o) for o in bind(eqn, [operand.array, indices.array])]
    assert isinstance(at, Along)
    if at.axis in n.operand_batching_dims:
        place = list(n.operand_batching_dims).index(at.axis)
        axis = n.start_indices_batching_dims[place]
        indices = part.coerce(indices, at.at(axis))
        state = at.at(not_offset[axis])
        return [Value(state, o) for o in bind(eqn, [operand.array, indices.array])]
    if at.axis in n.collapsed_slice_dims:
        return _gather_own_rows(part, graph, eqn, operand, indices)
    if indices.state is not None:
        raise MixesBatchError("a gather compares rows of the batch")
    if p["slice_sizes"][at.axis] != shape_of(eqn.invars[0]).shape[at.axis]:
        raise MixesBatchError("a gather leaves out rows of the batch")
    kept = [
        a
        for a in range(shape_of(eqn.invars[0]).ndim)
        if a not in n.collapsed_slice_dims and a not in n.operand_batching_dims
    ]
    axis = n.offset_dims[kept.index(at.axis)]
    sizes = part.shorten(p["slice_sizes"], at)
    arrays = [operand.array, indices.array]
    return [Value(at.at(axis), o) for o in bind(eqn, arrays, slice_sizes=sizes)]


def _gather_own_rows(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, operand: Value, indices: Value
) -> list[Value]:
    """`x[arange(batch), y]`: each row of the batch reads from itself."""
    n, at = eqn.params["dimension_numbers"], operand.state
    assert isinstance(at, Along)
    column = list(n.start_index_map).index(at.axis)
    shape = shape_of(eqn.invars[1]).shape
    found = _constant_column(graph, eqn.invars[1], column)
    if found is None or at != Along(at.axis):
        raise MixesBatchError("a gather picks rows of the batch")
    for axis in range(len(shape) - 1):
        view = [1] * (len(shape) - 1)
        view[axis] = -1
        if shape[axis] == part.batch and np.array_equal(
            np.broadcast_to(np.arange(part.batch).reshape(view), shape[:-1]),
            np.broadcast_to(found, shape[:-1]),
        ):
            break
    else:
        raise MixesBatchError("a gather picks rows of the batch")
    indices = part.coerce(indices, Along(axis))
    row = lax.broadcasted_iota(indices.array.dtype, indices.array.shape, axis)
    is_row = np.arange(shape[-1]) == column
    arrays = [operand.array, jnp.where(is_row, row, indices.array)]
    not_offset = [
        a for a in range(shape_of(eqn.outvars[0]).ndim) if a not in n.offset_dims
    ]
    return [Value(Along(not_offset[axis]), o) for o in bind(eqn, arrays)]


_OF_FIRST: dict[str, Callable[[BatchRows, JaxprEqn, Along], Change]] = {
    **dict.fromkeys(_REDUCTIONS.split(), _reduction),
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _convolution,
    "dynamic_slice": _dynamic_slice,
    "fast_convolution": _convolution,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _reverse,
    "sharding_constraint": _constrain,
    "slice": _slice,
    "squeeze": _squeeze,
    "transpose": _transpose,
}
_OF_ALL: dict[str, Callable[[JaxprEqn, Along], State]] = {
    **dict.fromkeys(_ONE_AXIS, _one_axis),
    **dict.fromkeys([*_TRAILING, "fft"], _trailing),
    **dict.fromkeys(_WINDOWS.split(), _window),
    "stack": _stack,
    "tile": _tile,
    "unstack": _unstack,
}
_OF_SEVERAL: dict[
    str, Callable[[BatchRows, Graph, JaxprEqn, Sequence[Value]], list[Value]]
] = {
    "device_put": _device_put,
    "dot_general": _dot,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "optimization_barrier": _barrier,
    "pmax": _collective,
    "pmin": _collective,
    "psum": _collective,
    "psum_invariant": _collective,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "triangular_solve": _triangular_solve,
}


def bind(eqn: JaxprEqn, arrays: Sequence[Any], **changed: Any) -> list[Any]:
    """Run an operation on these arrays, with some parameters changed.

    Raises:
        MixesBatchError: the shapes do not belong together, as those of some parts.
    """
    if changed:
        eqn = eqn.replace(params=eqn.params | changed)
    params = eqn.primitive.get_bind_params(eqn.params)
    if isinstance(params, tuple):
        subfuns, params = params
        arrays = [*subfuns, *arrays]
    try:
        outs = eqn.primitive.bind(*arrays, **params)
    except (TypeError, ValueError) as e:
        raise MixesBatchError(f"{eqn.primitive.name} takes no parts: {e}") from e
    return list(outs) if eqn.primitive.multiple_results else [outs]


def _constant_column(graph: Graph, indices: Any, column: int) -> Any:
    """One column of a gather's indices, if it depends on no input of the program."""
    try:
        eqn = graph.eqns[graph.defined_at[indices]]
        if eqn.primitive.name == "concatenate":
            for part in eqn.invars:
                if column < shape_of(part).shape[-1]:
                    return _constant(graph, part)[..., column]
                column -= shape_of(part).shape[-1]
        return _constant(graph, indices)[..., column]
    except (KeyError, MixesBatchError):
        return None


def _constant(graph: Graph, atom: Any) -> Any:
    if not variables([atom]):
        return np.asarray(atom.val)
    place = graph.defined_at[atom]
    if place < 0:
        raise MixesBatchError("the value depends on an input")
    eqn = graph.eqns[place]
    arrays = [_constant(graph, a) for a in eqn.invars]
    with jax.ensure_compile_time_eval():
        outs = bind(eqn, list(map(jnp.asarray, arrays)))
    return np.asarray(outs[eqn.outvars.index(atom)])
