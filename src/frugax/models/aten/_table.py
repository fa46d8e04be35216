"""The table of ATen operations in JAX, and torch's rules for the dtype of a result.

A function of the table is `function(xp, *arguments)` with the arguments of torch's
schema in torch's order and by torch's names. An argument that a function does not have
is an error, so that none is dropped silently.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models.ops import is_floating, result_dtype

Array = Any  # a jax.Array, a tracer, or a number
Function = Callable[..., Any]

FUNCTIONS: dict[str, Function] = {}


def aten(*names: str) -> Callable[[Function], Function]:
    """Add a function to the table.

    Args:
        *names: of operations, such as `"add"` for all overloads, or of one overload,
            such as `"max.dim"`, which goes first.
    """

    def add(function: Function) -> Function:
        for name in names:
            assert name not in FUNCTIONS, name
            FUNCTIONS[name] = function
        return function

    return add


def aten_table(
    functions: Mapping[str, Function],
    adapt: Callable[[Function], Function] = lambda function: function,
) -> None:
    """Add functions that do not need the namespace, each by one or several names."""

    def add(names: str, function: Function) -> None:
        aten(*names.split())(adapt(lambda xp, *args, **named: function(*args, **named)))

    for names, function in functions.items():
        add(names, function)


def find_function(name: str) -> Function | None:
    """Look up an operation by torch's name, such as `"add.Tensor"`."""
    return FUNCTIONS.get(name, FUNCTIONS.get(name.partition(".")[0]))


def evaluate(
    xp: Any,
    name: str,
    tensors: Sequence[Array],
    arguments: tuple[Any, ...],
    named: Sequence[tuple[str, Any]],
) -> Any:
    """Compute an operation whose tensors stand in its arguments as `"@0"`, `"@1"`.

    Raises:
        NotImplementedError: the table does not have the operation.
        TypeError: the operation has an argument that its function does not read.
    """
    function = find_function(name)
    if function is None:
        raise NotImplementedError(f"there is no JAX function for aten.{name}.")
    arrays = [t if isinstance(t, jax.Array) else xp.asarray(t) for t in tensors]
    fill = lambda value: fill_argument(value, arrays, xp)
    keywords = {k: fill(v) for k, v in named}
    # These functions follow torch's rules, whatever the caller demands of jnp's.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        results = function(xp, *map(fill, arguments), **keywords)
    if not isinstance(results, tuple):
        return results
    # A result that the table does not compute, and that no model may read.
    return tuple(jnp.zeros(0) if r is None else r for r in results)


def fill_argument(value: Any, tensors: Sequence[Any], xp: Any) -> Any:
    """An argument with the tensors and dtypes that its texts stand for."""
    if isinstance(value, tuple):
        return tuple(fill_argument(v, tensors, xp) for v in value)
    if isinstance(value, str) and value.startswith("@"):
        return tensors[int(value[1:])]
    if isinstance(value, str) and value.startswith("dtype:"):
        return own_dtype(xp, value.removeprefix("dtype:"))
    return value


def own_dtype(xp: Any, name: str) -> np.dtype:
    """A dtype by name; `"float"`, `"complex"` and `"int"` are those of the backend."""
    if name == "float":
        return np.dtype(xp.float_dtype)
    if name == "int":
        return np.dtype(xp.int_dtype)
    if name == "complex":
        return complex_of(np.dtype(xp.float_dtype))
    return xp.as_dtype(name)


def complex_of(dtype: np.dtype) -> np.dtype:
    """The complex dtype of two numbers of a dtype."""
    return np.dtype(np.complex128 if dtype == np.float64 else np.complex64)


# --- dtypes -----------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Whether it is a Python number, or a length that is one at last."""
    return not hasattr(value, "dtype")


def _category(dtype: np.dtype) -> int:
    """Booleans, integers, floats and complex numbers, in torch's order."""
    if dtype.kind == "b":
        return 0
    if dtype.kind in "iu":
        return 1
    return 3 if dtype.kind == "c" else 2


