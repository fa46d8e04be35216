"""Neural-network ops on both libraries, against torch's own functions.

What a table of values does not show: `test_nn_ops_edges.py`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.models.ops import OPS
from frugax.models.to_jax import JaxNamespace

torch = pytest.importorskip("torch")
F = torch.nn.functional

from frugax.models.to_torch import TorchNamespace  # noqa: E402

from .nn_op_cases import CASES, Case  # noqa: E402


def leaves(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple) else [out]


def is_floating(array: Any) -> bool:
    return array is not None and array.dtype.kind == "f"


def by_jax(case: Case, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
    """Outputs, and gradients of the sum of outputs, each times its cosine's place."""
    xp = JaxNamespace(np.result_type(*(a for a in arrays if is_floating(a))))
    places = [i for i, a in enumerate(arrays) if is_floating(a)]

    def run(*given: Any) -> Any:
        full = list(arrays)
        for i, a in zip(places, given, strict=True):
            full[i] = a
        full = [
            a if a is None or i in places else jnp.asarray(a)
            for i, a in enumerate(full)
        ]
        return tuple(leaves(OPS[case.op](xp, *full, **case.attributes)))

    # Compiling is most of the time of these tests, and speed is none of their matters.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def both(*given: Any) -> Any:
        outs, pull = jax.vjp(run, *given)
        return outs, pull(tuple(weights(o.shape, jnp, o.dtype) for o in outs))

    outs, gradients = both(*(jnp.asarray(arrays[i]) for i in places))
    return [*map(np.asarray, outs)], [*map(np.asarray, gradients)]


def by_torch(
    function: Callable[..., Any], arrays: list[Any]
) -> tuple[list[Any], list[Any]]:
    tensors = [None if a is None else torch.tensor(a) for a in arrays]
    followed = [
        t.requires_grad_() for t in tensors if t is not None and t.is_floating_point()
    ]
    outs = leaves(function(*tensors))
    cotangents = [torch.tensor(weights(o.shape, np, np.float64)) for o in outs]
    pairs = zip(outs, cotangents, strict=True)
    total = torch.stack([(o * c.to(o.dtype)).sum() for o, c in pairs]).sum()
    if not total.requires_grad:
        return [o.numpy() for o in outs], [np.zeros(t.shape) for t in followed]
    gradients = torch.autograd.grad(total, followed, allow_unused=True)
    return [o.detach().numpy() for o in outs], [
        np.zeros(t.shape) if g is None else g.numpy()
        for g, t in zip(gradients, followed, strict=True)
    ]


def weights(shape: Any, numpy: Any, dtype: Any) -> Any:
    return numpy.asarray(np.cos(np.arange(math.prod(shape))).reshape(shape), dtype)


def compare(got: Any, wanted: Any, tolerance: float, what: str) -> None:
    for g, w in zip(got[0], wanted[0], strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, tolerance, tolerance, err_msg=f"{what}: value")
    for i, (g, w) in enumerate(zip(got[1], wanted[1], strict=True)):
        np.testing.assert_allclose(
            g, w, tolerance, tolerance, err_msg=f"{what}: gradient {i}"
        )


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_values_and_gradients_in_float64(case):
    arrays = case.arrays(np.float64)
    wanted = by_torch(case.by_torch, arrays)
    with jax.enable_x64(True):
        compare(by_jax(case, arrays), wanted, 1e-9, "jax")
    xp = TorchNamespace(np.dtype(np.float64))
    on_torch = lambda *a: OPS[case.op](xp, *a, **case.attributes)
    compare(by_torch(on_torch, arrays), wanted, 1e-9, "torch")
