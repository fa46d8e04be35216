"""NumPy's everyday functions on a backend's arrays, called eagerly: `backend.vstack`.

Each is written over the backend's own ops, so that it runs in either library and has
gradients; they are not ops of models. Functions whose result has a shape that depends
on the data go through NumPy on the host, and have none.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

EAGER: dict[str, Callable[..., Any]] = {}

# Shapes or loops that depend on the data, or rare: NumPy itself computes them.
_ON_HOST = """
allclose apply_along_axis argpartition argwhere array_equal bincount compress delete
diagflat digitize divmod extract flatnonzero gcd geomspace histogram indices insert
intersect1d isin isneginf isposinf isreal lcm ldexp linalg.eigh linalg.eigvalsh
linalg.lstsq linalg.matrix_power linalg.matrix_rank linalg.pinv linalg.qr linalg.slogdet
linalg.svd modf nanargmax nanargmin nancumprod nancumsum nanmedian nanpercentile
nanquantile nanstd nanvar ndim nextafter nonzero partition piecewise polyfit
ravel_multi_index resize rollaxis roots searchsorted select setdiff1d setxor1d
trim_zeros tril_indices triu_indices union1d unique unravel_index
"""


def _eager(function: Callable[..., Any]) -> Callable[..., Any]:
    EAGER[function.__name__] = function
    return function


def on_host(name: str) -> Callable[..., Any]:
    """The function of NumPy of that name, on arrays of a backend.

    Raises:
        TypeError: (the function) a tensor needs a gradient, which would be lost.
    """

    def call(b: Any, *args: Any, **named: Any) -> Any:
        def to_host(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(map(to_host, value))
            if getattr(value, "requires_grad", False):
                raise TypeError(
                    f"{name} runs in NumPy and has no gradient, but its argument needs "
                    "one; call detach() on it first."
                )
            return b.to_numpy(value) if hasattr(value, "shape") else value

        result = operator.attrgetter(name)(np)(
            *map(to_host, args), **{k: to_host(v) for k, v in named.items()}
        )
        if isinstance(result, (tuple, list)):
            return tuple(map(b.array, result))
        if isinstance(result, (bool, int)):
            return result
        return b.array(result)

    return call


EAGER |= {name.rpartition(".")[2]: on_host(name) for name in _ON_HOST.split()}


# --- new arrays -------------------------------------------------------------------


@_eager
def empty(b: Any, *shape: Any, **named: Any) -> Any:
    return b.zeros(*shape, **named)


@_eager
def asarray(b: Any, x: Any, dtype: Any = None) -> Any:
    return b.array(x, dtype=dtype)


@_eager
def identity(b: Any, x: Any) -> Any:
    # NumPy's makes a matrix of a size, torch's layer returns its input.
    return b.eye(x) if isinstance(x, int) else x


@_eager
def linspace(
    b: Any, start: Any, stop: Any, num: int = 50, dtype: Any = None, **named: Any
) -> Any:
    num = named.pop("steps", num)  # torch's name
    start, stop = (b.to_numpy(x) for x in (start, stop))
    return b.array(np.linspace(start, stop, num, **named), dtype=dtype or b.dtype)


@_eager
def logspace(b: Any, start: float, stop: float, num: int = 50, **named: Any) -> Any:
    return b.array(np.logspace(start, stop, num, **named), dtype=b.dtype)


@_eager
def meshgrid(b: Any, *axes: Any, indexing: str = "xy") -> Any:
    order = list(range(len(axes)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [axes[i].shape[0] for i in order]
    parts = []
    for number, x in enumerate(axes):
        row = [1] * len(axes)
        row[order.index(number)] = -1
        parts.append(b.broadcast_to(b.reshape(x, row), shape))
    return tuple(parts)


@_eager
def tri(b: Any, rows: int, columns: int | None = None, k: int = 0) -> Any:
    return b.tril(b.ones(rows, columns or rows), k)


@_eager
def diag(b: Any, x: Any, k: int = 0) -> Any:
    if len(x.shape) == 2:
        return b.diagonal(x, k)
    size = x.shape[0] + abs(k)
    padded = b.pad(x, ((max(k, 0), max(-k, 0)),))
    return b.where(b.cast(b.eye(size, k=k), "bool"), padded, b.zeros_like(padded))


@_eager
def vander(b: Any, x: Any, N: int | None = None) -> Any:
    powers = range((N or x.shape[0]) - 1, -1, -1)
    return b.stack([b.power(x, p) for p in powers], 1)


# --- shapes -----------------------------------------------------------------------


def _of_each(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of one array or of several, as NumPy's and torch's."""

    def call(b: Any, *arrays: Any) -> Any:
        if len(arrays) == 1 and not isinstance(arrays[0], (list, tuple)):
            return function(b, b.xp.asarray(arrays[0]))
        listed = arrays[0] if len(arrays) == 1 else arrays
        return tuple(function(b, b.xp.asarray(x)) for x in listed)

    return _eager(functools.wraps(function)(call))


