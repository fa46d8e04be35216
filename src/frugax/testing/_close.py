"""Are two pytrees of arrays the same, as far as their number format can tell?"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from frugax.typing import PyTree


def tolerance(dtype: object, *, terms: int = 1) -> float:
    """Relative error that rounding alone may cause, for a sum of so many products.

    Errors of a sum behave like a random walk: sqrt(terms) roundings of one unit each
    (Higham & Mary 2019, SIAM J. Sci. Comput. 41(5)); 8 of these leave room for the
    few other operations around the sum.

    Args:
        dtype: the floating-point format.
        terms: products added up for one value; >= 1.

    >>> tolerance("float32") < 1e-6 < tolerance("bfloat16")
    True
    """
    return 8 * math.sqrt(terms) * float(jnp.finfo(dtype).eps)


def assert_trees_close(actual: PyTree, expected: PyTree, *, terms: int = 1) -> None:
    """Fail unless both trees have the same structure, shapes, dtypes and values.

    Floating-point values may differ by `tolerance(dtype, terms=terms)` relative to the
    largest value of their array; everything else must be equal. All differences are
    listed, each with its path.

    Args:
        actual: what came out.
        expected: what should have.
        terms: products added up for one value.

    Raises:
        AssertionError: they differ; names every leaf that does.
    """
    got, got_tree = jax.tree.flatten(actual)
    want, want_tree = jax.tree.flatten_with_path(expected)
    if got_tree != jax.tree.structure(expected):
        raise AssertionError(f"structures differ:\n{got_tree}\n{want_tree}")
    wrong = []
    for (path, w), g in zip(want, got, strict=True):
        a, b = np.asarray(g), np.asarray(w)
        name = jax.tree_util.keystr(path) or "the value"
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            wrong.append(f"{name}: {a.dtype}{a.shape} is not {b.dtype}{b.shape}")
        elif not jnp.issubdtype(b.dtype, jnp.floating):
            if not np.array_equal(a, b):
                wrong.append(f"{name}: values differ")
        elif b.size:
            scale = float(np.max(np.abs(b))) or 1.0
            gap = float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))
            limit = tolerance(b.dtype, terms=terms)
            if not gap <= limit * scale:  # `not <=`: nan fails too
                wrong.append(f"{name}: off by {gap / scale:.3g}, allowed {limit:.3g}")
    if wrong:
        raise AssertionError("\n".join(wrong))
