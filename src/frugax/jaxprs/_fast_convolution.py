"""A JAX primitive for convolutions that XLA:CPU runs fast in loops, gradients included.

XLA:CPU has fast code for convolutions whose data is laid out as NHWC, the kernel as
HWIO. It converts any other convolution by transposing, but only in the outermost
computation (`ConvCanonicalization::Run` in xla/service/cpu/conv_canonicalization.cc
visits `module->entry_computation()` alone). In the body of a loop and in a branch all
others get plain nested loops, 10 to 100 times slower: NCHW convolutions and the
gradients of all convolutions. Here the transposes are written out.

The primitive `fast_convolution` has the parameters of `lax.conv_general_dilated_p`, so
that its derivatives, of any order and in both modes, and its `vmap` are fast as well.
On other backends it is lowered as `lax.conv_general_dilated_p`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from ._jax_internals import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive, jaxpr_as_fun

fast_convolution_p = Primitive("fast_convolution")

# With at most this many products for each position of each group (depthwise
# convolutions, mostly) the plain nested loops win: 0.14 against 5 ms for 3x3 over 8 x
# 32 x 32 x 32. With 576 products the library wins: 5 against 19 ms.
_MAX_LOOP_PRODUCTS = 64


def fast_convolution(data: jax.Array, kernel: jax.Array, **params: Any) -> jax.Array:
    """`lax.conv_general_dilated` that is fast on CPU everywhere, gradients included.

    Outside of loops it takes at most as long (`python -m
    benchmarks.remat convolutions`).

    Args:
        data: as for `lax.conv_general_dilated`.
        kernel: as for `lax.conv_general_dilated`.
        params: its other arguments, by keyword.

    Example:
        >>> import jax.numpy as jnp
        >>> from frugax.jaxprs import fast_convolution
        >>> fast_convolution(
        ...     jnp.ones((1, 5, 1)),
        ...     jnp.ones((3, 1, 1)),
        ...     window_strides=(1,),
        ...     padding="SAME",
        ...     dimension_numbers=("NWC", "WIO", "NWC"),
        ... ).ravel().tolist()
        [2.0, 3.0, 3.0, 3.0, 2.0]
    """
    plain = functools.partial(lax.conv_general_dilated, **params)
    return _use_fast(plain)(data, kernel)


def as_fast(eqn: JaxprEqn) -> JaxprEqn:
    """The fast form of a convolution; any other operation is returned as it is."""
    if not is_plain_convolution(eqn):
        return eqn
    return eqn.replace(primitive=fast_convolution_p)


def is_plain_convolution(eqn: JaxprEqn) -> bool:
    """Whether this is a convolution that `as_fast` changes: one without a sharding."""
    is_convolution = eqn.primitive is lax.conv_general_dilated_p
    return is_convolution and eqn.params["out_sharding"] is None


def is_wider(
    shape: Sequence[int], spec: Sequence[int], data: Sequence[int], of: Sequence[int]
) -> bool:
    """Whether an array is wider than the data along a spatial axis.

    For a kernel that is wider, XLA:CPU has no fast code in any place.
    """
    pairs = zip(spec[2:], of[2:], strict=True)
    return any(shape[i] > data[j] for i, j in pairs)


def _canonical(
    data: jax.Array,
    kernel: jax.Array,
    *,
    dimension_numbers: lax.ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    **params: Any,
) -> jax.Array:
    """The convolution in NHWC layout, with transposes before and after."""
    data_spec, kernel_spec, out_spec = dimension_numbers
    spatial = len(data_spec) - 2
    last = spatial + 1
    if is_wider(kernel.shape, kernel_spec, data.shape, data_spec):
        # The gradient of a kernel may have such a window. The library computes it once
        # the padding, which makes the data wide enough, is explicit.
        edges = [(0, 0, 0)] * (spatial + 2)
        for axis, pads, holes in zip(data_spec[2:], padding, lhs_dilation, strict=True):
            edges[axis] = (*pads, holes - 1)
        data = lax.pad(data, jnp.zeros((), data.dtype), edges)
        padding, lhs_dilation = ((0, 0),) * spatial, (1,) * spatial
    data = lax.transpose(data, _channels_last(data_spec))
    if batch_group_count > 1:
        # XLA expands batch groups to a convolution of all groups with all kernels. Each
        # group of outputs reads one group of the batch, so feature groups do as well.
        batch, *space, inputs = data.shape
        split = (batch_group_count, batch // batch_group_count, *space, inputs)
        data = lax.transpose(data.reshape(split), (*range(1, last + 1), 0, last + 1))
        data = data.reshape(*split[1:-1], batch_group_count * inputs)
    groups = feature_group_count * batch_group_count  # one of the two is 1
    out_axis, in_axis, *window = kernel_spec
    # The library takes kernels in HWIO layout. HWOI forces the plain nested loops.
    features, kernel_axes = (in_axis, out_axis), (last, last - 1)
    if groups > 1 and kernel.size <= _MAX_LOOP_PRODUCTS * groups:
        features, kernel_axes = (out_axis, in_axis), (last - 1, last)
    kernel = lax.transpose(kernel, (*window, *features))
    plain = (0, last, *range(1, last))
    out = lax.conv_general_dilated_p.bind(
        data,
        kernel,
        dimension_numbers=lax.ConvDimensionNumbers(
            plain, (*kernel_axes, *range(spatial)), plain
        ),
        feature_group_count=groups,
        batch_group_count=1,
        padding=tuple(padding),
        lhs_dilation=tuple(lhs_dilation),
        **params,
    )
    return lax.transpose(out, np.argsort(_channels_last(out_spec)).tolist())


def _channels_last(spec: Sequence[int]) -> tuple[int, ...]:
    batch, features, *space = spec
    return (batch, *space, features)


def _use_fast(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with fast convolutions."""

    def run(*args: Any) -> Any:
        traced = jax.make_jaxpr(fn)(*args)
        jaxpr: Jaxpr = traced.jaxpr
        fast = jaxpr.replace(eqns=[as_fast(e) for e in jaxpr.eqns])
        (out,) = jaxpr_as_fun(ClosedJaxpr(fast, traced.consts))(*args)
        return out

    return run