@_of_each
def atleast_1d(b: Any, x: Any) -> Any:
    return b.reshape(x, 1) if not x.shape else x


@_of_each
def atleast_2d(b: Any, x: Any) -> Any:
    return b.reshape(x, 1, -1) if len(x.shape) < 2 else x


@_of_each
def atleast_3d(b: Any, x: Any) -> Any:
    if len(x.shape) < 2:
        return b.reshape(x, 1, -1, 1)
    return b.expand_dims(x, -1) if len(x.shape) == 2 else x


@_eager
def ravel(b: Any, x: Any) -> Any:
    return b.reshape(x, -1)


@_eager
def vstack(b: Any, arrays: Sequence[Any]) -> Any:
    return b.concat([atleast_2d(b, x) for x in arrays], 0)


@_eager
def hstack(b: Any, arrays: Sequence[Any]) -> Any:
    parts = [atleast_1d(b, x) for x in arrays]
    return b.concat(parts, min(1, len(parts[0].shape) - 1))


@_eager
def dstack(b: Any, arrays: Sequence[Any]) -> Any:
    return b.concat([atleast_3d(b, x) for x in arrays], 2)


@_eager
def column_stack(b: Any, arrays: Sequence[Any]) -> Any:
    parts = [b.reshape(x, -1, 1) if len(x.shape) < 2 else x for x in arrays]
    return b.concat(parts, 1)


@_eager
def append(b: Any, x: Any, values: Any, axis: int | None = None) -> Any:
    if axis is None:
        x, values, axis = ravel(b, x), ravel(b, values), 0
    return b.concat([x, values], axis)


@_eager
def array_split(b: Any, x: Any, sections: int, axis: int = 0) -> Any:
    pieces = np.array_split(np.arange(x.shape[axis]), sections)
    return b.split(x, tuple(map(len, pieces)), axis)


@_eager
def vsplit(b: Any, x: Any, sections: int) -> Any:
    return b.split(x, sections, 0)


@_eager
def hsplit(b: Any, x: Any, sections: int) -> Any:
    return b.split(x, sections, min(1, len(x.shape) - 1))


@_eager
def broadcast_arrays(b: Any, *arrays: Any) -> Any:
    shape = np.broadcast_shapes(*[tuple(x.shape) for x in arrays])
    return tuple(b.broadcast_to(x, shape) for x in arrays)


@_eager
def fliplr(b: Any, x: Any) -> Any:
    return b.flip(x, 1)


@_eager
def flipud(b: Any, x: Any) -> Any:
    return b.flip(x, 0)


@_eager
def rot90(b: Any, x: Any, k: int = 1) -> Any:
    for _ in range(k % 4):
        x = b.flip(b.swapaxes(x, 0, 1), 0)
    return x


# --- numbers ----------------------------------------------------------------------


@_eager
def log10(b: Any, x: Any) -> Any:
    return b.log(x) / math.log(10)


@_eager
def exp2(b: Any, x: Any) -> Any:
    return b.exp(b.multiply(x, math.log(2)))


@_eager
def logaddexp2(b: Any, x: Any, y: Any) -> Any:
    ln2 = math.log(2)
    return b.logaddexp(b.multiply(x, ln2), b.multiply(y, ln2)) / ln2


@_eager
def cbrt(b: Any, x: Any) -> Any:
    return b.sign(x) * b.power(b.absolute(x), 1 / 3)


@_eager
def deg2rad(b: Any, x: Any) -> Any:
    return b.multiply(x, math.pi / 180)


@_eager
def rad2deg(b: Any, x: Any) -> Any:
    return b.multiply(x, 180 / math.pi)


EAGER |= {"radians": deg2rad, "degrees": rad2deg}


@_eager
def hypot(b: Any, x: Any, y: Any) -> Any:
    # Scaled, since the square of a large number overflows where the length does not.
    scale = b.maximum(b.maximum(b.absolute(x), b.absolute(y)), 1e-30)
    return scale * b.sqrt(b.square(x / scale) + b.square(y / scale))


