"""The public tropical operations: check arrays, dispatch to NumPy, JAX or torch.

In the max-plus semiring the sum of two numbers is their maximum and the product is `+`;
the zero is -inf and the one is 0. Min-plus mirrors it: the minimum, with zero +inf. The
zero times anything is the zero, so the opposite infinity is not an element: its product
with the zero would be undefined, and it is rejected.

References:
    Butkovic 2010, "Max-linear Systems: Theory and Algorithms", Springer;
    Maclagan & Sturmfels 2015, "Introduction to Tropical Geometry", AMS (polynomials).
"""

import functools
import math
import numbers
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, TypeAlias, overload

import numpy as np
from jaxtyping import Int, Num

from frugax.trees import is_array

Kind: TypeAlias = Literal["max", "min"]


def _operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an operation of JAX arrays go through NumPy where that is faster."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        arrays = [x for x in (*args, *options.values()) if is_array(x)]
        if not arrays or {*map(_library, arrays)} != {"jax"}:
            return function(*args, **options)
        from . import _jax

        return _jax.call_small_in_numpy(function, *args, **options)

    return call


@overload
def matmul(
    a: Num[Any, "*left k"],
    b: Num[Any, "*right m"],
    *,
    kind: Kind = "max",
    argmax: Literal[False] = False,
) -> Num[Any, "*both"]: ...
@overload
def matmul(
    a: Num[Any, "*left k"],
    b: Num[Any, "*right m"],
    *,
    kind: Kind = "max",
    argmax: Literal[True],
) -> tuple[Num[Any, "*both"], Int[Any, "*both"]]: ...
@_operation
def matmul(
    a: Num[Any, "*left k"],
    b: Num[Any, "*right m"],
    *,
    kind: Kind = "max",
    argmax: bool = False,
) -> Any:
    """Compute the tropical matrix product: the optimum over k of `a[i, k] + b[k, j]`.

    All libraries give the same bits, because the sum of two floats rounds identically
    everywhere and maxima do not depend on the order. Memory is that of the result and
    a few blocks, not `n * k * m`.

    Args:
        a: left matrix of floats or integers, `(n, k)`, or a vector `(k,)`. Axes before
            these are batches, which broadcast as in `numpy.matmul`.
        b: right matrix of the same library, `(k, m)`, or a vector `(k,)`.
        kind: `"max"` or `"min"`.
        argmax: whether to return where each optimum is, too.

    Returns:
        The product. With `argmax` also, as integers of its shape, the first k of each
        optimum; -1 where no term is other than the semiring's zero.

    Raises:
        TypeError: an argument is not an array, or they are of two libraries.
        ValueError: the shapes do not fit, the semiring is unknown, an infinity is not
            an element of it (under `jit` its row or column is NaN instead), or an
            inner dimension is 0 for integers, which do not have an infinity.

    >>> matmul(np.array([[0.0, -np.inf], [1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[3.],
           [6.]])
    >>> matmul(np.array([5.0, 1.0]), np.array([[0.0, 0.0], [0.0, 9.0]]), argmax=True)
    (array([ 5., 10.]), array([0, 1]))
    """
    _check_arrays("matmul", a, b)
    engine = _engine(kind, a, b)
    left = a.reshape((1, *a.shape)) if a.ndim == 1 else a
    right = b.reshape((*b.shape, 1)) if b.ndim == 1 else b
    if not (a.ndim and b.ndim) or left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"matmul needs (..., n, k) and (..., k, m), got {tuple(a.shape)} and "
            f"{tuple(b.shape)}."
        )
    if left.shape[-1] == 0 and not engine.has_infinity(a):
        raise ValueError(
            "matmul of integers needs k >= 1, got k = 0: an empty sum is infinite. Use "
            "floats."
        )
    function = engine.matmul_with_argument if argmax else engine.matmul
    found = function(left, right, kind)
    if a.ndim == 1 or b.ndim == 1:
        shape = (found[0] if argmax else found).shape
        rows, columns = shape[-2:-1] * (a.ndim > 1), shape[-1:] * (b.ndim > 1)
        of_vectors = lambda x: x.reshape((*shape[:-2], *rows, *columns))
        return tuple(map(of_vectors, found)) if argmax else of_vectors(found)
    return found