def _transpose(place: int, cotangent: Any, *pair: Any, **params: Any) -> Any:
    """The gradient of the data or the kernel, by the rule of plain convolutions."""
    rule = ad.primitive_transposes[lax.conv_general_dilated_p]
    wanted = ad.UndefinedPrimal(pair[place].aval)

    def pull(cotangent: Any, known: Any) -> Any:
        operands = [known, known]
        operands[place] = wanted
        return rule(cotangent, *operands, **params)[place]

    # For an empty cotangent the rule returns a symbolic zero, which cannot be traced.
    if math.prod(cotangent.shape):
        pull = _use_fast(pull)
    return pull(cotangent, pair[1 - place])


def _batch(args: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, int]:
    plain = functools.partial(lax.conv_general_dilated_p.bind, **params)
    return _use_fast(jax.vmap(plain, tuple(axes)))(*args), 0


def _abstract(data: Any, kernel: Any, **params: Any) -> Any:
    return lax.conv_general_dilated_p.abstract_eval(data, kernel, **params)[0]


fast_convolution_p.def_abstract_eval(_abstract)
# Outside of `jit` each operation is a program of its own, whose entry computation XLA
# converts by itself.
fast_convolution_p.def_impl(lax.conv_general_dilated_p.bind)
ad.defbilinear(
    fast_convolution_p,
    functools.partial(_transpose, 0),
    functools.partial(_transpose, 1),
)
batching.primitive_batchers[fast_convolution_p] = _batch
mlir.register_lowering(
    fast_convolution_p,
    mlir.lower_fun(lax.conv_general_dilated_p.bind, multiple_results=False),
)
mlir.register_lowering(
    fast_convolution_p,
    mlir.lower_fun(_canonical, multiple_results=False),
    platform="cpu",
)
