"""The operations, for arrays of any library: checks here, the work in its engine.

In the max-plus semiring "sum" is the larger of two numbers and "product" is `+`; the
zero is -inf and the one is 0. Min-plus is its mirror: the smaller of two, zero +inf.
The zero swallows everything, so the opposite infinity is no number here and refused.

References:
    Butkovic 2010, "Max-linear Systems: Theory and Algorithms", Springer;
    Maclagan & Sturmfels 2015, "Introduction to Tropical Geometry", AMS (polynomials).
"""

import math
import numbers
import sys
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Num

from frugax.trees import is_array

Kind: TypeAlias = Literal["max", "min"]


def matmul(
    a: Num[Any, "n k"], b: Num[Any, "k m"], *, kind: Kind = "max"
) -> Num[Any, "n m"]:
    """The tropical matrix product: `out[i, j]` is the best `a[i, k] + b[k, j]`.

    Exact: every library gives the same numbers, since `+` of two numbers rounds alike
    everywhere and the order of maxima does not matter. Memory is that of the result
    and a few blocks, not `n * k * m`.

    Args:
        a: left matrix, floats or whole numbers.
        b: right matrix, of the same library.
        kind: whether the best is the largest or the smallest.

    Raises:
        TypeError: arrays of two libraries, or what is no array.
        ValueError: shapes that do not fit, an unknown kind, an infinity that is no
            number of this semiring (under `jit` its row or column is NaN instead),
            or no terms to choose from among whole numbers, which have no -inf.

    >>> matmul(np.array([[0.0, -np.inf], [1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[3.],
           [6.]])
    """
    _check_arrays("matmul", a, b)
    engine = _engine(kind, a, b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"matmul needs (n, k) and (k, m), got {tuple(a.shape)} and "
            f"{tuple(b.shape)}."
        )
    if a.shape[1] == 0 and not engine.has_zero(a):
        raise ValueError("the product of no whole numbers has no value: use floats.")
    return engine.matmul(a, b, kind)


def identity(n: int, like: Num[Any, "..."], *, kind: Kind = "max") -> Num[Any, "n n"]:
    """The matrix that changes nothing: 0 on the diagonal, the zero elsewhere.

    Args:
        n: how many rows and columns.
        like: a float array whose library and dtype to use.
        kind: whether the best is the largest or the smallest.

    Raises:
        TypeError: `like` is no array, or `n` no whole number.
        ValueError: whole numbers, which have no infinity, or a negative `n`.

    >>> identity(2, np.zeros(1))
    array([[  0., -inf],
           [-inf,   0.]])
    """
    _check_arrays("identity", like)
    n = _count("n", n)
    engine = _engine(kind, like)
    if not engine.has_zero(like):
        raise ValueError("whole numbers have no infinity: use floats.")
    return engine.identity(n, like, kind)


def power(a: Num[Any, "n n"], exponent: int, *, kind: Kind = "max") -> Num[Any, "n n"]:
    """The tropical power: `out[i, j]` is the best walk of `exponent` steps.

    By repeated squaring: about `2 log2(exponent)` products. Sums round in another
    order than step by step, so large floats may differ in the last digits.

    Args:
        a: the weights of single steps, square.
        exponent: how many steps; >= 0.
        kind: whether the best is the largest or the smallest.

    Raises:
        TypeError: `a` is no array of floats or whole numbers, or the exponent is no
            whole number.
        ValueError: a negative exponent, a matrix that is not square, the power 0 of
            whole numbers, or a walk whose weight the dtype cannot hold.

    >>> power(np.array([[0.0, 1.0], [2.0, 0.0]]), 2)
    array([[3., 1.],
           [2., 3.]])
    """
    _check_square("power", a)
    steps = _count("exponent", exponent)
    if steps == 0:
        return identity(a.shape[0], a, kind=kind)
    engine = _engine(kind, a)

    def times(left: Any, right: Any) -> Any:
        out = matmul(left, right, kind=kind)
        if engine.holds_infinity(out, _opposite(kind)):  # there is none in `a`
            raise ValueError(
                f"power of exponent {exponent}: a walk weighs more than {a.dtype} can "
                "hold: scale the weights, or use a wider dtype."
            )
        return out

    square, result = a, None
    while True:
        if steps & 1:
            result = square if result is None else times(result, square)
        steps >>= 1
        if not steps:
            assert result is not None  # the highest bit of an exponent is 1
            return result * 1 if result is a else result  # never the input itself
        square = times(square, square)


def closure(d: Num[Any, "n n"], *, kind: Kind = "min") -> Num[Any, "n n"]:
    """The best walk of any length between every pair: `I + d + d^2 + ...`.

    With `kind="min"` these are shortest paths; standing still costs 0.

    Args:
        d: the weights of single steps; +inf (-inf for `"max"`) where there is none.
        kind: whether the best is the largest or the smallest.

    Returns:
        The closure; only `d` itself and one more matrix are held.

    Raises:
        TypeError: `d` is no array.
        ValueError: a cycle that gets better with every round, so that no best walk
            exists, or NaN (neither is checked under `jit`), or a matrix that is not
            square.

    References:
        Floyd 1962, Communications of the ACM 5(6), 345.

    >>> closure(np.array([[0.0, 5.0, 1.0], [np.inf, 0, np.inf], [np.inf, 2.0, 0]]))
    array([[ 0.,  3.,  1.],
           [inf,  0., inf],
           [inf,  2.,  0.]])
    """
    _check_square("closure", d)
    engine = _engine(kind, d)
    if engine.holds_nan(d):
        raise ValueError("closure needs numbers: there is a NaN among the weights.")
    return engine.closure(d, kind)


