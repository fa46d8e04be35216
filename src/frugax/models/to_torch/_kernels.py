"""The torch implementation of neural-network ops: torch's kernels where it has them.

`Kernels` is what `TorchNamespace` inherits: linear maps, norms, attention, lookups and
pieces here; convolutions and pools in `_kernels_conv.py`.
"""

import math
from typing import Any

import torch
from torch.nn import functional as F

from ._axes import AxisArrays
from ._kernels_conv import ConvolutionKernels


class Kernels(ConvolutionKernels, AxisArrays):
    """Methods that `TorchNamespace` inherits."""

    # Run step by step, each step is cheaper the less is done in it.
    joins_steps = False

    def linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Times W^T plus bias over the last axis; the weight is (out, in)."""
        return F.linear(input, weight, bias)

    def grouped_linear(
        self, input: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """Rows times the transposed weight of their group; the weight is 3-D."""
        if input.device.type == "meta":  # the counts have no values there
            return input.new_empty(input.shape[0], weight.shape[1])
        groups = input.split(counts.tolist())
        return torch.cat([F.linear(x, w) for x, w in zip(groups, weight, strict=True)])

    def embedding(self, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows of `weight`; NaN for an index that is not in it, also a negative one."""
        # F.embedding raises for an index out of range on CPU; on GPU the failed
        # assertion leaves CUDA unusable for the rest of the process.
        at = indices.clamp(0, weight.shape[0] - 1)
        rows = F.embedding(at, weight)
        return rows.where((at == indices)[..., None], math.nan)

    def pick(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The label's score of each row of the last axis; NaN for no valid label."""
        at = labels.clamp(0, scores.shape[-1] - 1)
        picked = scores.gather(-1, at[..., None].long())[..., 0]
        return picked.where(at == labels, math.nan)

    def widened(self, input: torch.Tensor | float) -> torch.Tensor:
        """Convert half precision to float32 for sums and exponentials."""
        input = self.asarray(input)
        if input.dtype in (torch.bfloat16, torch.float16):
            return input.float()
        return input

    def cast_like(self, input: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """In the dtype of `like`."""
        return input.to(like.dtype)

    def parts(self, input: torch.Tensor, count: int) -> list[torch.Tensor]:
        """Split the last axis into equal pieces."""
        return list(input.chunk(count, -1))

    def unbiased_factor(self, like: torch.Tensor, shape: tuple[Any, ...]) -> Any:
        """Of n elements in that shape, n / (n - 1); of one, 1."""
        size = math.prod(shape)
        return size / max(size - 1, 1)

    def layer_norm(
        self,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        epsilon: float,
    ) -> torch.Tensor:
        """Zero mean and unit variance along the last axis, then scaled and moved."""
        return F.layer_norm(input, input.shape[-1:], weight, bias, epsilon)

    def rms_norm(
        self, input: torch.Tensor, weight: torch.Tensor | None, epsilon: float
    ) -> torch.Tensor:
        """Unit mean square along the last axis, then scaled."""
        return F.rms_norm(input, input.shape[-1:], weight, epsilon)

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        causal: bool,
        scale: float,
    ) -> torch.Tensor:
        """Softmax attention on (batch, time, heads, features); see `ops`."""
        reads, seen = query.shape[1], key.shape[1]
        # is_causal selects the fused kernels, but torch aligns its triangle at the
        # first key. With a cache of keys the queries are the last ones, so a mask is
        # built.
        square = causal and mask is None and reads == seen
        if causal and not square:
            allowed = torch.ones(reads, seen, dtype=torch.bool, device=query.device)
            allowed = allowed.tril(seen - reads)
            if mask is None:
                mask = allowed
            elif mask.dtype == torch.bool:
                mask = mask & allowed
            else:
                mask = mask.where(allowed, -math.inf)
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            is_causal=square,
            scale=scale,
            # Only where heads share keys: fewer kernels of torch support the flag.
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return out.transpose(1, 2)
