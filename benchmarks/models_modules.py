"""`from_torch` on modules of packages that the tests do not install.

    uv pip install --no-deps --target FOLDER mambapy mlp-mixer-pytorch siren-pytorch \\
        conformer rtdl-revisiting-models pytorchcv pytorch-tcn linformer einops \\
        nystrom-attention g-mlp-pytorch
    PYTHONPATH=FOLDER python -m benchmarks.models_modules

Each line is a module, the certificate's difference from torch (model in torch), that of
the model in JAX, and the number of parameters; or why it is not converted.
"""

import importlib
import warnings

import numpy as np
import torch  # noqa: TID253 - this file is about it

import frugax as fx
from frugax import models
from frugax.errors import UnsupportedModuleError


def mamba(m):
    config = m.MambaConfig(d_model=16, n_layers=2, pscan=False)
    return m.Mamba(config), torch.randn(2, 8, 16)


def ft_transformer(m):
    rates = dict.fromkeys(("attention_dropout", "ffn_dropout", "residual_dropout"), 0.0)
    net = m.FTTransformer(
        n_cont_features=3,
        cat_cardinalities=[4, 5],
        d_out=2,
        n_blocks=2,
        d_block=16,
        attention_n_heads=2,
        ffn_d_hidden=None,
        ffn_d_hidden_multiplier=4 / 3,
        **rates,
    )
    return net, torch.randn(4, 3), torch.randint(0, 4, (4, 2))


def mixer(m):
    net = m.MLPMixer(
        image_size=16, channels=3, patch_size=4, dim=16, depth=2, num_classes=5
    )
    return net, torch.randn(2, 3, 16, 16)


IMAGE = (1, 3, 64, 64)
# The name of a module in a package, its kind, and how it is made with its inputs.
MODULES = {
    "mambapy.mamba": ("state space", mamba),
    "mlp_mixer_pytorch": ("mixer", mixer),
    "siren_pytorch": (
        "implicit",
        lambda m: (
            m.SirenNet(dim_in=2, dim_hidden=16, dim_out=3, num_layers=3),
            torch.randn(5, 2),
        ),
    ),
    "conformer": (
        "convolution and attention",
        lambda m: (
            m.ConformerBlock(dim=16, dim_head=8, heads=2, conv_kernel_size=7),
            torch.randn(2, 9, 16),
        ),
    ),
    "rtdl_revisiting_models": ("tabular transformer", ft_transformer),
    "pytorchcv.models.densenet_cifar": (
        "convolutional",
        lambda m: (m.densenet40_k12_cifar10(), torch.randn(1, 3, 32, 32)),
    ),
    "pytorchcv.models.unet": (
        "U-Net",
        lambda m: (m.unet_cityscapes(in_size=(64, 64)), torch.randn(IMAGE)),
    ),
    "pytorch_tcn": (
        "causal convolution",
        lambda m: (m.TCN(num_inputs=4, num_channels=[8, 8]), torch.randn(2, 4, 12)),
    ),
    "linformer": (
        "linear attention",
        lambda m: (
            m.Linformer(dim=16, seq_len=12, depth=2, heads=2, k=6),
            torch.randn(1, 12, 16),
        ),
    ),
    "nystrom_attention": (
        "low-rank attention",
        lambda m: (
            m.Nystromformer(dim=16, dim_head=8, heads=2, depth=1, num_landmarks=4),
            torch.randn(1, 16, 16),
        ),
    ),
    "g_mlp_pytorch": (
        "gated MLP",
        lambda m: (
            m.gMLP(num_tokens=20, dim=16, depth=2, seq_len=8),
            torch.randint(0, 20, (2, 8)),
        ),
    ),
}


def leaves(outputs):
    """The tensors of an output."""
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if isinstance(outputs, (tuple, list)):
        return [t for part in outputs for t in leaves(part)]
    return [] if outputs is None else [outputs]


def compare(module, inputs):
    imported = models.from_torch(module, inputs)
    compiled = fx.compile(imported.model, fx.JaxBackend())
    arrays = [t.numpy() for t in inputs]
    arrays = [a.astype("int32") if a.dtype == "int64" else a for a in arrays]
    data = dict(zip(imported.shapes, arrays, strict=True))
    got = compiled.evaluate(imported.params, data).values()
    with torch.no_grad():
        wanted = [t.numpy() for t in leaves(module.eval()(*inputs))]
    gaps = [
        np.abs(np.asarray(g) - w).max() / np.abs(w).max()
        for g, w in zip(got, wanted, strict=True)
    ]
    return imported.certificate.max_error, max(gaps), len(imported.params)


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    for name, (kind, make) in MODULES.items():
        try:
            module, *inputs = make(importlib.import_module(name))
            in_torch, in_jax, params = compare(module.eval(), tuple(inputs))
        except (ImportError, UnsupportedModuleError) as e:
            print(f"{name} ({kind}): {type(e).__name__} {e}", flush=True)
            continue
        print(f"{name} ({kind}): {in_torch:.1e} {in_jax:.1e} {params}", flush=True)


if __name__ == "__main__":
    main()
