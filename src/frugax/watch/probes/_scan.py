"""A scan that gives its records back, so that nothing in it calls the host.

Numbers leave with every step. Frames leave once in a block of steps: the scan is cut
into blocks, and the last step of each is written out after a scan of the others, so
that the code of frames is in no other step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ._bundle import Bundle
from ._collect import Traced, trace_watched
from ._frames import run_gated
from ._made import Made, by_name, value_of
from ._primitive import ALWAYS, COUNT, PRESENT, TIED, ambient_stride, bind
from ._slots import Slot, Taken


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    every: int | None = None,
    stride: Any = None,
    ring: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """`jax.lax.scan`, and what its steps record.

    The program has no effect, keeps JAX's fast calls, and is found again in the compile
    cache. Records go to a `watch.jit` around as well, without being returned to it.

    A function with a derivative rule of its own (`custom_jvp`, `custom_vjp`) is left as
    it is; a probe in it stays a callback.

    Args:
        f: as for `lax.scan`: from a carry and a slice of `xs` to a carry and a slice of
            the result. May call `record`, `frame` and the like.
        init: as there.
        xs: as there.
        length: as there.
        every: frames are made once in so many steps, by the last of them; a shorter
            rest at the end makes none. None: once, by the last step of all.
        stride: of these frames only each so-many-th is made, 0 for none: a whole number
            or an array of one, which may be traced, so a change does not compile anew.
            None: what the `watch.jit` around says, or else 1.
        ring: keep only the last so many frames, in a buffer that is carried along.
            None: keep all.
        reverse: as there.
        unroll: as there, for steps without frames.

    Returns:
        `((carry, ys), records)`. Records are by name: numbers of shape `(length, ...)`;
        frames as `Partly`, of shape `(length // every, ...)`, or `Last` in a ring.

    Raises:
        ValueError: `every`, `ring` or `stride` is out of range, or the length is not
            given or not the same everywhere.

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
        >>> records["grid"].values.tolist()
        [[2.0, 2.0], [5.0, 5.0]]
    """
    n = _length(xs, length)
    _check_count("every", every)
    _check_count("ring", ring)
    init = jax.tree.map(jnp.asarray, init)
    # Traced once, though it stands in several places; `inline`: no call is left of it.
    step = jax.jit(lambda carry, x: f(carry, x), inline=True)
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    traced = trace_watched(step, (init, example), {})
    numbers = _without_frames(traced).slots()
    frames = _only_frames(traced).slots()
    bundle = Bundle()

    def light(carry: Any, x: Any) -> Any:
        here = _without_frames(trace_watched(step, (carry, x), {}))
        (carry, y), made = here.run()
        return carry, (y, bundle.pack(_taken(made)))

    if not frames:
        carry, (ys, packed) = lax.scan(
            light, init, xs, n, reverse=reverse, unroll=unroll
        )
        return _given(carry, ys, _made(numbers, bundle.unpack(packed)))

    every = n if every is None else every
    blocks = n // max(every, 1)
    first, rest = _cut(xs, n, blocks * every, reverse=reverse)
    in_blocks = jax.tree.map(lambda x: x.reshape(blocks, every, *x.shape[1:]), first)
    gap = _stride(stride)

    def block(state: Any, x: Any) -> Any:
        carry, rings = state
        number, x = x
        many, last = _cut_last(x, reverse=reverse)
        carry, front = lax.scan(
            light, carry, many, every - 1, reverse=reverse, unroll=unroll
        )
        due = (gap > 0) & (number % jnp.maximum(gap, 1) == 0)
        (carry, (y, taken)), made = _full(step, carry, last, due, frames, rings)
        one = y, bundle.pack(taken)
        join = lambda a, b: jnp.concatenate([b[None], a] if reverse else [a, b[None]])
        outs = jax.tree.map(join, front, one)
        return (carry, made if ring else []), (outs, [] if ring else made)

    numbered = jnp.arange(blocks, dtype=jnp.uint32)
    rings = [_empty_ring(slot, ring) for slot in frames] if ring else []
    (carry, rings), (outs, made) = lax.scan(
        block, (init, rings), (numbered, in_blocks), blocks, reverse=reverse
    )
    flat = lambda x: x.reshape(blocks * every, *x.shape[2:])
    outs = jax.tree.map(flat, outs)
    if blocks * every < n:
        carry, more = lax.scan(
            light, carry, rest, n - blocks * every, reverse=reverse, unroll=unroll
        )
        joined = lambda a, b: jnp.concatenate([b, a] if reverse else [a, b])
        outs = jax.tree.map(joined, outs, more)
    ys, packed = outs
    taken = bundle.unpack(packed)
    meaning = COUNT if ring else PRESENT
    seldom = [
        Made(
            s.probe,
            s.meaning if s.meaning == COUNT else meaning,
            mark,
            values,
            ("ring" if ring else "steps", *s.axes),
            s.lanes,
        )
        for s, (mark, values) in zip(frames, rings if ring else made, strict=True)
    ]
    return _given(carry, ys, [*_made(numbers, taken), *seldom])


def _full(
    step: Callable[..., Any],
    carry: Any,
    x: Any,
    due: jax.Array,
    frames: Sequence[Slot],
    rings: list[Any],
) -> tuple[Any, list[Any]]:
    """One step with its frames, where they are due; else zeros, or what was there."""

    def both(carry: Any, x: Any) -> Any:
        (carry, y), made = trace_watched(step, (carry, x), {}).keeping(_any).run()
        light = [m for m in made if m.probe.kind != "frame"]
        heavy = [m for m in made if m.probe.kind == "frame"]
        return (carry, (y, _taken(light))), _taken(heavy)

    at = [count % values[0].shape[0] for count, values in rings]

    def old(shapes: Any) -> Any:
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        if not rings:
            return blank
        pairs = zip(blank, rings, at, strict=True)
        return [
            (mark, [lax.dynamic_index_in_dim(v, i, keepdims=False) for v in values])
            for (mark, _), (_, values), i in pairs
        ]

    one, taken = run_gated(both, (carry, x), due, old)
    if not rings:
        return one, [
            (_marked(slot, mark, due), values)
            for slot, (mark, values) in zip(frames, taken, strict=True)
        ]
    # Written back whole where nothing is due: a ring under a `cond` would be copied.
    written = []
    for slot, (mark, new), (count, held), i in zip(
        frames, taken, rings, at, strict=True
    ):
        made = jnp.any(_marked(slot, mark, due))
        kept = [
            lax.dynamic_update_index_in_dim(
                h,
                jnp.where(made, v, lax.dynamic_index_in_dim(h, i, keepdims=False)),
                i,
                0,
            )
            for h, v in zip(held, new, strict=True)
        ]
        written.append((count + made.astype(jnp.uint32), kept))
    return one, written


def _marked(slot: Slot, mark: Any, due: jax.Array) -> jax.Array:
    """The mark of a frame that is there only if due."""
    return due if slot.meaning == ALWAYS else jnp.where(due, mark, jnp.zeros_like(mark))


def _empty_ring(slot: Slot, rows: int | None) -> Any:
    rows = rows or 0
    return jnp.zeros((), jnp.uint32), [
        jnp.zeros((rows, *v.shape), v.dtype) for v in slot.values
    ]


def _given(
    carry: Any, ys: Any, made: Sequence[Made]
) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """What `scan` gives; whoever collects around it is given the same."""
    leaves, tree = jax.tree.flatten((carry, ys))
    if leaves:
        for m in made:
            # Tied to a result, or it would be removed as unused.
            leaves[0] = bind(
                m.probe,
                m.values,
                mark=m.mark,
                meaning=m.meaning,
                axes=m.axes,
                lanes=m.lanes,
                how=TIED,
                tied=leaves[0],
            )
    records = {name: value_of(m) for name, m in by_name(made).items()}
    return jax.tree.unflatten(tree, leaves), records


def _without_frames(traced: Traced) -> Traced:
    return traced.keeping(lambda probe: probe.kind != "frame")


def _only_frames(traced: Traced) -> Traced:
    return traced.keeping(lambda probe: probe.kind == "frame")


def _any(_: Any) -> bool:
    return True


def _taken(made: Sequence[Made]) -> list[Taken]:
    return [(m.mark, list(m.values)) for m in made]


def _made(slots: Sequence[Slot], taken: Sequence[Taken]) -> list[Made]:
    pairs = zip(slots, taken, strict=True)
    return [
        Made(s.probe, s.meaning, mark, values, ("steps", *s.axes), s.lanes)
        for s, (mark, values) in pairs
    ]


def _stride(stride: Any) -> jax.Array:
    """The stride as u32.

    Raises:
        ValueError: it is below 0 or no single whole number.
    """
    if stride is None:
        return ambient_stride()
    if isinstance(stride, int) and not isinstance(stride, bool):
        if not 0 <= stride < 2**32:
            raise ValueError(f"stride must be in 0 .. 2**32 - 1, got {stride}.")
        return jnp.asarray(stride, jnp.uint32)
    given: Any = stride  # so that the checker forgets what it was not
    dtype = getattr(given, "dtype", None)
    whole = dtype is not None and jnp.issubdtype(dtype, jnp.integer)
    if not whole or given.shape != ():
        raise ValueError(f"stride must be one whole number, got {stride!r}.")
    return jnp.asarray(given).astype(jnp.uint32)


def _length(xs: Any, length: int | None) -> int:
    """How many steps there are.

    Raises:
        ValueError: it is not given, or not the same everywhere.
    """
    sizes = {x.shape[0] for x in jax.tree.leaves(xs) if x.shape}
    sizes |= set() if length is None else {int(length)}
    if len(sizes) != 1:
        what = f"lengths {sorted(sizes)}" if sizes else "no length"
        raise ValueError(
            f"scan has {what}: give xs with one leading axis, or length, both the same."
        )
    return sizes.pop()


def _check_count(name: str, value: int | None) -> None:
    """Refuse what is no count.

    Raises:
        ValueError: it is below 1, or no whole number.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")


def _cut(xs: Any, n: int, size: int, *, reverse: bool) -> tuple[Any, Any]:
    """The steps that run first, in blocks, and the rest."""
    if reverse:
        first, rest = slice(n - size, n), slice(0, n - size)
    else:
        first, rest = slice(0, size), slice(size, n)
    part = lambda where: jax.tree.map(lambda x: x[where], xs)
    return part(first), part(rest)


def _cut_last(x: Any, *, reverse: bool) -> tuple[Any, Any]:
    """The steps of a block but for the one that runs last, and that one."""
    if reverse:
        return jax.tree.map(lambda a: a[1:], x), jax.tree.map(lambda a: a[0], x)
    return jax.tree.map(lambda a: a[:-1], x), jax.tree.map(lambda a: a[-1], x)
