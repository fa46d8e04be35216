"""Neural-network ops on both libraries, against torch's own functions.

What a table of values does not show: `test_nn_ops_edges.py`.
"""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from frugax.models.ops import OPS
from frugax.models.to_jax import JaxNamespace

pytest.importorskip("torch")

from frugax.models.to_torch import TorchNamespace

from .both_libraries import call_jax, call_torch
from .nn_op_cases import CASES


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
    places = [
        i for i, a in enumerate(arrays) if a is not None and a.dtype == np.float64
    ]
    wanted = call_torch(case.by_torch, arrays, places)
    with jax.enable_x64(True):
        xp = JaxNamespace(np.dtype(np.float64))
        on_jax = functools.partial(OPS[case.op], xp, **case.attributes)
        compare(call_jax(on_jax, arrays, places), wanted, 1e-9, "jax")
    xp = TorchNamespace(np.dtype(np.float64))
    on_torch = functools.partial(OPS[case.op], xp, **case.attributes)
    compare(call_torch(on_torch, arrays, places), wanted, 1e-9, "torch")
