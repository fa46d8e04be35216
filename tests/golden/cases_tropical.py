"""Bits of 500 random tropical products and closures on NumPy, JAX and torch.

Twenty groups of 25 draws: group `g` draws with `numpy.random.default_rng([34, g, i])`
for i in 0..24. NumPy's result is stored as one short digest for each draw; of JAX and
torch, called as a user calls them, the number of draws with the same bits. JAX runs the
first draw of each group under `jax.jit` as well. Sums of floats round alike on every
machine and an optimum does not depend on the order, so all cells are exact everywhere.

The rest of the package has one case each, on whole numbers, which are exact too.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from frugax import tropical

from .table import Case, Cell

_DRAWS = 25
# Few of them: JAX compiles a program for each.
_SHAPES = [(5, 16, 3), (33, 40, 19), (1, 7, 9), (24, 1, 30)]
_ZERO = {"max": -np.inf, "min": np.inf}


def cases() -> Iterator[Case]:
    """Twenty groups of products and closures, and one case for every other function."""
    groups = [
        *itertools.product(
            ["product", "closure"],
            ["max", "min"],
            ["float32", "float64", "float16", "int32"],
        ),
        *itertools.product(
            ["batched product with argmax", "batched closure with predecessors"],
            ["max", "min"],
            ["float32"],
        ),
    ]
    assert len(groups) * _DRAWS == 500
    for number, (what, kind, dtype) in enumerate(groups):
        yield Case(
            f"{what}, {kind}, {dtype}",
            lambda n=number, w=what, k=kind, d=dtype: _compare_group(n, w, k, d),
            quick=number in (0, 18),
        )
    for kind in ("max", "min"):
        for name, function in _OTHERS.items():
            yield Case(
                f"{name}, {kind}",
                lambda f=function, k=kind: _compare_others(f, k),
                quick=True,
            )
        yield Case(
            f"gradients of a product, {kind}",
            lambda k=kind: _gradients_of_product(k),
            quick=True,
        )


def _compare_group(number: int, what: str, kind: Any, dtype: str) -> dict[str, Cell]:
    def call(*arrays: Any) -> Any:
        if what == "product":
            return tropical.matmul(*arrays, kind=kind)
        if what == "closure":
            return tropical.closure(*arrays, kind=kind)
        if what == "batched product with argmax":
            return tropical.matmul(*arrays, kind=kind, argmax=True)
        return tropical.closure(*arrays, kind=kind, predecessors=True)

    draw = _draw_product if "product" in what else _draw_closure
    by_numpy: list[str] = []
    same = {"jax": 0, "torch": 0}
    under_jit = True
    # float64 is an option of JAX; the other dtypes are the same with it.
    with jax.enable_x64(dtype == "float64"):
        for i in range(_DRAWS):
            rng = np.random.default_rng([34, number, i])
            arrays = draw(rng, kind, np.dtype(dtype), batched="batched" in what)
            want = _digest(call(*arrays))
            by_numpy.append(want)
            on_jax = [jnp.asarray(a) for a in arrays]
            same["jax"] += _digest(call(*on_jax)) == want
            same["torch"] += _digest(call(*map(torch.from_numpy, arrays))) == want
            if i == 0:
                under_jit = _digest(jax.jit(call)(*on_jax)) == want
    return {
        "numpy": by_numpy,
        "equal on jax": same["jax"],
        "equal on torch": same["torch"],
        "equal under jit": under_jit,
    }


def _draw_product(
    rng: np.random.Generator, kind: str, dtype: np.dtype, *, batched: bool
) -> tuple[np.ndarray, ...]:
    n, k, m = _SHAPES[rng.integers(2 if batched else len(_SHAPES))]
    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    if batched:
        left, right = [((3,), (3,)), ((2, 1), (3,))][rng.integers(2)]
    return (
        _draw_array(rng, (*left, n, k), kind, dtype),
        _draw_array(rng, (*right, k, m), kind, dtype),
    )


def _draw_closure(
    rng: np.random.Generator, kind: str, dtype: np.dtype, *, batched: bool
) -> tuple[np.ndarray, ...]:
    n = int(rng.choice([2, 6, 15, 23]))
    shape = (2, n, n) if batched else (n, n)
    # Weights of one sign, so that no cycle improves the walk.
    weights = np.abs(_draw_array(rng, shape, kind, dtype, missing=0.0))
    weights = weights if kind == "min" else -weights
    if dtype.kind == "f":
        weights[rng.random(shape) < 0.6] = _ZERO[kind]
    return (weights,)


def _draw_array(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    kind: str,
    dtype: np.dtype,
    missing: float = 0.2,
) -> np.ndarray:
    if dtype.kind == "i":
        return rng.integers(-99, 100, size=shape).astype(dtype)
    array = rng.normal(size=shape).astype(dtype)
    array[rng.random(shape) < missing] = _ZERO[kind]
    return array


def _whole_numbers(
    rng: np.random.Generator, shape: tuple[int, ...], kind: str
) -> np.ndarray:
    """Whole numbers as floats: sums of them are exact in any order."""
    array = rng.integers(-9, 10, size=shape).astype(np.float32)
    array[rng.random(shape) < 0.2] = _ZERO[kind]
    return array


def _power(make: Any, rng: np.random.Generator, kind: Any) -> Any:
    return tropical.power(make(_whole_numbers(rng, (9, 9), kind)), 11, kind=kind)


def _convolve(make: Any, rng: np.random.Generator, kind: Any) -> Any:
    a, b = (make(_whole_numbers(rng, (n,), kind)) for n in (40, 23))
    return tropical.convolve(a, b, kind=kind)


def _polynomial(make: Any, rng: np.random.Generator, kind: Any) -> Any:
    coefficients = make(_whole_numbers(rng, (30,), kind))
    exponents = make(rng.integers(0, 4, size=(30, 5)).astype(np.float32))
    points = make(_whole_numbers(rng, (50, 5), kind))
    return tropical.polynomial(coefficients, exponents, points, kind=kind)


def _viterbi(make: Any, rng: np.random.Generator, kind: Any) -> Any:
    scores = make(_whole_numbers(rng, (3, 20, 6), kind))
    return tropical.viterbi(scores, make(_whole_numbers(rng, (6, 6), kind)), kind=kind)


def _identity(make: Any, rng: np.random.Generator, kind: Any) -> Any:
    return tropical.identity(7, make(_whole_numbers(rng, (2,), kind)), kind=kind)


_OTHERS = {
    "power": _power,
    "convolution": _convolve,
    "polynomial": _polynomial,
    "viterbi": _viterbi,
    "identity": _identity,
}
_MAKE = {"numpy": np.asarray, "jax": jnp.asarray, "torch": torch.from_numpy}


def _compare_others(function: Callable[..., Any], kind: str) -> dict[str, Cell]:
    return {
        library: _digest(function(make, np.random.default_rng(34), kind))
        for library, make in _MAKE.items()
    }


def _gradients_of_product(kind: Any) -> dict[str, Cell]:
    """Gradients for a cotangent of whole numbers; few values, so many ties."""
    rng = np.random.default_rng(34)
    a, b = (rng.integers(0, 3, size=(12, 12)).astype(np.float32) for _ in range(2))
    cotangent = rng.integers(-9, 10, size=(12, 12)).astype(np.float32)
    multiply = lambda a, b: tropical.matmul(a, b, kind=kind)
    _, pull = jax.vjp(multiply, jnp.asarray(a), jnp.asarray(b))
    left, right = (torch.from_numpy(x).requires_grad_() for x in (a, b))
    multiply(left, right).backward(torch.from_numpy(cotangent))
    return {
        "jax": _digest(pull(jnp.asarray(cotangent))),
        "torch": _digest((left.grad, right.grad)),
    }


def _digest(found: Any) -> str:
    """Eight hex digits of the shapes, dtypes and bytes of one or several results."""
    state = hashlib.sha256()
    for each in found if isinstance(found, tuple) else (found,):
        array = np.asarray(each.detach() if isinstance(each, torch.Tensor) else each)
        if array.dtype.kind == "i" and array.dtype.itemsize == 8:
            array = array.astype(np.int32)  # indices of torch and NumPy are int64
        state.update(f"{array.dtype} {array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:8]