def polynomial(
    coefficients: Num[Any, " monomials"],
    exponents: Num[Any, "monomials variables"],
    points: Num[Any, "points variables"],
    *,
    kind: Kind = "max",
) -> Num[Any, " points"]:
    """Evaluate a tropical polynomial: the best of `c + exponents @ x`.

    Args:
        coefficients: one for each monomial; the semiring's zero for none.
        exponents: the powers of each variable; negative ones are allowed where no
            point is infinite.
        points: where to evaluate.
        kind: whether the best is the largest or the smallest.

    Returns:
        The values, `(points,)`. Their sums of products may round differently from
        library to library.

    Raises:
        TypeError: arrays of two libraries, or what is no array.
        ValueError: shapes that do not fit, or an infinite point with a negative power.

    >>> polynomial(np.array([0.0, 1.0]), np.array([[2.0], [0.0]]), np.array([[3.0]]))
    array([6.])
    """
    _check_arrays("polynomial", coefficients, exponents, points)
    _one_library(coefficients, exponents, points)
    engine = _engine(kind, coefficients, points)
    monomials, variables = exponents.shape if exponents.ndim == 2 else (0, 0)
    if (
        tuple(coefficients.shape) != (monomials,)
        or points.ndim != 2
        or points.shape[1] != variables
        or monomials == 0
    ):
        raise ValueError(
            "polynomial needs (monomials,), (monomials, variables) and (points, "
            "variables), with at least one monomial, got "
            f"{tuple(coefficients.shape)}, {tuple(exponents.shape)} "
            f"and {tuple(points.shape)}."
        )
    return engine.polynomial(coefficients, exponents, points, kind)


def convolve(
    a: Num[Any, " n"], b: Num[Any, " m"], *, kind: Kind = "max"
) -> Num[Any, " n_plus_m_minus_1"]:
    """The tropical convolution: `out[s]` is the best `a[i] + b[s - i]`.

    It combines two menus: with `a[i]` the least error of one tensor in `i` bytes and
    `b[j]` of another, the min-plus convolution is the least error of both in `s`.

    Args:
        a: one sequence, at least one number.
        b: the other.
        kind: whether the best is the largest or the smallest.

    Raises:
        TypeError: arrays of two libraries, or what is no array.
        ValueError: a sequence that is empty or not one-dimensional.

    >>> convolve(np.array([9.0, 4.0, 1.0]), np.array([5.0, 0.0]), kind="min")
    array([14.,  9.,  4.,  1.])
    """
    _check_arrays("convolve", a, b)
    engine = _engine(kind, a, b)
    if a.ndim != 1 or b.ndim != 1 or not a.shape[0] or not b.shape[0]:
        raise ValueError(
            "convolve needs two one-dimensional sequences, not empty, got shapes "
            f"{tuple(a.shape)} and {tuple(b.shape)}."
        )
    short, long = (a, b) if a.shape[0] <= b.shape[0] else (b, a)
    return engine.convolve(short, long, kind)


def _engine(kind: str, *arrays: Any) -> ModuleType:
    """The engine of the arrays' library, once they are seen to be of this semiring.

    Raises:
        TypeError: arrays of two libraries.
        ValueError: an unknown kind, or an infinity that is no number here.
    """
    if kind not in ("max", "min"):
        raise ValueError(f'kind must be "max" or "min", got {kind!r}.')
    match _one_library(*arrays):
        case "jax":
            from . import _jax as engine
        case "torch":
            from . import _torch as engine
        case _:
            from . import _numpy as engine
    wrong = _opposite(kind)
    for array in arrays:
        if engine.holds_infinity(array, wrong):
            raise ValueError(
                f"{wrong} is no number of the {kind}-plus semiring: with its zero it "
                "has no product."
            )
    return engine


def _opposite(kind: str) -> float:
    """The infinity that is no number of the semiring."""
    return math.inf if kind == "max" else -math.inf


def _count(name: str, value: Any) -> int:
    """A whole number >= 0; callers are checked at run time, whatever they promise.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is negative.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    if value < 0:
        raise ValueError(f"{name} must be >= 0, got {value}.")
    return int(value)


def _one_library(*arrays: Any) -> str:
    """The library of all arrays.

    Raises:
        TypeError: they are of two.
    """
    libraries = {_library(array) for array in arrays}
    if len(libraries) > 1:
        make = "jnp.asarray" if "jax" in libraries else "torch.from_numpy"
        raise TypeError(
            f"arrays of one library are needed, got {', '.join(sorted(libraries))}"
            + (f": write {make}(...) around NumPy's." if "numpy" in libraries else ".")
        )
    return libraries.pop()


def _library(array: Any) -> str:
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    return "numpy"


def _check_arrays(what: str, *arrays: Any) -> None:
    """Refuse lists and numbers: they do not say which library answers.

    Raises:
        TypeError: one of them is no array, has a mask, or is not of floats or whole
            numbers.
    """
    for array in arrays:
        if not is_array(array):
            raise TypeError(
                f"{what} needs arrays of NumPy, JAX or torch, got a "
                f"{type(array).__name__}: write np.asarray(...) around it."
            )
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                f"{what} has no place for a mask: put the semiring's zero where it is, "
                "array.filled(-np.inf) for max-plus."
            )
        name = str(array.dtype).removeprefix("torch.")
        # All others lack a `+` of numbers, or an order.
        if not name.startswith(("float", "bfloat", "int", "uint")):
            raise TypeError(
                f"{what} needs floats or whole numbers, got {name}: convert it first."
            )


def _check_square(what: str, a: Any) -> None:
    _check_arrays(what, a)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(f"{what} needs a square matrix, got {tuple(a.shape)}.")
