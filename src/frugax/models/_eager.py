"""NumPy's everyday functions on a backend's arrays, called eagerly: `backend.vstack`.

They are not ops of models. A name that is not an op is looked up in the backend's own
library, whose functions have gradients, and then in NumPy, which runs on the host.
Written out here are torch's names that NumPy lacks or gives another meaning.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

EAGER: dict[str, Callable[..., Any]] = {}


def _eager(function: Callable[..., Any]) -> Callable[..., Any]:
    EAGER[function.__name__] = function
    return function


def numpy_function(library: Any, name: str) -> Callable[..., Any] | None:
    """The function that NumPy, or a library like it, has by a name; None for none."""
    for path in (name, f"linalg.{name}"):
        try:
            found = operator.attrgetter(path)(library)
        except AttributeError:
            continue
        if callable(found) and not isinstance(found, type):
            return found
    return None


def on_host(name: str) -> Callable[..., Any] | None:
    """The function of NumPy of that name, on arrays of a backend; None for none.

    Raises:
        TypeError: (the function) a tensor needs a gradient, which would be lost.
    """
    function = numpy_function(np, name)
    if function is None:
        return None

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

        result = function(
            *map(to_host, args), **{k: to_host(v) for k, v in named.items()}
        )
        if isinstance(result, (tuple, list)):
            return tuple(map(b.array, result))
        if isinstance(result, (bool, int)):
            return result
        return b.array(result)

    return call


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
def where(b: Any, *args: Any, **named: Any) -> Any:
    if len(args) == 1 and not named:
        return b.nonzero(*args)
    return b._run_op(b.find("where"), *args, **named)


@_eager
def logit(b: Any, x: Any) -> Any:
    return b.log(x) - b.log1p(-x)


@_eager
def vecdot(b: Any, x: Any, y: Any, axis: int = -1) -> Any:
    return b.sum(b.multiply(x, y), axis)


@_eager
def unstack(b: Any, x: Any, axis: int = 0) -> Any:
    return tuple(b.moveaxis(x, axis, 0))


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
