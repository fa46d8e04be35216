"""ATen's products, convolutions, pools, normalisations and recurrences in JAX."""

# ruff: noqa: FBT001, FBT002 - the signatures are torch's own

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._elementwise import safe_softmax
from ._table import Array, as_array, aten, in_float32

# --- products ---------------------------------------------------------------------


def _matmul(xp: Any, x: Array, other: Array) -> Array:
    return jnp.matmul(x, other, precision=xp.precision)


aten("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul")(_matmul)


@aten("_grouped_mm")
def _grouped_mm(
    xp: Any, x: Array, weights: Array, offs: Array | None = None,
    bias: Array | None = None, out_dtype: Any = None,
) -> Array:  # fmt: skip
    if offs is None:
        return _matmul(xp, x, weights)
    if (x.ndim, weights.ndim) != (2, 3) or bias is not None or out_dtype is not None:
        raise NotImplementedError("groups of anything but rows, a bias or a dtype")
    counts = jnp.diff(offs, prepend=0).astype(np.int32)
    # Summed in 32 bits, as torch sums products of 16 bits.
    wide = jnp.promote_types(x.dtype, np.float32)
    out = lax.ragged_dot(
        x, weights, counts, precision=xp.precision, preferred_element_type=wide
    )
    return xp.cast(out, x.dtype)


