"""Follow the batch axis through a traced loss, and run it on a part of the batch.

Each value either is the same for every part of the batch, or lies along the batch in
one of its axes, or is a sum over the batch of which a part of the batch gives one term.
The rules below say which of these the result of an operation is. An operation that
mixes rows of the batch in any other way, such as batch normalisation in training or a
matrix of similarities between rows, raises `MixesBatchError`: nothing is guessed.

The rules are those of `jax.vmap` read backwards: `vmap` adds an axis to a program, and
here an axis that the program has is made shorter.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.jaxprs import (
    ClosedJaxpr,
    Graph,
    JaxprEqn,
    Var,
    jaxpr_as_fun,
    shape_of,
    split_scan,
    trace,
    user_context,
    variables,
)


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
pmax pmin polygamma pow psum psum_invariant pvary real
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
_CALLS = {"closed_call": "call_jaxpr", "core_call": "call_jaxpr"} | {
    "jit": "jaxpr",
    "pjit": "jaxpr",
}


class BatchPart:
    """Runs operations on one of several equal parts of the batch.

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
        self._keeps_rules = True

    def _inside_rule(self, index: Any) -> "BatchPart":
        count = self.batch // self.part
        part = BatchPart(self.batch, count, index, is_spread=self.is_spread)
        part._keeps_rules = False
        return part

    def run(
        self, graph: Graph, eqns: Sequence[JaxprEqn], env: dict[Var, Value]
    ) -> None:
        """Run operations of a graph, adding their results to `env`."""
        for eqn in eqns:
            values = [_read(env, a) for a in eqn.invars]
            # As the user's own line, so that `measure.peak` names it.
            with user_context(eqn.source_info.traceback):
                outs = self._apply(graph, eqn, values)
            env |= zip(eqn.outvars, outs, strict=True)

    def call(self, program: Any, values: Sequence[Value]) -> list[Value]:
        """Run a whole program, such as the body of a loop."""
        inner = trace(jaxpr_as_fun(program), list(map(shape_of, program.jaxpr.invars)))
        env = {
            v: Value(None, c)
            for v, c in zip(inner.consts, inner.const_values, strict=True)
        }
        env |= zip(inner.args, values, strict=True)
        self.run(inner, inner.eqns, env)
        return [_read(env, a) for a in inner.outputs]

    def coerce(self, value: Value, state: State) -> Value:
        """The same value in another state, if that is possible.

        Raises:
            MixesBatchError: it is not.
        """
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
        """This part's rows of a whole array.

        Raises:
            MixesBatchError: the array does not lie along the batch there.
        """
        axis, shape = along.axis, array.shape
        rows = self.batch * along.inner
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
            return part.reshape(*shape[:axis], -1, *shape[axis + 1 :])
        start = self.index * (self.part * along.inner)
        if along.outer == 1:
            return lax.dynamic_slice_in_dim(array, start, self.part * along.inner, axis)
        split = array.reshape(*shape[:axis], along.outer, rows, *shape[axis + 1 :])
        part = lax.dynamic_slice_in_dim(split, start, self.part * along.inner, axis + 1)
        return part.reshape(*shape[:axis], -1, *shape[axis + 1 :])

    def _shorten(self, shape: Sequence[int], along: Along) -> tuple[int, ...]:
        length = along.outer * self.part * along.inner
        return (*shape[: along.axis], length, *shape[along.axis + 1 :])

    def _apply(
        self, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
    ) -> list[Value]:
        name = eqn.primitive.name
        if eqn.effects and name not in _CALLS:
            raise MixesBatchError(f"{name} has a side effect")
        if all(v.state is None for v in values):
            return [Value(None, o) for o in _bind(eqn, [v.array for v in values])]
        if name in _CALLS:
            return self.call(eqn.params[_CALLS[name]], values)
        if name == "scan":
            return self._scan(eqn, values)
        if name == "cond":
            return self._cond(eqn, values)
        if name == "remat2" or name == "checkpoint":
            return self._checkpoint(eqn, values)
        if name.startswith("custom_"):
            return self._custom_rule(eqn, values)
        if any(v.state == "sum" for v in values):
            return self._sums(eqn, values)
        rule = _RULES.get(name)
        if name in _ELEMENTWISE or name == "optimization_barrier":
            rule = BatchPart._elementwise
        elif name in _REDUCTIONS:
            rule = BatchPart._reduction
        elif name in _ONE_AXIS:
            rule = BatchPart._one_axis
        elif name in _WINDOWS:
            rule = BatchPart._window
        elif name in _TRAILING or name == "fft":
            rule = BatchPart._trailing
        if name == "gather":
            return self._gather(graph, eqn, values)
        if rule is None:
            raise MixesBatchError(f"{name} is not known to keep rows apart")
        return rule(self, eqn, values)

    def _sums(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
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
            arrays = [self.coerce(v, "sum").array for v in values]
        elif not scales:
            raise MixesBatchError(f"{name} is not linear in a sum over the batch")
        return [Value("sum", o) for o in _bind(eqn, arrays)]

    def _elementwise(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        if eqn.primitive.name == "optimization_barrier":
            outs = _bind(eqn, [v.array for v in values])
            return [Value(v.state, o) for v, o in zip(values, outs, strict=True)]
        along = _along_of(values)
        same: list[Value] = []
        for v, atom in zip(values, eqn.invars, strict=True):
            # A scalar, or an axis of length 1, holds for all rows.
            holds = not shape_of(atom).ndim or shape_of(atom).shape[along.axis] == 1
            same.append(v if v.state is None and holds else self.coerce(v, along))
        return [Value(along, o) for o in _bind(eqn, [v.array for v in same])]

    def _reduction(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        (value,) = values
        along, axes, name = value.state, eqn.params["axes"], eqn.primitive.name
        assert isinstance(along, Along)
        outs = _bind(eqn, [value.array])
        if along.axis in axes:
            if name != "reduce_sum":
                raise MixesBatchError(f"{name} is taken over the batch")
            return [Value("sum", o) for o in outs]
        before = sum(a < along.axis for a in axes)
        state = dataclasses.replace(along, axis=along.axis - before)
        return [Value(state, o) for o in outs]

    def _one_axis(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along = _along_of(values)
        name = eqn.primitive.name
        if eqn.params[_ONE_AXIS[name]] == along.axis:
            raise MixesBatchError(f"{name} goes along the batch")
        arrays = [self.coerce(v, along).array for v in values]
        return [Value(along, o) for o in _bind(eqn, arrays)]

    def _trailing(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        name = eqn.primitive.name
        own = _TRAILING[name] if name in _TRAILING else len(eqn.params["fft_lengths"])
        along = _along_of(values)
        if along.axis >= shape_of(eqn.invars[0]).ndim - own:
            raise MixesBatchError(f"{name} goes along the batch")
        arrays = [self.coerce(v, along).array for v in values]
        return [Value(along, o) for o in _bind(eqn, arrays)]

    def _window(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along = _along_of(values)
        p, axis = eqn.params, along.axis
        sizes = [p["window_dimensions"][axis], p["window_strides"][axis]]
        sizes += [p.get(n, {axis: 1})[axis] for n in ("base_dilation",)]
        if set(sizes) != {1} or tuple(p["padding"][axis]) != (0, 0):
            raise MixesBatchError("a window goes along the batch")
        arrays = [self.coerce(v, along).array for v in values]
        return [Value(along, o) for o in _bind(eqn, arrays)]

    def _constrain(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        (value,) = values
        try:
            eqn.params["sharding"].shard_shape(value.array.shape)
        except ValueError as e:
            raise MixesBatchError("a part cannot be sharded like the batch") from e
        return [Value(value.state, o) for o in _bind(eqn, [value.array])]

    def _broadcast(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along = values[0].state
        assert isinstance(along, Along)
        axis = eqn.params["broadcast_dimensions"][along.axis]
        state = dataclasses.replace(along, axis=axis)
        shape = self._shorten(eqn.params["shape"], state)
        outs = _bind(eqn, [v.array for v in values], shape=shape)
        return [Value(state, o) for o in outs]

    def _reshape(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along = values[0].state
        assert isinstance(along, Along)
        old, new = shape_of(eqn.invars[0]).shape, eqn.params["new_sizes"]
        if eqn.params.get("dimensions") is not None:
            raise MixesBatchError("a reshape also transposes")
        # Flattened, the batch repeats `before` times, and each row has `after` numbers.
        before = math.prod(old[: along.axis]) * along.outer
        for axis, length in enumerate(new):
            prefix = math.prod(new[:axis])
            if (
                not prefix
                or before % prefix
                or length % (before // prefix * self.batch)
            ):
                continue
            outer = before // prefix
            state = Along(axis, outer, length // (outer * self.batch))
            shape = self._shorten(new, state)
            outs = _bind(eqn, [values[0].array], new_sizes=shape)
            return [Value(state, o) for o in outs]
        raise MixesBatchError("a reshape tears rows of the batch apart")

    def _transpose(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along = values[0].state
        assert isinstance(along, Along)
        axis = eqn.params["permutation"].index(along.axis)
        outs = _bind(eqn, [values[0].array])
        return [Value(dataclasses.replace(along, axis=axis), o) for o in outs]

    def _squeeze(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along = values[0].state
        assert isinstance(along, Along)
        axis = along.axis - sum(d < along.axis for d in eqn.params["dimensions"])
        outs = _bind(eqn, [values[0].array])
        return [Value(dataclasses.replace(along, axis=axis), o) for o in outs]

    def _reverse(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along = values[0].state
        assert isinstance(along, Along)
        if along.axis in eqn.params["dimensions"]:
            raise MixesBatchError("the batch is reversed")
        return [Value(along, o) for o in _bind(eqn, [values[0].array])]

    def _slice(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
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
        limits = self._shorten(p["limit_indices"], along)
        outs = _bind(eqn, [values[0].array], limit_indices=limits)
        return [Value(along, o) for o in outs]

    def _dynamic_slice(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along, sizes = values[0].state, eqn.params["slice_sizes"]
        if not isinstance(along, Along) or any(v.state is not None for v in values[1:]):
            raise MixesBatchError("the place of a slice depends on the batch")
        if sizes[along.axis] != shape_of(eqn.invars[0]).shape[along.axis]:
            raise MixesBatchError("rows of the batch are left out")
        sizes = self._shorten(sizes, along)
        outs = _bind(eqn, [v.array for v in values], slice_sizes=sizes)
        return [Value(along, o) for o in outs]

    def _dynamic_update_slice(
        self, eqn: JaxprEqn, values: Sequence[Value]
    ) -> list[Value]:
        target, update, *starts = values
        if any(v.state is not None for v in starts):
            raise MixesBatchError("the place of a slice depends on the batch")
        along = next(v.state for v in (target, update) if isinstance(v.state, Along))
        whole, new = (shape_of(v).shape[along.axis] for v in eqn.invars[:2])
        if whole != new:
            raise MixesBatchError("some rows of the batch are replaced")
        pair = [self.coerce(v, along) for v in (target, update)]
        outs = _bind(eqn, [v.array for v in (*pair, *starts)])
        return [Value(along, o) for o in outs]

    def _pad(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        along, fill = values[0].state, values[1].state
        if not isinstance(along, Along) or fill is not None:
            raise MixesBatchError("padding depends on the batch")
        if tuple(eqn.params["padding_config"][along.axis]) != (0, 0, 0):
            raise MixesBatchError("the batch is padded")
        return [Value(along, o) for o in _bind(eqn, [v.array for v in values])]

    def _dot(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
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
            pair[1 - side] = self.coerce(other, partner)
            if state is None:
                state = dataclasses.replace(along, axis=place)
            outs = _bind(eqn, [v.array for v in pair])
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
        return [Value(state, o) for o in _bind(eqn, [v.array for v in values])]

    def _convolution(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
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
        return [Value(state, o) for o in _bind(eqn, [data.array, kernel.array])]

    def _gather(
        self, graph: Graph, eqn: JaxprEqn, values: Sequence[Value]
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
                partner = dataclasses.replace(
                    along, axis=n.operand_batching_dims[place]
                )
                operand = self.coerce(operand, partner)
            state = dataclasses.replace(along, axis=not_offset[along.axis])
            return [Value(state, o) for o in _bind(eqn, [operand.array, indices.array])]
        assert isinstance(at, Along)
        if at.axis in n.operand_batching_dims:
            place = list(n.operand_batching_dims).index(at.axis)
            axis = n.start_indices_batching_dims[place]
            indices = self.coerce(indices, dataclasses.replace(at, axis=axis))
            state = dataclasses.replace(at, axis=not_offset[axis])
            return [Value(state, o) for o in _bind(eqn, [operand.array, indices.array])]
        if at.axis in n.collapsed_slice_dims:
            return self._gather_own_rows(graph, eqn, operand, indices)
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
        sizes = self._shorten(p["slice_sizes"], at)
        state = dataclasses.replace(at, axis=axis)
        arrays = [operand.array, indices.array]
        return [Value(state, o) for o in _bind(eqn, arrays, slice_sizes=sizes)]

    def _gather_own_rows(
        self, graph: Graph, eqn: JaxprEqn, operand: Value, indices: Value
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
            if shape[axis] == self.batch and np.array_equal(
                np.broadcast_to(np.arange(self.batch).reshape(view), shape[:-1]),
                np.broadcast_to(found, shape[:-1]),
            ):
                break
        else:
            raise MixesBatchError("a gather picks rows of the batch")
        indices = self.coerce(indices, Along(axis))
        row = lax.broadcasted_iota(indices.array.dtype, indices.array.shape, axis)
        is_row = np.arange(shape[-1]) == column
        arrays = [operand.array, jnp.where(is_row, row, indices.array)]
        not_offset = [
            a for a in range(shape_of(eqn.outvars[0]).ndim) if a not in n.offset_dims
        ]
        return [Value(Along(not_offset[axis]), o) for o in _bind(eqn, arrays)]

    def _scan(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        num_consts, num_carry = split_scan(eqn)
        body, p = eqn.params["jaxpr"], eqn.params
        consts = list(values[:num_consts])
        carry = list(values[num_consts : num_consts + num_carry])
        xs = list(values[num_consts + num_carry :])
        shift = lambda s, by: (
            dataclasses.replace(s, axis=s.axis + by) if isinstance(s, Along) else s
        )
        for x in xs:
            if x.state == "sum" or (isinstance(x.state, Along) and not x.state.axis):
                raise MixesBatchError("a loop goes over the batch")
        inner_states = [shift(x.state, -1) for x in xs]

        def run(states: Sequence[State], carry: Any, x: Any) -> list[Value]:
            inputs = [
                *consts,
                *map(Value, states, carry),
                *map(Value, inner_states, x),
            ]
            return self.call(body, inputs)

        # A carry that starts the same for all rows may come to depend on them.
        states = [v.state for v in carry]
        seen: list[State] = []
        for _ in range(num_carry + 1):
            seen = []

            def probe(
                carry: Any, x: Any, states: Any = states, seen: Any = seen
            ) -> Any:
                outs = run(states, carry, x)
                seen[:] = [o.state for o in outs]
                return [o.array for o in outs]

            start = [self.coerce(v, s) for v, s in zip(carry, states, strict=True)]
            first = [jax.ShapeDtypeStruct(x.array.shape[1:], x.array.dtype) for x in xs]
            jax.eval_shape(probe, [v.array for v in start], first)
            joined = [n if o is None else o for o, n in zip(states, seen, strict=False)]
            if joined == states:
                break
            states = joined

        def step(carry: Any, x: Any) -> Any:
            outs = run(states, carry, x)
            new = [self.coerce(v, s) for v, s in zip(outs, states, strict=False)]
            return [v.array for v in new], [v.array for v in outs[num_carry:]]

        start = [self.coerce(v, s).array for v, s in zip(carry, states, strict=True)]
        end, ys = lax.scan(
            step,
            start,
            [x.array for x in xs],
            p["length"],
            reverse=p["reverse"],
            unroll=p["unroll"],
        )
        y_states = [shift(s, 1) for s in seen[num_carry:]]
        return [*map(Value, states, end), *map(Value, y_states, ys)]

    def _cond(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        index, *rest = values
        if index.state is not None:
            raise MixesBatchError("a branch depends on the batch")
        branches, states = eqn.params["branches"], []
        for b in branches:
            seen: list[State] = []

            def probe(*arrays: Any, b: Any = b, seen: Any = seen) -> Any:
                outs = self.call(
                    b, [Value(v.state, a) for v, a in zip(rest, arrays, strict=False)]
                )
                seen[:] = [o.state for o in outs]
                return [o.array for o in outs]

            jax.eval_shape(probe, *(v.array for v in rest))
            states.append(seen)
        joined = [
            next((s for s in each if s), None) for each in zip(*states, strict=False)
        ]

        def branch(b: Any) -> Callable[..., Any]:
            def run(*arrays: Any) -> Any:
                outs = self.call(
                    b, [Value(v.state, a) for v, a in zip(rest, arrays, strict=False)]
                )
                pairs = zip(outs, joined, strict=True)
                return [self.coerce(o, s).array for o, s in pairs]

            return run

        outs = lax.switch(
            index.array, [branch(b) for b in branches], *(v.array for v in rest)
        )
        return list(map(Value, joined, outs))

    def _checkpoint(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        seen: list[State] = []
        states = [v.state for v in values]
        body = eqn.params["jaxpr"]
        closed = ClosedJaxpr(body, ())

        def run(*arrays: Any) -> Any:
            outs = self.call(closed, list(map(Value, states, arrays)))
            seen[:] = [o.state for o in outs]
            return [o.array for o in outs]

        policy, cse = eqn.params["policy"], eqn.params["prevent_cse"]
        run = jax.checkpoint(run, policy=policy, prevent_cse=cse)
        outs = run(*(v.array for v in values))
        return list(map(Value, seen, outs))

    def _custom_rule(self, eqn: JaxprEqn, values: Sequence[Value]) -> list[Value]:
        """An operation with a rule of its own, which is traced at the full batch."""
        if not self._keeps_rules:
            # Nothing inside of a rule is differentiated by reverse mode once more, and
            # a rule may call its own function.
            return self.call(eqn.params["call_jaxpr"], values)
        shapes = list(map(shape_of, eqn.invars))
        moved = [
            i for i, s in enumerate(shapes) if jnp.issubdtype(s.dtype, jnp.inexact)
        ]
        floats = [
            i
            for i, v in enumerate(eqn.outvars)
            if jnp.issubdtype(shape_of(v).dtype, jnp.inexact)
        ]

        def forward_and_back(xs: Any, cotangents: Any) -> Any:
            def split(*some: Any) -> Any:
                full = list(xs)
                for i, x in zip(moved, some, strict=True):
                    full[i] = x
                outs = _bind(eqn, full)
                rest = [o for i, o in enumerate(outs) if i not in floats]
                return [outs[i] for i in floats], rest

            outs, pull, rest = jax.vjp(split, *(xs[i] for i in moved), has_aux=True)
            return outs, rest, list(pull(cotangents))

        given = [shape_of(eqn.outvars[i]) for i in floats]
        graph = trace(forward_and_back, (shapes, given))
        xs, cotangents = graph.args[: len(shapes)], graph.args[len(shapes) :]
        back = set(cotangents)
        forward_eqns, back_eqns = [], []
        for e in graph.eqns:
            if back & set(variables(e.invars)):
                back |= set(e.outvars)
                back_eqns.append(e)
            else:
                forward_eqns.append(e)
        read = {v for e in back_eqns for v in variables(e.invars)}
        read |= set(variables(graph.outputs[len(eqn.outvars) :]))
        residuals = [
            v for v in dict.fromkeys(graph.defined_at) if v in read and v not in back
        ]
        residuals = [v for v in residuals if v not in graph.consts]
        states = [v.state for v in values]
        out_states: list[State] = []
        residual_states: list[State] = []
        consts = {
            v: Value(None, c)
            for v, c in zip(graph.consts, graph.const_values, strict=True)
        }

        # The index is handed on and not closed over: the backward rule may run when
        # the loop that holds it is traced again.
        def forward(index: Any, *arrays: Any) -> Any:
            env = consts | dict(zip(xs, map(Value, states, arrays), strict=True))
            self._inside_rule(index).run(graph, forward_eqns, env)
            outs = [_read(env, a) for a in graph.outputs[: len(eqn.outvars)]]
            out_states[:] = [o.state for o in outs]
            residual_states[:] = [env[v].state for v in residuals]
            return [o.array for o in outs], (index, [env[v].array for v in residuals])

        @jax.custom_vjp
        def rule(index: Any, *arrays: Any) -> Any:
            return forward(index, *arrays)[0]

        def backward(kept: Any, given: Any) -> Any:
            index, saved = kept
            part = self._inside_rule(index)
            env = consts | dict(
                zip(residuals, map(Value, residual_states, saved), strict=True)
            )
            # Terms of a sum have the cotangent of the sum, the same for each chunk. The
            # cotangent of a result that all rows share is itself a sum over the rows.
            swap: dict[State, State] = {"sum": None, None: "sum"}
            kinds = [swap.get(s, s) for s in out_states[: len(floats)]]
            env |= zip(cotangents, map(Value, kinds, given[: len(floats)]), strict=True)
            part.run(graph, back_eqns, env)
            found: list[Any] = [None] * len(shapes)
            outs = graph.outputs[len(eqn.outvars) :]
            for i, atom in zip(moved, outs, strict=True):
                # A gradient of what all rows share is a sum over the rows.
                state = states[i] if isinstance(states[i], Along) else "sum"
                found[i] = part.coerce(_read(env, atom), state).array
            return None, *found

        rule.defvjp(forward, backward)
        outs = rule(self.index, *(v.array for v in values))
        places = [*floats, *(i for i in range(len(eqn.outvars)) if i not in floats)]
        by_place = dict(zip(places, map(Value, out_states, outs), strict=True))
        return [by_place[i] for i in range(len(eqn.outvars))]


_RULES: dict[str, Callable[[BatchPart, JaxprEqn, Sequence[Value]], list[Value]]] = {
    "broadcast_in_dim": BatchPart._broadcast,
    "conv_general_dilated": BatchPart._convolution,
    "dot_general": BatchPart._dot,
    "dynamic_slice": BatchPart._dynamic_slice,
    "dynamic_update_slice": BatchPart._dynamic_update_slice,
    "pad": BatchPart._pad,
    "reshape": BatchPart._reshape,
    "rev": BatchPart._reverse,
    "sharding_constraint": BatchPart._constrain,
    "slice": BatchPart._slice,
    "squeeze": BatchPart._squeeze,
    "transpose": BatchPart._transpose,
}


def _along_of(values: Sequence[Value]) -> Along:
    return next(v.state for v in values if isinstance(v.state, Along))


def _read(env: dict[Var, Value], atom: Any) -> Value:
    return env[atom] if variables([atom]) else Value(None, atom.val)


def _bind(eqn: JaxprEqn, arrays: Sequence[Any], **changed: Any) -> list[Any]:
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
        outs = _bind(eqn, list(map(jnp.asarray, arrays)))
    return np.asarray(outs[eqn.outvars.index(atom)])
