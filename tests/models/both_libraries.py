"""Run a function on JAX and on torch, with its gradients for cosines as cotangents."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch  # noqa: TID253 - only tests that have it import this file


def call_jax(
    function: Callable[..., Any], args: list[Any], places: list[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Outputs of a function of JAX arrays, and gradients of the arguments at places."""
    given = [jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in args]

    def call(*floats: Any) -> tuple[Any, ...]:
        full = list(given)
        for i, x in zip(places, floats, strict=True):
            full[i] = x
        found = function(*full)
        return found if isinstance(found, tuple) else (found,)

    # One compiled program instead of a program for each primitive; its speed is no
    # matter.
    @jax.jit
    def run(*floats: Any) -> Any:
        outputs, pull = jax.vjp(call, *floats)
        return outputs, pull(tuple(map(_jax_cotangent, outputs)))

    outputs, gradients = run.lower(*(given[i] for i in places)).compile(
        compiler_options={"xla_backend_optimization_level": "0"}
    )(*(given[i] for i in places))
    return [*map(np.asarray, outputs)], [*map(np.asarray, gradients)]


def _jax_cotangent(output: jax.Array) -> Any:
    if not jnp.issubdtype(output.dtype, jnp.floating):
        return np.zeros(output.shape, jax.dtypes.float0)
    return jnp.asarray(cosines(output.shape), output.dtype)


def call_torch(
    function: Callable[..., Any], args: list[Any], places: list[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The same of a function of tensors, from arrays of NumPy."""
    given = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
    for i in places:
        given[i].requires_grad_()
    found = function(*given)
    outputs = found if isinstance(found, tuple) else (found,)
    terms = [
        (o * torch.tensor(cosines(o.shape), dtype=o.dtype)).sum()
        for o in outputs
        if o.requires_grad
    ]
    floats = [given[i] for i in places]
    gradients: Any = [None] * len(floats)
    if terms and floats:
        gradients = torch.autograd.grad(
            torch.stack(terms).sum(), floats, allow_unused=True
        )
    return [*map(read, outputs)], [
        np.zeros(x.shape, np.float32) if g is None else read(g)
        for g, x in zip(gradients, floats, strict=True)
    ]


def read(array: Any) -> np.ndarray:
    """An array of either library as NumPy's."""
    if not isinstance(array, torch.Tensor):
        return np.asarray(array)
    array = array.detach()
    if array.dtype == torch.bfloat16:  # NumPy's is that of ml_dtypes
        return array.float().numpy().astype(ml_dtypes.bfloat16)
    return array.numpy()


def cosines(shape: Any) -> np.ndarray:
    """The cotangent of an output: the cosine of each place."""
    return np.cos(np.arange(np.prod(shape, dtype=int))).reshape(shape)
