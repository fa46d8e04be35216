"""Convert torch's sums, means, maxima and sorting for `from_torch`."""

# ruff: noqa: FBT002 - the signatures are torch's own

from collections.abc import Callable
from typing import Any

import numpy as np

from frugax.models.graph import op

from ._conversions import CONVERSIONS, aten, register


def _reduction(name: str) -> Callable[..., Any]:
    def convert(x: Any, dims: Any = None, keepdim: object = False, **_: Any) -> Any:
        axis = None
        if dims is not None and np.size(dims):
            axis = tuple(np.atleast_1d(dims).tolist())
        return op(name, axis=axis, keepdims=bool(keepdim))(x)

    return convert


for _name, _ours in (
    ("mean", "mean"), ("mean.dim", "mean"), ("sum", "sum"), ("sum.dim_IntList", "sum"),
    ("amax", "max"), ("amin", "min"), ("max", "max"), ("min", "min"),
    ("any", "any"), ("any.dim", "any"), ("any.dims", "any"), ("all", "all"),
    ("all.dim", "all"), ("prod.dim_int", "prod"), ("logsumexp", "logsumexp"),
):  # fmt: skip
    register(_name)(_reduction(_ours))


@register("max.dim", "min.dim")
def _max_dim(x: Any, dim: int, keepdim: object = False) -> Any:
    keep = bool(keepdim)
    return op("max", axis=dim, keepdims=keep)(x), op("argmax", axis=dim, keepdims=keep)(
        x
    )


CONVERSIONS[aten.min.dim] = lambda x, dim, keepdim=False: (
    op("min", axis=dim, keepdims=bool(keepdim))(x),
    op("argmin", axis=dim, keepdims=bool(keepdim))(x),
)


@register("argmax", "argmin")
def _argmax(x: Any, dim: int | None = None, keepdim: object = False) -> Any:
    return op("argmax", axis=dim, keepdims=bool(keepdim))(x)


CONVERSIONS[aten.argmin.default] = lambda x, dim=None, keepdim=False: op(
    "argmin", axis=dim, keepdims=bool(keepdim)
)(x)


@register("var.correction")
def _var(
    x: Any, dims: Any = None, *, correction: Any = 1, keepdim: object = False
) -> Any:
    axis = None if dims is None else tuple(dims)
    ddof = 1 if correction is None else int(correction)
    return op("var", axis=axis, ddof=ddof, keepdims=bool(keepdim))(x)


@register("std.correction")
def _std(*args: Any, **named: Any) -> Any:
    return op("sqrt")(_var(*args, **named))


CONVERSIONS[aten.var.dim] = lambda x, dims, unbiased=True, keepdim=False: _var(
    x, dims, correction=int(unbiased), keepdim=keepdim
)
CONVERSIONS[aten.std.dim] = lambda x, dims, unbiased=True, keepdim=False: _std(
    x, dims, correction=int(unbiased), keepdim=keepdim
)


@register("cumsum", "cumprod")
def _cumsum(x: Any, dim: int, **_: Any) -> Any:
    return op("cumsum", axis=dim)(x)


CONVERSIONS[aten.cumprod.default] = lambda x, dim, **_: op("cumprod", axis=dim)(x)


@register("linalg_vector_norm", "norm.ScalarOpt_dim")
def _norm(
    x: Any, ord: Any = 2, dims: Any = None, keepdim: object = False, **_: Any
) -> Any:
    axis = None if dims is None else tuple(np.atleast_1d(dims).tolist())
    return op("norm", ord=int(ord), axis=axis, keepdims=bool(keepdim))(x)


@register("var_mean.correction")
def _var_mean(
    x: Any, dims: Any = None, *, correction: Any = 1, keepdim: object = False
) -> Any:
    mean = _reduction("mean")(x, dims, keepdim)
    return _var(x, dims, correction=correction, keepdim=keepdim), mean


CONVERSIONS[aten.var_mean.dim] = lambda x, dims, unbiased=True, keepdim=False: (
    _var_mean(x, dims, correction=int(unbiased), keepdim=keepdim)
)


@register("topk")
def _topk(
    x: Any, k: int, dim: int = -1, largest: object = True, sorted: object = True
) -> Any:
    moved = op("moveaxis", source=dim, destination=-1)
    back = op("moveaxis", source=-1, destination=dim)
    sign = 1.0 if largest else -1.0
    values, where = op("top_k", k=k)(op("multiply")(moved(x), sign))
    return back(op("multiply")(values, sign)), back(where)


@register("sort", "sort.stable", "argsort", "argsort.stable")
def _sort(x: Any, dim: int = -1, descending: object = False, **named: Any) -> Any:
    dim, descending = named.get("dim", dim), named.get("descending", descending)
    how = {"axis": dim, "descending": bool(descending)}
    return op("sort", **how)(x), op("argsort", **how)(x)


for _name in ("argsort.default", "argsort.stable"):
    _packet, _, _overload = _name.partition(".")
    CONVERSIONS[getattr(aten.argsort, _overload)] = lambda *args, **named: _sort(
        *args, **named
    )[1]