@_operation
def viterbi(
    scores: Num[Any, "*batch steps states"],
    transitions: Num[Any, "states states"],
    *,
    kind: Kind = "max",
) -> tuple[Int[Any, "*batch steps"], Num[Any, "*batch"]]:
    """Find the optimal path through a trellis, such as a hidden Markov model's.

    The weight of a path is the sum of its scores and of its transitions. In max-plus
    these are logarithms of probabilities, in min-plus costs.

    Args:
        scores: of each state at each step, floats; the score of a state at the start is
            added to the first. Axes before these are batches.
        transitions: from each state (row) to each next one (column).
        kind: `"max"` or `"min"`.

    Returns:
        The state at each step, as integers, and the weight of the path. Of equal paths
        the one with the lowest last state, then the lowest one before it, and so on.

    Raises:
        TypeError: an argument is not an array, or they are of two libraries.
        ValueError: the shapes do not fit, there is no step, or an infinity is not an
            element of the semiring.

    References:
        Viterbi 1967, IEEE Trans. Information Theory 13(2), 260-269.

    >>> stay = np.array([[0.0, -3.0], [-3.0, 0.0]])
    >>> viterbi(np.array([[2.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), stay)
    (array([0, 0, 0]), np.float64(4.0))
    """
    _check_arrays("viterbi", scores, transitions)
    engine = _engine(kind, scores, transitions)
    states = scores.shape[-1] if scores.ndim else 0
    if (
        scores.ndim < 2
        or not (scores.shape[-2] and states)
        or tuple(transitions.shape) != (states, states)
    ):
        raise ValueError(
            "viterbi needs (..., steps, states) and (states, states), with at least "
            f"one of each, got {tuple(scores.shape)} and {tuple(transitions.shape)}."
        )
    batch, steps = tuple(scores.shape[:-2]), scores.shape[-2]
    flat = scores.reshape((math.prod(batch), steps, states))
    path, weight = engine.viterbi(flat, transitions, kind)
    if batch == () and isinstance(weight, np.ndarray):
        return path[0], weight[0]  # a NumPy scalar
    return path.reshape((*batch, steps)), weight.reshape(batch)


@_operation
def identity(n: int, like: Num[Any, "..."], *, kind: Kind = "max") -> Num[Any, "n n"]:
    """Return the identity matrix: 0 on the diagonal, the semiring's zero elsewhere.

    Args:
        n: number of rows and columns.
        like: a float array of the wanted library and dtype.
        kind: `"max"` or `"min"`.

    Raises:
        TypeError: `like` is not an array, or `n` is not an integer.
        ValueError: `like` is of integers, which do not have an infinity, or `n` is
            negative.

    >>> identity(2, np.zeros(1))
    array([[  0., -inf],
           [-inf,   0.]])
    """
    _check_arrays("identity", like)
    n = _to_count("n", n)
    engine = _engine(kind, like)
    _check_infinity("identity", engine, like)
    return engine.identity((n, n), like, kind)


@_operation
def power(
    a: Num[Any, "*batch n n"], exponent: int, *, kind: Kind = "max"
) -> Num[Any, "*batch n n"]:
    """Compute the tropical power: the optimal walk of `exponent` steps from i to j.

    Repeated squaring takes about `2 log2(exponent)` products. Its sums round in another
    order than step by step, so large floats may differ in the last digits.

    Args:
        a: square matrix of edge weights. Axes before its two are batches.
        exponent: number of steps; >= 0.
        kind: `"max"` or `"min"`.

    Raises:
        TypeError: `a` is not an array of numbers, or the exponent is not an integer.
        ValueError: the exponent is negative, or 0 for integers, the matrix is not
            square, or the weight of a walk overflows the dtype.

    >>> power(np.array([[0.0, 1.0], [2.0, 0.0]]), 2)
    array([[3., 1.],
           [2., 3.]])
    """
    _check_square("power", a)
    steps = _to_count("exponent", exponent)
    engine = _engine(kind, a)
    if steps == 0:
        _check_infinity("power of exponent 0", engine, a)
        return engine.identity(tuple(a.shape), a, kind)

    def times(left: Any, right: Any) -> Any:
        out = matmul(left, right, kind=kind)
        if engine.contains(out, _absent_infinity(kind)):  # `a` does not contain it
            raise ValueError(
                f"power of exponent {exponent}: a walk overflows {a.dtype}: "
                "scale the weights, or use a wider dtype."
            )
        return out

    # Powers may be grouped in any way, because the tropical product is associative in
    # exact arithmetic (Butkovic 2010, chapter 1).
    square, result = a, None
    while True:
        if steps & 1:
            result = square if result is None else times(result, square)
        steps >>= 1
        if not steps:
            assert result is not None  # the highest bit of an exponent is 1
            if result is a:
                return a * 1  # a copy: the caller may write to the result
            return result
        square = times(square, square)