def promoted_dtype(xp: Any, *values: Any) -> np.dtype:
    """The dtype of a result: torch's rule.

    A tensor without axes, and a number even more, counts only where it is of a higher
    category: booleans, integers, floats, complex numbers.

    Source: pytorch/aten/src/ATen/native/TypeProperties.cpp, `result_type`.
    """
    levels: list[list[np.dtype]] = [[], [], []]  # with axes, without axes, numbers
    for value in values:
        if is_number(value):
            levels[2].append(_number_dtype(xp, value))
        else:
            levels[0 if value.ndim else 1].append(np.dtype(value.dtype))
    best: np.dtype | None = None
    for level in reversed(levels):
        if not level:
            continue
        higher = result_dtype(*level, float_dtype=xp.float_dtype)
        if best is None or _category(higher) == 3:
            best = higher
        elif _category(higher) == 2:
            best = complex_of(higher) if _category(best) == 3 else higher
        elif _category(higher) == 0 or _category(best) >= 2:
            best = result_dtype(higher, best, float_dtype=xp.float_dtype)
        else:
            best = higher
    assert best is not None
    return best


def _number_dtype(xp: Any, value: Any) -> np.dtype:
    if isinstance(value, bool):
        return np.dtype(np.bool_)
    if isinstance(value, float):
        return np.dtype(xp.float_dtype)
    return np.dtype(xp.int_dtype)  # also a length that is not known yet


def as_array(xp: Any, value: Any, dtype: np.dtype | None = None) -> Array:
    """An array of a tensor, a number or a length."""
    if is_number(value):
        return jnp.asarray(value, dtype or _number_dtype(xp, value))
    return value if dtype is None else xp.cast(value, dtype)


def same_dtype(
    xp: Any, *values: Any, to_float: bool = False, dtype: np.dtype | None = None
) -> list[Array]:
    """Values as arrays of their common dtype, with as many axes each."""
    dtype = dtype or promoted_dtype(xp, *values)
    if to_float and not is_floating(dtype):
        dtype = np.dtype(xp.float_dtype)
    return same_rank(*(as_array(xp, v, dtype) for v in values))


def same_rank(*arrays: Array) -> list[Array]:
    """Arrays with as many axes each, by axes of length 1 in front."""
    rank = max(a.ndim for a in arrays)
    return [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in arrays]


def to_float(xp: Any, x: Array) -> Array:
    """`x`, with integers and booleans as floats."""
    return x if is_floating(np.dtype(x.dtype)) else xp.cast(x, xp.float_dtype)


def in_float32(function: Callable[..., Array]) -> Callable[..., Array]:
    """Compute a function in float32 where its first argument has 16 bits, as torch."""

    def wrapped(xp: Any, x: Array, *rest: Any, **named: Any) -> Array:
        dtype = np.dtype(x.dtype)
        if not is_floating(dtype) or dtype.itemsize > 2:
            return function(xp, x, *rest, **named)
        wide = lambda v: xp.cast(v, np.float32) if _is_half(v) else v
        result = function(
            xp, wide(x), *map(wide, rest), **{k: wide(v) for k, v in named.items()}
        )
        return jax.tree.map(
            lambda r: xp.cast(r, dtype) if is_floating(np.dtype(r.dtype)) else r, result
        )

    return wrapped


def _is_half(value: Any) -> bool:
    if is_number(value):
        return False
    dtype = np.dtype(value.dtype)
    return is_floating(dtype) and dtype.itemsize == 2


def axes_of(dims: Any, rank: int) -> tuple[int, ...]:
    """The axes that torch means: all for none, otherwise each counted from the left."""
    if dims is None or (isinstance(dims, tuple) and not dims):
        return tuple(range(rank))
    dims = dims if isinstance(dims, tuple) else (dims,)
    return tuple(d % max(rank, 1) for d in dims)
