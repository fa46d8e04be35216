"""`watch.scan`: a `lax.scan` that returns its steps' records, without host callbacks.

Numbers leave with every step. Frames leave once per block of steps: the scan is cut
into blocks, and the last step of each block is written out after an inner scan over
the others, so that no other step contains the code for frames.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frugax.options import check_integer

from ._bundle import Bundle
from ._collect import trace_function
from ._primitive import bind
from ._results import ProbeResult, name_results, to_value


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    every: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Run `jax.lax.scan` and return the records of its steps as well.

    The program has no effect, keeps JAX's fast calls and its place in the compile
    cache. An outer `watch.jit` receives the records too, without an explicit return.

    A function with a derivative rule of its own (`custom_jvp`, `custom_vjp`) is left as
    it is; a probe in it stays a callback.

    Args:
        f: as for `lax.scan`, from a carry and a slice of `xs` to a carry and a slice of
            the result. It may call `record`, `frame` and the like.
        init: as for `lax.scan`.
        xs: as for `lax.scan`.
        length: as for `lax.scan`.
        every: the number of steps per frame, which the last of them makes; a shorter
            rest at the end makes none. By default the last step of all makes one.
        reverse: as for `lax.scan`.
        unroll: as for `lax.scan`, for steps without frames.

    Returns:
        `((carry, ys), records)`, the records by name: numbers of shape `(length, ...)`;
        frames of shape `(length // every, ...)`.

    Raises:
        TypeError: `every` is not an integer.
        ValueError: `every` is below 1, or the length is missing or ambiguous.

    Example:
        >>> import jax.numpy as jnp
        >>> from frugax.watch.probes import frame, record, scan
        >>> def step(x, _):
        ...     record("total", x.sum())
        ...     frame("grid", x)
        ...     return x + 1, None
        >>> (x, _), records = scan(step, jnp.zeros(2), length=6, every=3)
        >>> records["total"].tolist()
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        >>> records["grid"].tolist()
        [[2.0, 2.0], [5.0, 5.0]]
    """
    n = _scan_length(xs, length)
    if every is not None:
        check_integer("every", every)
    # `lax.scan` does the same; without it a Python number in the carry would be traced
    # as a constant.
    init = jax.tree.map(jnp.asarray, init)
    # The jit traces `f` once although it is used in several places; `inline` removes
    # the call again.
    step = jax.jit(lambda carry, x: f(carry, x), inline=True)
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    traced = trace_function(step, (init, example), {})
    has_frames = traced.keep(lambda probe: probe.kind == "frame").has_results
    # Shared by all inner scans, which record the same values in the same order.
    bundle = Bundle()

    def step_without_frames(carry: Any, x: Any) -> Any:
        traced = trace_function(step, (carry, x), {})
        numbers = traced.keep(lambda probe: probe.kind != "frame")
        (carry, y), results = numbers.run()
        return carry, (y, bundle.pack(results))

    inner_scan = functools.partial(
        lax.scan, step_without_frames, reverse=reverse, unroll=unroll
    )
    if not has_frames:
        carry, (ys, packed) = inner_scan(init, xs, n)
        return _return_results(carry, ys, bundle.unpack(packed))

    if every is None:
        every = n
    blocks = n // max(every, 1)
    first, rest = _split_steps(xs, n, blocks * every, reverse=reverse)
    in_blocks = jax.tree.map(lambda x: x.reshape(blocks, every, *x.shape[1:]), first)

    def run_block(carry: Any, x: Any) -> Any:
        others, last = _split_last(x, reverse=reverse)
        carry, front = inner_scan(carry, others, every - 1)
        traced = trace_function(step, (carry, last), {})
        (carry, y), results = traced.keep(lambda _: True).run()
        numbers = [r for r in results if r.probe.kind != "frame"]
        frames = [r for r in results if r.probe.kind == "frame"]
        outs = jax.tree.map(
            lambda a, b: concatenate(a, b[None]), front, (y, bundle.pack(numbers))
        )
        return carry, (outs, frames)

    def concatenate(a: jax.Array, b: jax.Array) -> jax.Array:
        # A reverse scan runs from the end, but its results stay in the order of `xs`.
        if reverse:
            a, b = b, a
        return jnp.concatenate([a, b])

    carry, (outs, frames) = lax.scan(
        run_block, init, in_blocks, blocks, reverse=reverse
    )
    flat = lambda x: x.reshape(blocks * every, *x.shape[2:])
    outs = jax.tree.map(flat, outs)
    if blocks * every < n:
        carry, more = inner_scan(carry, rest, n - blocks * every)
        outs = jax.tree.map(concatenate, outs, more)
    ys, packed = outs
    return _return_results(carry, ys, [*bundle.unpack(packed), *frames])


def _return_results(
    carry: Any, ys: Any, results: Sequence[ProbeResult]
) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Return the results to the caller, and to any collector further out."""
    results = [result.stacked("steps") for result in results]
    leaves, tree = jax.tree.flatten((carry, ys))
    if leaves:
        for r in results:
            # Tied to an output, or it would be removed as dead code without an effect.
            leaves[0] = bind(
                r.probe,
                r.values,
                mark=r.mark,
                mark_kind=r.mark_kind,
                axes=r.axes,
                lanes=r.lanes,
                tied=leaves[0],
            )
    records = {name: to_value(r) for name, r in name_results(results).items()}
    return jax.tree.unflatten(tree, leaves), records


def _scan_length(xs: Any, length: int | None) -> int:
    sizes = {x.shape[0] for x in jax.tree.leaves(xs) if x.shape}
    if length is not None:
        sizes.add(int(length))
    if len(sizes) != 1:
        problem = "no length"
        if sizes:
            problem = f"lengths {sorted(sizes)}"
        raise ValueError(
            f"scan has {problem}: give xs with one leading axis, or length, or both "
            "if they agree."
        )
    return sizes.pop()


def _split_steps(xs: Any, n: int, size: int, *, reverse: bool) -> tuple[Any, Any]:
    """Split off the steps that run first, in blocks, from the rest."""
    if reverse:
        first, rest = slice(n - size, n), slice(0, n - size)
    else:
        first, rest = slice(0, size), slice(size, n)
    part = lambda where: jax.tree.map(lambda x: x[where], xs)
    return part(first), part(rest)


def _split_last(x: Any, *, reverse: bool) -> tuple[Any, Any]:
    """Split a block into the steps before its last one, and that one."""
    if reverse:
        return jax.tree.map(lambda a: a[1:], x), jax.tree.map(lambda a: a[0], x)
    return jax.tree.map(lambda a: a[:-1], x), jax.tree.map(lambda a: a[-1], x)
