"""Draw a torch model's initial weights, on the backend's device."""

from collections.abc import Mapping

import numpy as np
import torch

from frugax.models.graph import Fill, Normal, Weight

from ._namespace import TorchNamespace


def draw(
    key: torch.Tensor,
    weights: Mapping[str, Weight],
    dtype: np.dtype,
    xp: TorchNamespace,
) -> dict[str, torch.Tensor]:
    """Every weight by key."""
    # Drawn in float32 at least, so that all dtypes start alike.
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    made: dict[str, torch.Tensor] = {}
    for number, (name, weight) in enumerate(weights.items()):
        init = weight.init
        if isinstance(init, Fill):
            made[name] = xp.full(weight.shape, init.value, dtype)
            continue
        # Each weight has its own key, so adding a layer at the end of a model does not
        # change the weights before it.
        own = xp.fold_in(key, number)
        if isinstance(init, Normal):
            drawn = init.std * xp.random_normal(own, weight.shape, wide)
        else:
            drawn = xp.random_uniform(own, weight.shape, init.low, init.high, wide)
        made[name] = xp.cast(drawn, dtype)
    return made
