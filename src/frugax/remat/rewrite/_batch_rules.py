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
add add_any broadcast_in_dim concatenate convert_element_type copy copy_p neg reduce_sum
reshape rev sharding_constraint slice squeeze sub transpose
"""
_LINEAR = frozenset(_LINEAR_NAMES.split())
_REDUCTIONS = frozenset(
    f"reduce_{name}" for name in ("and", "max", "min", "or", "prod", "sum", "xor")
) | {"argmax", "argmin"}
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
_WINDOWS = frozenset(f"reduce_window_{name}" for name in ("max", "min", "sum")) | {
    "select_and_gather_add",
    "select_and_scatter_add",
}
# Operations on the last axes, for each place of the leading ones; the number of these.
_TRAILING = {"cholesky": 2, "eigh": 2, "householder_product": 2, "lu": 2, "qr": 2} | {
    "svd": 2,
    "triangular_solve": 2,
    "top_k": 1,
}


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


def apply_rule(
    part: BatchRows, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    """Run an operation on arrays, some of which lie along the batch."""
    name = eqn.primitive.name
    if any(v.state == "sum" for v in values):
        return _sums(part, eqn, values)
    rule = _RULES.get(name)
    if name in _ELEMENTWISE or name == "optimization_barrier":
        rule = _elementwise
    elif name in _REDUCTIONS:
        rule = _reduction
    elif name in _ONE_AXIS:
        rule = _one_axis
    elif name in _WINDOWS:
        rule = _window
    elif name in _TRAILING or name == "fft":
        rule = _trailing
    if name == "gather":
        return _gather(part, graph, eqn, values)
    if rule is None:
        raise MixesBatchError(f"{name} is not known to keep rows apart")
    return rule(part, eqn, values)


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
    if eqn.primitive.name == "optimization_barrier":
        outs = bind(eqn, [v.array for v in values])
        return [Value(v.state, o) for v, o in zip(values, outs, strict=True)]
    along = _along_of(values)
    same: list[Value] = []
    for v, atom in zip(values, eqn.invars, strict=True):
        # A scalar, or an axis of length 1, holds for all rows.
        holds = not shape_of(atom).ndim or shape_of(atom).shape[along.axis] == 1
        same.append(v if v.state is None and holds else part.coerce(v, along))
    return [Value(along, o) for o in bind(eqn, [v.array for v in same])]


def _reduction(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    (value,) = values
    along, axes, name = value.state, eqn.params["axes"], eqn.primitive.name
    assert isinstance(along, Along)
    outs = bind(eqn, [value.array])
    if along.axis in axes:
        if name != "reduce_sum":
            raise MixesBatchError(f"{name} is taken over the batch")
        return [Value("sum", o) for o in outs]
    before = sum(a < along.axis for a in axes)
    state = dataclasses.replace(along, axis=along.axis - before)
    return [Value(state, o) for o in outs]


def _collective(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    """Over named axes of devices, or over an axis of the array that `vmap` named."""
    own = [axis for axis in eqn.params["axes"] if isinstance(axis, int)]
    if not own:
        return _elementwise(part, eqn, values)
    along, name = _along_of(values), eqn.primitive.name
    if along.axis in own and name != "psum":
        raise MixesBatchError(f"{name} is taken over the batch")
    arrays = [part.coerce(v, along).array for v in values]
    outs = bind(eqn, arrays)
    if along.axis in own:
        return [Value("sum", o) for o in outs]
    before = sum(axis < along.axis for axis in own)
    state = dataclasses.replace(along, axis=along.axis - before)
    return [Value(state, o) for o in outs]


def _one_axis(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along = _along_of(values)
    name = eqn.primitive.name
    if eqn.params[_ONE_AXIS[name]] == along.axis:
        raise MixesBatchError(f"{name} goes along the batch")
    arrays = [part.coerce(v, along).array for v in values]
    return [Value(along, o) for o in bind(eqn, arrays)]


def _trailing(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    name = eqn.primitive.name
    own = _TRAILING[name] if name in _TRAILING else len(eqn.params["fft_lengths"])
    along = _along_of(values)
    if along.axis >= shape_of(eqn.invars[0]).ndim - own:
        raise MixesBatchError(f"{name} goes along the batch")
    arrays = [part.coerce(v, along).array for v in values]
    return [Value(along, o) for o in bind(eqn, arrays)]


def _window(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along = _along_of(values)
    p, axis = eqn.params, along.axis
    sizes = [p["window_dimensions"][axis], p["window_strides"][axis]]
    sizes += [p.get(n, {axis: 1})[axis] for n in ("base_dilation",)]
    if set(sizes) != {1} or tuple(p["padding"][axis]) != (0, 0):
        raise MixesBatchError("a window goes along the batch")
    arrays = [part.coerce(v, along).array for v in values]
    return [Value(along, o) for o in bind(eqn, arrays)]


def _constrain(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    (value,) = values
    try:
        eqn.params["sharding"].shard_shape(value.array.shape)
    except ValueError as e:
        raise MixesBatchError("a part cannot be sharded like the batch") from e
    return [Value(value.state, o) for o in bind(eqn, [value.array])]


def _broadcast(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along = values[0].state
    assert isinstance(along, Along)
    axis = eqn.params["broadcast_dimensions"][along.axis]
    state = dataclasses.replace(along, axis=axis)
    shape = part.shorten(eqn.params["shape"], state)
    outs = bind(eqn, [v.array for v in values], shape=shape)
    return [Value(state, o) for o in outs]


def _reshape(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along = values[0].state
    assert isinstance(along, Along)
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
        shape = part.shorten(new, state)
        outs = bind(eqn, [values[0].array], new_sizes=shape)
        return [Value(state, o) for o in outs]
    raise MixesBatchError("a reshape tears rows of the batch apart")


def _transpose(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along = values[0].state
    assert isinstance(along, Along)
    axis = eqn.params["permutation"].index(along.axis)
    outs = bind(eqn, [values[0].array])
    return [Value(dataclasses.replace(along, axis=axis), o) for o in outs]


def _squeeze(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along = values[0].state
    assert isinstance(along, Along)
    axis = along.axis - sum(d < along.axis for d in eqn.params["dimensions"])
    outs = bind(eqn, [values[0].array])
    return [Value(dataclasses.replace(along, axis=axis), o) for o in outs]


def _reverse(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along = values[0].state
    assert isinstance(along, Along)
    if along.axis in eqn.params["dimensions"]:
        raise MixesBatchError("the batch is reversed")
    return [Value(along, o) for o in bind(eqn, [values[0].array])]


def _slice(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along, p = values[0].state, eqn.params
    assert isinstance(along, Along)
    axis, length = along.axis, shape_of(eqn.invars[0]).shape[along.axis]
    stride = 1 if p["strides"] is None else p["strides"][axis]
    if (p["start_indices"][axis], p["limit_indices"][axis], stride) != (
        0,
        length,
        1,
    ):
        raise MixesBatchError("rows of the batch are left out")
    limits = part.shorten(p["limit_indices"], along)
    outs = bind(eqn, [values[0].array], limit_indices=limits)
    return [Value(along, o) for o in outs]


def _dynamic_slice(
    part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    along, sizes = values[0].state, eqn.params["slice_sizes"]
    if not isinstance(along, Along) or any(v.state is not None for v in values[1:]):
        raise MixesBatchError("the place of a slice depends on the batch")
    if sizes[along.axis] != shape_of(eqn.invars[0]).shape[along.axis]:
        raise MixesBatchError("rows of the batch are left out")
    sizes = part.shorten(sizes, along)
    outs = bind(eqn, [v.array for v in values], slice_sizes=sizes)
    return [Value(along, o) for o in outs]


def _dynamic_update_slice(
    part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]
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


def _scatter(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    """Windows that hold all rows of the batch are replaced, or added to."""
    target, indices, update = values
    if indices.state is not None:
        raise MixesBatchError("the place of a scatter depends on the batch")
    n = eqn.params["dimension_numbers"]
    whole, new = shape_of(eqn.invars[0]).shape, shape_of(eqn.invars[2]).shape
    left_out = {*n.inserted_window_dims, *n.operand_batching_dims}
    inside = [a for a in range(len(whole)) if a not in left_out]
    # The axes of the windows, in the target and in the update.
    axes = dict(zip(inside, n.update_window_dims, strict=True))
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
    state = dataclasses.replace(along, axis=axis)
    target = part.coerce(target, state)
    update = part.coerce(update, dataclasses.replace(along, axis=axes[axis]))
    outs = bind(eqn, [target.array, indices.array, update.array])
    return [Value(state, o) for o in outs]


def _pad(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    along, fill = values[0].state, values[1].state
    if not isinstance(along, Along) or fill is not None:
        raise MixesBatchError("padding depends on the batch")
    if tuple(eqn.params["padding_config"][along.axis]) != (0, 0, 0):
        raise MixesBatchError("the batch is padded")
    return [Value(along, o) for o in bind(eqn, [v.array for v in values])]


def _dot(part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
    contracted, batched = eqn.params["dimension_numbers"]
    side = next(i for i in (0, 1) if isinstance(values[i].state, Along))
    along, other = values[side].state, values[1 - side]
    assert isinstance(along, Along)
    pair = list(values)
    for axes, state in ((contracted, "sum"), (batched, None)):
        if along.axis not in axes[side]:
            continue
        place = list(axes[side]).index(along.axis)
        partner = dataclasses.replace(along, axis=axes[1 - side][place])
        pair[1 - side] = part.coerce(other, partner)
        if state is None:
            state = dataclasses.replace(along, axis=place)
        outs = bind(eqn, [v.array for v in pair])
        return [Value(state, o) for o in outs]
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
    state = dataclasses.replace(along, axis=axis)
    return [Value(state, o) for o in bind(eqn, [v.array for v in values])]


def _convolution(
    part: BatchRows, eqn: JaxprEqn, values: Sequence[Value]
) -> list[Value]:
    data, kernel = values
    numbers = eqn.params["dimension_numbers"]
    along = data.state
    if (
        kernel.state is not None
        or not isinstance(along, Along)
        or along.axis != numbers.lhs_spec[0]
        or eqn.params["batch_group_count"] != 1
    ):
        raise MixesBatchError("a convolution mixes rows of the batch")
    state = dataclasses.replace(along, axis=numbers.out_spec[0])
    return [Value(state, o) for o in bind(eqn, [data.array, kernel.array])]


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
            partner = dataclasses.replace(along, axis=n.operand_batching_dims[place])
            operand = part.coerce(operand, partner)
        state = dataclasses.replace(along, axis=not_offset[along.axis])
        return [Value(state, o) for o in bind(eqn, [operand.array, indices.array])]
    assert isinstance(at, Along)
    if at.axis in n.operand_batching_dims:
        place = list(n.operand_batching_dims).index(at.axis)
        axis = n.start_indices_batching_dims[place]
        indices = part.coerce(indices, dataclasses.replace(at, axis=axis))
        state = dataclasses.replace(at, axis=not_offset[axis])
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
    state = dataclasses.replace(at, axis=axis)
    arrays = [operand.array, indices.array]
    return [Value(state, o) for o in bind(eqn, arrays, slice_sizes=sizes)]


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


_RULES: dict[str, Callable[[BatchRows, JaxprEqn, Sequence[Value]], list[Value]]] = {
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "fast_convolution": _convolution,
    "pad": _pad,
    "pmax": _collective,
    "pmin": _collective,
    "psum": _collective,
    "psum_invariant": _collective,
    "reshape": _reshape,
    "rev": _reverse,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "sharding_constraint": _constrain,
    "slice": _slice,
    "squeeze": _squeeze,
    "transpose": _transpose,
}


def _along_of(values: Sequence[Value]) -> Along:
    return next(v.state for v in values if isinstance(v.state, Along))


def bind(eqn: JaxprEqn, arrays: Sequence[Any], **changed: Any) -> list[Any]:
    """Run an operation on these arrays, with some parameters changed."""
    if changed:
        eqn = eqn.replace(params=eqn.params | changed)
    params = eqn.primitive.get_bind_params(eqn.params)
    if isinstance(params, tuple):
        subfuns, params = params
        arrays = [*subfuns, *arrays]
    outs = eqn.primitive.bind(*arrays, **params)
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