@_eager
def fmod(b: Any, x: Any, y: Any) -> Any:
    return b.sign(x) * b.remainder(b.absolute(x), b.absolute(y))


@_eager
def sinc(b: Any, x: Any) -> Any:
    turn = b.multiply(x, math.pi)
    safe = b.where(b.equal(turn, 0), 1.0, turn)
    return b.where(b.equal(turn, 0), 1.0, b.sin(safe) / safe)


@_eager
def heaviside(b: Any, x: Any, at_0: Any) -> Any:
    half = b.where(b.equal(x, 0), at_0, 1.0)
    return b.where(b.less(x, 0), 0.0, half)


@_eager
def signbit(b: Any, x: Any) -> Any:
    return b.logical_or(b.less(x, 0), b.less(b.reciprocal(x), 0))


@_eager
def copysign(b: Any, x: Any, y: Any) -> Any:
    size = b.absolute(x)
    return b.where(signbit(b, y), -size, size)


@_eager
def fmax(b: Any, x: Any, y: Any) -> Any:
    return b.where(b.isnan(x), y, b.where(b.isnan(y), x, b.maximum(x, y)))


@_eager
def fmin(b: Any, x: Any, y: Any) -> Any:
    return b.where(b.isnan(x), y, b.where(b.isnan(y), x, b.minimum(x, y)))


@_eager
def where(b: Any, *args: Any, **named: Any) -> Any:
    if len(args) == 1 and not named:
        return EAGER["nonzero"](b, *args)
    return b._run_op(b.find("where"), *args, **named)


@_eager
def logit(b: Any, x: Any) -> Any:
    return b.log(x) - b.log1p(-x)


