"""Rewrite selections by a mask, whose lengths depend on data, as all rows and a mask.

torch.export gives the rows of `x[mask]` a length without a value, an unbacked symbol.
Here such an axis is as long as the mask: an operation that treats each row alike runs
on all of them, a reduction leaves out those that are not selected, and a write keeps
the old value there. A row that is not selected holds a copy of the last one that is, so
that it has no value and no gradient that a selected row could not have. The last of two
writes counts.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._guards import detect_fake_mode  # noqa: PLC2701 - it has no public name
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from frugax.errors import UnsupportedModuleError

from ._traced_nodes import CHECKS, first_line, place_of, read_call

_aten = torch.ops.aten

# The entry that a reduction along an axis ignores; "least" and "most" are those of the
# dtype. Products of matrices ignore a row of zeros in either of them.
_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("sum", "nansum", "cumsum", "any"), 0),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul", "einsum"), 0),
    **dict.fromkeys(("prod", "cumprod", "all"), 1),
    **dict.fromkeys(("amax", "max", "logsumexp", "softmax", "log_softmax"), "least"),
    **dict.fromkeys(("amin", "min"), "most"),
    "linalg_vector_norm": 0,
}
_MOMENTS = ("mean", "var", "std", "var_mean", "std_mean")
# Operations, beside those with torch's tag for it, that treat each entry alike, or each
# row along any axis. Lengths in their arguments are those of the result.
_ROWWISE_NAMES = """
permute transpose t unsqueeze squeeze expand expand_as broadcast_tensors stack clone
alias detach contiguous to _to_copy copy dropout embedding floor_divide lift_fresh_copy
hardswish repeat sym_size full full_like where
"""
_ROWWISE = frozenset(_ROWWISE_NAMES.split())
_VIEWS_NAMES = """
view reshape _unsafe_view view_copy _reshape_copy flatten
"""
_VIEWS = frozenset(_VIEWS_NAMES.split())
# Operations on all axes but the first.
_BATCHED = ("convolution", "group_norm", "batch_norm")
# Operations on the last axes, with the number of these.
_LAST_AXES: dict[str, Callable[[dict[str, Any]], int]] = {
    "linear": lambda args: 1,
    "layer_norm": lambda args: len(args["normalized_shape"]),
    "constant_pad_nd": lambda args: len(args["pad"]) // 2,
}
# An operation on numbers of rows, as tensors.
_ON_TENSORS: dict[Any, Any] = {
    operator.add: _aten.add.Tensor,
    operator.sub: _aten.sub.Tensor,
    operator.mul: _aten.mul.Tensor,
    operator.truediv: _aten.div.Tensor,
    torch.sym_max: _aten.maximum.default,
    torch.sym_float: _aten.clone.default,
}
_REMEDY = "write these rows back, or reduce them, before it"


def rewrite_masked_rows(graph_module: GraphModule) -> bool:
    """Rewrite a graph in place, if lengths in it depend on data, and say whether.

    Raises:
        UnsupportedModuleError: a tensor of such a length leaves the graph, or an
            operation mixes selected rows in a way that has no equivalent on all rows.
    """
    # A child is a region, such as one without gradients.
    children = [m for m in graph_module.children() if isinstance(m, GraphModule)]
    has_rows = any([rewrite_masked_rows(child) for child in children])
    if any(_depends_on_data(_value(node)) for node in graph_module.graph.nodes):
        graph_module.graph = _Rewriting().rewrite(graph_module.graph)
        has_rows = True
    return has_rows


def _depends_on_data(value: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return bool(free_unbacked_symbols(value))
    return any(map(_data_axes, _tensors(value)))


def _value(node: Any) -> Any:
    """Return the value that torch traced for a node; a number stays as it is."""
    return node.meta.get("val") if isinstance(node, Node) else node


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]


def _data_axes(tensor: torch.Tensor) -> dict[int, Any]:
    """The lengths that depend on data, as expressions, by axis."""
    return {
        axis: _expression(length)
        for axis, length in enumerate(tensor.shape)
        if isinstance(length, torch.SymInt) and free_unbacked_symbols(length)
    }


def _expression(length: Any) -> Any:
    return length if isinstance(length, int) else length.node.expr


@dataclasses.dataclass(frozen=True)
class _Selection:
    """The rows that a mask selects.

    Attributes:
        origin: equal for selections of equal rows in an equal order.
        mask: a node of the new graph, with one axis.
        last: the place of the last selected row, an array of one number.
    """

    origin: Any
    mask: Node
    last: Node


class _Rewriting:
    """Copies a graph node by node.

    Attributes:
        new: the node in the new graph, or a tuple of nodes, for each old node.
        axes: the axes of an old node whose lengths depend on data, with these lengths.
        selections: the selection of each such length.
    """

    def __init__(self) -> None:
        self.graph = Graph()
        self.new: dict[Any, Any] = {}
        self.axes: dict[Node, dict[int, Any]] = {}
        self.selections: dict[Any, _Selection] = {}
        self.node: Node
        self.mode: Any

    def rewrite(self, graph: Graph) -> Graph:
        values = [v for node in graph.nodes for v in _tensors(_value(node))]
        self.mode = detect_fake_mode(values)
        for self.node in graph.nodes:
            name, args = read_call(self.node)
            if name in CHECKS:  # of lengths, which are others now
                continue
            axes: dict[int, Any] = {}
            for tensor in _tensors(_value(self.node)):
                axes |= _data_axes(tensor)
            self.axes[self.node] = axes
            try:
                self.new[self.node] = self._rewrite(name, args)
            except (RuntimeError, TypeError, ValueError) as e:
                raise self._refuse(f"cannot run on all rows ({first_line(e)})") from e
        self.graph.eliminate_dead_code()
        return self.graph

    def _rewrite(self, name: str, args: dict[str, Any]) -> Any:
        node = self.node
        rows = {n: self.axes[n] for n in node.all_input_nodes if self.axes[n]}
        if node.op == "output":
            for self.node in rows:
                raise self._refuse(
                    "gives an output whose length depends on data",
                    "return all rows and the mask, or reduce these rows",
                )
        if name == "index":
            return self._index(args)
        if name in ("nonzero", "argwhere"):
            return self._call(_aten.stack.default, self._places(args["self"]), 1)
        if name == "where" and len(args) == 1:
            return self._places(args["condition"])
        if name == "masked_select":
            return self._masked_select(args["self"], args["mask"])
        if name == "arange" and self.axes[node]:
            return self._number_rows(args)
        if rows and isinstance(node.target, torch._ops.OpOverload):
            return self._compute(name, args, rows)
        if rows and node.target is not operator.getitem:
            raise self._refuse("takes rows that a mask selects")
        return self._copy()

    def _compute(
        self, name: str, args: dict[str, Any], rows: Mapping[Node, Mapping[int, Any]]
    ) -> Any:
        """An operation on tensors with selected rows, along the axes in `rows`."""
        target: Any = self.node.target
        if name == "index_put":
            return self._write(args)
        if name in ("index_add", "scatter_add") and not self.axes[args["self"]]:
            source = args["source" if name == "index_add" else "src"]
            return self._copy({source: self._fill(source, 0)})
        if name == "scatter_reduce" and not self.axes[args["self"]]:
            return self._scatter(args)
        if name in ("nll_loss_forward", "nll_loss2d_forward"):
            target = args["target"]
            return self._copy({target: self._fill(target, args["ignore_index"])})
        if torch.Tag.pointwise in target.tags or name in _ROWWISE:
            return self._copy()
        if name in _VIEWS:
            return self._view(args["self"])
        mixed = {
            n: _mixed_axes(name, args, n.meta["val"].ndim) & set(axes)
            for n, axes in rows.items()
            if not (name == "index_select" and n is args["index"])
        }
        is_apart = not any(mixed.values()) or (
            name in _BATCHED
            and not args.get("training")
            and all(set(axes) == {0} for axes in rows.values())
        )
        lengths = {length for axes in rows.values() for length in axes.values()}
        if is_apart and lengths <= set(self.axes[self.node].values()):
            return self._copy()
        if name == "cat":
            return self._join(args)
        if name in _MOMENTS:
            return self._moments(name, args)
        if name in _NEUTRAL and (
            name not in ("max", "min") or target._overloadname == "default"
        ):
            filled = {
                n: self._fill(n, _NEUTRAL[name], axes) for n, axes in mixed.items()
            }
            return self._copy(filled)
        raise self._refuse("mixes rows that a mask selects")

    def _scatter(self, args: dict[str, Any]) -> Node:
        """Rows that are not selected go where the last one goes, without an effect."""
        neutral = {"sum": 0, "prod": 1, "amax": "least", "amin": "most"}
        if args["reduce"] not in neutral:
            raise self._refuse("takes a mean of rows that a mask selects")
        source = args["src"]
        result = self._copy({source: self._fill(source, neutral[args["reduce"]])})
        # Without a selected row there is no last one.
        some = self._call(_aten.any.default, self._valid(source))
        return self._call(_aten.where.self, some, result, self._new(args["self"]))

    def _refuse(self, problem: str, remedy: str = _REMEDY) -> UnsupportedModuleError:
        return UnsupportedModuleError(
            f"{self.node.target} in {place_of(self.node)} {problem}: {remedy}."
        )

    # --- nodes of the new graph -----------------------------------------------------

    def _new(self, value: Any) -> Any:
        return map_arg(value, lambda n: self.new[n])

    def _call(self, target: Any, *args: Any, **named: Any) -> Node:
        return self._evaluate(self.graph.call_function(target, args, named))

    def _evaluate(self, node: Node) -> Node:
        """Trace the value of a new node."""
        read = lambda value: map_arg(value, _value)
        target: Any = node.target
        with self.mode:
            value = target(*read(node.args), **read(node.kwargs))
        node.meta = {**self.node.meta, "val": value}
        return node

    def _copy(self, replaced: Mapping[Node, Node] | None = None) -> Any:
        """The same operation on the new values, or on others in their place."""
        node, new = self.node, {**self.new, **(replaced or {})}
        if node.target is operator.getitem and isinstance(new[node.args[0]], tuple):
            values: Any = new[node.args[0]]
            return values[node.args[1]]
        for length in self.axes[node].values():
            if length not in self.selections:
                raise self._refuse("has a length that depends on data")
        name, _ = read_call(node)
        if name and name not in _ROWWISE | _VIEWS:  # of these it is a length
            for n in node.all_input_nodes:
                value = _value(n)
                if not _tensors(value) and _depends_on_data(value):
                    new[n] = self._count(n)
        copied = self.graph.node_copy(node, new.__getitem__)
        is_same = all(_value(new[n]) is _value(n) for n in node.all_input_nodes)
        if not (is_same or node.op == "output"):
            self._evaluate(copied)
        # A length that torch did not know may be one that it knows.
        value = _value(copied)
        return value if name == "sym_size" and isinstance(value, int) else copied

    def _count(self, node: Node) -> Node:
        """A number of rows, or one computed from it, as a tensor."""
        name, args = read_call(node)
        if name == "sym_size":
            length = self.axes[args["self"]][
                args["dim"] % args["self"].meta["val"].ndim
            ]
            if length in self.selections:
                return self._call(_aten.sum.default, self.selections[length].mask)
        elif name in ("_local_scalar_dense", "item"):
            return self.new[args["self"]]
        elif node.target in _ON_TENSORS:
            return self._call(
                _ON_TENSORS[node.target], *map(self._as_tensor, node.args)
            )
        raise self._refuse("takes a number that depends on data")

    def _as_tensor(self, value: Any) -> Node:
        if not isinstance(value, Node):
            dtype = torch.int64 if isinstance(value, int) else torch.float32
            return self._call(_aten.scalar_tensor.default, value, dtype=dtype)
        if _depends_on_data(value.meta["val"]):
            return self._count(value)
        return self._call(
            _aten.scalar_tensor.default, self._new(value), dtype=torch.int64
        )

    # --- selections -----------------------------------------------------------------

    def _select(self, length: Any, mask: Node, origin: Any) -> _Selection:
        """Note which rows the axes of a length have."""
        known = self.selections.get(length)
        if known is None:
            whole = self._call(_aten._to_copy.default, mask, dtype=torch.int32)
            count = self._call(_aten.cumsum.default, whole, 0)
            last = self._call(_aten.argmax.default, count)
            last = self._call(_aten.unsqueeze.default, last, 0)
            known = self.selections[length] = _Selection(origin, mask, last)
        elif known.origin != origin:
            raise self._refuse("takes two masks that must have equally many entries")
        return known

    def _select_by(self, length: Any, mask: Node) -> _Selection:
        """The selection by an old mask, whose own rows may be selected."""
        if (known := self.selections.get(length)) and known.origin is mask:
            return known
        new = self._new(mask)
        if new.meta["val"].dtype != torch.bool:
            new = self._call(_aten.ne.Scalar, new, 0)
        if self.axes[mask]:
            new = self._call(_aten.logical_and.default, new, self._valid(mask))
        return self._select(length, self._flatten(new, 0, new.meta["val"].ndim), mask)

    def _flatten(self, x: Node, axis: int, count: int) -> Node:
        if count == 0:
            raise ValueError("a mask without axes")
        if count == 1:
            return x
        return self._call(_aten.flatten.using_ints, x, axis, axis + count - 1)

    def _spread(self, mask: Node, axis: int, rank: int) -> Node:
        """A mask of one axis, to be broadcast along the others of an array."""
        for _ in range(rank - 1 - axis):
            mask = self._call(_aten.unsqueeze.default, mask, -1)
        return mask

    def _valid(self, old: Node, axes: Iterable[int] | None = None) -> Node:
        """Which entries of an array are selected, along some or all of its axes."""
        rank, valid = old.meta["val"].ndim, None
        for axis in sorted(self.axes[old] if axes is None else axes):
            mask = self.selections[self.axes[old][axis]].mask
            mask = self._spread(mask, axis, rank)
            both = valid is not None
            valid = self._call(_aten.logical_and.default, valid, mask) if both else mask
        assert valid is not None
        return valid

    def _fill(self, old: Node, value: Any, axes: Iterable[int] | None = None) -> Node:
        """The new array with another value where it is not selected."""
        new = self._new(old)
        if axes is not None and not axes:
            return new
        invalid = self._call(_aten.logical_not.default, self._valid(old, axes))
        if isinstance(value, str):
            value = _extreme(new.meta["val"].dtype, value)
        return self._call(_aten.masked_fill.Scalar, new, invalid, value)

    def _repeat_last(self, x: Node, selection: _Selection, axis: int) -> Node:
        """Put the last selected row in place of those that are not selected."""
        mask = self._spread(selection.mask, axis, x.meta["val"].ndim)
        row = self._call(_aten.index_select.default, x, axis, selection.last)
        return self._call(_aten.where.self, mask, x, row)

    def _length(self, x: Node, axis: int) -> Any:
        length = _expression(x.meta["val"].shape[axis])
        if isinstance(length, int) or length.is_Integer:
            return int(length)
        return self._call(_aten.sym_size.int, x, axis)

    # --- operations that select -----------------------------------------------------

    def _index(self, args: dict[str, Any]) -> Any:
        x, indices = args["self"], args["indices"]
        places = [i for i, index in enumerate(indices) if index is not None]
        masks = [i for i in places if indices[i].meta["val"].dtype == torch.bool]
        if masks and len(places) == 1:
            return self._take(x, indices[masks[0]], masks[0])
        if any(axis in self.axes[x] for axis in places) or (masks and self.axes[x]):
            raise self._refuse("picks from rows that a mask selects")
        if not masks:
            return self._copy()
        new: list[Any] = []
        for i, index in enumerate(indices):
            new += self._places(index) if i in masks else [self._new(index)]
        return self._call(_aten.index.Tensor, self._new(x), new)

    def _take(self, x: Node, mask: Node, axis: int) -> Node:
        """The rows of `x` along an axis, or several that a mask has."""
        length = self.axes[self.node][axis]
        selection = self._select_by(length, mask)
        rows = self._flatten(self._new(x), axis, mask.meta["val"].ndim)
        return self._repeat_last(rows, selection, axis)

    def _masked_select(self, x: Node, mask: Node) -> Node:
        """The entries of `x` where a mask is true, which is broadcast with it."""
        pair = self._call(_aten.broadcast_tensors.default, self._new([x, mask]))
        new = [self._call(operator.getitem, pair, i) for i in (0, 1)]
        rank = new[0].meta["val"].ndim
        rows, flat = (self._flatten(v, 0, rank) for v in new)
        selection = self._select(self.axes[self.node][0], flat, (x, mask))
        return self._repeat_last(rows, selection, 0)

    def _places(self, mask: Node) -> tuple[Node, ...]:
        """The indices along each axis of a mask where it is true."""
        (length,) = set(self.axes[self.node].values())
        selection = self._select_by(length, mask)
        new = self._new(mask)
        rank, places = new.meta["val"].ndim, []
        for axis in range(rank):
            numbers = self._call(_aten.arange.default, self._length(new, axis))
            numbers = self._spread(numbers, axis, rank)
            numbers = self._call(_aten.expand_as.default, numbers, new)
            numbers = self._flatten(numbers, 0, rank)
            places.append(self._repeat_last(numbers, selection, 0))
        return tuple(places)

    def _number_rows(self, args: dict[str, Any]) -> Node:
        """The numbers of selected rows, from 0."""
        length = self.axes[self.node][0]
        if length not in self.selections or "step" in args or args.get("start"):
            raise self._refuse("has a length that depends on data")
        mask = self.selections[length].mask
        count = self._call(_aten.cumsum.default, mask, 0)
        number = self._call(_aten.sub.Tensor, count, 1)
        number = self._call(_aten.clamp.default, number, 0)
        dtype = self.node.meta["val"].dtype
        return self._call(_aten._to_copy.default, number, dtype=dtype)

    # --- operations that move or reduce selected rows -------------------------------

    def _view(self, x: Node) -> Node:
        """Another shape, in which each selected row remains, or is several."""
        node, target = self.node, self.node.target
        before, after = (list(map(_expression, n.meta["val"].shape)) for n in (x, node))
        for axis, length in self.axes[node].items():
            lead = math.prod(after[:axis])
            if not any(math.prod(before[:i]) == lead for i in self.axes[x]):
                raise self._refuse("divides rows that a mask selects")
            if length not in self.selections:
                valid = self._call(
                    _aten.expand_as.default, self._valid(x), self._new(x)
                )
                valid = self._call(_aten.contiguous.default, valid)
                valid = self._call(target, valid, *self._new(node.args[1:]))
                for other in reversed(range(len(after))):
                    if other != axis:
                        valid = self._call(_aten.select.int, valid, other, 0)
                self._select(length, valid, tuple(before))
        return self._copy()

    def _join(self, args: dict[str, Any]) -> Node:
        """Tensors one after the other, along an axis of selected rows."""
        axis = args["dim"] % self.node.meta["val"].ndim
        lengths = [_expression(t.meta["val"].shape[axis]) for t in args["tensors"]]
        masks = []
        for length, tensor in zip(lengths, args["tensors"], strict=True):
            if length in self.selections:
                masks.append(self.selections[length].mask)
                continue
            size = [self._length(self._new(tensor), axis)]
            masks.append(self._call(_aten.full.default, size, True, dtype=torch.bool))
        mask = self._call(_aten.cat.default, masks)
        self._select(self.axes[self.node][axis], mask, tuple(lengths))
        return self._copy()

    def _moments(self, name: str, args: dict[str, Any]) -> Any:
        """The mean of selected rows, or their variance, or both."""
        old = args["self"]
        rank = old.meta["val"].ndim
        dims = sorted(_mixed_axes(name, args, rank))
        (value, *_) = _tensors(self.node.meta["val"])
        x = self._call(_aten._to_copy.default, self._new(old), dtype=value.dtype)
        axes = set(dims) & set(self.axes[old])
        valid = self._call(_aten.expand_as.default, self._valid(old, axes), x)
        weight = self._call(_aten._to_copy.default, valid, dtype=value.dtype)

        def add_up(x: Node, *, keepdim: bool) -> Node:
            x = self._call(_aten.where.ScalarOther, valid, x, 0)
            return self._call(_aten.sum.dim_IntList, x, dims, keepdim)

        def mean(*, keepdim: bool) -> Node:
            count = self._call(_aten.sum.dim_IntList, weight, dims, keepdim)
            return self._call(_aten.div.Tensor, add_up(x, keepdim=keepdim), count)

        keepdim = bool(args.get("keepdim"))
        if name == "mean":
            return mean(keepdim=keepdim)
        correction = args.get("correction", int(args.get("unbiased", True)))
        correction = 1 if correction is None else correction
        centred = self._call(_aten.sub.Tensor, x, mean(keepdim=True))
        total = add_up(self._call(_aten.mul.Tensor, centred, centred), keepdim=keepdim)
        count = self._call(_aten.sum.dim_IntList, weight, dims, keepdim)
        count = self._call(_aten.sub.Tensor, count, correction)
        count = self._call(_aten.clamp.default, count, 0)
        result = self._call(_aten.div.Tensor, total, count)
        if name.startswith("std"):
            result = self._call(_aten.sqrt.default, result)
        return (result, mean(keepdim=keepdim)) if name.endswith("mean") else result

    # --- writes ---------------------------------------------------------------------

    def _write(self, args: dict[str, Any]) -> Node:
        """`x[indices] = values`, where some of these have selected rows."""
        x, indices, values = args["self"], args["indices"], args["values"]
        places = [i for i, index in enumerate(indices) if index is not None]
        is_mask = [indices[i].meta["val"].dtype == torch.bool for i in places]
        if is_mask == [True]:
            return self._write_by_mask(x, indices[places[0]], values, places[0], args)
        if any(is_mask) or any(axis in self.axes[x] for axis in places):
            raise self._refuse("writes to rows that a mask selects")
        axis, new_x = places[0], self._new(x)
        selected = [self.axes[indices[i]] for i in places]
        if not any(selected):  # in each row
            return self._copy()
        ranks = {indices[i].meta["val"].ndim for i in places}
        if ranks != {1} or places != list(range(axis, axis + len(places))):
            raise self._refuse("writes to several axes at once")
        selection = self.selections[next(a[0] for a in selected if a)]
        new = list(self._new(indices))
        for i, own in zip(places, selected, strict=True):
            if own:
                new[i] = self._repeat_last(new[i], selection, 0)
        kept = self._call(_aten.index.Tensor, new_x, new)
        rank = kept.meta["val"].ndim
        rows = self._new(values)
        if self.axes[values]:
            own = axis + values.meta["val"].ndim - rank
            rows = self._repeat_last(rows, selection, own)
        if args["accumulate"]:
            mask = self._spread(selection.mask, axis, rank)
            rows = self._call(_aten.where.ScalarOther, mask, rows, 0)
        else:  # no row is selected: the first one is written as it was
            is_any = self._call(_aten.any.default, selection.mask)
            rows = self._call(_aten.where.self, is_any, rows, kept)
        return self._call(_aten.index_put.default, new_x, new, rows, args["accumulate"])

    def _write_by_mask(
        self, x: Node, mask: Node, values: Node, axis: int, args: dict[str, Any]
    ) -> Node:
        axes = self.axes[values]
        if not axes:
            return self._copy()
        count = mask.meta["val"].ndim
        rank = x.meta["val"].ndim - count + 1
        own = axis + values.meta["val"].ndim - rank
        if set(axes) != {own}:
            raise self._refuse("writes to rows of another mask")
        selection = self._select_by(axes[own], mask)
        rows = self._flatten(self._new(x), axis, count)
        written = self._new(values)
        if args["accumulate"]:
            written = self._call(_aten.add.Tensor, rows, written)
        where = self._spread(selection.mask, axis, rank)
        result = self._call(_aten.where.self, where, written, rows)
        new_x = self._new(x)
        shape = [self._length(new_x, i) for i in range(x.meta["val"].ndim)]
        return self._call(_aten.view.default, result, shape)


def _mixed_axes(name: str, args: dict[str, Any], rank: int) -> set[int]:
    """The axes along which an operation mixes entries: all that are not known apart."""
    if name in _LAST_AXES:
        return set(range(rank - _LAST_AXES[name](args), rank))
    dims = args.get("dim", args.get("dims"))
    if name == "slice" and args["start"] in (None, 0) and _is_end(args["end"]):
        return set()
    if dims is None or dims == []:
        return set(range(rank))
    return {d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])}


def _is_end(end: Any) -> bool:
    return end is None or (isinstance(end, int) and end == torch.iinfo(torch.int64).max)


def _extreme(dtype: torch.dtype, side: str) -> Any:
    """The least or greatest number of a dtype; JAX's integers have 32 bits."""
    sign = -1 if side == "least" else 1
    if dtype.is_floating_point:
        return sign * math.inf
    if dtype == torch.bool:
        return side == "most"
    limits = torch.iinfo(torch.int32 if dtype == torch.int64 else dtype)
    return limits.min if side == "least" else limits.max