@aten("linear")
def _linear(xp: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    out = _matmul(xp, x, jnp.swapaxes(weight, -2, -1) if weight.ndim > 1 else weight)
    return out if bias is None else out + bias


@aten("addbmm")
def _addbmm(
    xp: Any, x: Array, batch1: Array, batch2: Array, *, beta: Any = 1, alpha: Any = 1
) -> Array:
    product = jnp.sum(_matmul(xp, batch1, batch2), 0)
    product = product if alpha == 1 else product * as_array(xp, alpha, product.dtype)
    if beta == 0:
        return product  # without the NaN of the first
    return (x if beta == 1 else x * as_array(xp, beta, x.dtype)) + product


@aten("einsum")
def _einsum(xp: Any, equation: str, tensors: Any, *, path: Any = None) -> Array:
    return jnp.einsum(equation.replace(" ", ""), *tensors, precision=xp.precision)


@aten("scaled_dot_product_attention")
def _attention(
    xp: Any,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    if dropout_p > 0:
        raise NotImplementedError(
            "attention with a dropout in evaluation mode; pass it a rate of 0 there"
        )
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (jnp.repeat(v, times, -3) for v in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _matmul(xp, query, jnp.swapaxes(key, -2, -1)) * scale
    if is_causal:
        shape = scores.shape[-2:]
        rows = lax.broadcasted_iota(np.int32, shape, 0)
        mask = rows >= lax.broadcasted_iota(np.int32, shape, 1)
        scores = jnp.where(mask, scores, -jnp.inf)
    if attn_mask is not None and attn_mask.dtype == bool:
        scores = jnp.where(attn_mask, scores, -jnp.inf)
    elif attn_mask is not None:
        scores = scores + xp.cast(attn_mask, scores.dtype)
    weights = in_float32(lambda _, x: safe_softmax(x, -1))(xp, scores)
    return _matmul(xp, weights, value)


# --- convolutions -----------------------------------------------------------------


def _each_axis(value: Any, axes: int) -> tuple[int, ...]:
    value = value if isinstance(value, tuple) else (value,)
    return value * (axes if len(value) == 1 else 1)


def _convolve(
    xp: Any,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    output_padding: Any = None,
) -> Array:
    """A convolution, or a transposed one if there is an output padding."""
    axes = weight.ndim - 2
    is_single = x.ndim == axes + 1  # an image without a batch
    x = x[None] if is_single else x
    stride, dilation = _each_axis(stride, axes), _each_axis(dilation, axes)
    reach = [d * (n - 1) for d, n in zip(dilation, weight.shape[2:], strict=True)]
    if padding == "valid":
        padding = 0
    if padding == "same":
        pairs = [(r // 2, r - r // 2) for r in reach]
    else:
        pairs = [(p, p) for p in _each_axis(padding, axes)]
    # Channels last, as the kernels of ops have them: XLA lays arrays out anew anyway.
    x, kernel = jnp.moveaxis(x, 1, -1), jnp.moveaxis(weight, (1, 0), (-2, -1))
    if output_padding is None:
        result = xp.convolution(x, kernel, stride, pairs, dilation, groups)
    else:
        extra = _each_axis(output_padding, axes)
        ends = [(low, high - e) for (low, high), e in zip(pairs, extra, strict=True)]
        result = xp.convolution_transpose(x, kernel, stride, ends, dilation, groups)
    result = jnp.moveaxis(result, -1, 1)
    if bias is not None:
        result = result + bias.reshape((-1, *[1] * axes))
    return result[0] if is_single else result


@aten("convolution")
def _convolution(
    xp: Any, x: Array, weight: Array, bias: Array | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Array:  # fmt: skip
    extra = output_padding if transposed else None
    return _convolve(xp, x, weight, bias, stride, padding, dilation, groups, extra)


# --- pools ------------------------------------------------------------------------


def _windows(
    x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
    axes: int,
) -> Any:  # fmt: skip
    """Window, strides, padding and dilation of `reduce_window`, by axis of `x`."""
    kernel = _each_axis(kernel, axes)
    stride = _each_axis(stride, axes) if stride not in (None, ()) else kernel
    dilation = _each_axis(dilation, axes)
    pairs: list[tuple[int, int]] = []
    for i, pad in enumerate(_each_axis(padding, axes)):
        extra = 0
        if ceil_mode:
            length = x.shape[i - axes]
            reach = dilation[i] * (kernel[i] - 1) + 1
            steps = -(-(length + 2 * pad - reach) // stride[i])
            # torch leaves out a window that would begin behind the input.
            if steps * stride[i] >= length + pad:
                steps -= 1
            extra = max(steps * stride[i] + reach - length - 2 * pad, 0)
        pairs.append((pad, pad + extra))
    lead = x.ndim - axes
    return (
        (*[1] * lead, *kernel),
        (*[1] * lead, *stride),
        [*[(0, 0)] * lead, *pairs],
        (*[1] * lead, *dilation),
    )


def _add_max_pool(axes: int) -> None:
    def sizes(
        x: Array, kernel_size: Any, stride: Any = (), padding: Any = 0,
        dilation: Any = 1, ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        return _windows(x, kernel_size, stride, padding, dilation, ceil_mode, axes)

    def pool(xp: Any, x: Array, *settings: Any, **named: Any) -> Array:
        *windows, dilation = sizes(x, *settings, **named)
        # With a dilation JAX's reduction has no gradient.
        if max(dilation) > 1 and x.dtype.kind != "i":
            at = places(x, *windows, dilation)
            flat = x.reshape((*x.shape[:-axes], math.prod(x.shape[-axes:])))
            picked = jnp.take_along_axis(flat, at.reshape((*at.shape[:-axes], -1)), -1)
            return picked.reshape(at.shape)
        least = -np.inf if x.dtype.kind != "i" else np.iinfo(x.dtype).min
        return lax.reduce_window(
            x, np.asarray(least, x.dtype), lax.max, *windows, window_dilation=dilation
        )

    def places(x: Array, *settings: Any) -> Array:
        """The place of each maximum among the entries of its channel."""
        *windows, dilation = settings
        lengths = x.shape[-axes:]
        numbers = jnp.arange(math.prod(lengths), dtype=np.int32).reshape(lengths)
        numbers = jnp.broadcast_to(numbers, x.shape)

        def better(left: Any, right: Any) -> Any:
            is_equal = (right[0] == left[0]) & (right[1] < left[1])
            is_nan = jnp.isnan(right[0]) & ~jnp.isnan(left[0])
            later = (right[0] > left[0]) | is_equal | is_nan
            return tuple(
                jnp.where(later, b, a) for a, b in zip(left, right, strict=True)
            )

        least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        start = (np.asarray(least, x.dtype), np.int32(2**31 - 1))
        both = (lax.stop_gradient(x), numbers)
        return lax.reduce_window(
            both, start, better, *windows, window_dilation=dilation
        )[1]

    def with_indices(xp: Any, x: Array, *settings: Any, **named: Any) -> Any:
        at = places(x, *sizes(x, *settings, **named))
        return pool(xp, x, *settings, **named), xp.cast(at, xp.int_dtype)

    aten(f"max_pool{axes}d")(pool)
    aten(f"max_pool{axes}d_with_indices")(with_indices)


def _add_avg_pool(axes: int) -> None:
    def pool(
        xp: Any,
        x: Array,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Array:
        window, strides, pads, _ = _windows(
            x, kernel_size, stride, padding, 1, ceil_mode, axes
        )
        total = lax.reduce_window(x, np.asarray(0, x.dtype), lax.add, window, strides,
                                  pads)  # fmt: skip
        if divisor_override is not None:
            return total / divisor_override
        # torch counts the padding if told so, but never what ceil_mode adds to it.
        ones, pairs = jnp.ones(x.shape[-axes:], x.dtype), pads[-axes:]
        if count_include_pad:
            own = _each_axis(padding, axes)
            ones = jnp.pad(ones, [(p, p) for p in own], constant_values=1)
            pairs = [(0, high - p) for (_, high), p in zip(pairs, own, strict=True)]
        count = lax.reduce_window(
            ones, np.asarray(0, x.dtype), lax.add, window[-axes:], strides[-axes:],
            pairs,
        )  # fmt: skip
        return total / count

    aten(f"avg_pool{axes}d")(pool)


def _first_max(x: Array, axis: int, *, keepdims: bool = False) -> Array:
    """The largest entries, of which the first alone has the gradient."""
    largest = jnp.take_along_axis(x, jnp.argmax(x, axis, keepdims=True), axis)
    return largest if keepdims else jnp.squeeze(largest, axis)


def _adaptive(xp: Any, x: Array, output_size: Any, reduce: Any, axes: int) -> Any:
    # One axis after the other; pieces are slices, as lengths need not divide. The last
    # is first, so that of equal maxima the first counts.
    for i, size in reversed(list(enumerate(_each_axis(output_size, axes)))):
        axis = x.ndim + i - axes
        length = x.shape[axis]
        if size == length or size is None:
            continue
        if size == 1:
            x = reduce(x, axis, keepdims=True)
        elif length % size == 0:
            shape = (*x.shape[:axis], size, length // size, *x.shape[axis + 1 :])
            x = reduce(x.reshape(shape), axis + 1)
        else:
            bounds = [(n * length // size, -(-(n + 1) * length // size))
                      for n in range(size)]  # fmt: skip
            pieces = [lax.slice_in_dim(x, *b, axis=axis) for b in bounds]
            x = jnp.concatenate([reduce(p, axis, keepdims=True) for p in pieces], axis)
    return x


def _add_adaptive(axes: int) -> None:
    def mean(xp: Any, x: Array, output_size: Any) -> Array:
        return _adaptive(xp, x, output_size, jnp.mean, axes)

    def largest(xp: Any, x: Array, output_size: Any) -> Any:
        # The places of the maxima are read by unpooling only, which is refused.
        return _adaptive(xp, x, output_size, _first_max, axes), None

    aten(f"adaptive_avg_pool{axes}d", f"_adaptive_avg_pool{axes}d")(mean)
    aten(f"adaptive_max_pool{axes}d")(largest)


for _axes in (1, 2, 3):
    _add_max_pool(_axes)
    _add_avg_pool(_axes)
    _add_adaptive(_axes)


# --- normalisations ---------------------------------------------------------------


def _column(v: Array, rank: int) -> Array:
    return v.reshape((-1, *[1] * (rank - 2)))


def _scale_and_shift(
    x: Array, weight: Array | None, bias: Array | None, rank: int | None = None
) -> Array:
    column = lambda v: v if rank is None else _column(v, rank)
    x = x if weight is None else x * column(weight)
    return x if bias is None else x + column(bias)


def _standardize(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - jnp.mean(x, axes, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(jnp.square(centred), axes, keepdims=True) + eps)


@aten("batch_norm")
@in_float32
def _batch_norm(
    xp: Any, x: Array, weight: Any, bias: Any, mean: Any, var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool,
) -> Array:  # fmt: skip
    # Where it renews the running statistics, torch writes it by other operations.
    if training or mean is None:
        out = _standardize(x, (0, *range(2, x.ndim)), eps)
    else:
        out = (x - _column(mean, x.ndim)) * _column(lax.rsqrt(var + eps), x.ndim)
    return _scale_and_shift(out, weight, bias, x.ndim)


@aten("layer_norm")
@in_float32
def _layer_norm(
    xp: Any, x: Array, normalized_shape: Any, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Array:  # fmt: skip
    out = _standardize(x, tuple(range(-len(normalized_shape), 0)), eps)
    return _scale_and_shift(out, weight, bias)


@aten("group_norm")
@in_float32
def _group_norm(
    xp: Any, x: Array, num_groups: int, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Array:  # fmt: skip
    batch, channels, *lengths = x.shape
    split = x.reshape((batch, num_groups, channels // num_groups, *lengths))
    out = _standardize(split, tuple(range(2, split.ndim)), eps)
    return _scale_and_shift(out.reshape(x.shape), weight, bias, x.ndim)


@aten("embedding")
def _embedding(
    xp: Any, weight: Array, indices: Array, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Array:  # fmt: skip
    # NaN for an index out of range: a compiled program cannot raise.
    rows = jnp.take(weight, indices, 0, mode="fill")
    if padding_idx < 0:  # there is none
        return rows
    # torch reads the row of padding, and does not train it.
    is_padding = (indices == padding_idx)[..., None]
    return jnp.where(is_padding, lax.stop_gradient(rows), rows)


@aten("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    xp: Any, weight: Array, indices: Array, offsets: Array,
    scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Array | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    if include_last_offset:
        offsets = offsets[:-1]
    rows = jnp.take(weight, indices, 0, mode="fill")
    is_read = (indices != padding_idx)[:, None]
    scale = 1 if per_sample_weights is None else per_sample_weights[:, None]
    # A bag goes from its offset to the next.
    begins = jnp.zeros(indices.shape[0], jnp.int32).at[offsets].add(1, mode="drop")
    bag, count = jnp.cumsum(begins) - 1, offsets.shape[0]
    start = lambda v, n: jnp.full((count, v.shape[-1]), n, rows.dtype).at[bag]
    add_up = lambda v: start(v, 0).add(v)
    if mode == 2:
        largest = start(rows, -jnp.inf).max(jnp.where(is_read, rows, -jnp.inf))
        is_empty = add_up(is_read.astype(rows.dtype)) == 0
        return jnp.where(is_empty, 0, largest), None, None, None
    total = add_up(jnp.where(is_read, rows * scale, 0))
    if mode == 1:
        total = total / jnp.maximum(add_up(is_read.astype(rows.dtype)), 1)
    return total, None, None, None


# --- losses -----------------------------------------------------------------------


# `from_torch` tells it which of the rows that a mask selects to leave out.
@aten("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(
    xp: Any, x: Array, target: Array, weight: Any, reduction: int, ignore_index: int
) -> Any:
    axis = 0 if x.ndim == 1 else 1
    counts = target != ignore_index
    safe = jnp.where(counts, target, 0)
    loss = -jnp.take_along_axis(x, jnp.expand_dims(safe, axis), axis).squeeze(axis)
    share = jnp.ones((), x.dtype) if weight is None else weight[safe]
    share = jnp.where(counts, share, 0).astype(x.dtype)
    loss, total = loss * share, jnp.sum(share)
    if reduction == 0:
        return loss, jnp.zeros((), x.dtype)
    if reduction == 1:
        return jnp.sum(loss) / total, total
    return jnp.sum(loss), total


# --- recurrences ------------------------------------------------------------------


def _lstm_step(xp: Any, state: Any, gates: Array, hidden: Array) -> Any:
    i, f, g, o = jnp.split(gates + hidden, 4, -1)
    cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru_step(xp: Any, state: Any, gates: Array, hidden: Array) -> Any:
    (r, z, n), (hr, hz, hn) = jnp.split(gates, 3, -1), jnp.split(hidden, 3, -1)
    update = jax.nn.sigmoid(z + hz)
    new = jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn)
    return (new + update * (state[0] - new),)


def _rnn_step(activation: Callable[..., Array]) -> Callable[..., Any]:
    return lambda xp, state, gates, hidden: (activation(gates + hidden),)


def _add_recurrence(name: str, step: Callable[..., Any]) -> None:
    def convert(
        xp: Any,
        x: Array,
        hx: Any,
        params: Sequence[Array],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if train and dropout > 0 and num_layers > 1:
            raise NotImplementedError(
                "a dropout between layers in evaluation mode; pass it a rate of 0 there"
            )
        states = hx if isinstance(hx, tuple) else (hx,)
        x = jnp.swapaxes(x, 0, 1) if batch_first else x
        sides = 1 + bool(bidirectional)
        per_side = len(params) // (num_layers * sides)
        last: list[Any] = []
        for _ in range(num_layers):
            outputs = []
            for reverse in (False, True)[:sides]:
                number = len(last)
                own = params[number * per_side : (number + 1) * per_side]
                start = tuple(s[number] for s in states)
                out, end = _scan(
                    xp, step, x, start, own, has_biases=has_biases, reverse=reverse
                )
                outputs.append(out)
                last.append(end)
            x = jnp.concatenate(outputs, -1)
        x = jnp.swapaxes(x, 0, 1) if batch_first else x
        ends = (jnp.stack(e) for e in zip(*last, strict=True))
        return x, *ends

    aten(f"{name}.input")(convert)


def _scan(
    xp: Any, step: Any, x: Array, start: Any, own: Sequence[Array], *,
    has_biases: bool, reverse: bool,
) -> Any:  # fmt: skip
    """One layer in one direction: all outputs, and the last states."""
    biases = own[2:4] if has_biases else (None, None)
    # An LSTM with a projection has one more weight, at the end.
    projection = own[-1] if len(own) in (3, 5) else None
    gates = _linear(xp, x, own[0], biases[0])

    def advance(state: Any, gate: Array) -> Any:
        hidden = _linear(xp, state[0], own[1], biases[1])
        new, *rest = step(xp, state, gate, hidden)
        if projection is not None:
            new = _linear(xp, new, projection)
        return (new, *rest), new

    end, out = lax.scan(advance, start, gates, reverse=reverse)
    return out, end


_add_recurrence("lstm", _lstm_step)
_add_recurrence("gru", _gru_step)
_add_recurrence("rnn_tanh", _rnn_step(jnp.tanh))
_add_recurrence("rnn_relu", _rnn_step(jax.nn.relu))


# --- Fourier transforms -----------------------------------------------------------


def _normalized(x: Array, lengths: Sequence[int], normalization: int) -> Array:
    """Torch's three ways to scale: 0 not at all, 1 by the root, 2 by the length."""
    count = math.prod(lengths)
    return x if normalization == 0 else x / (
        math.sqrt(count) if normalization == 1 else count
    )  # fmt: skip


@aten("_fft_r2c")
def _fft_r2c(
    xp: Any, x: Array, dim: tuple[int, ...], normalization: int, onesided: bool
) -> Array:
    lengths = [x.shape[d] for d in dim]
    out = jnp.fft.rfftn(x, axes=dim) if onesided else jnp.fft.fftn(x, axes=dim)
    return _normalized(out, lengths, normalization)


@aten("_fft_c2c")
def _fft_c2c(
    xp: Any, x: Array, dim: tuple[int, ...], normalization: int, forward: bool
) -> Array:
    lengths = [x.shape[d] for d in dim]
    if forward:
        return _normalized(jnp.fft.fftn(x, axes=dim), lengths, normalization)
    out = jnp.fft.ifftn(x, axes=dim, norm="forward")
    return _normalized(out, lengths, normalization)


@aten("_fft_c2r")
def _fft_c2r(
    xp: Any, x: Array, dim: tuple[int, ...], normalization: int, last_dim_size: int
) -> Array:
    lengths = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    out = jnp.fft.irfftn(x, lengths, dim, norm="forward")
    return _normalized(out, lengths, normalization)


# --- images -----------------------------------------------------------------------


def _add_antialiased(name: str, method: str) -> None:
    @in_float32
    def resize(
        xp: Any, x: Array, size: Any, align: bool, high: Any = None, wide: Any = None
    ) -> Array:
        if align:
            raise NotImplementedError("align_corners=True with antialias=True")
        scales = [
            scale or to / given
            for scale, to, given in zip((high, wide), size, x.shape[2:], strict=True)
        ]
        return jax.image.scale_and_translate(
            x, (*x.shape[:2], *size), (2, 3), jnp.array(scales), jnp.zeros(2), method
        )

    def resize_by(xp: Any, x: Array, size: Any, align: bool, factors: Any) -> Array:
        scaled = zip(x.shape[2:], factors or (), strict=False)
        size = size or [math.floor(length * factor) for length, factor in scaled]
        return resize(xp, x, size, align, *(factors or ()))

    aten(name)(resize)
    aten(f"{name}.vec")(resize_by)


_add_antialiased("_upsample_bilinear2d_aa", "linear")
_add_antialiased("_upsample_bicubic2d_aa", "cubic")
