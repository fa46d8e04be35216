"""The torch implementation of matrix products and linear algebra, for bodies of ops."""

import math
from typing import Any

import torch

from ._dtypes import Array


class Products:
    """The linear algebra of the namespace."""

    def matmul(self, left: Array, right: Array) -> torch.Tensor:
        """Matrix product, stacked over leading axes."""
        if left.dtype == torch.bool:  # whether some path leads there; not in torch
            return torch.matmul(left.to(torch.int32), right.to(torch.int32)) != 0
        return torch.matmul(left, right)

    def tensordot(self, left: Array, right: Array, axes: Any = 2) -> torch.Tensor:
        """Sum of products over the given axes of both."""
        return torch.tensordot(left, right, dims=axes)

    def cholesky(self, x: Array) -> torch.Tensor:
        """Lower triangular factor of the symmetric part; NaN if not pos. definite."""
        # The _ex forms report failure in a tensor instead of raising, which would wait
        # for the GPU at every call.
        factor, info = torch.linalg.cholesky_ex((x + x.mT) / 2)
        return torch.where((info == 0)[..., None, None], factor, math.nan).tril()

    def solve(self, left: Array, right: Array) -> torch.Tensor:
        """The x with left x = right."""
        if right.ndim == 1:
            return self.solve(left, right[:, None])[..., 0]
        return torch.linalg.solve_ex(left, right)[0]

    def inverse(self, x: Array) -> torch.Tensor:
        """Inverse of square matrices."""
        return torch.linalg.inv_ex(x)[0]

    determinant = staticmethod(torch.linalg.det)
