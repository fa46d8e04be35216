"""`histogram`, `norms` and `image`: record large arrays reduced inside the program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from frugax.jaxprs import has_explicit_axes

from .journal import number_name
from .probes import frame, record

_MAX_BINS = 4096


def histogram(name: str, value: Any, *, bins: int = 64, when: Any = None) -> None:
    """Record the distribution of an array's finite values, as often as is affordable.

    The stream has `counts`, the number of values in each bin; `low` and `high`, the
    outer edges of the bins; and `not_finite`, the number of values that were left out.

    Args:
        name: the name of the stream.
        value: an array of real numbers, or a pytree of them that is taken as one.
        bins: the number of bins of equal width; 1 to 4096.
        when: as for `record`.

    Raises:
        TypeError: a value is not an array of real numbers.
        ValueError: `bins` is out of range, or there is no value.
    """
    if not 1 <= bins <= _MAX_BINS:
        raise ValueError(f"bins must be from 1 to {_MAX_BINS}, got {bins}.")
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(value)]
    if not leaves or not sum(leaf.size for leaf in leaves):
        raise ValueError(f"histogram {name!r} has no value: give it an array.")
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise TypeError(f"histogram {name!r} needs real numbers, got {leaf.dtype}.")
    leaves = [_widen(leaf) for leaf in leaves if leaf.size]
    finite = [jnp.isfinite(leaf) for leaf in leaves]
    pairs = list(zip(leaves, finite, strict=True))
    ends = [jnp.min(x, where=known, initial=jnp.inf) for x, known in pairs]
    low = functools.reduce(jnp.minimum, ends)
    ends = [jnp.max(x, where=known, initial=-jnp.inf) for x, known in pairs]
    high = functools.reduce(jnp.maximum, ends)
    is_empty = low > high
    low, high = jnp.where(is_empty, 0.0, low), jnp.where(is_empty, 0.0, high)
    # One place for all values alike: a width of zero would divide by zero.
    # Scaled, since the difference of two large values may overflow.
    scale = _power_below(jnp.maximum(-low, high))
    first, width = low / scale, high / scale - low / scale
    width = jnp.where(width > 0, width, 1.0)
    counts = jnp.zeros(bins + 1, jnp.int32)
    for leaf, known in pairs:
        place = jnp.clip((leaf / scale - first) / width * bins, 0, bins - 1)
        # Values that are not finite go one beyond the last bin, which is dropped.
        place = jnp.where(known, place.astype(jnp.int32), bins)
        options: dict[str, Any] = {}
        if has_explicit_axes(aval := jax.typeof(leaf)):
            # JAX asks where the sum over the devices shall be: on each of them.
            options["out_sharding"] = NamedSharding(aval.sharding.mesh, PartitionSpec())
        counts = counts.at[place].add(1, **options)
    frame(
        name,
        {"counts": counts[:bins], "low": low, "high": high, "not_finite": counts[bins]},
        when=when,
    )


def norms(name: str, tree: Any, *, when: Any = None) -> None:
    """Record the Euclidean norm of each leaf of a tree, and of all of them.

    They are columns of the training steps: `name/` and the path of the leaf, with a
    number behind a path that another leaf has, and `name/all`.

    Args:
        name: the name of the record.
        tree: a pytree of arrays, such as gradients; leaves that are not arrays of
            numbers are left out. Over 900 leaves only `name/all` is recorded.
        when: as for `record`.

    Raises:
        ValueError: the tree has no array.
    """
    leaves: dict[str, Any] = {}
    taken = {"all"}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if not isinstance(leaf, jax.Array | np.ndarray):
            continue
        if not jnp.issubdtype(leaf.dtype, jnp.number):
            continue
        label = jax.tree_util.keystr(path, simple=True, separator="/") or "all"
        # Long paths keep their end, which tells most leaves apart.
        label = label[-max(94 - len(name), 1) :]
        own = number_name(label, taken)
        leaves[own] = leaf
        taken.add(own)
    if not leaves:
        raise ValueError(f"norms {name!r} has no array: give it a tree of arrays.")
    found = dict(zip(leaves, _euclidean_norms(list(leaves.values())), strict=True))
    parts = found.values()
    widest = jnp.float64 if any(x.dtype == jnp.float64 for x in parts) else jnp.float32
    (total,) = _euclidean_norms([jnp.stack([x.astype(widest) for x in parts])])
    if not 1 < len(leaves) <= 900:
        record(f"{name}/all", total, when=when)
        return
    # One record with many numbers: a price, and a program to measure it, for all.
    record(name, found | {"all": total}, when=when)


def _euclidean_norms(leaves: list[Any]) -> list[Any]:
    """Return the norm of each array; exact scaling where squares leave their range."""
    wide = [jnp.abs(_widen(x)) for x in leaves]
    squares = [jnp.sum(x**2) for x in wide]
    # The squares of 1e25 overflow float32, and those of 1e-25 vanish: 2**80 on either
    # side of 1 leaves room for the sum.
    is_plain = jnp.stack([(q < 2.0**80) & (q > 2.0**-80) for q in squares]).all()
    return jax.lax.cond(
        is_plain,
        lambda: [jnp.sqrt(square) for square in squares],
        lambda: [_scaled_norm(x) for x in wide],
    )


def _widen(array: Any) -> Any:
    """Convert to float32, whose squares overflow later; wider and complex ones stay."""
    array = jnp.asarray(array)
    is_complex = jnp.issubdtype(array.dtype, jnp.complexfloating)
    if is_complex or array.dtype == jnp.float64:
        return array
    return array.astype(jnp.float32)


def _scaled_norm(x: Any) -> Any:
    """Return the norm of an array of any range, at most the largest float."""
    largest = jnp.max(x, initial=0.0)
    scale = jnp.where(jnp.isfinite(largest), _power_below(largest), 1.0)
    norm = jnp.sqrt(jnp.sum((x / scale) ** 2)) * scale
    limit = jnp.finfo(x.dtype).max
    return jnp.where(jnp.isfinite(largest), jnp.minimum(norm, limit), norm)


def _power_below(size: Any) -> Any:
    """Return the power of two below a positive number: scaling by it is exact."""
    limits = jnp.finfo(size.dtype)
    exponent = jnp.clip(jnp.frexp(size)[1] - 1, limits.minexp, limits.maxexp - 1)
    return jnp.ldexp(jnp.ones((), size.dtype), exponent)


def image(name: str, array: Any, *, when: Any = None, lanes: int | None = None) -> None:
    """Record an image as 8-bit numbers, as often as is affordable.

    Args:
        name: the name of the stream.
        array: `(height, width)` in grey, `(height, width, 3)` or `(height, width, 4)`;
            floats from 0 to 1, integers from 0 to 255, or a mask of booleans. Floats
            of which none is negative and one is above 2 are taken as 0 to 255. Values
            out of the range are clipped; the column `clipped` has their share.
        when: as for `record`.
        lanes: as for `record`.

    Raises:
        TypeError: the array does not hold real numbers or truth values.
        ValueError: the array has another shape, or is empty.
    """
    pixels = jnp.asarray(array)
    is_real = any(
        jnp.issubdtype(pixels.dtype, kind)
        for kind in (jnp.integer, jnp.floating, jnp.bool_)
    )
    if not is_real:
        raise TypeError(f"image {name!r} needs real numbers, got {pixels.dtype}.")
    has_colour = pixels.ndim == 3 and pixels.shape[-1] in (3, 4)
    if (pixels.ndim != 2 and not has_colour) or not pixels.size:
        raise ValueError(
            f"image {name!r} must be (height, width), or that with 3 or 4 colours, got "
            f"{pixels.shape}: give one of a batch, and no axis for one colour."
        )
    clipped: Any = jnp.zeros(())
    if pixels.dtype == jnp.bool_:
        pixels = pixels.astype(jnp.uint8) * jnp.uint8(255)
    elif pixels.dtype != jnp.uint8:
        high: Any = 255
        is_integer = jnp.issubdtype(pixels.dtype, jnp.integer)
        if is_integer and jnp.iinfo(pixels.dtype).max < high:
            pixels = pixels.astype(jnp.int32)
        if jnp.issubdtype(pixels.dtype, jnp.floating):
            pixels = _widen(pixels)
            least = jnp.nanmin(pixels, initial=0.0)
            largest = jnp.nanmax(pixels, initial=0.0)
            # A picture from 0 to 1 may overshoot a little, after a resize for example.
            is_bytes = (least >= 0) & (largest > 2)
            high = jnp.where(is_bytes, 255.0, 1.0).astype(pixels.dtype)
        # NaN is neither above nor below; it is shown in black and counted as well.
        clipped = jnp.mean(~((pixels >= 0) & (pixels <= high)), dtype=jnp.float32)
        shown = jnp.clip(pixels, 0, high)
        if jnp.issubdtype(pixels.dtype, jnp.floating):
            shown = jnp.round(jnp.nan_to_num(shown / high) * 255)
        pixels = shown.astype(jnp.uint8)
    # The picture last, so that it stays if its name is "clipped".
    frame(name, {"clipped": clipped, name: pixels}, when=when, lanes=lanes)