@overload
def closure(
    d: Num[Any, "*batch n n"],
    *,
    kind: Kind = "min",
    predecessors: Literal[False] = False,
) -> Num[Any, "*batch n n"]: ...
@overload
def closure(
    d: Num[Any, "*batch n n"], *, kind: Kind = "min", predecessors: Literal[True]
) -> tuple[Num[Any, "*batch n n"], Int[Any, "*batch n n"]]: ...
@_operation
def closure(
    d: Num[Any, "*batch n n"], *, kind: Kind = "min", predecessors: bool = False
) -> Any:
    """Compute the Kleene star `I + d + d^2 + ...`: optimal walks of any length.

    With `kind="min"` these are shortest paths; the empty walk costs 0.

    Args:
        d: square matrix of edge weights; +inf (-inf for `"max"`) for no edge. Axes
            before its two are batches.
        kind: `"max"` or `"min"`.
        predecessors: whether to return the walks, too.

    Returns:
        The closure; memory is that of `d` and one more matrix. With `predecessors` also
        the vertex before j on the optimal walk from i to j, as integers, for
        `walk(before, i, j)`; -1 where no walk leads there.

    Raises:
        TypeError: `d` is not an array.
        ValueError: the matrix is not square, contains NaN, or has a cycle that improves
            in every round, so that the optimum does not exist (NaN and cycles are not
            checked under `jit`).

    References:
        Floyd 1962, Communications of the ACM 5(6), 345.

    >>> closure(np.array([[0.0, 5.0, 1.0], [np.inf, 0, np.inf], [np.inf, 2.0, 0]]))
    array([[ 0.,  3.,  1.],
           [inf,  0., inf],
           [inf,  2.,  0.]])
    """
    _check_square("closure", d)
    engine = _engine(kind, d)
    # Some libraries pass NaN on through a maximum, and some drop it.
    if engine.contains_nan(d):
        raise ValueError("closure: the weights contain NaN. Replace or remove it.")
    out = engine.closure(d, kind)
    if not predecessors:
        return out
    return out, engine.mark_missing(engine.predecessors(d, kind), out, kind)


def walk(before: Int[Any, "n n"], start: int, end: int) -> list[int]:
    """Return the vertices of the optimal walk, from `closure`'s predecessors.

    Args:
        before: the predecessors of one matrix.
        start: the first vertex.
        end: the last vertex.

    Returns:
        The vertices, `start` and `end` among them; empty where no walk leads there.

    Raises:
        IndexError: there is no such vertex.

    >>> d = np.array([[0.0, 5.0, 1.0], [np.inf, 0, np.inf], [np.inf, 2.0, 0]])
    >>> walk(closure(d, predecessors=True)[1], 0, 1)
    [0, 2, 1]
    """
    rows = np.asarray(before)
    for vertex in (start, end):
        if not 0 <= vertex < len(rows):
            raise IndexError(f"vertex {vertex} is not one of {len(rows)}.")
    path = [int(end)]
    while path[-1] != start:
        if (vertex := int(rows[start, path[-1]])) < 0:
            return []
        path.append(vertex)
    return path[::-1]


