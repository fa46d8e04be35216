"""The mechanisms of all variables of an SCM, as padded arrays of one size.

One formula covers all kinds, so a program compiled for `D` variables and `H` hidden
units runs every model that fits into them:

    raw_j = bias_j + x @ weight[:, j] + act_j(x @ inner[:, j] + phase_j) @ outer_j
            + noise_scale_j * exp(tanh(x @ spread[:, j])) * noise_j
    x_j   = (raw_j - centre_j) / scale_j

`act` is tanh for a small network and cos for random Fourier features (Rahimi & Recht
2007). `evaluate` computes it. User-defined functions are stored in the SCM.
"""

import dataclasses
from typing import Any, TypeAlias

import jax
import numpy as np

# A JAX or NumPy array, or whatever `vmap` and `jax.tree` put in its place.
Leaf: TypeAlias = Any

KINDS = ("linear", "mlp", "rff", "function")
"""The kinds that `Mechanisms.kind` indexes."""


# `eq=False`, because a generated `__eq__` would compare arrays, which have no single
# truth value.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mechanisms:
    """The arrays of a structural causal model; a pytree, to `vmap` over when stacked.

    `D` variables, the last of which may be padding; `H` hidden units. The first index
    is the parent, the second the child.

    Attributes:
        parents: the graph, `[parent, child]`; bool `(D, D)`.
        order: variables by index, causes before effects, padding last; int32 `(D,)`.
        present: False for padding; bool `(D,)`.
        kind: index into `("linear", "mlp", "rff", "function")`; int32 `(D,)`.
        weight: linear effects, `(D, D)`.
        bias: constants, `(D,)`.
        inner: weights into the hidden units, `(D, D, H)`.
        phase: constants of the hidden units, `(D, H)`.
        outer: weights out of the hidden units, `(D, H)`; 0 where `kind` is linear.
        noise: index into the kinds of noise (`NOISES`); int32 `(D,)`.
        noise_scale: standard deviation of the noise where `spread` is 0, `(D,)`.
        spread: effects of parents on the noise's scale, `(D, D)`; 0 for
            homoscedastic noise. The scale stays within a factor of e.
        centre: subtracted from the raw value, `(D,)`.
        scale: divisor after that, `(D,)`; > 0.
    """

    parents: Leaf
    order: Leaf
    present: Leaf
    kind: Leaf
    weight: Leaf
    bias: Leaf
    inner: Leaf
    phase: Leaf
    outer: Leaf
    noise: Leaf
    noise_scale: Leaf
    spread: Leaf
    centre: Leaf
    scale: Leaf


def empty_mechanisms(batch: tuple[int, ...], d: int, hidden: int = 0) -> Mechanisms:
    """Allocate NumPy arrays of `d` standard normal variables without edges."""
    zeros = lambda *shape: np.zeros((*batch, *shape), np.float32)
    ones = np.ones((*batch, d), np.float32)
    return Mechanisms(
        parents=np.zeros((*batch, d, d), bool),
        order=np.tile(np.arange(d, dtype=np.int32), (*batch, 1)),
        present=np.ones((*batch, d), bool),
        kind=np.zeros((*batch, d), np.int32),
        weight=zeros(d, d),
        bias=zeros(d),
        inner=zeros(d, d, hidden),
        phase=zeros(d, hidden),
        outer=zeros(d, hidden),
        noise=np.zeros((*batch, d), np.int32),
        noise_scale=ones,
        spread=zeros(d, d),
        centre=zeros(d),
        # A copy, because callers write into both arrays.
        scale=ones.copy(),
    )