@_eager
def isclose(b: Any, x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    near = b.less_equal(b.absolute(x - y), b.absolute(y) * rtol + atol)
    return b.logical_or(near, b.equal(x, y))


# --- statistics and products ------------------------------------------------------


@_eager
def average(b: Any, x: Any, axis: Any = None, weights: Any = None) -> Any:
    if weights is None:
        return b.mean(x, axis)
    if axis is not None and len(weights.shape) == 1:
        row = [1] * len(x.shape)
        row[axis] = -1
        weights = b.reshape(weights, row)
    total = b.broadcast_to(weights, tuple(x.shape))
    return b.sum(x * weights, axis) / b.sum(total, axis)


@_eager
def ptp(b: Any, x: Any, axis: Any = None) -> Any:
    return b.max(x, axis) - b.min(x, axis)


def _without_nan(name: str, fill: float) -> None:
    def reduce(b: Any, x: Any, axis: Any = None) -> Any:
        return getattr(b, name)(b.where(b.isnan(x), fill, x), axis)

    EAGER[f"nan{name}"] = reduce


for _name, _fill in (
    ("sum", 0.0),
    ("prod", 1.0),
    ("max", -math.inf),
    ("min", math.inf),
):
    _without_nan(_name, _fill)


@_eager
def nanmean(b: Any, x: Any, axis: Any = None) -> Any:
    count = b.sum(b.logical_not(b.isnan(x)), axis)
    return b.divide(EAGER["nansum"](b, x, axis), count)


@_eager
def quantile(b: Any, x: Any, q: Any, axis: int | None = None) -> Any:
    if axis is None:
        x, axis = ravel(b, x), 0
    ordered, length = b.sort(x, axis=axis), x.shape[axis]

    def one(share: float) -> Any:
        place = share * (length - 1)
        low = math.floor(place)
        high = min(low + 1, length - 1)
        first, second = (
            b.take(ordered, b.array(i, dtype="int32"), axis) for i in (low, high)
        )
        return first + (second - first) * (place - low)

    shares = np.asarray(q)
    if not shares.ndim:
        return one(float(shares))
    return b.stack([one(float(share)) for share in shares], 0)


@_eager
def percentile(b: Any, x: Any, q: Any, axis: int | None = None) -> Any:
    return quantile(b, x, np.asarray(q) / 100, axis)


@_eager
def cov(b: Any, x: Any) -> Any:
    x = atleast_2d(b, x)
    centred = x - b.mean(x, 1, keepdims=True)
    products = b.matmul(centred, b.transpose(centred)) / (x.shape[1] - 1)
    return b.squeeze(products)


@_eager
def corrcoef(b: Any, x: Any) -> Any:
    c = cov(b, x)
    scale = b.sqrt(b.diagonal(c))
    return c / b.outer(scale, scale)


@_eager
def diff(b: Any, x: Any, n: int = 1, axis: int = -1) -> Any:
    axis %= len(x.shape)
    for _ in range(n):
        length = x.shape[axis]
        before, after = (
            b.getitem(x, (*[("slice", None, None, None)] * axis, ("slice", *ends)))
            for ends in ((0, length - 1, None), (1, length, None))
        )
        x = after - before
    return x


@_eager
def inner(b: Any, x: Any, y: Any) -> Any:
    if not x.shape or not y.shape:
        return b.multiply(x, y)
    return b.tensordot(x, y, ((-1,), (-1,)))


@_eager
def vecdot(b: Any, x: Any, y: Any, axis: int = -1) -> Any:
    return b.sum(b.multiply(x, y), axis)


@_eager
def trapezoid(b: Any, y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    steps = dx if x is None else diff(b, x)
    ends = (slice(1, None), slice(None, -1))
    after, before = (b.moveaxis(y, axis, -1)[..., end] for end in ends)
    return b.sum((after + before) * steps / 2, -1)


@_eager
def unstack(b: Any, x: Any, axis: int = 0) -> Any:
    return tuple(b.moveaxis(x, axis, 0))


@_eager
def vdot(b: Any, x: Any, y: Any) -> Any:
    return b.sum(ravel(b, x) * ravel(b, y))


@_eager
def kron(b: Any, x: Any, y: Any) -> Any:
    product = b.reshape(x, x.shape[0], 1, x.shape[1], 1) * b.reshape(
        y, 1, y.shape[0], 1, y.shape[1]
    )
    return b.reshape(product, x.shape[0] * y.shape[0], x.shape[1] * y.shape[1])


@_eager
def cross(b: Any, x: Any, y: Any) -> Any:
    turned = lambda v, k: b.roll(v, k, -1)
    return turned(x, -1) * turned(y, -2) - turned(x, -2) * turned(y, -1)


@_eager
def polyval(b: Any, coefficients: Any, x: Any) -> Any:
    result = b.zeros_like(x)
    for c in coefficients:
        result = result * x + c
    return result


@_eager
def convolve(b: Any, x: Any, kernel: Any, mode: str = "full") -> Any:
    if kernel.shape[0] > x.shape[0]:
        x, kernel = kernel, x
    n, k = x.shape[0], kernel.shape[0]
    padded = b.pad(x, ((k - 1, k - 1),))
    windows = b.take(padded, np.arange(n + k - 1)[:, None] + np.arange(k), 0)
    whole = b.matmul(windows, b.flip(kernel))
    if mode == "full":
        return whole
    cut = (n, (k - 1) // 2) if mode == "same" else (n - k + 1, k - 1)
    return b.getitem(whole, (("slice", cut[1], cut[1] + cut[0], None),))


@_eager
def interp(b: Any, x: Any, xp: Any, fp: Any) -> Any:
    at = np.clip(np.searchsorted(np.asarray(xp), np.asarray(x)), 1, len(xp) - 1)
    x0, x1, f0, f1 = (
        b.take(v, i, 0) for v, i in ((xp, at - 1), (xp, at), (fp, at - 1), (fp, at))
    )
    share = b.clip((x - x0) / (x1 - x0), 0, 1)
    return f0 + (f1 - f0) * share


@_eager
def multinomial(
    b: Any,
    probabilities: Any,
    num_samples: int,
    replacement: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> Any:
    # Class numbers (..., num_samples). 16 bits do not tell many classes apart.
    wide = "float64" if b.dtype.itemsize == 8 else "float32"
    probabilities = b.cast(probabilities, wide)
    if not replacement:
        classes = probabilities.shape[-1]
        if num_samples > classes:
            raise ValueError(
                f"multinomial: {num_samples} of {classes} classes cannot be drawn "
                "without replacement; give replacement=True."
            )
        # The classes with the largest noisy logarithms, in order, are draws without
        # replacement (Efraimidis & Spirakis 2006): log p - log of an exponential one.
        uniform = b.rand(*probabilities.shape, dtype=wide)
        waits = b.negative(b.log1p(b.negative(uniform)))
        return b.top_k(b.log(probabilities) - b.log(waits), num_samples)[1]
    shares = probabilities / b.sum(probabilities, -1, keepdims=True)
    ends = b.expand_dims(b.cumsum(shares, -1), -2)
    drawn = b.rand(*probabilities.shape[:-1], num_samples, 1, dtype=wide)
    # Inverse transform sampling: the first class whose cumulated share exceeds it. The
    # last end is left out, as rounding may leave it below 1.
    return b.sum(b.greater_equal(drawn, ends)[..., :-1], -1)