@_operation
def polynomial(
    coefficients: Num[Any, " monomials"],
    exponents: Num[Any, "monomials variables"],
    points: Num[Any, "points variables"],
    *,
    kind: Kind = "max",
) -> Num[Any, " points"]:
    """Evaluate a tropical polynomial: the optimum of `coefficients + exponents @ x`.

    Args:
        coefficients: one per monomial; the semiring's zero removes a monomial.
        exponents: the power of each variable in each monomial; a negative power needs
            finite points.
        points: where to evaluate.
        kind: `"max"` or `"min"`.

    Returns:
        The values. Their sums of products may round differently by library.

    Raises:
        TypeError: an argument is not an array, or they are of two libraries.
        ValueError: the shapes do not fit, or a negative power meets an infinite point.

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


@_operation
def convolve(
    a: Num[Any, " n"], b: Num[Any, " m"], *, kind: Kind = "max"
) -> Num[Any, " n_plus_m_minus_1"]:
    """Compute the tropical convolution: the optimum over i of `a[i] + b[s - i]`.

    Min-plus convolution (infimal convolution) combines allocations: if `a[i]` is the
    least error of one tensor in `i` bytes, and `b[j]` that of another in `j`, `out[s]`
    is the least error of both in `s` bytes.

    Args:
        a: a sequence of at least one number.
        b: another one, of the same library.
        kind: `"max"` or `"min"`.

    Raises:
        TypeError: an argument is not an array, or they are of two libraries.
        ValueError: a sequence is empty or not one-dimensional.

    >>> convolve(np.array([9.0, 4.0, 1.0]), np.array([5.0, 0.0]), kind="min")
    array([14.,  9.,  4.,  1.])
    """
    _check_arrays("convolve", a, b)
    engine = _engine(kind, a, b)
    if a.ndim != 1 or b.ndim != 1 or not a.shape[0] or not b.shape[0]:
        raise ValueError(
            "convolve needs two non-empty one-dimensional sequences, got shapes "
            f"{tuple(a.shape)} and {tuple(b.shape)}."
        )
    # Convolution commutes: the shorter sequence determines the number of passes, the
    # longer one their width.
    short, long = sorted((a, b), key=len)
    return engine.convolve(short, long, kind)


def _engine(kind: str, *arrays: Any) -> ModuleType:
    """Return the engine of the arrays' library, after validating their values."""
    if kind not in ("max", "min"):
        raise ValueError(f'kind must be "max" or "min", got {kind!r}.')
    match _one_library(*arrays):
        case "jax":
            from . import _jax as engine
        case _:
            from . import _arrays as engine
    absent = _absent_infinity(kind)
    for array in arrays:
        if engine.contains(array, absent):
            raise ValueError(
                f"{absent} is not an element of the {kind.replace('_', '-')} "
                "semiring: its product with the zero is undefined. Replace it by a "
                "finite number."
            )
    return engine


def _absent_infinity(kind: str) -> float:
    """The infinity that is not an element of the semiring: minus its zero."""
    return {"max": math.inf, "min": -math.inf}[kind]


def _to_count(name: str, value: Any) -> int:
    """Return an integer >= 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if value < 0:
        raise ValueError(f"{name} must be >= 0, got {value}.")
    return int(value)


def _one_library(*arrays: Any) -> str:
    """Return the library of all arrays."""
    libraries = {_library(array) for array in arrays}
    if len(libraries) > 1:
        hint = "convert all to one of them"
        if libraries == {"jax", "numpy"}:
            hint = "write jnp.asarray(...) around NumPy's"
        elif libraries == {"numpy", "torch"}:
            hint = "write torch.from_numpy(...) around NumPy's"
        raise TypeError(
            "arrays of one library are needed, got "
            f"{', '.join(sorted(libraries))}: {hint}."
        )
    return libraries.pop()


def _library(array: Any) -> str:
    # An array of a library exists only if the program has imported it.
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    return "numpy"


def _check_arrays(what: str, *arrays: Any) -> None:
    """Raise on lists and scalars, which do not determine the library of the result."""
    for array in arrays:
        if not is_array(array):
            raise TypeError(
                f"{what} needs arrays of NumPy, JAX or torch, got a "
                f"{type(array).__name__}: write np.asarray(...) around it."
            )
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                f"{what} does not support masked arrays: fill them with the semiring's "
                "zero, array.filled(-np.inf) for max-plus."
            )
        name = str(array.dtype).removeprefix("torch.")
        # Complex numbers lack an order; bools and strings lack a numeric sum.
        if not name.startswith(("float", "bfloat", "int", "uint")):
            raise TypeError(
                f"{what} needs floats or integers, got {name}: convert it first."
            )


def _check_square(what: str, a: Any) -> None:
    _check_arrays(what, a)
    if a.ndim < 2 or a.shape[-2] != a.shape[-1]:
        raise ValueError(f"{what} needs square matrices, got {tuple(a.shape)}.")


def _check_infinity(what: str, engine: ModuleType, like: Any) -> None:
    if not engine.has_infinity(like):
        raise ValueError(f"{what} needs floats: integers do not have an infinity.")
